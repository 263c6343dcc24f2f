"""Entries of a topic as a reader gets them: whole, in order, with the messages that are in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar
from uuid import uuid4

from google.protobuf.message import DecodeError

from magnetar.base.errors import CorruptionError
from magnetar.pipeline.connect.offsets import EARLIEST, Position
from magnetar.pipeline.connect.options import RECEIVER_QUEUE, Connection
from magnetar.pipeline.connect.raw.batch_walk import Messages, alone, walk
from magnetar.pipeline.connect.raw.connection import (
    FRAME_BYTES_MAX,
    RECONNECT_WAIT_S,
    RawConnection,
    RawConnectionError,
    connect_to,
)
from magnetar.pipeline.errors import PipelineError
from magnetar.wire.pulsar.batches import is_batch
from magnetar.wire.pulsar.compression import PayloadError, decompress
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.headers import checksum_matches, metadata_bounds
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandSubscribe,
    MessageIdData,
    MessageMetadata,
    ServerError,
)

NO_ENTRY: Final = 2**64 - 1
"""How the protocol spells -1 as an entry or ledger id."""


class Entry(NamedTuple):
    """`batch_size` 0: not a batch, its message has index 0. `schema_version`: as the broker named it, None without a schema."""

    ledger: int
    entry: int
    batch_size: int
    publish_time_ms: int
    schema_version: bytes | None
    messages: Messages

    def within(self, start: Position, end: Position) -> Entry:
        """Less what lies before `start` or not before `end`."""
        first = start.batch if (self.ledger, self.entry) == start[:2] else 0
        last = end.batch if (self.ledger, self.entry) == end[:2] else None
        if first == 0 and last is None:
            return self
        return self._replace(messages=self.messages.cut(first, last))


class Counted(NamedTuple):
    """What an entry holds, from its metadata alone. `size_bytes`: as it is before compression, with the messages' own metadata."""

    ledger: int
    entry: int
    messages: int
    size_bytes: int


class Published(NamedTuple):
    """When an entry was published."""

    ledger: int
    entry: int
    time_ms: int


E = TypeVar("E", Entry, Counted, Published)
Read = Callable[[Frame], tuple[E, int]]
"""A MESSAGE frame -> (what is wanted of it, the permits that it took)."""


class UnreadableEntryError(Exception):
    """An entry that only the official client reads: encrypted, or a part of a chunked message."""


class DamagedEntryError(PipelineError, CorruptionError):
    """An entry came with another checksum, or is not what its metadata says. Reading it again may help, if the connection did it."""

    slug = "damaged-entry"
    retriable = True


class RawEntries(Generic[E]):
    """Entries from raw frames; connects anew as often as it has to, and goes on behind the last entry.

    `queue`: messages that the broker may send ahead.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        start: Position,
        read: Read[E],
        queue: int = RECEIVER_QUEUE,
        *,
        rollback_s: int = 0,
    ) -> None:
        """`rollback_s`: begin with what was published so long before now, by the broker's clock, instead of with the first message."""
        self._rollback_s = rollback_s
        self._connection = connection
        self._read: Read[E] = read
        self._queue = queue
        self._topic = topic
        self._next = start
        self._held: RawConnection | None = None
        self._permits = 0
        self._damaged = False
        """Whether the entry at the next position came damaged over the connection before."""
        self.problem = ""
        """What broke the last connection."""
        self.missing = False
        """True when the topic does not exist."""

    def receive(self, timeout_s: float) -> list[E]:
        """Entries in order, each once; [] when none came in time. Raises UnreadableEntryError, with nothing lost before it, and
        DamagedEntryError for an entry that is damaged over a second connection as well."""
        try:
            frames = self._open().receive(timeout_s)
        except RawConnectionError as error:
            self.problem, self.missing = str(error), error.code == ServerError.TopicNotFound
            self.close()
            time.sleep(RECONNECT_WAIT_S)
            return []
        found: list[E] = []
        for each in frames:
            try:
                entry, count = self._read(each)
            except UnreadableEntryError:
                if not found:
                    raise
                self.close()  # what is before it goes first; it comes again over the next connection
                return found
            except DamagedEntryError as error:
                if self._damaged and not found:
                    raise
                self.problem, self._damaged = str(error), True
                self.close()  # the connection may have done it
                return found
            self._permits += count
            if (entry.ledger, entry.entry) >= self._next[:2]:
                self._damaged = False
                self._next = Position(entry.ledger, entry.entry + 1)
                found.append(entry)
        self._flow()
        return found

    def has_more(self) -> bool | None:
        """Whether there is a message at or behind the next position; None when the broker cannot be asked now."""
        try:
            held = self._open()
            ask = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
            ask.getLastMessageId.consumer_id = 0
            ask.getLastMessageId.request_id = held.request_id()
            held.send(ask)
            last = held.answer(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE).getLastMessageIdResponse.last_message_id
        except RawConnectionError:
            self.close()
            return None
        if last.entryId >= NO_ENTRY - 1 or last.ledgerId >= NO_ENTRY - 1:
            return False
        return (last.ledgerId, last.entryId) >= self._next[:2]

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def _open(self) -> RawConnection:
        if self._held is None:
            held = connect_to(self._connection, self._topic)
            try:
                held.send(_subscribe(self._topic, self._next, held.request_id(), self._rollback_s))
                held.answer(BaseCommand.SUCCESS)
            except BaseException:
                held.close()
                raise
            self._held = held
            self._permits = self._queue
            self._flow()
        return self._held

    def _flow(self) -> None:
        if 2 * self._permits >= self._queue and self._held is not None:
            flow = BaseCommand(type=BaseCommand.FLOW)
            flow.flow.consumer_id = 0
            flow.flow.messagePermits = self._permits
            self._permits = 0
            try:
                self._held.send(flow)
            except RawConnectionError:
                self.close()


