"""Epochs of few rows: each stage planned once, as one task that has all vnodes, and run again for every epoch; plain ones without Spark.

Planning a job takes Spark longer than an epoch of few rows takes to work, and a shuffle longer than the rows. Such a job has neither: what
it reads, and what its units are told, travels as properties of the job. A run of such an epoch holds all vnodes; a unit that has some
of them reads it for these. What an epoch is does not change: files under names of their own, then one manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.connect.reading.range_reader import KeptConnections
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.views.epoch.plain_stage import PlainSource, PlainStage, plain_stage
from magnetar.pipeline.views.epoch.spark_steps import apply_feed, feed_name
from magnetar.pipeline.views.epoch.stage_job import kept_changes_frame, kept_source_frame, plan_kept_stage, spark_schema
from magnetar.pipeline.views.lowering.program import Program
from magnetar.pipeline.views.lowering.stages import EPOCH_TIMESTAMP, ONE_ROW, Feed, Stage, ViewPlan
from magnetar.pipeline.views.source.options import decode_policy
from magnetar.pipeline.views.source.sources import Sources
from magnetar.pipeline.views.source.written_rows import is_plain, read_written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SMALL_TRIGGER_S: Final = 0.04
"""Between the beginnings of two epochs of few rows at least: plain ones take less, and each costs CPU here and where views are served."""

SMALL_ROWS: Final = 10_000
SMALL_ENTRIES: Final = 1_000
"""An epoch of few rows has at most so many, as far as can be told before it is read: more take several units less time than one task."""

FEW_ENTRIES: Final = 64
"""While nobody knows how many messages are in an entry: 1,000 at most, unless a producer is told otherwise."""

_ROWS: Final = "rows"
_NEWEST: Final = "newest_us"
_DECODING: Final = " decoding"
"""Behind a source's name: the observation of what cannot be decoded."""


@dataclass
class KeptStage:
    """`observed`: the sources that are counted here, which are those that no earlier stage reads."""

    planned: DataFrame
    observed: tuple[str, ...]


@dataclass
class SourceCounts:
    """Of one source and one epoch. `newest_us`: the newest event time, None where it has no watermark or no rows."""

    rows: int = 0
    undecodable: int = 0
    newest_us: int | None = None


@dataclass
class EpochSize:
    """About how many rows the next epoch has, by its entries and by what was in those of the epochs before."""

    entries: int | None = None
    rows_per_entry: float | None = None

    @property
    def is_small(self) -> bool:
        """Whether one task without a shuffle has it done sooner than all units together."""
        if self.entries is None or self.entries > SMALL_ENTRIES:
            return False
        if self.rows_per_entry is None:
            return self.entries <= FEW_ENTRIES
        return self.entries * max(self.rows_per_entry, 1.0) <= SMALL_ROWS

    def learn(self, rows: int) -> None:
        if self.entries:
            self.rows_per_entry = rows / self.entries


def is_keepable(program: Program) -> bool:
    """Whether nothing in a plan is another in each epoch: neither `now()` nor the watermark by which rows are late."""
    for plan in program.plans:
        for stage in plan.stages:
            origins = [feed.origin for feed in stage.feeds if feed.origin != ONE_ROW]
            twice = len(set(origins)) < len(origins)  # what is observed must be there once
            if twice or any(feed.is_late or EPOCH_TIMESTAMP in repr(feed.steps) for feed in stage.feeds):
                return False
    return not any(EPOCH_TIMESTAMP in sql for sql, _ in program.watermarks.values())


