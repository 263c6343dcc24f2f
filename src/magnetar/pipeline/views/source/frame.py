"""Messages as a source's rows: what FORMAT ... ENCODE ..., INCLUDE and generated columns say, as Spark SQL over the connector's columns.

Every row carries `_row_id` (ROW_ID) and `_change`. A message that cannot be read is an error that names it, unless the source says
`on.decode.error`; it is never left out in silence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.errors import SchemaError, SourceError
from magnetar.pipeline.connect.options import full_name, read_options
from magnetar.pipeline.connect.protobuf import columns as columns_of_message
from magnetar.pipeline.connect.protobuf import of_schema
from magnetar.pipeline.connect.reading.columns import schema_for
from magnetar.pipeline.connect.reading.metadata_columns import HIDDEN, METADATA
from magnetar.pipeline.connect.registered import registered
from magnetar.pipeline.connect.segment_order import SCALABLE, is_scalable
from magnetar.pipeline.operators.changelog import CHANGE
from magnetar.pipeline.sql.plan import EPOCH_TIMESTAMP, Project
from magnetar.pipeline.sql.planner import plan_query
from magnetar.pipeline.sql.printer import quote
from magnetar.pipeline.sql.statements import INCLUDED_COLUMNS, ColumnDefinition, CreateSource, Query
from magnetar.pipeline.sql.types import normalise_type, spark_type
from magnetar.pipeline.views.lowering.stages import ROW_ID
from magnetar.pipeline.views.source.decoding import DECODED, PROBLEM, Decoded, decode_values, quoted
from magnetar.pipeline.views.source.options import (
    BYTES_COLUMN,
    ON_DECODE_ERROR,
    decode_policy,
    protobuf_message,
    reader_options,
    sends_dead_letters,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

POSITION: Final = ("__topic", "__partition", "__ledgerId", "__entryId", "__batchIndex")
SHOWN_CHARACTERS: Final = 100
"""Of a message that cannot be decoded, in the error."""
DECODED_ROWS: Final = "rows"
UNDECODABLE: Final = "undecodable"
"""What an observation counts: messages, and those that on.decode.error left out or made NULL."""
DEAD_TOPIC: Final = "topic"
DEAD_POSITION: Final = "position"
DEAD_REASON: Final = "reason"
DEAD_KEY: Final = "key"
DEAD_VALUE: Final = "value"
DEAD_VIEW: Final = "view"
DEAD_EXPRESSION: Final = "expression"
DEAD_LETTER: Final = "__letter"
"""A column of a source's rows: the message itself and where it was, for a dead-letter topic."""


def decode(
    raw: DataFrame, source: CreateSource, observation: Observation | str | None = None, *, letters: bool = False
) -> DataFrame:
    """The source's columns, `_row_id` and `_change`, of a batch or a stream with the connector's columns (at least `raw_columns`); with
    `letters` DEAD_LETTER, a struct of ROW_ID, DEAD_TOPIC, DEAD_POSITION, DEAD_KEY and DEAD_VALUE.

    `observation` (or one of this name) counts DECODED_ROWS and UNDECODABLE in the first action over the result. A strict source's
    undecodable message fails the action with its topic and position.

    Raises SourceError for a source without columns: give it those of the topic's schema first.
    """
    source = with_columns(source)
    found = decode_values(raw, source)
    frame = found.frame
    if observation is not None:
        bad = F.count_if(F.col(PROBLEM).isNotNull()).alias(UNDECODABLE)
        frame = frame.observe(observation, F.count(F.lit(1)).alias(DECODED_ROWS), bad)
    policy = decode_policy(source)
    if policy == "strict":
        # A filter, since Spark drops a column that nobody reads together with the error in it.
        frame = frame.where(F.col(PROBLEM).isNull() | F.raise_error(_failure(source)).isNull())
    elif policy != "null":
        frame = frame.where(F.col(PROBLEM).isNull())
    else:
        frame = frame.where(_has_place(source, found))
    letter = [F.struct(*_letter(source)).alias(DEAD_LETTER)] if letters else []
    return _with_generated(frame.select(*_outputs(source, found), *letter), source)