def read_entry(received: Frame) -> tuple[Entry, int]:
    """(the entry, the permits it took). Raises DamagedEntryError, UnreadableEntryError."""
    at, metadata, end = _metadata(received)
    data = received[1]
    if not checksum_matches(data):
        raise DamagedEntryError(f"entry {at.ledgerId}:{at.entryId} does not match its checksum")
    if metadata.encryption_keys or metadata.num_chunks_from_msg > 1:
        raise UnreadableEntryError
    return _entry(at, metadata, data, end), max(metadata.num_messages_in_batch, 1)


def count_entry(received: Frame) -> tuple[Counted, int]:
    """The same of its metadata alone, which is all that is looked at; a message in chunks counts with its last one."""
    at, metadata, end = _metadata(received)
    messages = max(metadata.num_messages_in_batch, 1)
    whole = metadata.num_chunks_from_msg <= 1 or metadata.chunk_id == metadata.num_chunks_from_msg - 1
    size = metadata.uncompressed_size if metadata.compression else len(received[1]) - end
    return Counted(at.ledgerId, at.entryId, messages if whole else 0, size), messages


def published_at(received: Frame) -> tuple[Published, int]:
    """The same; a part of a message in chunks counts as one."""
    at, metadata, _ = _metadata(received)
    return Published(at.ledgerId, at.entryId, metadata.publish_time), max(metadata.num_messages_in_batch, 1)


def _metadata(received: Frame) -> tuple[MessageIdData, MessageMetadata, int]:
    """(its id, its metadata, where its payload begins)."""
    data = received[1]
    at = BaseCommand.FromString(received[0]).message.message_id
    try:
        start, end = metadata_bounds(data)
        return at, MessageMetadata.FromString(data[start:end]), end
    except (ValueError, DecodeError) as error:
        raise DamagedEntryError(f"entry {at.ledgerId}:{at.entryId} has no message metadata: {error}") from error


def _entry(at: MessageIdData, metadata: MessageMetadata, data: bytes, payload_at: int) -> Entry:
    version = metadata.schema_version if metadata.HasField("schema_version") else None
    batched, count = is_batch(metadata), metadata.num_messages_in_batch
    try:
        if batched and not metadata.compression:
            messages = walk(data, count, payload_at)
        else:
            plain = decompress(metadata.compression, data[payload_at:], metadata.uncompressed_size, FRAME_BYTES_MAX)
            messages = walk(plain, count) if batched else _alone(plain, metadata)
    except PayloadError as error:
        raise DamagedEntryError(f"entry {at.ledgerId}:{at.entryId}: {error}") from error
    size = metadata.num_messages_in_batch if batched else 0
    return Entry(at.ledgerId, at.entryId, size, metadata.publish_time, version, messages)


def _alone(plain: bytes, metadata: MessageMetadata) -> Messages:
    properties = [(each.key, each.value) for each in metadata.properties]
    return alone(plain, 0, metadata.partition_key or None, metadata.event_time, properties, metadata.null_value)


def _subscribe(topic: str, start: Position, request_id: int, rollback_s: int = 0) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    subscribe = command.subscribe
    subscribe.topic = topic
    subscribe.subscription = f"reader-{uuid4().hex[:10]}"
    subscribe.subType = CommandSubscribe.Exclusive
    subscribe.consumer_id = 0
    subscribe.request_id = request_id
    subscribe.durable = False
    if start <= EARLIEST:
        subscribe.start_message_id.ledgerId = NO_ENTRY
        subscribe.start_message_id.entryId = NO_ENTRY
        subscribe.initialPosition = CommandSubscribe.Earliest
        if rollback_s:
            subscribe.start_message_rollback_duration_sec = rollback_s
    else:
        # With a batch index the broker begins with this entry, without one behind it.
        subscribe.start_message_id.ledgerId = start.ledger
        subscribe.start_message_id.entryId = max(start.entry, 0)
        subscribe.start_message_id.batch_index = 0
    return command
