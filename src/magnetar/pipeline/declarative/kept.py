"""An aggregate that is kept by the engine: the groups in state tables, one epoch a refresh.

The plan is made by hand, not of SQL: one stage, whose rows are what Spark computes over new files, with the operator that GROUP BY has in
`magnetar pipeline` over rows that are only added.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from magnetar.base.clock import Clock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.declarative.files import Listing
from magnetar.pipeline.declarative.split import GLOBAL, CannotBeKeptError, Kept
from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.operators.aggregate import MergedAggregate, aggregate
from magnetar.pipeline.operators.changelog import CHANGE, INSERT
from magnetar.pipeline.operators.operator import INPUT
from magnetar.pipeline.sql.plan import Named
from magnetar.pipeline.state import gc
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState
from magnetar.pipeline.state.table import StateTable
from magnetar.pipeline.views.epoch.epoch import Batch, EpochRunner
from magnetar.pipeline.views.lowering.program import Program
from magnetar.pipeline.views.lowering.stages import Feed, Select, Stage, ViewPlan, quoted
from magnetar.pipeline.views.scan.stored_views import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = "rows"
"""The one relation that the engine reads."""
READ: Final = "files"
"""In a manifest's `sources`: the files that have been read."""
_STATE, _VIEW = 1, 2


def program_of(name: str, kept: Kept, rows: DataFrame) -> Program:
    """The program of one view. CannotBeKeptError for columns that state tables do not take."""
    assert kept.calls is not None
    schema = _nullable(rows)
    try:
        operator = aggregate(_STATE, f"{name}/aggregate", schema, kept.group, kept.calls, append_only=True)
        table = StateTable(_VIEW, name, operator.output_schema, kept.group)
    except StateSchemaError as error:
        raise CannotBeKeptError(str(error)) from error
    assert isinstance(operator, MergedAggregate), "what is only added to can be merged"
    steps = (Select(tuple(Named(quoted(column), column) for column in schema.names)),)
    feed = Feed(INPUT, ROWS, steps, schema, kept.group, view=name)
    partials = tuple(Named(sql, column) for column, sql in operator.spark_partials())
    stage = Stage(f"{name}/aggregate", (feed,), operator, preaggregate=partials, takes_rows=operator.is_exact)
    return Program({ROWS: _Relation()}, (ViewPlan(name, (stage,), table, tuple(shown(kept)), False),))  # type: ignore[dict-item]


class _Relation:
    """In the place of a source's statement, of which the engine asks nothing here."""

    name = ROWS


def shown(kept: Kept) -> list[str]:
    """The columns of the groups' table that are read."""
    assert kept.calls is not None
    return list(kept.columns) if kept.aggregate is None else [*kept.group, *(call.name for call in kept.calls)]


def _nullable(rows: DataFrame) -> pa.Schema:
    import pyarrow as pa

    schema = to_arrow_schema(rows.schema, timezone="UTC")
    return pa.schema([pa.field(each.name, each.type) for each in schema])


class Groups:
    """The groups of one view, in a directory of their own."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._clock = clock
        self._files = StateFiles(str(directory))
        self._store = ManifestStore(self._files, clock)

    @property
    def read(self) -> Listing | None:
        """The files that have been read; None before the first epoch."""
        manifest = self._store.latest()
        found = None if manifest is None else manifest.sources.get(READ)
        return None if found is None else {name: dict(files) for name, files in found.items()}

    def epoch(self, spark: SparkSession, program: Program, rows: DataFrame | None, read: Listing) -> Mapping[str, Any]:
        """Take rows in, and commit that these files have been read. What came of it: `rows_in`, `rows_changed`.

        Raises DriverFencedError when another process does the same.
        """
        (plan,) = program.plans
        units = int(spark.sparkContext.defaultParallelism)
        claimed = self._store.claim(Manifest(0, 0, 0, -1, VnodeMapping.even(units, DEFAULT_VNODES).to_json()))
        tables = {number: claimed.tables.get(number, TableState(table)) for number, table in program.tables.items()}
        views = {
            "catalog": [],
            "tables": {plan.name: _VIEW},
            "stages": {plan.stages[0].stage_id: [_STATE]},
            COLUMNS: {plan.name: list(plan.columns)},
        }
        manifest = self._store.commit(claimed.next(tables=tables, views=views))
        if rows is not None and plan.key == (GLOBAL,):  # not a constant, by which Spark would not place rows
            rows = rows.withColumn(GLOBAL, F.least(F.monotonically_increasing_id(), F.lit(0)).cast("int"))
        frames = {} if rows is None else {ROWS: rows.withColumn(CHANGE, F.lit(INSERT).cast("tinyint"))}
        batch = Batch(manifest.batch_id + 1, self._clock.now_ms() * 1000, frames, {READ: read})
        runner = EpochRunner(self._files, self._store, program)
        adaptive = str(spark.conf.get("spark.sql.adaptive.enabled", "true"))
        spark.conf.set("spark.sql.adaptive.enabled", "false")  # a task's index is its unit
        try:
            prepared = runner.prepare(spark, batch, VnodeMapping.from_json(manifest.mapping))
            _, report = runner.run(spark, manifest, prepared)
        finally:
            spark.conf.set("spark.sql.adaptive.enabled", adaptive)
            spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type]
        gc.collect(self._files, self._clock)
        return {"rows_in": report.rows_in, "rows_changed": sum(report.rows_changed.values())}