@dataclass
class KeptPlans:
    """Of one driver. Made when a stage first runs so; nothing in them depends on the mapping or on the state."""

    files: StateFiles
    program: Program
    sources: Sources
    _stages: dict[tuple[str, str], KeptStage] = field(default_factory=dict)
    _plain: dict[tuple[str, str], PlainStage | None] = field(default_factory=dict)

    def plain(self, plan: ViewPlan, stage: Stage) -> PlainStage | None:
        """What runs a stage without Spark, where that can be."""
        key = (plan.name, stage.stage_id)
        if key not in self._plain:
            self._plain[key] = self._as_plain(plan, stage)
        return self._plain[key]

    def _as_plain(self, plan: ViewPlan, stage: Stage) -> PlainStage | None:
        if len(stage.feeds) != 1:
            return None
        (feed,) = stage.feeds
        if not self.program.reads_source(plan, feed):
            return plain_stage(stage, None, self._changes(plan, feed))
        if feed.origin in self.program.watermarks:
            return None
        source = self.program.sources[feed.origin]
        return plain_stage(stage, PlainSource.of(source, self.sources.reading(source)[0], KeptConnections()), None)

    def close(self) -> None:
        for each in self._plain.values():
            if each is not None:
                each.close()

    def is_counted(self, plan: ViewPlan, stage: Stage, name: str) -> bool:
        """Whether the rows of a source are counted in this stage."""
        return name in self._first_read(plan, stage)

    def stage(self, spark: SparkSession, plan: ViewPlan, stage: Stage) -> KeptStage:
        """The job of a stage."""
        key = (plan.name, stage.stage_id)
        if key not in self._stages:
            fed = [
                (feed, apply_feed(self._frame(spark, plan, stage, feed), feed, 0, name=feed_name(place)))
                for place, feed in enumerate(stage.feeds)
                if feed.origin != ONE_ROW  # it was read when the view was created
            ]
            planned = plan_kept_stage(stage, fed, DEFAULT_VNODES, self.files, spark)
            self._stages[key] = KeptStage(planned, self._first_read(plan, stage))
        return self._stages[key]

    def written(self, plan: ViewPlan, stage: Stage, ranges: Mapping[str, Sequence[Any]]) -> dict[str, pa.Table] | None:
        """The input of the stage of a table that clients write, read without a job; None where that takes one."""
        (feed, *others) = stage.feeds
        source = self.program.sources.get(feed.origin)
        if others or source is None or not self.program.reads_source(plan, feed) or not is_plain(source, feed):
            return None
        if self.program.source_readers[source.name] > 1 or source.name in self.program.watermarks:
            return None
        rows = read_written(source, feed, ranges[feed.origin], *self.sources.reading(source))
        return None if rows is None else {feed.input: rows}

    def counts(self, kept: KeptStage) -> dict[str, SourceCounts]:
        """What the job's last run has seen of the sources that it counts."""
        if not kept.observed:
            return {}
        metrics = kept.planned._jdf.queryExecution().observedMetrics()
        found = {}
        for name in kept.observed:
            counted = SourceCounts()
            row = metrics.get(name)
            if row.isDefined():
                counted.rows = int(row.get().getLong(0))
                if name in self.program.watermarks and not row.get().isNullAt(1):
                    counted.newest_us = int(row.get().getLong(1)) - self.program.watermarks[name][1]
            decoding = metrics.get(name + _DECODING)
            if decoding.isDefined():
                counted.undecodable = int(decoding.get().getLong(1))
            found[name] = counted
        return found

    def _frame(self, spark: SparkSession, plan: ViewPlan, stage: Stage, feed: Feed) -> DataFrame:
        if not self.program.reads_source(plan, feed):
            return kept_changes_frame(spark, feed.origin, self.files, spark_schema(self._changes(plan, feed)))
        source = self.program.sources[feed.origin]
        options, schema = self.sources.reading(source)
        raw = kept_source_frame(spark, source.name, options, schema)
        if source.name not in self._first_read(plan, stage):
            return self.sources.decoded(raw, source)
        lenient = decode_policy(source) != "strict"
        frame = self.sources.decoded(raw, source, source.name + _DECODING if lenient else None)
        columns = [F.count(F.lit(1)).alias(_ROWS)]
        if source.name in self.program.watermarks:
            time, _ = self.program.watermarks[source.name]
            columns.append(F.expr(f"unix_micros(max(cast({time} AS timestamp)))").alias(_NEWEST))
        return frame.observe(source.name, *columns)

    def _changes(self, plan: ViewPlan, feed: Feed) -> pa.Schema:
        """The columns of what a feed reads that is no source."""
        for stage in plan.stages:
            if stage.stage_id == feed.origin:
                return stage.operator.output_schema
        other = next(each for each in self.program.plans if each.name == feed.origin)
        return other.stages[-1].operator.output_schema

    def _first_read(self, plan: ViewPlan, stage: Stage) -> tuple[str, ...]:
        """The sources that no stage before this one reads."""
        seen: set[str] = set()
        for other in self.program.plans:
            for each in other.stages:
                mine = {feed.origin for feed in each.feeds if self.program.reads_source(other, feed)}
                if other is plan and each is stage:
                    return tuple(sorted(mine - seen))
                seen |= mine
        return ()


def read_by(
    program: Program, plan: ViewPlan, stage: Stage, ranges: Mapping[str, Sequence[Any]], changes: Mapping[str, Any]
) -> dict[str, Sequence[Any]]:
    """What the job of a stage is to read of an epoch; empty when there is nothing for it."""
    found = {}
    for feed in stage.feeds:
        given = ranges if program.reads_source(plan, feed) else changes
        if given.get(feed.origin):
            found[feed.origin] = given[feed.origin]
    return found
