"""Steps on DataFrames: the Spark SQL between two stages, and the columns that Spark says it gives."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema, to_arrow_type

from magnetar.pipeline.errors import ExpressionError
from magnetar.pipeline.operators.changelog import CHANGE, INSERT, UPDATE_AFTER
from magnetar.pipeline.operators.python_calls import PythonCalls
from magnetar.pipeline.operators.window import WINDOW_END, WINDOW_START
from magnetar.pipeline.sql.plan import RECOMPUTE_INPUT, Named
from magnetar.pipeline.sql.python_functions import VALUE, called_name, code_of, of_python, spark_returns
from magnetar.pipeline.sql.statements import CreateFunction, CreateSource
from magnetar.pipeline.views.lowering.stages import (
    EPOCH_TIMESTAMP,
    ROW_ID,
    AddElements,
    AddWindows,
    Feed,
    Filter,
    Late,
    OverGroups,
    Select,
    Step,
    failures,
    quoted,
)
from magnetar.pipeline.views.source.frame import DEAD_EXPRESSION, DEAD_LETTER, DEAD_VIEW, source_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

_WINDOW = "__window"
_FAILED: Final = "__failed"
EXPRESSION_ERRORS: Final = "expression_errors"
"""A counter of an epoch: rows for which an expression failed, once for the conditions and once for the values of a query."""
STRICT: Final = "expression of view "
"""How the text begins that a strict view's expression raises."""


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
        case AddElements(array, name, position, outer):
            function = "posexplode_outer" if outer else "posexplode"
            spread = frame.selectExpr("*", f"{function}({array}) AS ({quoted(position)}, {quoted(name)})")
            number = F.col(quoted(position)).cast("bigint") + F.lit(1)
            columns = [quoted(each) for each in (*frame.columns, name, position)]
            return spread.withColumn(position, number).select(*columns)
        case OverGroups(sql, group):
            return _over_groups(frame, sql, group)
        case Late():  # `apply_feed` knows the watermark; without one nothing is late
            return frame.where("false")


def _over_groups(frame: DataFrame, sql: str, group: tuple[tuple[str, str], ...]) -> DataFrame:
    """Spark reads the rows under a name of this call alone."""
    session = frame.sparkSession
    name = f"__groups_{uuid.uuid4().hex}"
    frame.where(f"{CHANGE} = {INSERT}").drop(CHANGE).createOrReplaceTempView(name)
    try:
        results = session.sql(sql.replace(f"FROM {RECOMPUTE_INPUT}", f"FROM {name}"))
    finally:
        session.catalog.dropTempView(name)
    before = {behind: name for name, behind in group}
    touched = [
        quoted(before[field.name]) if field.name in before else f"CAST(NULL AS {field.dataType.simpleString()})"
        for field in results.schema.fields
    ]
    columns = [f"CAST({INSERT} AS TINYINT) AS {CHANGE}", "*"]
    return results.selectExpr(*columns).union(frame.where(f"{CHANGE} != {INSERT}").selectExpr(CHANGE, *touched))