def undecodable(raw: DataFrame, source: CreateSource) -> DataFrame:
    """The messages that `decode` makes NULL or leaves out, as DEAD_... columns, in the order of their positions."""
    source = with_columns(source)
    frame = decode_values(raw, source).frame.where(F.col(PROBLEM).isNotNull())
    reason = F.concat(F.lit(_form(source)), F.substring(F.col(PROBLEM), 1, SHOWN_CHARACTERS))
    return frame.select(*_letter(source), reason.alias(DEAD_REASON)).orderBy(ROW_ID).drop(ROW_ID)


def failed_letters(failed: DataFrame) -> DataFrame:
    """The same of rows with DEAD_LETTER, DEAD_VIEW and DEAD_EXPRESSION, which are columns of it as well."""
    reason = F.concat(F.col(DEAD_EXPRESSION), F.lit(" fails")).alias(DEAD_REASON)
    letters = failed.select(f"{DEAD_LETTER}.*", reason, DEAD_VIEW, DEAD_EXPRESSION)
    return letters.orderBy(ROW_ID, DEAD_EXPRESSION).drop(ROW_ID)


def _letter(source: CreateSource) -> list[Column]:
    at = [F.col(name).cast("string") for name in POSITION[2:]]
    return [
        row_id(source).alias(ROW_ID),
        F.col("__topic").alias(DEAD_TOPIC),
        F.concat_ws(":", *at).alias(DEAD_POSITION),
        F.col("__key").alias(DEAD_KEY),
        F.col("value").alias(DEAD_VALUE),
    ]


def _has_place(source: CreateSource, found: Decoded) -> Column:
    """Whether anything can be made of a message with NULL in place of what cannot be read: with a primary key only if that is there, and
    of an envelope of Debezium only if it says what changed."""
    there = F.lit(True)
    if source.format.format == "DEBEZIUM":
        there = found.change.isNotNull()
    if source.format.format != "PLAIN":
        by_name = {column.name.lower(): column.name for column in source.columns if column.generated is None}
        for name in (by_name[key.lower()] for key in source.primary_key if key.lower() in by_name):
            value = found.columns.get(name, F.col(f"{DECODED}.{quoted(name)}"))
            there = there & (F.col(PROBLEM).isNull() | value.isNotNull())
    return there


def raw_columns(source: CreateSource) -> tuple[str, ...]:
    """The connector's columns that `decode` reads: a read with these only is faster."""
    needed = {"value", *POSITION, *(INCLUDED_COLUMNS[include.kind] for include in source.includes)}
    if source.format.format == "UPSERT" or sends_dead_letters(source):
        needed.add("__key")
    if source.format.encode in ("AVRO", "PROTOBUF"):
        needed.add("__schemaVersion")
    return tuple(name for name in ("value", *METADATA, *HIDDEN) if name in needed)


def raw_schema(source: CreateSource) -> StructType:
    """The same as a schema for `.schema(...)` of the read."""
    return schema_for(raw_columns(source))


def source_schema(spark: SparkSession, source: CreateSource) -> StructType:
    """What `decode` gives, without a message."""
    return decode(spark.createDataFrame([], raw_schema(source)), source).schema


def with_columns(source: CreateSource) -> CreateSource:
    """The source with the columns that it left out: those of the topic's registered schema as it is now, or the one of ENCODE BYTES.

    Asks the broker. Raises SourceError when there are none.
    """
    if source.columns:
        return source
    if source.format.encode == "BYTES":
        return replace(source, columns=(ColumnDefinition(BYTES_COLUMN, "BYTEA"),))
    return replace(source, columns=registered_columns(source))


def row_id(source: CreateSource) -> Column:
    """A string that no other message of the source has; within a partition it sorts as the position does."""
    one = source.options.get("topic")
    if one is not None and is_scalable(full_name(one)):
        where = _sortable("__partition")  # a key's messages come in the order of the segments' ids
    elif one is not None:
        where = F.col("__partition").cast("string")
    else:
        scalable = F.col("__topic").startswith(SCALABLE)
        segment = F.when(scalable, F.concat(F.lit(":"), _sortable("__partition"))).otherwise(F.lit(""))
        where = F.concat(F.regexp_replace("__topic", "^persistent://", ""), segment)
    return F.concat(where, F.lit(":"), *(_sortable(name) for name in POSITION[2:]))


