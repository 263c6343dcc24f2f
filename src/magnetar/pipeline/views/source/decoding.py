"""The value of a message by FORMAT and ENCODE: a struct of the declared columns, the kind of change, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from magnetar.pipeline.connect.errors import SchemaError, SourceError
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.connect.reading.protobuf_values import ProtobufValues, reader
from magnetar.pipeline.connect.reading.record_values import RecordValues
from magnetar.pipeline.operators.changelog import DELETE, INSERT, UPDATE_AFTER
from magnetar.pipeline.sql.statements import ColumnDefinition, CreateSource
from magnetar.pipeline.sql.types import spark_type
from magnetar.pipeline.views.source.options import protobuf_message, reader_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DECODED: Final = "_decoded"
KEY: Final = "_decoded_key"
PROBLEM: Final = "_undecodable"
"""The text of what cannot be decoded; NULL when it can."""
_TIMES: Final = ("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ")
DEBEZIUM_CHANGES: Final = {"c": INSERT, "r": INSERT, "u": UPDATE_AFTER, "d": DELETE}
"""Debezium's op as `_change`."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """`frame`: the connector's columns, DECODED and PROBLEM. `columns`: those that are not simply a field of DECODED."""

    frame: DataFrame
    change: Column
    columns: Mapping[str, Column] = field(default_factory=dict)


def decode_values(raw: DataFrame, source: CreateSource) -> Decoded:
    """Raises SourceError for a combination that does not exist."""
    encode, form = source.format.encode, source.format.format
    if encode == "BYTES":
        return _bytes(raw, source)
    if form == "DEBEZIUM":
        assert encode == "JSON", "the parser takes no other"
        return _debezium(raw, source)
    return _upsert(raw, source) if form == "UPSERT" else _plain(raw, source)


def quoted(name: str) -> str:
    """A name as Spark SQL reads it back, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def stored(source: CreateSource) -> tuple[ColumnDefinition, ...]:
    """The columns that a message holds."""
    return tuple(column for column in source.columns if column.generated is None)


def _bytes(raw: DataFrame, source: CreateSource) -> Decoded:
    if source.format.format != "PLAIN":
        raise SourceError(f"source {source.name}: FORMAT {source.format.format} needs ENCODE JSON or AVRO")
    (column,) = stored(source)
    return Decoded(raw.withColumn(PROBLEM, F.lit(None).cast("string")), F.lit(INSERT), {column.name: F.col("value")})


def _plain(raw: DataFrame, source: CreateSource) -> Decoded:
    columns = stored(source)
    frame, times = _values(raw, source, columns)
    problem = F.coalesce(_corrupt(f"{DECODED}_whole", "value"), _bad_times(times, DECODED))
    return Decoded(frame.withColumn(PROBLEM, problem), F.lit(INSERT), times)


def _upsert(raw: DataFrame, source: CreateSource) -> Decoded:
    """A message without a value (NULL, or empty, which is all that some clients can send) deletes the row of its key."""
    columns = stored(source)
    gone = F.col("value").isNull() | (F.length("value") == 0)
    frame, times = _values(raw, source, columns)
    keys = [column for column in columns if column.name.lower() in {name.lower() for name in source.primary_key}]
    found = dict(times)
    missing = F.lit(False)
    if keys:
        frame, key_values = _keys(frame, source, keys)
        for column in keys:
            live = found.get(column.name, F.col(f"{DECODED}.{quoted(column.name)}"))
            found[column.name] = F.when(gone, key_values[column.name]).otherwise(live)
            missing = missing | key_values[column.name].isNull()
    bad_value = F.coalesce(_corrupt(f"{DECODED}_whole", "value"), _bad_times(times, DECODED))
    bad_key = F.when(missing, F.concat(F.lit("no key to delete by in "), F.coalesce(F.col("__key"), F.lit("NULL"))))
    problem = F.when(gone, bad_key).otherwise(bad_value)
    change = F.when(gone, F.lit(DELETE)).otherwise(F.lit(UPDATE_AFTER))
    return Decoded(frame.withColumn(PROBLEM, problem), change, found)