class SparkTypes:
    """What columns steps give, as Spark's analyser says of a frame without rows. It is asked once: a change of one view leaves the others
    as they are, and each question takes Spark some 50 ms."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._defined: list[CreateFunction] = []
        self._sources: dict[str, pa.Schema] = {}
        self._after: dict[tuple[pa.Schema, tuple[Step, ...]], pa.Schema] = {}

    def define(self, functions: Iterable[CreateFunction]) -> None:
        """Make the functions in Python known to the session, before what calls them is planned."""
        wanted = list(of_python(functions))
        if wanted == self._defined:
            return
        self._after.clear()
        self._defined = wanted
        for each in wanted:
            (result,) = self._empty(f"r {spark_returns(each)}").schema.fields
            arrow = to_arrow_type(result.dataType, timezone="UTC")
            make: Any = arrow_udf  # its overloads know no struct
            calls = PythonCalls(code_of(each), arrow.field(VALUE).type)
            self._spark.udf.register(called_name(each), make(_of_columns(calls), returnType=result.dataType))

    def of_source(self, source: CreateSource) -> pa.Schema:
        """The source's columns, with the row's id behind them. SourceError."""
        key = repr(source)
        if not source.columns or key not in self._sources:  # without columns they are those that the topic has by now
            found = source_schema(self._spark, source)
            self._sources[key] = _schema(found.fieldNames(), found)
        return self._sources[key]

    def after(self, schema: pa.Schema, steps: Sequence[Step]) -> pa.Schema:
        """The columns behind the steps. ExpressionError with what Spark's analyser says."""
        key = (schema, tuple(steps))
        if key not in self._after:
            self._after[key] = self._analysed(schema, steps)
        return self._after[key]

    def _analysed(self, schema: pa.Schema, steps: Sequence[Step]) -> pa.Schema:
        fields = from_arrow_schema(pa.schema([field for field in schema]))
        fields.add(CHANGE, "byte").add(EPOCH_TIMESTAMP, "timestamp")
        try:
            found = apply_steps(self._empty(fields), steps).schema
        except PySparkException as error:
            raise ExpressionError(_first_line(error)) from None
        return _schema(found.fieldNames(), found)

    def spark_name(self, kind: pa.DataType) -> str:
        """Spark's word for a type."""
        return from_arrow_type(kind).simpleString()

    def _empty(self, schema: StructType | str) -> DataFrame:
        nothing: list[Row] = []
        return self._spark.createDataFrame(nothing, schema)


def _of_columns(calls: PythonCalls) -> Callable[..., pa.Array]:
    """As Spark takes a function of whole columns, which it knows by the annotations."""

    def run(*columns: pa.Array) -> pa.Array:
        return calls.with_errors(columns, len(columns[0]))

    run.__annotations__ = {"columns": pa.Array, "return": pa.Array}
    return run


def _schema(names: list[str], found: StructType) -> pa.Schema:
    """Everything may be NULL, so that a table's columns do not depend on what Spark can prove."""
    schema = to_arrow_schema(found, timezone="UTC")
    kept = [name for name in names if name not in (CHANGE, EPOCH_TIMESTAMP)]
    return pa.schema([pa.field(name, schema.field(name).type) for name in kept])


def _first_line(error: PySparkException) -> str:
    line = str(error).strip().splitlines()[0].strip()
    return _AROUND.sub("", line).strip()


_AROUND: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w{5}.*$")
"""Spark's class of an error, and its number."""


WatermarkOf: TypeAlias = Callable[[Sequence[str]], int | None]
"""That of some relations together, in microseconds; None while one of them has none."""


def apply_feed(
    frame: DataFrame, feed: Feed, now_us: int, watermark_us: WatermarkOf = lambda _: None, *, name: str
) -> DataFrame:
    """`_change`, the feed's columns, and what it is ordered by. `now_us`: what `now()` is in this epoch.

    `watermark_us` is needed where a feed `is_late`. `name`: of the feed in its job, by which rows are counted for which an
    expression fails.
    """
    frame = _timed(frame, feed, now_us)
    fallible = feed.fallible
    for place, given in enumerate(feed.steps):
        step = _closed(given, watermark_us) if isinstance(given, Late) else given
        if place not in fallible:
            frame = apply_steps(frame, [step])
        elif feed.on_error == "strict":
            frame = apply_steps(_strictly(frame, feed, step), [step])
        else:
            frame = _counted(frame, step, f"{name} {place}", leaves_out=feed.sends_failed)
    order = [column for column in feed.ordered_by if column not in feed.schema.names]
    return frame.select(*(F.col(quoted(column)) for column in (CHANGE, *order, *feed.schema.names)))