def _sortable(name: str) -> Column:
    """Hexadecimal digits behind a letter that says how many: text in the order of the numbers, and short."""
    digits = F.hex(F.col(name).cast("bigint"))
    return F.concat(F.char(F.lit(96) + F.length(digits)), digits)


def _form(source: CreateSource) -> str:
    return f"cannot be read as {source.format.format} {source.format.encode}: "


def _failure(source: CreateSource) -> Column:
    kind = "TABLE" if source.table else "SOURCE"
    fix = (
        f"; send it right, or write ALTER {kind} {quote(source.name)} SET ({ON_DECODE_ERROR} = 'null'), 'skip' or 'dead_letter' into "
        "the file and run it again"
    )
    at = [F.col(name).cast("string") for name in POSITION[2:]]
    return F.concat(
        F.lit(f"source {source.name}: the message "),
        F.col("__topic"),
        F.lit(" "),
        F.concat_ws(":", *at),
        F.lit(f" {_form(source)}"),
        F.substring(F.col(PROBLEM), 1, SHOWN_CHARACTERS),
        F.lit(fix),
    )


def _outputs(source: CreateSource, found: Decoded) -> list[Column]:
    columns = [
        found.columns.get(column.name, F.col(f"{DECODED}.{quoted(column.name)}")).alias(column.name)
        for column in source.columns
        if column.generated is None
    ]
    for include in source.includes:
        value = F.col(INCLUDED_COLUMNS[include.kind])
        columns.append((value[include.header] if include.header is not None else value).alias(include.name))
    return [*columns, row_id(source).alias(ROW_ID), found.change.cast("tinyint").alias(CHANGE)]


def _with_generated(frame: DataFrame, source: CreateSource) -> DataFrame:
    """Columns in the order of the statement, the generated ones computed from the others."""
    generated = [column for column in source.columns if column.generated is not None]
    if not generated:
        return frame
    own = [name for name in (ROW_ID, CHANGE, DEAD_LETTER) if name in frame.columns]
    plain = tuple(name for name in frame.columns if name not in own)
    computed = {column.name: _expression(source, column, plain) for column in generated}
    names = [*(column.name for column in source.columns), *(include.name for include in source.includes)]
    return frame.select(
        *(computed[name].alias(name) if name in computed else F.col(quoted(name)) for name in names), *own
    )


def _expression(source: CreateSource, column: ColumnDefinition, inputs: tuple[str, ...]) -> Column:
    """SourceError when it is not an expression over the source's own columns."""
    plan = plan_query(Query(f"SELECT ({column.generated}) AS c FROM s"), {"s": inputs})
    text = plan.outputs[0].sql if isinstance(plan, Project) else ""
    if not text or EPOCH_TIMESTAMP in text:
        raise SourceError(
            f"source {source.name}, column {column.name}: a generated column is computed from one message alone; "
            "use aggregates and now() in a view"
        )
    value = F.expr(text)
    return value if column.type is None else value.cast(spark_type(column.type))


def protobuf_columns(source: CreateSource) -> list[tuple[str, str]]:
    """Of the message that a source names, or of its topic's schema. Raises SourceError."""
    message, name = protobuf_message(source)
    try:
        if message is None:
            options = read_options(reader_options(source))
            topics = Topics(options).partitions()
            found = registered(options.connection, topics[0]) if topics else None
            if found is None or found.kind != "PROTOBUF_NATIVE":
                there = "no schema" if found is None else f"one of the type {found.kind}"
                raise SourceError(
                    f"source {source.name}: its topic has {there}; register one of the type PROTOBUF_NATIVE before the source is created, "
                    "or write ENCODE PROTOBUF (message = 'package.Name', schema.location = 'file:///path/of/descriptors')"
                )
            message = of_schema(found.definition, name)
        return columns_of_message(message.descriptor())
    except SchemaError as error:
        raise SourceError(f"source {source.name}: {error}") from None


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
    if source.format.encode == "PROTOBUF":
        return tuple(ColumnDefinition(name, normalise_type(kind)) for name, kind in protobuf_columns(source))
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
