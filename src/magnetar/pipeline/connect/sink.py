"""Rows into topics: batch and streaming writers over Arrow, numbered so that a repeated task adds nothing.

Each task writes under a producer name of its own, (query, partition), with sequence ids epoch << ROW_BITS | row. `sender.py` says how.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from magnetar.pipeline.connect.errors import OptionError, WriteError
from magnetar.pipeline.connect.options import WriteOptions
from magnetar.pipeline.connect.sender import Sender, sequence_id

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
    sender = Sender(options, f"{name}-{context.partitionId() if context else 0}")
    try:
        row = 0
        for batch in batches:
            for values in _rows(batch):
                sender.send(sequence_id(epoch, row), *values)
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