def failed_rows(frame: DataFrame, feed: Feed, now_us: int) -> DataFrame:
    """Of a source's rows with DEAD_LETTER those that `apply_feed` leaves out: this column, DEAD_VIEW, and in DEAD_EXPRESSION what failed
    first."""
    frame = _timed(frame, feed, now_us)
    found: list[DataFrame] = []
    for place, step in enumerate(feed.steps[: feed.fallible[-1] + 1]):
        if place in feed.fallible:
            first = F.coalesce(*(F.when(F.expr(failed), F.lit(text)) for failed, text in failures(step)))
            marked = frame.withColumn(_FAILED, first)
            named = [F.lit(feed.view).alias(DEAD_VIEW), F.col(_FAILED).alias(DEAD_EXPRESSION)]
            found.append(marked.where(F.col(_FAILED).isNotNull()).select(DEAD_LETTER, *named))
            frame = marked.where(F.col(_FAILED).isNull()).drop(_FAILED)
        frame = apply_steps(frame, [step], (*CARRIED, DEAD_LETTER))
    return reduce(lambda one, other: one.union(other), found)


def _timed(frame: DataFrame, feed: Feed, now_us: int) -> DataFrame:
    if EPOCH_TIMESTAMP not in repr(feed.steps):
        return frame
    return frame.withColumn(EPOCH_TIMESTAMP, F.expr(f"timestamp_micros({now_us})"))


def _counted(frame: DataFrame, step: Step, name: str, *, leaves_out: bool) -> DataFrame:
    """The step, and an observation of the rows that come and for which one of its expressions fails. What fails is computed beside the
    values, so that Spark does so once for both. `leaves_out`: without these rows."""
    bad = " OR ".join(f"coalesce({failed}, false)" for failed, _ in failures(step))
    comes = f"{CHANGE} IN ({INSERT}, {UPDATE_AFTER})"
    if isinstance(step, Select):
        frame = apply_steps(frame, [Select((*step.outputs, Named(f"{comes} AND ({bad})", _FAILED)))])
    else:
        frame = frame.withColumn(_FAILED, F.expr(f"{comes} AND ({bad})"))
    frame = frame.observe(name, F.count_if(F.col(_FAILED)).alias(EXPRESSION_ERRORS))
    frame = (frame.where(~F.col(_FAILED)) if leaves_out else frame).drop(_FAILED)
    return frame if isinstance(step, Select) else apply_steps(frame, [step])


def _strictly(frame: DataFrame, feed: Feed, step: Step) -> DataFrame:
    """A filter, since Spark drops a column that nobody reads together with the error in it."""
    row = [F.lit(" for the row "), F.col(ROW_ID), F.lit(" ")] if ROW_ID in frame.columns else [F.lit(" for a row ")]
    for failed, text in failures(step):
        told = [F.lit(f"{STRICT}{feed.view}: {text} fails"), *row, F.lit(f"of {feed.origin}")]
        frame = frame.where(F.expr(f"NOT coalesce({failed}, false)") | F.raise_error(F.concat(*told)).isNull())
    return frame


def expression_errors(planned: DataFrame, feeds: Sequence[Feed]) -> dict[int, int]:
    """By the place of a feed what a stage's job has counted in its last run, where that is anything. `feeds`: of the stage, by whose
    places `apply_feed` was told their names."""
    names = {
        place: [f"{feed_name(place)} {at}" for at in feed.fallible]
        for place, feed in enumerate(feeds)
        if feed.on_error != "strict" and feed.fallible
    }
    if not names:
        return {}
    metrics = planned._jdf.queryExecution().observedMetrics()
    found = {place: [metrics.get(name) for name in each] for place, each in names.items()}
    counts = {place: sum(int(row.get().getLong(0)) for row in rows if row.isDefined()) for place, rows in found.items()}
    return {place: count for place, count in counts.items() if count}


def feed_name(place: int) -> str:
    """Of the feed at that place of its stage, in the stage's job."""
    return f"failed {place}"


def _closed(step: Late, watermark_us: WatermarkOf) -> Filter:
    """The same rows for which a windowed aggregate finds that its window is closed."""
    reached_us = watermark_us(step.sources)
    return Filter("false" if reached_us is None else f"unix_micros({quoted(step.end)}) <= {reached_us}")
