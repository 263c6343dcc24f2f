"""Numbered messages into topics under one producer name, so that the broker drops what it has already.

The broker says at the start what the last id of that name was, and the sender goes on behind its batch; what the client sends again
after a lost connection the broker drops. Both need deduplication to be on in the namespace or topic; without it, sending is at
least once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pulsar

from magnetar.hashing.java_hash import java_string_hash
from magnetar.pipeline.connect.broker import shared_client
from magnetar.pipeline.connect.errors import WriteError
from magnetar.pipeline.connect.options import WriteOptions, full_name
from magnetar.pipeline.connect.segment_order import is_scalable
from magnetar.pipeline.connect.segments.sender import SegmentSender

ROW_BITS: Final = 24
"""A writer sends at most 2^24 rows per epoch; more is a WriteError that asks for more partitions."""
BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 1 << 20
"""A batch ends at either. They are not options: with others a repeated epoch would cut its batches elsewhere."""
NEVER_MS: Final = 3_600_000
"""The client's own timer may not cut a batch."""
BUSY_TIMEOUT_S: Final = 60.0
"""For the earlier attempt of a task, whose connection may still hold the producer's name."""
BUSY_WAIT_S: Final = 0.2


_COMPRESSIONS: Final = {
    "NONE": pulsar.CompressionType.NONE,
    "LZ4": pulsar.CompressionType.LZ4,
    "ZLIB": pulsar.CompressionType.ZLib,
    "ZSTD": pulsar.CompressionType.ZSTD,
    "SNAPPY": pulsar.CompressionType.SNAPPY,
}


def sequence_id(epoch: int, row: int) -> int:
    """Of a writer's row within an epoch. WriteError above 2^ROW_BITS rows."""
    if row >> ROW_BITS:
        raise WriteError(f"more than {1 << ROW_BITS} rows of one task in one epoch: repartition to more partitions")
    return epoch << ROW_BITS | row


class _Lane:
    """One producer and the batch that is being filled for it. Where a batch ends depends on the rows of the epoch alone.

    The official client numbers a batch by its first message only, so the broker knows whole batches: a repeated epoch has to cut them
    at the same rows, and those whose first number the broker has are left out.
    """

    __slots__ = ("_last", "_pending", "_size", "producer")

    def __init__(self, producer: pulsar.Producer) -> None:
        self.producer = producer
        self._last = producer.last_sequence_id()
        self._pending: list[tuple[bytes | None, dict[str, Any]]] = []
        self._size = 0

    def add(self, content: bytes | None, fields: dict[str, Any], sent: Callable[[pulsar.Result, Any], None]) -> None:
        size = 0 if content is None else len(content)
        if self._pending and self._size + size > BATCH_BYTES:
            self.flush(sent)
        self._pending.append((content, fields))
        self._size += size
        if len(self._pending) == BATCH_ROWS:
            self._send(sent)

    def flush(self, sent: Callable[[pulsar.Result, Any], None]) -> None:
        """Send what there is, as one batch, and wait for the broker."""
        self._send(sent)
        self.producer.flush()

    def _send(self, sent: Callable[[pulsar.Result, Any], None]) -> None:
        if self._pending and self._pending[0][1]["sequence_id"] > self._last:
            for content, fields in self._pending:
                self.producer.send_async(content, sent, **fields)
        self._pending.clear()
        self._size = 0


class Sender:
    """One task's producers: one per topic partition, so that sequence ids rise on each whatever the routing."""

    def __init__(self, options: WriteOptions, name: str, schema: pulsar.schema.Schema | None = None) -> None:
        """`schema` is registered with each topic; the values that are sent are encoded already."""
        self._options = options
        self._name = name
        self._schema = schema or pulsar.schema.BytesSchema()
        self._client = shared_client(options.connection)
        self._parts: dict[str, list[str]] = {}
        self._lanes: dict[str, _Lane] = {}
        self._scalable: dict[str, SegmentSender] = {}
        self._failed: pulsar.Result | None = None
        self._lock = threading.Lock()

    def send(self, sequence: int, value: Any, key: Any, topic: Any, event_ms: int | None, properties: Any) -> None:
        """A value of None is sent as Pulsar's null value, which compaction and UPSERT take for a delete."""
        if self._failed is not None:
            raise WriteError(f"a message was not taken: {self._failed}")
        fields = {
            "properties": dict(properties) if properties else None,
            "partition_key": key.decode() if isinstance(key, bytes) else key,
            "sequence_id": sequence,
            "event_timestamp": event_ms,
        }
        content = value.encode() if isinstance(value, str) else value
        name = self._options.topic or topic
        if name is not None and is_scalable(name):
            self._segments_of(full_name(name)).send(content, fields)
            return
        self._lane(self._route(topic, key, sequence)).add(content, fields, self._sent)

    def finish(self) -> None:
        """Until the broker has all of it."""
        for lane in self._lanes.values():
            lane.flush(self._sent)
        for sender in self._scalable.values():
            sender.finish()
        if self._failed is not None:
            raise WriteError(f"a message was not taken: {self._failed}")

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.producer.close()
        for sender in self._scalable.values():
            sender.close()

    def _sent(self, result: pulsar.Result, _message_id: Any) -> None:
        if result != pulsar.Result.Ok:
            with self._lock:
                self._failed = self._failed or result

    def _route(self, topic: str | None, key: Any, sequence: int) -> str:
        """By the key as the Java client does, else in turn by the row: a repeated task takes the same way."""
        name = self._options.topic or topic
        if name is None:
            raise WriteError("__topic is NULL: every row needs one")
        if name not in self._parts:
            self._parts[name] = self._client.get_topic_partitions(full_name(name))
        parts = self._parts[name]
        if len(parts) == 1:
            return parts[0]
        text = key.decode() if isinstance(key, bytes) else key
        return parts[(sequence if text is None else java_string_hash(text) & 0x7FFFFFFF) % len(parts)]

    def _segments_of(self, topic: str) -> SegmentSender:
        if topic not in self._scalable:
            self._scalable[topic] = SegmentSender(self._options, self._name, self._schema, topic)
        return self._scalable[topic]

    def _lane(self, topic: str) -> _Lane:
        if topic not in self._lanes:
            self._lanes[topic] = _Lane(self._open(topic))
        return self._lanes[topic]

    def _open(self, topic: str) -> pulsar.Producer:
        give_up = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                return self._client.create_producer(
                    topic,
                    schema=self._schema,
                    producer_name=self._name,
                    batching_enabled=True,
                    batching_max_messages=BATCH_ROWS,
                    batching_max_allowed_size_in_bytes=4 * BATCH_BYTES,
                    batching_max_publish_delay_ms=NEVER_MS,
                    max_pending_messages=4 * BATCH_ROWS,
                    block_if_queue_full=True,
                    send_timeout_millis=self._options.send_timeout_ms or self._options.connection.operation_timeout_ms,
                    compression_type=_COMPRESSIONS[self._options.compression],
                )
            except pulsar.ProducerBusy as error:
                if time.monotonic() >= give_up:
                    raise WriteError(f"{topic}: another producer holds the name {self._name}") from error
                time.sleep(BUSY_WAIT_S)
