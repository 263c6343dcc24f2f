"""Numbered rows into one segment of a scalable topic, over a connection of their own: the official client opens no segments.

An entry says the highest number in it, so the broker's deduplication tells exactly which rows it has, however they were cut into entries:
a sender may cut them anew, as it has to where segments were split meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pulsar

from magnetar.base.clock import SystemClock
from magnetar.client.scalable.layout import RING_MASK, Segment
from magnetar.pipeline.connect.errors import WriteError
from magnetar.pipeline.connect.options import WriteOptions
from magnetar.pipeline.connect.raw.connection import RECONNECT_WAIT_S, RawConnection, RawConnectionError, connect_to
from magnetar.wire.pulsar import batches, client_commands, compression, headers
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandProducerSuccess,
    CompressionType,
    MessageMetadata,
    Schema,
    ServerError,
    SingleMessageMetadata,
)

BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 1 << 20
"""An entry ends at either."""
IN_FLIGHT_MAX: Final = 8
"""Entries that are not confirmed yet; above it a lane waits."""

_PRODUCER: Final = 1
_FINAL: Final = (
    ServerError.AuthenticationError,
    ServerError.AuthorizationError,
    ServerError.InvalidTopicName,
    ServerError.NotAllowedError,
    ServerError.IncompatibleSchema,
    ServerError.ProducerBlockedQuotaExceededError,
    ServerError.ProducerBlockedQuotaExceededException,
)


class SealedError(Exception):
    """The segment takes no more messages: others have its range."""


@dataclass(frozen=True, slots=True)
class Row:
    """`place`: on the ring of segments. `key_hash`: None for a row without a key."""

    sequence: int
    place: int
    key_hash: int | None
    content: bytes | None
    fields: dict[str, Any]


@dataclass(slots=True)
class _Sent:
    rows: list[Row]
    data: bytes


class SegmentLane:
    """One segment's producer. Opens its connection when it is first needed and again after it broke. For one thread.

    Raises SealedError, WriteError.
    """

    def __init__(
        self, options: WriteOptions, name: str, schema: pulsar.schema.Schema, segment: Segment, patience_s: float
    ) -> None:
        """`patience_s`: how long a broker may fail to answer before a WriteError is raised."""
        self.segment = segment
        self._options = options
        self._name = name
        self._schema = schema
        self._patience_s = patience_s
        self._codec = CompressionType.Value(options.compression)
        self._held: RawConnection | None = None
        self._version = b""
        self._last = -1
        self._pending: list[Row] = []
        self._size = 0
        self._sent: deque[_Sent] = deque()

    def last(self) -> int:
        """The highest number of this producer name that the segment holds; -1 without deduplication."""
        self._connection()
        return self._last

    def make_room(self, row: Row) -> None:
        """Send what the row would not fit into one entry with."""
        if len(self._pending) >= BATCH_ROWS or self._size + len(row.content or b"") > BATCH_BYTES:
            self._flush()

    def add(self, row: Row) -> None:
        """It is sent with others that come, or by `finish`."""
        self._pending.append(row)
        self._size += len(row.content or b"")

    def finish(self) -> None:
        """Until the broker has all of it."""
        self._flush()
        self.settle()

    def settle(self, left: int = 0) -> None:
        """Until so few entries are not confirmed."""
        self._patiently(lambda: self._receipts(left))

    def unconfirmed(self) -> list[Row]:
        """In order; they are the caller's now."""
        found = [row for entry in self._sent for row in entry.rows] + self._pending
        self._sent.clear()
        self._pending, self._size = [], 0
        return found

    def close(self) -> None:
        """What is confirmed stays; the name is free once the broker has noticed."""
        if self._held is not None:
            try:
                self._held.send(client_commands.close_producer(_PRODUCER, self._held.request_id()))
            except RawConnectionError:
                pass
            self._drop()

    def _drop(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    # ---- Sending

    def _flush(self) -> None:
        if not self._pending:
            return
        self.settle(IN_FLIGHT_MAX - 1)
        entry = _Sent(self._pending, self._encoded(self._pending))
        self._pending, self._size = [], 0
        most = self._connection().message_bytes_max
        if most and len(entry.data) > most:
            raise WriteError(f"{self.segment.topic}: a row has {len(entry.data)} bytes; the broker takes {most}")
        self._sent.append(entry)
        self._patiently(lambda: self._write(entry))

    def _write(self, entry: _Sent) -> None:
        if self._held is None:
            self._connection()  # which sends whatever is not confirmed
            return
        first, last, count = entry.rows[0].sequence, entry.rows[-1].sequence, len(entry.rows)
        header = client_commands.send_header(
            _PRODUCER, first, last if count > 1 else 0, count, is_chunk=False, marker=False, data_bytes=len(entry.data)
        )
        self._held.send_bytes(header + entry.data)

    def _receipts(self, left: int) -> None:
        while len(self._sent) > left:
            held = self._connection()
            if len(self._sent) <= left:
                return
            found = held.commands(held.timeout_s)
            for command in found:
                self._take(command)

    def _take(self, command: BaseCommand) -> None:
        if command.type == BaseCommand.SEND_RECEIPT:
            if self._sent and command.send_receipt.sequence_id == self._sent[0].rows[0].sequence:
                self._sent.popleft()
        elif command.type == BaseCommand.SEND_ERROR:
            refused = command.send_error
            raise RawConnectionError(f"{self.segment.topic}: a message was not taken: {refused.message}", refused.error)
        elif command.type in (BaseCommand.CLOSE_PRODUCER, BaseCommand.ERROR):
            code = command.error.error if command.type == BaseCommand.ERROR else None
            raise RawConnectionError(f"{self.segment.topic}: the broker closed the producer", code)

    def _patiently(self, act: Any) -> None:
        """Again over a new connection as long as that may help."""
        give_up_s: float | None = None
        while True:
            unconfirmed = len(self._sent)
            try:
                act()
                return
            except RawConnectionError as error:
                self._drop()
                if error.code == ServerError.TopicTerminatedError or error.code == ServerError.TopicNotFound:
                    raise SealedError from error
                now_s = time.monotonic()
                if give_up_s is None or len(self._sent) < unconfirmed:
                    give_up_s = now_s + self._patience_s
                if error.code in _FINAL or now_s >= give_up_s:
                    raise WriteError(f"{self.segment.topic}: rows cannot be written: {error}") from error
                time.sleep(RECONNECT_WAIT_S)

    def _connection(self) -> RawConnection:
        if self._held is None:
            self._patiently(self._open)
        assert self._held is not None
        return self._held

    def _open(self) -> None:
        if self._held is not None:
            return
        held, answer = open_producer(self._options, self._name, self._schema, self.segment.topic)
        self._held, self._version, self._last = held, answer.schema_version, answer.last_sequence_id
        self._sent = deque(each for each in self._sent if each.rows[-1].sequence > self._last)
        for entry in self._sent:
            self._write(entry)

    def _encoded(self, rows: Sequence[Row]) -> bytes:
        first = rows[0]
        metadata = MessageMetadata(
            producer_name=self._name, sequence_id=first.sequence, publish_time=SystemClock().now_ms()
        )
        hashes = [row.key_hash for row in rows if row.key_hash is not None]
        if len(hashes) == len(rows):
            places = [each & RING_MASK for each in hashes]
            metadata.entry_hash_min, metadata.entry_hash_max = min(places), max(places)
        if self._version:
            metadata.schema_version = self._version
        if len(rows) == 1:
            _describe(metadata, first)
            payload = first.content or b""
        else:
            metadata.num_messages_in_batch = len(rows)
            metadata.highest_sequence_id = rows[-1].sequence
            payload = batches.join(_single(row) for row in rows)
        metadata.uncompressed_size = len(payload)
        if self._codec:
            metadata.compression = self._codec
            payload = compression.compress(self._codec, payload)
        return headers.with_checksum(metadata, payload)


def open_producer(
    options: WriteOptions, name: str, schema: pulsar.schema.Schema | None, topic: str, *, asks_only: bool = False
) -> tuple[RawConnection, CommandProducerSuccess]:
    """Raises RawConnectionError."""
    held = connect_to(options.connection, topic)
    try:
        told = {client_commands.LAST_SEQUENCE_METADATA: "true"} if asks_only else {}
        command = client_commands.producer(topic, _PRODUCER, held.request_id(), name, told)
        command.producer.user_provided_producer_name = True
        if schema is not None:
            _register(command, schema)
        held.send(command)
        return held, held.answer(BaseCommand.PRODUCER_SUCCESS).producer_success
    except BaseException:
        held.close()
        raise


def _register(command: BaseCommand, schema: pulsar.schema.Schema) -> None:
    info = schema.schema_info()
    kind = str(info.schema_type()).rpartition(".")[2]
    numbers = {name.upper(): number for name, number in Schema.Type.items()}
    if kind in ("BYTES", "NONE"):
        return
    command.producer.schema.name = info.name()
    command.producer.schema.type = numbers[kind]
    command.producer.schema.schema_data = info.schema().encode()


def _single(row: Row) -> batches.Single:
    payload = row.content or b""
    single = SingleMessageMetadata(payload_size=len(payload), sequence_id=row.sequence)
    _describe(single, row)
    return single, payload


def _describe(metadata: MessageMetadata | SingleMessageMetadata, row: Row) -> None:
    key, properties, event_ms = (row.fields[name] for name in ("partition_key", "properties", "event_timestamp"))
    if key is not None:
        metadata.partition_key = key
    for name, value in (properties or {}).items():
        metadata.properties.add(key=name, value=value)
    if event_ms:
        metadata.event_time = event_ms
    if row.content is None:
        metadata.null_value = True