def _keys(frame: DataFrame, source: CreateSource, keys: list[ColumnDefinition]) -> tuple[DataFrame, dict[str, Column]]:
    """Key columns out of the message's key: the text itself for one column, a JSON object for several."""
    if len(keys) == 1 and len(source.primary_key) == 1:
        (column,) = keys
        return frame, {column.name: F.col("__key").try_cast(spark_type(column.type or "VARCHAR"))}
    frame = _parsed(frame, "__key", KEY, tuple(keys))
    times = _times(KEY, tuple(keys))
    return frame, {column.name: times.get(column.name, F.col(f"{KEY}.{quoted(column.name)}")) for column in keys}


def _debezium(raw: DataFrame, source: CreateSource) -> Decoded:
    """`{before, after, op}`, with or without `payload` around it. The tombstone that follows a delete says nothing new and is left out.

    An update that changes the primary key is two changes, as Debezium's own connectors send it: the row of the old key goes.
    """
    columns = stored(source)
    row = _ddl(columns, days=True)
    envelope = f"before STRUCT<{row}>, after STRUCT<{row}>, op STRING"
    frame = raw.where(F.col("value").isNotNull() & (F.length("value") > 0))
    frame = _inlined(frame, _from_json("value", f"{envelope}, payload STRUCT<{envelope}>"), "_envelope")
    inner = {
        name: F.coalesce(F.col(f"_envelope.{ONLY}.payload.{name}"), F.col(f"_envelope.{ONLY}.{name}"))
        for name in ("before", "after", "op")
    }
    change = F.lit(None).cast("tinyint")
    for op, number in DEBEZIUM_CHANGES.items():
        change = F.when(inner["op"] == op, F.lit(number).cast("tinyint")).otherwise(change)
    row_of = F.when(inner["op"] == "d", inner["before"]).otherwise(inner["after"])
    gone = F.struct(F.lit(DELETE).cast("tinyint").alias("change"), inner["before"].alias("row"))
    said = F.struct(change.alias("change"), row_of.alias("row"))
    moved = (inner["op"] == "u") & _other_key(inner["before"], inner["after"], source)
    frame = frame.withColumn("_said", F.explode(F.when(moved, F.array(gone, said)).otherwise(F.array(said))))
    frame = frame.withColumn(DECODED, F.col("_said.row"))
    incomplete = F.when(F.col("_said.change").isNull() | F.col(DECODED).isNull(), F.col("value").cast("string"))
    times = _times(DECODED, columns, days=True)
    problem = F.coalesce(_corrupt("_envelope", "value"), incomplete, _bad_times(times, DECODED))
    return Decoded(frame.withColumn(PROBLEM, problem), F.col("_said.change"), times)


def _other_key(before: Column, after: Column, source: CreateSource) -> Column:
    """Whether both rows are there with different keys; false where either is not known."""
    differs = F.lit(False)
    for column in stored(source):
        if column.name.lower() in {name.lower() for name in source.primary_key}:
            old, new = before[column.name], after[column.name]
            kind = spark_type(column.type or "VARCHAR")
            if _is_time(column, days=True):
                old, new = _time(old, kind), _time(new, kind)
            differs = differs | (old.isNotNull() & new.isNotNull() & (old != new))
    return before.isNotNull() & after.isNotNull() & differs


def _values(
    raw: DataFrame, source: CreateSource, columns: tuple[ColumnDefinition, ...]
) -> tuple[DataFrame, dict[str, Column]]:
    """The value as DECODED, and columns that are not simply its fields."""
    if source.format.encode == "JSON":
        return _parsed(raw, "value", DECODED, columns), _times(DECODED, columns)
    if source.format.encode == "CSV":
        frame = _inlined(raw, _from_csv(source), f"{DECODED}_fields")
        frame = _inlined(frame, _typed_fields(f"{DECODED}_fields", columns), f"{DECODED}_whole")
        return frame.withColumn(DECODED, F.col(f"{DECODED}_whole.{ONLY}")), {}
    whole = record_struct(
        source, ", ".join(f"{quoted(each.name)} {spark_type(each.type or 'VARCHAR')}" for each in columns)
    )
    around = f"{DECODED}_whole"
    frame = raw.withColumn(around, whole)
    return frame.withColumn(DECODED, F.col(f"{around}.{ONLY}")), {}


