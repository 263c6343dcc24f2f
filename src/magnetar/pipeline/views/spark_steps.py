"""Steps on DataFrames: the Spark SQL between two stages, and the columns that Spark says it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from magnetar.pipeline.errors import ExpressionError
from magnetar.pipeline.operators.changelog import CHANGE, INSERT
from magnetar.pipeline.operators.window import WINDOW_END, WINDOW_START
from magnetar.pipeline.sql.plan import RECOMPUTE_INPUT
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.sql.types import spark_type
from magnetar.pipeline.views.stages import EPOCH_TIMESTAMP, ROW_ID, AddWindows, Filter, OverGroups, Select, Step, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

_WINDOW = "__window"


CARRIED: Final = (CHANGE, EPOCH_TIMESTAMP)


def apply_steps(frame: DataFrame, steps: Sequence[Step], carried: Sequence[str] = CARRIED) -> DataFrame:
    """The steps in their order. The frame has `_change` and, where a step uses `now()`, the column `__epoch_timestamp`.

    `carried`: the columns that every step keeps, of those that are there; they come first.
    """
    for step in steps:
        frame = _apply(frame, step, carried)
    return frame


def _apply(frame: DataFrame, step: Step, carried: Sequence[str]) -> DataFrame:
    match step:
        case Filter(condition):
            return frame.where(condition)
        case Select(outputs):
            names = {output.name for output in outputs}
            kept = [quoted(name) for name in carried if name in frame.columns and name not in names]
            return frame.selectExpr(*kept, *(f"{output.sql} AS {quoted(output.name)}" for output in outputs))
        case AddWindows(spark_sql):
            windowed = frame.withColumn(_WINDOW, F.expr(spark_sql))
            start, end = F.col(f"{_WINDOW}.start"), F.col(f"{_WINDOW}.end")
            return windowed.withColumns({WINDOW_START: start, WINDOW_END: end}).drop(_WINDOW)
        case OverGroups(sql, group):
            return _over_groups(frame, sql, group)


def _over_groups(frame: DataFrame, sql: str, group: tuple[str, ...]) -> DataFrame:
    session = frame.sparkSession
    session_name = f"__input_{id(frame)}"
    rows = frame.where(f"{CHANGE} = {INSERT}").drop(CHANGE)
    rows.createOrReplaceTempView(session_name)
    try:
        results = session.sql(sql.replace(RECOMPUTE_INPUT, session_name))
    finally:
        session.catalog.dropTempView(session_name)
    results = results.selectExpr(f"CAST({INSERT} AS TINYINT) AS {CHANGE}", "*")
    touched = frame.where(f"{CHANGE} != {INSERT}")
    names = {name.lower(): name for name in group}
    columns = [
        f"{quoted(names[field.name.lower()])} AS {quoted(field.name)}"
        if field.name.lower() in names
        else f"CAST(NULL AS {field.dataType.simpleString()}) AS {quoted(field.name)}"
        for field in results.schema.fields
        if field.name != CHANGE
    ]
    return results.union(touched.selectExpr(CHANGE, *columns))


class SparkTypes:
    """What columns steps give, as Spark's analyser says of a frame without rows."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def of_source(self, source: CreateSource) -> pa.Schema:
        """The declared columns, with the row's id behind them."""
        columns = [f"{quoted(column.name)} {spark_type(column.type)}" for column in source.columns if column.type]
        frame = self._empty(f"{', '.join([*columns, f'{ROW_ID} STRING'])}")
        generated = {column.name: column.generated for column in source.columns if column.generated}
        for name, sql in generated.items():
            frame = frame.withColumn(name, F.expr(sql))
        names = [column.name for column in source.columns]
        return _schema(frame.select(*[quoted(name) for name in names], ROW_ID))

    def after(self, schema: pa.Schema, steps: Sequence[Step]) -> pa.Schema:
        """The columns behind the steps. ExpressionError with what Spark's analyser says."""
        fields = from_arrow_schema(pa.schema([field for field in schema]))
        fields.add(CHANGE, "byte").add(EPOCH_TIMESTAMP, "timestamp")
        try:
            return _schema(apply_steps(self._empty(fields), steps).drop(CHANGE, EPOCH_TIMESTAMP))
        except PySparkException as error:
            raise ExpressionError(_first_line(error)) from None

    def _empty(self, schema: StructType | str) -> DataFrame:
        nothing: list[Row] = []
        return self._spark.createDataFrame(nothing, schema)


def _schema(frame: DataFrame) -> pa.Schema:
    """Everything may be NULL, so that a table's columns do not depend on what Spark can prove."""
    found = to_arrow_schema(frame.schema, timezone="UTC")
    return pa.schema([pa.field(field.name, field.type) for field in found])


def _first_line(error: PySparkException) -> str:
    return str(error).strip().splitlines()[0].strip()
