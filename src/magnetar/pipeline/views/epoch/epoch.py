"""One epoch: the changes of all sources through all views, committed as one manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from magnetar.hashing.mapping import VnodeMapping, diff
from magnetar.pipeline.operators.operator import EpochContext
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState
from magnetar.pipeline.views.changelog_files import ChangelogFile
from magnetar.pipeline.views.epoch import event_time as watermarks
from magnetar.pipeline.views.epoch.actor import InputColumns, UnitResult, UnitTask, apply_changes, run_unit
from magnetar.pipeline.views.epoch.event_time import Observed
from magnetar.pipeline.views.epoch.kept_plans import KeptPlans, SourceCounts, read_by
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.epoch.spark_steps import (
    EXPRESSION_ERRORS,
    apply_feed,
    expression_errors,
    failed_rows,
    feed_name,
)
from magnetar.pipeline.views.epoch.stage_job import (
    changes_frame,
    plan_own_stage,
    plan_read_stage,
    plan_stage,
    run_stage,
    spark_schema,
    unit_changes_frame,
)
from magnetar.pipeline.views.epoch.worker import TASK_S
from magnetar.pipeline.views.lowering.changes import renames
from magnetar.pipeline.views.lowering.program import BACKFILL, BEFORE_US, Program, materializes
from magnetar.pipeline.views.lowering.stages import Feed, Stage, ViewPlan
from magnetar.pipeline.views.sink.sinks import undelivered
from magnetar.pipeline.views.source.dead_letters import DeadLetters
from magnetar.pipeline.views.source.frame import UNDECODABLE
from magnetar.pipeline.views.source.native_rows import NativeRead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

    from magnetar.pipeline.connect.offsets import Range
    from magnetar.pipeline.views.source.sources import Sources
    from magnetar.pipeline.views.source.tail import Tail

SHUFFLED: Final = "rows_outside_their_segment"
"""A counter of an epoch: rows that did not lie in the segment of their key, so that the epoch's rows were shuffled after all."""

DEAD_LETTERS: Final = "dead_letters"
"""A counter of an epoch: messages that were sent to a dead-letter topic."""


@dataclass(frozen=True)
class Batch:
    """What goes into an epoch. `frames`: decoded rows of the sources that have any; `offsets`: of all sources, after it.

    `batch_id`: the streaming engine's, or the manifest's own for an epoch without a batch. `backfill`: the only views that the epoch is
    for, which were not there before; `rows`: as inserts, those of the views they read from that were.
    """

    batch_id: int
    time_us: int
    frames: Mapping[str, DataFrame] = field(default_factory=dict)
    offsets: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, DataFrame] = field(default_factory=dict)
    backfill: frozenset[str] | None = None
    sinks: Mapping[str, Any] | None = None
    """How far sinks have delivered, where that is further than the manifest says."""
    decoding: Mapping[str, Observation] = field(default_factory=dict)
    """Of the sources that leave out what cannot be decoded, or make it NULL: how many there were. They have readers."""
    dead_letters: Mapping[str, DeadLetters] = field(default_factory=dict)
    """By source: what sends those that it left out, and those for which a view's expression failed."""
    own: frozenset[str] = frozenset()
    """The sources in whose `frames` each unit reads the rows of its own vnodes, by the mapping that the epoch is prepared with."""
    native: Mapping[str, NativeRead] = field(default_factory=dict)
    """The sources that tasks read by themselves, which are in no `frames`: `EpochRunner.native_reads`."""
    decoded: Callable[[str], DataFrame] | None = None
    """The frame of one of these after all, for messages that they cannot read. It adds to `decoding`."""
    ranges: Mapping[str, Sequence[Range]] | None = None
    """Of an epoch of few rows, in place of `frames`: what is read of each source, by the jobs whose plans are kept."""


