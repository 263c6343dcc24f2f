"""The columns of CREATE SOURCE out of the topic's registered schema, in RisingWave's spelling."""

from __future__ import annotations

from typing import Final

from pyspark.sql import types as T

from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.errors import SourceError
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.connect.registered import registered
from magnetar.pipeline.sql.statements import ColumnDefinition, CreateSource
from magnetar.pipeline.sql.types import normalise_type
from magnetar.pipeline.views.source_options import reader_options

_NAMES: Final[dict[type[T.DataType], str]] = {
    T.BooleanType: "BOOLEAN",
    T.IntegerType: "INT",
    T.LongType: "BIGINT",
    T.FloatType: "REAL",
    T.DoubleType: "DOUBLE PRECISION",
    T.StringType: "VARCHAR",
    T.BinaryType: "BYTEA",
    T.DateType: "DATE",
    T.TimestampType: "TIMESTAMPTZ",
    T.TimestampNTZType: "TIMESTAMP",
}


def registered_columns(source: CreateSource) -> tuple[ColumnDefinition, ...]:
    """Of the newest schema of the source's first topic. Raises SourceError when it has none, SchemaError for a type without an equal."""
    options = read_options(reader_options(source))
    topics = Topics(options).partitions()
    found = registered(options.connection, topics[0]) if topics else None
    if found is None or not found.is_record:
        raise SourceError(
            f"source {source.name} has no columns: name them, or register a schema with the topic before the source is created"
        )
    if found.kind != source.format.encode:
        raise SourceError(
            f"source {source.name}: the topic's schema is {found.kind}; write ENCODE {found.kind}, or name the columns"
        )
    return tuple(ColumnDefinition(each.name, normalise_type(_spelled(each.dataType))) for each in found.fields())


def _spelled(kind: T.DataType) -> str:
    if isinstance(kind, T.DecimalType):
        return f"NUMERIC({kind.precision}, {kind.scale})"
    if isinstance(kind, T.ArrayType):
        return f"{_spelled(kind.elementType)}[]"
    if isinstance(kind, T.MapType):
        return f"MAP(VARCHAR, {_spelled(kind.valueType)})"
    if isinstance(kind, T.StructType):
        return f"STRUCT<{', '.join(f'{each.name} {_spelled(each.dataType)}' for each in kind.fields)}>"
    return _NAMES[type(kind)]
