"""Rows into topics: batch and streaming writers over Arrow, numbered so that a repeated task adds nothing.

Each task writes under a producer name of its own, (query, partition), with sequence ids epoch << ROW_BITS | row. `sender.py` says how.
With the option `schema` every column but those of COLUMNS is a field of the value, and their schema is registered with the topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from magnetar.pipeline.connect.errors import OptionError, WriteError
from magnetar.pipeline.connect.options import WriteOptions
from magnetar.pipeline.connect.writing.encoding import Encode, Encoded, avro, json_bytes, json_schema
from magnetar.pipeline.connect.writing.sender import Sender, sequence_id

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
METADATA: Final = tuple(COLUMNS)[1:]


class Codec(NamedTuple):
    """How rows become values. `fields`: the columns that are encoded; none where the value is written as it is."""

    fields: tuple[str, ...] = ()
    encode: Encode | None = None
    schema: Encoded | None = None


class TopicWriter(DataSourceArrowWriter):
    """`df.write.format("magnetar").mode("append")`. A task that Spark runs again goes on where the first attempt ended."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._schema = schema
        self._name = options.producer_name or f"magnetar-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, self._schema, self._name, 0, iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("magnetar")`. Exactly once as long as a repeated micro-batch has the same rows in the same partitions."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        batch, query = (context.getLocalProperty(key) for key in (BATCH_ID, QUERY_ID)) if context else (None, None)
        if batch is None or query is None:
            raise WriteError("Spark did not say which micro-batch this task belongs to; write through writeStream")
        name = self._options.producer_name or f"magnetar-{query}"
        return _write(self._options, self._schema, name, int(batch), iterator)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises OptionError or SchemaError, which say how to make the column that is missing or not known."""
    fields = value_codec(schema, options).fields
    for field in schema.fields:
        if field.name in fields:
            continue
        allowed = COLUMNS.get(field.name)
        if allowed is None:
            raise OptionError(
                f"column {field.name} cannot be written as bytes: give the option schema (json or avro) to write columns as fields, or "
                f"select to_json(struct(...)) as value, beside {', '.join(METADATA)}"
            )
        if not any(type(field.dataType) is type(kind) for kind in allowed):
            wanted = " or ".join(kind.simpleString() for kind in allowed)
            raise OptionError(f"column {field.name} is {field.dataType.simpleString()}, not {wanted}: cast it")
    if not fields and "value" not in schema.names:
        raise OptionError("there is no column value: select to_json(struct(...)) as value")
    if ("__topic" in schema.names) == (options.topic is not None):
        raise OptionError("say the topic once: by the option topic, or by the column __topic")


def value_codec(schema: StructType, options: WriteOptions) -> Codec:
    """By the option `schema`. Raises SchemaError for a column whose name or type Avro does not have."""
    if options.schema is None:
        return Codec()
    fields = tuple(name for name in schema.names if name not in METADATA)
    if not fields:
        raise OptionError(f"schema={options.schema} needs columns beside {', '.join(METADATA)}")
    local = (options.topic or "row").rpartition("/")[2]
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in local)
    name = name if name[0].isalpha() else f"_{name}"
    columns = to_arrow_schema(StructType([schema[field] for field in fields]), timezone="UTC")
    if options.schema == "json":
        return Codec(fields, json_bytes, json_schema(columns, name))
    return Codec(fields, *avro(columns, name))


def _write(
    options: WriteOptions, schema: StructType, name: str, epoch: int, batches: Iterator[pa.RecordBatch]
) -> WriterCommitMessage:
    context = TaskContext.get()
    codec = value_codec(schema, options)
    sender = Sender(options, f"{name}-{context.partitionId() if context else 0}", codec.schema)
    try:
        row = 0
        for batch in batches:
            for values in _rows(batch, codec):
                sender.send(sequence_id(epoch, row), *values)
                row += 1
        sender.finish()
    finally:
        sender.close()
    return WriterCommitMessage()


def _rows(batch: pa.RecordBatch, codec: Codec) -> Iterator[tuple[Any, ...]]:
    """(value, key, topic, event time in milliseconds, properties) of each row."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "__eventTime" in columns:
        columns["__eventTime"] = columns["__eventTime"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    nothing = [None] * batch.num_rows
    lists = [columns[name].to_pylist() if name in columns else nothing for name in METADATA]
    if codec.encode is None:
        values = columns["value"].to_pylist()
    else:
        rows = batch.select(list(codec.fields)).to_pylist(maps_as_pydicts="strict")
        values = [codec.encode(row) for row in rows]
    return zip(values, *lists, strict=True)
