"""Messages as columns: the schema that `load()` shows, and Arrow batches out of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pulsar
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.pipeline.connect.errors import OptionError

MICROS_PER_MILLI: Final = 1000
Getter = Callable[[pulsar.Message], Any]


def _key(message: pulsar.Message) -> str | None:
    return message.partition_key() or None


def _value(message: pulsar.Message) -> bytes | None:
    return None if message.has_null_value() else message.data()


def _event_time(message: pulsar.Message) -> int | None:
    return message.event_timestamp() * MICROS_PER_MILLI or None


METADATA: Final[dict[str, tuple[DataType, Getter]]] = {
    "__key": (StringType(), _key),
    "__topic": (StringType(), lambda message: message.topic_name()),
    "__messageId": (BinaryType(), lambda message: message.message_id().serialize()),
    "__publishTime": (TimestampType(), lambda message: message.publish_timestamp() * MICROS_PER_MILLI),
    "__eventTime": (TimestampType(), _event_time),
    "__messageProperties": (MapType(StringType(), StringType()), lambda message: message.properties()),
    "__partition": (IntegerType(), lambda message: partition_of(message.topic_name())),
    "__ledgerId": (LongType(), lambda message: message.message_id().ledger_id()),
    "__entryId": (LongType(), lambda message: message.message_id().entry_id()),
    "__batchIndex": (IntegerType(), lambda message: max(message.message_id().batch_index(), 0)),
}
"""Behind the value or its fields, in this order. A key or event time that was not set is NULL."""


def partition_of(topic: str) -> int:
    """Number of a partition; -1 for a topic without partitions."""
    digits = topic.rpartition("-partition-")[2]
    return int(digits) if "-partition-" in topic and digits.isdigit() else -1


def full_schema(fields: list[StructField] | None = None) -> StructType:
    """`value` or the registered schema's fields, then the metadata."""
    columns = fields if fields is not None else [StructField("value", BinaryType())]
    return StructType([*columns, *(StructField(name, kind) for name, (kind, _) in METADATA.items())])


class Columns:
    """Turns messages into record batches of a schema, which may be any choice of the columns in any order."""

    __slots__ = ("_arrays", "_columns", "rows", "schema")

    def __init__(self, schema: StructType) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._columns = [_getter(field) for field in schema.fields]
        self._clear()

    def add(self, message: pulsar.Message) -> None:
        for values, getter in zip(self._arrays, self._columns, strict=True):
            values.append(getter(message))
        self.rows += 1

    def batch(self) -> pa.RecordBatch:
        """What was added since the last one."""
        arrays = [
            pa.array([list(value.items()) for value in values] if pa.types.is_map(kind) else values, type=kind)
            for values, kind in zip(self._arrays, self.schema.types, strict=True)
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _clear(self) -> None:
        self._arrays: list[list[Any]] = [[] for _ in self._columns]
        self.rows = 0


def _getter(field: StructField) -> Getter:
    if field.name == "value" and isinstance(field.dataType, BinaryType):
        return _value
    known = METADATA.get(field.name)
    if known is None or known[0] != field.dataType:
        wanted = f"its type is {known[0].simpleString()}" if known else f"there are value and {', '.join(METADATA)}"
        raise OptionError(f"the schema asks for a column {field.name} {field.dataType.simpleString()}; {wanted}")
    return known[1]
