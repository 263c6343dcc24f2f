"""Avro values within Spark SQL: each by its own schema version, for which the task asks the topic's registry.

PySpark's wheel has no `from_avro`: it is in a jar of its own, and knows no registry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from magnetar.pipeline.connect.options import Connection, read_options
from magnetar.pipeline.connect.record_values import RecordValues
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.source_options import reader_options

if TYPE_CHECKING:
    from pyspark.sql import Column

ONLY: Final = "v"
CORRUPT: Final = "_corrupt_text"
"""Fields of what a decoder gives: the struct, and a text when any of it does not fit."""


def avro_struct(source: CreateSource, ddl: str) -> Column:
    """`{ONLY: the struct, CORRUPT: what is wrong}` of the columns value, __topic and __schemaVersion."""
    connection = read_options(reader_options(source)).connection
    kind: Any = StructType.fromDDL(f"{ONLY} STRUCT<{ddl}>, {CORRUPT} STRING")
    wanted = to_arrow_type(kind.fields[0].dataType, timezone="UTC")
    make: Any = arrow_udf  # its overloads know no struct
    decode = make(_decoder(connection, pa.schema(list(wanted))), returnType=kind)
    found: Column = decode(F.col("value"), F.col("__topic"), F.col("__schemaVersion"))
    return found


def _decoder(connection: Connection, schema: pa.Schema) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    """For a task: the credentials travel in its pickled code, which no plan shows."""
    held: list[RecordValues] = []

    def decode(values: pa.Array, topics: pa.Array, versions: pa.Array) -> pa.Array:
        if not held:
            held.append(RecordValues(connection, schema))
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