@dataclass
class _Work:
    """What has come of an epoch so far."""

    tables: dict[int, TableState]
    changes: dict[str, list[ChangelogFile]] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    rows_in: dict[str, int] = field(default_factory=dict)
    rows_changed: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    unit_s: float = 0.0
    counts: dict[str, SourceCounts] = field(default_factory=dict)
    """By source, of an epoch of few rows."""
    failed: list[Feed] = field(default_factory=list)
    """Those that left out rows for which an expression failed."""


@dataclass(frozen=True)
class Prepared:
    """An epoch of which everything is planned that does not depend on the one before. `stages`: planned jobs by view and stage."""

    batch: Batch
    mapping: VnodeMapping
    observed: Observed
    stages: Mapping[tuple[str, str], DataFrame]
    plan_s: float


READ_AGAIN: Final = "rows_read_again"
"""A counter of an epoch: rows that tasks did not read by themselves, but through Spark after all."""

READ_AGAIN_EPOCHS: Final = 100
"""After such an epoch Spark reads at once in so many that follow."""

PREAGGREGATED_FROM: Final = 3.0
"""Changes of a group in one epoch from which on Spark makes partial results of them; for fewer that takes longer than it saves."""


class EpochRunner:
    """Runs epochs one after another. Whatever fails leaves the last manifest as it was.

    Holds nothing that a result depends on: the program, and how many changes came for a group in a stage's last epoch.
    """

    def __init__(
        self, files: StateFiles, store: ManifestStore, program: Program, kept: KeptPlans | None = None
    ) -> None:
        """`kept`: what runs epochs of few rows; without it there are none."""
        self._files = files
        self._store = store
        self._program = program
        self._kept_plans = kept
        self._per_group: dict[str, float] = {}
        self._spark_reads: dict[str, int] = {}
        """By source: the epochs left in which Spark reads it."""

    def native_reads(
        self, sources: Sources, tail: Tail, start: Mapping[str, Any], ends: Mapping[str, Any], tasks: int
    ) -> dict[str, NativeRead]:
        """What at most so many tasks read by themselves between two positions of the sources, of those of which Spark need not see the
        rows: they are in no `frames` of the Batch, but in `native`."""
        found = {}
        for name, end in ends.items():
            names = self._native_names(name)
            rows = None if names is None else sources.native(self._program.sources[name], names)
            if rows is not None:
                found[name] = NativeRead.of(rows, tail.pieces(name, start.get(name), end), tasks)
        return found

    def _native_names(self, source: str) -> dict[str, str] | None:
        """The columns that tasks have to read of a source to begin its aggregate by themselves: by the name that this has, the source's.
        None where Spark has to read it."""
        stage_id = self._program.counting_stages.get(source)
        left = self._spark_reads.get(source, 0)
        self._spark_reads[source] = max(left - 1, 0)
        if stage_id is None or source in self._program.read_by_units or left:
            return None
        (stage,) = (each for plan in self._program.plans for each in plan.stages if each.stage_id == stage_id)
        if self._shaped(stage).native is None:
            return None
        columns = [column.name for column in self._program.sources[source].columns]
        return renames(stage.feeds[0].steps, pa.schema([pa.field(name, pa.null()) for name in columns]))

    def prepare(self, spark: SparkSession, batch: Batch, mapping: VnodeMapping) -> Prepared:
        """Plan the jobs of all stages that read nothing but sources; may be called while another epoch runs.

        `mapping`: the one to work with, which may be a new one.
        """
        started = perf_counter()
        observed = Observed(self._program, batch.frames)
        stages: dict[tuple[str, str], DataFrame] = {}
        if batch.ranges is not None:
            return Prepared(batch, mapping, observed, stages, 0.0)
        for plan, stage in self._stages(batch):
            if len(stage.feeds) == 1 and (read := self._native_read(plan, stage.feeds[0], batch)) is not None:
                stages[plan.name, stage.stage_id] = plan_read_stage(stage, read, mapping, self._files, spark)
                continue
            fed = [
                (place, feed, observed.frames[feed.origin])
                for place, feed in enumerate(stage.feeds)
                if feed.origin in observed.frames
            ]
            if fed and all(self._program.reads_source(plan, feed) and not feed.is_late for feed in stage.feeds):
                rows = [
                    (feed, apply_feed(frame, feed, batch.time_us, name=feed_name(place))) for place, feed, frame in fed
                ]
                if self._is_own(stage, batch):
                    stages[plan.name, stage.stage_id] = plan_own_stage(rows[0], self._files)
                else:
                    stages[plan.name, stage.stage_id] = plan_stage(
                        self._shaped(stage), rows, mapping, self._files, spark
                    )
        return Prepared(batch, mapping, observed, stages, perf_counter() - started)

    def run(self, spark: SparkSession, manifest: Manifest, prepared: Prepared) -> tuple[Manifest, EpochReport]:
        """The manifest committed. Raises DriverFencedError."""
        started = perf_counter()
        batch, mapping, observed = prepared.batch, prepared.mapping, prepared.observed
        work = _Work(dict(manifest.tables))
        run_stage_of = self._stage if batch.ranges is None else self._kept_stage
        for plan, stage in self._stages(batch):
            run_stage_of(spark, manifest, plan, stage, prepared, work)
        worked = perf_counter()
        bad = {name: int(each.get[UNDECODABLE]) for name, each in batch.decoding.items()}
        bad |= {name: each.undecodable for name, each in work.counts.items()}
        if undecodable := sum(bad.values()):
            work.counters[UNDECODABLE] = undecodable
        if sent := self._send_dead_letters(batch, [name for name, count in bad.items() if count], work.failed):
            work.counters[DEAD_LETTERS] = sent
        seen = observed.watermarks_us() | {
            name: each.newest_us for name, each in work.counts.items() if name in self._program.watermarks
        }
        following = manifest.next(
            epoch=manifest.epoch + 1,
            batch_id=batch.batch_id,
            mapping=mapping.to_json(),
            tables=work.tables,
            sources={**manifest.sources, **batch.offsets},
            watermarks_us=watermarks.advanced(manifest.watermarks_us, seen),
            views={**manifest.views, **_remembered(manifest, batch)},
            sinks=dict(batch.sinks) if batch.sinks is not None else manifest.sinks,
            changelogs=self._changelogs(manifest, batch, work),
        )
        committed = self._store.commit(following)
        done = perf_counter()
        self._forget(work)
        seconds = {
            "plan": prepared.plan_s,
            **work.seconds,
            "work": worked - started,
            "commit": done - worked,
            "total": done - started,
        }
        if batch.ranges is None:
            counted = sum(work.rows_in.get(stage_id, 0) for stage_id in set(self._program.counting_stages.values()))
            rows_in, moved = observed.rows() + counted, (*batch.frames, *batch.native)
        else:
            rows_in, moved = sum(each.rows for each in work.counts.values()), tuple(batch.ranges)
        report = self._report(manifest, committed, mapping, work, rows_in, moved, seconds)
        return committed, report

    def is_settled(self, manifest: Manifest) -> bool:
        """Whether an epoch without rows would change nothing: no window waits to be closed."""
        before = manifest.views.get(BEFORE_US, {})
        return all(
            watermarks.is_settled(stage.watermarks, manifest.watermarks_us, before)
            for plan in self._program.plans
            for stage in plan.stages
        )

    def _context(self, manifest: Manifest, stage: Stage, batch: Batch) -> EpochContext:
        before = {} if batch.backfill is not None else manifest.views.get(BEFORE_US, {})
        reached = _watermarks_us(manifest, batch)
        return watermarks.context(manifest.epoch + 1, batch.time_us, stage.watermarks, reached, before)

    def _stages(self, batch: Batch) -> Iterator[tuple[ViewPlan, Stage]]:
        """All that the epoch is for, in their order."""
        for plan in self._program.plans:
            if batch.backfill is None or plan.name in batch.backfill:
                yield from ((plan, stage) for stage in plan.stages)

    def _stage(
        self, spark: SparkSession, manifest: Manifest, plan: ViewPlan, stage: Stage, prepared: Prepared, work: _Work
    ) -> None:
        context = self._context(manifest, stage, prepared.batch)
        planned = prepared.stages.get((plan.name, stage.stage_id))
        own = self._is_own(stage, prepared.batch)
        if planned is None:
            fed = self._fed(spark, manifest, plan, stage, prepared, work)
            if not fed and context.watermark_us == context.previous_watermark_us:
                return
            own = own and bool(fed)
            if own:
                planned = plan_own_stage(fed[0], self._files)
            else:
                planned = plan_stage(self._shaped(stage), fed, prepared.mapping, self._files, spark)
        task = replace(self._task(manifest, plan, stage, context, prepared.mapping), own=own)
        # Only the description, for Spark's UI.
        pipeline = self._files.root.rpartition("/")[2]
        spark.sparkContext.setJobDescription(f"{pipeline}: {plan.name}, epoch {context.epoch}")
        results = run_stage(spark, planned, task)
        if strangers := sum(result.strangers for result in results):
            work.counters[SHUFFLED] = work.counters.get(SHUFFLED, 0) + strangers
            fed = self._fed(spark, manifest, plan, stage, prepared, work)
            planned = plan_stage(self._shaped(stage), fed, prepared.mapping, self._files, spark)
            results = run_stage(spark, planned, replace(task, own=False))
        if any(result.unread for result in results):
            self._spark_reads[stage.feeds[0].origin] = READ_AGAIN_EPOCHS
            fed = self._fed(spark, manifest, plan, stage, prepared, work)
            planned = plan_stage(self._shaped(stage), fed, prepared.mapping, self._files, spark)
            results = run_stage(spark, planned, task)
            rows = sum(result.rows_in for result in results)
            work.counters[READ_AGAIN] = work.counters.get(READ_AGAIN, 0) + rows
        self._count_errors(planned, stage, work)
        if groups := sum(result.keys_read for result in results):
            self._per_group[stage.stage_id] = sum(result.rows_in for result in results) / groups
        work.rows_in[stage.stage_id] = sum(result.rows_in for result in results)
        self._take(plan, stage, results, work)

    def _native_read(self, plan: ViewPlan, feed: Feed, batch: Batch) -> NativeRead | None:
        return batch.native.get(feed.origin) if self._program.reads_source(plan, feed) else None

    def _is_own(self, stage: Stage, batch: Batch) -> bool:
        """Whether units have read the rows of a stage that belong to them, or written them."""
        return stage.vnode_hash == "segment" and bool(batch.own) and batch.ranges is None

    def _kept_stage(
        self, spark: SparkSession, manifest: Manifest, plan: ViewPlan, stage: Stage, prepared: Prepared, work: _Work
    ) -> None:
        """The same of an epoch of few rows: one task for all units, under the name of the first."""
        assert self._kept_plans is not None
        assert prepared.batch.ranges is not None
        context = self._context(manifest, stage, prepared.batch)
        read = read_by(self._program, plan, stage, prepared.batch.ranges, work.changes)
        if not read and context.watermark_us == context.previous_watermark_us:
            return
        task = self._task(manifest, plan, stage, context, prepared.mapping)
        task = replace(task, units=task.units[:1], vnodes=(tuple(range(prepared.mapping.vnodes)),))
        written = self._kept_plans.written(plan, stage, read) if read else None
        if written is not None:
            results = [run_unit(task, 0, written, stays=True)]
            work.counts[stage.feeds[0].origin] = SourceCounts(results[0].rows_in)
            work.rows_in[stage.stage_id] = results[0].rows_in
            self._take(plan, stage, results, work)
            return
        plain = self._kept_plans.plain(plan, stage) if read else None
        result = None if plain is None else plain.run(task, read[plain.feed.origin])
        if plain is not None and result is not None:
            if self._kept_plans.is_counted(plan, stage, plain.feed.origin):
                work.counts[plain.feed.origin] = SourceCounts(result.rows_in)
            work.rows_in[stage.stage_id] = result.rows_in
            self._take(plan, stage, [result], work)
            return
        kept = self._kept_plans.stage(spark, plan, stage)
        results = run_stage(spark, kept.planned, task, read)
        self._count_errors(kept.planned, stage, work)
        work.counts.update({name: each for name, each in self._kept_plans.counts(kept).items() if name in read})
        work.rows_in[stage.stage_id] = sum(result.rows_in for result in results)
        self._take(plan, stage, results, work)

    def _count_errors(self, planned: DataFrame, stage: Stage, work: _Work) -> None:
        for place, count in expression_errors(planned, stage.feeds).items():
            work.counters[EXPRESSION_ERRORS] = work.counters.get(EXPRESSION_ERRORS, 0) + count
            if stage.feeds[place].sends_failed:
                work.failed.append(stage.feeds[place])

    def _send_dead_letters(self, batch: Batch, undecodable: Iterable[str], failed: Iterable[Feed]) -> int:
        """How many messages were sent: those that these sources could not decode, and those for which these feeds' expressions failed."""
        sent = sum(batch.dead_letters[name].undecodable() for name in undecodable if name in batch.dead_letters)
        for feed in failed:
            sent += batch.dead_letters[feed.origin].failed(partial(failed_rows, feed=feed, now_us=batch.time_us))
        return sent

    def _fed(
        self, spark: SparkSession, manifest: Manifest, plan: ViewPlan, stage: Stage, prepared: Prepared, work: _Work
    ) -> list[tuple[Feed, DataFrame]]:
        """The feeds that have rows, of a stage that needs what the epoch has done so far."""
        batch, fed = prepared.batch, []
        watermark_us = partial(watermarks.combined, _watermarks_us(manifest, batch))
        for place, feed in enumerate(stage.feeds):
            if self._program.reads_source(plan, feed):
                frame = prepared.observed.frames.get(feed.origin)
                if frame is None and feed.origin in batch.native:
                    assert batch.decoded is not None
                    frame = batch.decoded(feed.origin)
            elif feed.origin in work.changes and self._is_own(stage, batch):
                frame = unit_changes_frame(
                    spark, self._files, work.changes[feed.origin], work.schemas[feed.origin], prepared.mapping
                )
            elif feed.origin in work.changes:
                frame = changes_frame(spark, self._files, work.changes[feed.origin], work.schemas[feed.origin])
            else:
                frame = batch.rows.get(feed.origin)
            if frame is not None:
                fed.append((feed, apply_feed(frame, feed, batch.time_us, watermark_us, name=feed_name(place))))
        return fed

    def _shaped(self, stage: Stage) -> Stage:
        """The stage, without partial results where the last epoch says that they would hardly be fewer than the rows."""
        if stage.takes_rows and self._per_group.get(stage.stage_id, PREAGGREGATED_FROM) < PREAGGREGATED_FROM:
            return replace(stage, preaggregate=None)
        return stage

    def _task(
        self, manifest: Manifest, plan: ViewPlan, stage: Stage, context: EpochContext, mapping: VnodeMapping
    ) -> UnitTask:
        view = plan.table if materializes(plan, stage) else None
        tables = [*stage.operator.state_tables(), *([view] if view is not None else [])]
        last = stage is plan.stages[-1]
        readers = self._program.changes_read
        durable = last and self._program.keeps_changes(plan.name)
        return UnitTask(
            root=self._files.root_url,
            options=self._files.options,
            context=context,
            units=mapping.units,
            vnodes=tuple(tuple(mapping.vnodes_of(unit)) for unit in mapping.units),
            inputs={feed.input: InputColumns(feed.schema, feed.ordered_by) for feed in stage.feeds},
            operator=stage.operator,
            tables={table.table_id: manifest.tables.get(table.table_id, TableState(table)) for table in tables},
            view=view,
            changes=durable or stage.stage_id in readers or (last and plan.name in readers),
            durable=durable,
        )

    def _take(self, plan: ViewPlan, stage: Stage, results: Sequence[UnitResult], work: _Work) -> None:
        known = self._program.tables
        for table_id in {table_id for result in results for table_id in result.tables}:
            state = work.tables.get(table_id, TableState(known[table_id]))
            changes = [result.tables[table_id] for result in results if table_id in result.tables]
            work.tables[table_id] = apply_changes(state, changes)
        last = stage is plan.stages[-1]
        changelog = [result.changelog for result in results if result.changelog is not None]
        for origin in (stage.stage_id, *((plan.name,) if last else ())):
            if changelog:
                work.changes[origin] = changelog
                work.schemas[origin] = spark_schema(stage.operator.output_schema)
        if last:
            work.rows_changed[plan.name] = sum(result.rows_changed for result in results)
        for result in results:
            for name, count in result.counters.items():
                work.counters[name] = work.counters.get(name, 0) + count
        work.unit_s += sum(result.seconds.get(TASK_S, 0.0) for result in results)
        for phase in ("read", "apply", "write"):
            spent = max((result.seconds.get(phase, 0.0) for result in results), default=0.0)
            work.seconds[phase] = work.seconds.get(phase, 0.0) + spent

    def _changelogs(self, manifest: Manifest, batch: Batch, work: _Work) -> dict[str, list[Any]]:
        """Those that sinks have not delivered, with this epoch's."""
        found = {name: list(entries) for name, entries in manifest.changelogs.items()}
        for name, files in self._kept(work).items():
            described = [file.describe() for file in files]
            found.setdefault(name, []).append({"epoch": manifest.epoch + 1, "files": described})
        return undelivered(found, self._program.sinks, manifest.sinks if batch.sinks is None else batch.sinks)

    def _kept(self, work: _Work) -> dict[str, list[ChangelogFile]]:
        """Changes of views that have sinks."""
        names = [plan.name for plan in self._program.plans]
        return {
            name: work.changes[name] for name in names if self._program.keeps_changes(name) and name in work.changes
        }

    def _forget(self, work: _Work) -> None:
        """Changes that only the epoch itself needed."""
        kept = {file.path for files in self._kept(work).values() for file in files}
        for path in {file.path for files in work.changes.values() for file in files} - kept:
            self._files.remove(path)

    def _report(
        self,
        before: Manifest,
        after: Manifest,
        mapping: VnodeMapping,
        work: _Work,
        rows_in: int,
        moved: tuple[str, ...],
        seconds: Mapping[str, float],
    ) -> EpochReport:
        previous = VnodeMapping.from_json(before.mapping)
        return EpochReport(
            epoch=after.epoch,
            batch_id=after.batch_id,
            rows_in=rows_in,
            rows_changed={plan.name: work.rows_changed.get(plan.name, 0) for plan in self._program.plans},
            duration_s=dict(seconds),
            units=len(mapping.units),
            state_bytes=state_bytes(after.tables.values()),
            work_s=work.unit_s,
            vnodes_moved=len(diff(previous, mapping)),
            counters=dict(work.counters),
            stage_rows=dict(work.rows_in),
            moved=moved,
            watermarks_us=dict(after.watermarks_us),
        )


def state_bytes(tables: Iterable[TableState]) -> int:
    """Of all runs that count, with what they hold twice."""
    return sum(run.size_bytes for state in tables for run in state.runs)


def _watermarks_us(manifest: Manifest, batch: Batch) -> Mapping[str, int]:
    """What closes windows in an epoch: nothing in a backfill, whose rows would all be late."""
    return {} if batch.backfill is not None else manifest.watermarks_us


def _remembered(manifest: Manifest, batch: Batch) -> dict[str, Any]:
    """After a backfill the next epoch closes the windows whose time was over before their view was there."""
    if batch.backfill is None:
        return {BEFORE_US: dict(manifest.watermarks_us)}
    return {BEFORE_US: {}, BACKFILL: []}