def _parsed(frame: DataFrame, column: str, into: str, columns: tuple[ColumnDefinition, ...]) -> DataFrame:
    """With the struct `into` and, for what `_corrupt` says, the one around it."""
    around = f"{into}_whole"
    return _inlined(frame, _from_json(column, _ddl(columns)), around).withColumn(into, F.col(f"{around}.{ONLY}"))


def _from_json(column: str, ddl: str) -> Column:
    """`{ONLY: the struct, CORRUPT: a text when any of it does not fit}`.

    The text is read as the only field of an object: Spark would overlook what stands behind the end of a document.
    """
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = F.concat(F.lit(f'{{"{ONLY}":'), F.col(column).cast("string"), F.lit("}"))
    return F.from_json(text, f"{ONLY} STRUCT<{ddl}>, {CORRUPT} STRING", options)


def _from_csv(source: CreateSource) -> Column:
    """The fields as texts `_0`, `_1`, ..., and CORRUPT where they are more or fewer than the columns, or the message is not one line.

    As in RFC 4180 and PostgreSQL's COPY: quotes are doubled within quotes, an empty field is NULL and `""` the empty text.
    """
    delimiter = next((v for name, v in source.format.options.items() if name.lower() == "delimiter"), ",")
    options = {
        "sep": "\t" if delimiter == "\\t" else delimiter,
        "quote": '"',
        "escape": '"',
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
        "nullValue": "\0",  # what Spark puts where nothing stands; the empty text would be NULL with it
        "emptyValue": "",
        "maxColumns": str(max(len(stored(source)), 1) + 1),
        "maxCharsPerColumn": "-1",
    }
    text = F.regexp_replace(F.col("value").cast("string"), r"\r?\n\z", "")
    one_line = F.when((F.length(text) > 0) & ~text.contains("\n") & ~text.contains("\r"), text)
    fields = ", ".join(f"_{number} STRING" for number in range(len(stored(source))))
    return F.from_csv(one_line, f"{fields}, {CORRUPT} STRING", options)


def _typed_fields(fields: str, columns: tuple[ColumnDefinition, ...]) -> Column:
    """`{ONLY: the struct, CORRUPT: a text when any of it does not fit}`."""
    problem, typed = F.col(f"{fields}.{CORRUPT}"), []
    for number, column in enumerate(columns):
        text, kind = F.col(f"{fields}._{number}"), spark_type(column.type or "VARCHAR")
        if _is_time(column):
            value = _time(text, kind)
        elif kind == "BINARY":
            value = F.try_to_binary(text, F.lit("base64"))
        else:
            value = text.try_cast(kind)
        wrong = F.when(text.isNotNull() & value.isNull(), F.concat(F.lit(f"{column.name} = "), text))
        problem = F.coalesce(problem, wrong)
        typed.append(value.alias(column.name))
    row = F.when(F.col(fields).isNotNull(), F.struct(*typed))
    return F.struct(row.alias(ONLY), problem.alias(CORRUPT))


def _inlined(frame: DataFrame, struct: Column, into: str) -> DataFrame:
    """The struct as a column behind a generator, so that filters and columns above it do not make Spark parse twice."""
    return frame.select("*", F.explode(F.array(struct)).alias(into))


def _ddl(columns: tuple[ColumnDefinition, ...], *, days: bool = False) -> str:
    """Times are text first: numbers among them mean seconds, milliseconds or microseconds by their size. `days`: dates as well, of
    which numbers are days since 1970."""
    return ", ".join(
        f"{quoted(column.name)} {'STRING' if _is_time(column, days=days) else spark_type(column.type or 'VARCHAR')}"
        for column in columns
    )


def _is_time(column: ColumnDefinition, *, days: bool = False) -> bool:
    return column.type is not None and spark_type(column.type) in (*_TIMES, *(("DATE",) if days else ()))


def _times(struct: str, columns: tuple[ColumnDefinition, ...], *, days: bool = False) -> dict[str, Column]:
    return {
        column.name: _time(F.col(f"{struct}.{quoted(column.name)}"), spark_type(column.type or "TIMESTAMP"))
        for column in columns
        if _is_time(column, days=days)
    }


