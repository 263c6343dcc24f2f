"""Rows into topics: batch and streaming writers over Arrow, numbered so that a repeated task adds nothing.

Each task writes under a producer name of its own, (query, partition), with sequence ids epoch << ROW_BITS | row. The broker says at
the start what the last id of that name was, and the task goes on behind its batch; what the client sends again after a lost connection the
broker drops. Both need deduplication to be on in the namespace; without it, writing is at least once.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import pulsar
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from magnetar.hashing.java_hash import java_string_hash
from magnetar.pipeline.connect.broker import shared_client
from magnetar.pipeline.connect.errors import OptionError, WriteError
from magnetar.pipeline.connect.options import WriteOptions, full_name

ROW_BITS: Final = 24
"""A task writes at most 2^24 rows per epoch; more is a WriteError that asks for more partitions."""
BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 1 << 20
"""A batch ends at either. They are not options: with others a repeated epoch would cut its batches elsewhere."""
NEVER_MS: Final = 3_600_000
"""The client's own timer may not cut a batch."""
BUSY_TIMEOUT_S: Final = 60.0
"""For the earlier attempt of a task, whose connection may still hold the producer's name."""
BUSY_WAIT_S: Final = 0.2
BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
"""Local properties that Spark sets on the tasks of a micro-batch; the query id is the checkpoint's, the same after a restart."""

COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "value": (BinaryType(), StringType()),
    "__key": (StringType(), BinaryType()),
    "__topic": (StringType(),),
    "__eventTime": (TimestampType(),),
    "__messageProperties": (MapType(StringType(), StringType()),),
}


class TopicWriter(DataSourceArrowWriter):
    """`df.write.format("magnetar").mode("append")`. A task that Spark runs again goes on where the first attempt ended."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._name = options.producer_name or f"magnetar-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, self._name, 0, iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("magnetar")`. Exactly once as long as a repeated micro-batch has the same rows in the same partitions."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        batch, query = (context.getLocalProperty(key) for key in (BATCH_ID, QUERY_ID)) if context else (None, None)
        if batch is None or query is None:
            raise WriteError("Spark did not say which micro-batch this task belongs to; write through writeStream")
        return _write(self._options, self._options.producer_name or f"magnetar-{query}", int(batch), iterator)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises OptionError, which says how to make the column that is missing or not known."""
    for field in schema.fields:
        allowed = COLUMNS.get(field.name)
        if allowed is None:
            raise OptionError(
                f"column {field.name} cannot be written: select to_json(struct(...)) as value, beside {', '.join(list(COLUMNS)[1:])}"
            )
        if not any(type(field.dataType) is type(kind) for kind in allowed):
            wanted = " or ".join(kind.simpleString() for kind in allowed)
            raise OptionError(f"column {field.name} is {field.dataType.simpleString()}, not {wanted}: cast it")
    if "value" not in schema.names:
        raise OptionError("there is no column value: select to_json(struct(...)) as value")
    if ("__topic" in schema.names) == (options.topic is not None):
        raise OptionError("say the topic once: by the option topic, or by the column __topic")


def _write(options: WriteOptions, name: str, epoch: int, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    context = TaskContext.get()
    sender = _Sender(options, f"{name}-{context.partitionId() if context else 0}")
    try:
        row = 0
        for batch in batches:
            for values in _rows(batch):
                if row >> ROW_BITS:
                    raise WriteError(f"more than {1 << ROW_BITS} rows in one task: repartition to more partitions")
                sender.send(epoch << ROW_BITS | row, *values)
                row += 1
        sender.finish()
    finally:
        sender.close()
    return WriterCommitMessage()


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """(value, key, topic, event time in milliseconds, properties) of each row."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "__eventTime" in columns:
        columns["__eventTime"] = columns["__eventTime"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    nothing = [None] * batch.num_rows
    names = ("value", "__key", "__topic", "__eventTime", "__messageProperties")
    return zip(*(columns[name].to_pylist() if name in columns else nothing for name in names), strict=True)


class _Lane:
    """One producer and the batch that is being filled for it. Where a batch ends depends on the rows of the epoch alone.

    The official client numbers a batch by its first message only, so the broker knows whole batches: a repeated epoch has to cut them
    at the same rows, and those whose first number the broker has are left out.
    """

    __slots__ = ("_last", "_pending", "_size", "producer")

    def __init__(self, producer: pulsar.Producer) -> None:
        self.producer = producer
        self._last = producer.last_sequence_id()
        self._pending: list[tuple[bytes, dict[str, Any]]] = []
        self._size = 0

    def add(self, content: bytes, fields: dict[str, Any], sent: Callable[[pulsar.Result, Any], None]) -> None:
        if self._pending and self._size + len(content) > BATCH_BYTES:
            self.flush(sent)
        self._pending.append((content, fields))
        self._size += len(content)
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


class _Sender:
    """One task's producers: one per topic partition, so that sequence ids rise on each whatever the routing."""

    def __init__(self, options: WriteOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._client = shared_client(options.connection)
        self._parts: dict[str, list[str]] = {}
        self._lanes: dict[str, _Lane] = {}
        self._failed: pulsar.Result | None = None
        self._lock = threading.Lock()

    def send(self, sequence: int, value: Any, key: Any, topic: Any, event_ms: int | None, properties: Any) -> None:
        if self._failed is not None:
            raise WriteError(f"a message was not taken: {self._failed}")
        if value is None:
            raise WriteError("value is NULL, which the official Python client cannot send: filter such rows out")
        fields = {
            "properties": dict(properties) if properties else None,
            "partition_key": key.decode() if isinstance(key, bytes) else key,
            "sequence_id": sequence,
            "event_timestamp": event_ms,
        }
        content = value.encode() if isinstance(value, str) else value
        self._lane(self._route(topic, key, sequence)).add(content, fields, self._sent)

    def finish(self) -> None:
        """Until the broker has all of it."""
        for lane in self._lanes.values():
            lane.flush(self._sent)
        if self._failed is not None:
            raise WriteError(f"a message was not taken: {self._failed}")

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.producer.close()

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
                    producer_name=self._name,
                    batching_enabled=True,
                    batching_max_messages=BATCH_ROWS,
                    batching_max_allowed_size_in_bytes=4 * BATCH_BYTES,
                    batching_max_publish_delay_ms=NEVER_MS,
                    max_pending_messages=4 * BATCH_ROWS,
                    block_if_queue_full=True,
                    send_timeout_millis=self._options.connection.operation_timeout_ms,
                )
            except pulsar.ProducerBusy as error:
                if time.monotonic() >= give_up:
                    raise WriteError(f"{topic}: another producer holds the name {self._name}") from error
                time.sleep(BUSY_WAIT_S)