def _time(text: Column, kind: str) -> Column:
    """RisingWave's rule for numbers: seconds below 10^11, milliseconds below 10^14, microseconds below 10^17, else nanoseconds."""
    number = text.try_cast("bigint")
    if kind == "DATE":
        return F.when(number.isNotNull(), F.date_from_unix_date(number.try_cast("int"))).otherwise(text.try_cast(kind))
    size = F.abs(number)
    micros = (
        F.when(size < 10**11, number * 1_000_000)
        .when(size < 10**14, number * 1_000)
        .when(size < 10**17, number)
        .otherwise(F.floor(number / 1_000))
    )
    return F.when(number.isNotNull(), F.timestamp_micros(micros).cast(kind)).otherwise(text.try_cast(kind))


def _bad_times(times: Mapping[str, Column], struct: str) -> Column:
    found = F.lit(None).cast("string")
    for name, value in times.items():
        text = F.col(f"{struct}.{quoted(name)}")
        found = F.when(text.isNotNull() & value.isNull(), F.concat(F.lit(f"{name} = "), text)).otherwise(found)
    return found


def _corrupt(around: str, column: str) -> Column:
    """The message's text when there is no struct in it, or one with a field that does not fit."""
    whole = F.col(f"{around}.{ONLY}").isNull() | F.col(f"{around}.{CORRUPT}").isNotNull()
    said, text = F.col(f"{around}.{CORRUPT}"), F.col(column).cast("string")
    wrapped = said.startswith(F.lit(f'{{"{ONLY}":'))  # as `_from_json` reads it
    return F.when(whole, F.coalesce(F.when(wrapped, text).otherwise(said), text, F.lit("NULL")))


ONLY: Final = "v"
CORRUPT: Final = "_corrupt_text"
"""Fields of what a decoder gives: the struct, and a text when any of it does not fit."""


def record_struct(source: CreateSource, ddl: str) -> Column:
    """`{ONLY: the struct, CORRUPT: what is wrong}` of the columns value, __topic and __schemaVersion. Raises SourceError for columns that
    a message of Protocol Buffers does not have."""
    connection = read_options(reader_options(source)).connection
    kind: Any = StructType.fromDDL(f"{ONLY} STRUCT<{ddl}>, {CORRUPT} STRING")
    wanted = to_arrow_type(kind.fields[0].dataType, timezone="UTC")
    make: Any = arrow_udf  # its overloads know no struct
    schema = pa.schema(list(wanted))
    if source.format.encode == "PROTOBUF":
        message, name = protobuf_message(source)
        if message is not None:
            try:
                reader(message.descriptor(), list(schema))
            except SchemaError as error:
                raise SourceError(f"source {source.name}: {error}") from None
        decode = make(_decoder(lambda: ProtobufValues(connection, schema, message, name), schema), returnType=kind)
    else:
        decode = make(_decoder(lambda: RecordValues(connection, schema), schema), returnType=kind)
    found: Column = decode(F.col("value"), F.col("__topic"), F.col("__schemaVersion"))
    return found


def _decoder(make: Callable[[], RecordValues], schema: pa.Schema) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    """For a task: the credentials travel in its pickled code, which no plan shows."""
    held: list[RecordValues] = []

    def decode(values: pa.Array, topics: pa.Array, versions: pa.Array) -> pa.Array:
        if not held:
            held.append(make())
        rows: list[pa.Array] = []
        problems: list[str | None] = []
        for first, last, topic, version in _stretches(topics.to_pylist(), versions.to_pylist()):
            some, wrong = held[0].rows(topic, version, values[first:last].to_pylist())
            rows.append(some)
            problems += wrong
        whole = pa.concat_arrays(rows) if rows else pa.array([], pa.struct(list(schema)))
        return pa.StructArray.from_arrays([whole, pa.array(problems, pa.string())], [ONLY, CORRUPT])

    return decode


def _stretches(topics: list[Any], versions: list[Any]) -> list[tuple[int, int, Any, Any]]:
    """(first, behind the last, topic, version) of neighbours that have both in common."""
    found: list[tuple[int, int, Any, Any]] = []
    for at, (topic, version) in enumerate(zip(topics, versions, strict=True)):
        if found and found[-1][2:] == (topic, version):
            found[-1] = (found[-1][0], at + 1, topic, version)
        else:
            found.append((at, at + 1, topic, version))
    return found
