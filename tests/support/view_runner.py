"""A catalog's views in one process: Spark does the steps between stages, operators run directly, state lies in memory by vnode.

Several histories go through at once, and each stage runs for all epochs before the next one does: what a
stage gets depends on the stages before it in the same epoch only. So a stage costs one Spark job, however many epochs there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from pyspark.sql.functions import expr

from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.operators.changelog import CHANGE, INSERT, empty_changelog
from magnetar.pipeline.operators.operator import EpochContext, Operator, rows_to_write, vnodes_of_changes
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.state.reader import live, merge
from magnetar.pipeline.state.table import OP, VNODE, StateTable, as_frame
from magnetar.pipeline.views.epoch.spark_steps import CARRIED, SparkTypes, apply_steps
from magnetar.pipeline.views.lowering.lowering import Lowerer
from magnetar.pipeline.views.lowering.stages import EPOCH_TIMESTAMP, ONE_ROW, ROW_ID, Feed, OverGroups, Stage, ViewPlan
from magnetar.pipeline.views.lowering.table_ids import TableIds
from tests.support.operators import Row, View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ONE_ROW = pa.schema([(ROW_ID, pa.string())])
HISTORY, EPOCH = "_history", "_epoch"
START = datetime(2026, 1, 1, tzinfo=UTC)

Changelogs = dict[tuple[int, int], pl.DataFrame]
"""By history and epoch."""


@dataclass
class History:
    """One history. `sources`: by source and epoch the changes, with `_change`. `units`, `watermarks`: by epoch."""

    sources: Mapping[str, Sequence[pl.DataFrame]]
    units: Sequence[int]
    watermarks: Sequence[int | None] = ()
    views: dict[str, View] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    def context(self, epoch: int, closes: bool) -> EpochContext:
        def mark(at: int) -> int | None:
            return self.watermarks[at] if closes and 0 <= at < len(self.watermarks) else None

        now_us = int((START + timedelta(hours=epoch)).timestamp()) * 1_000_000
        return EpochContext(epoch + 1, now_us, mark(epoch), mark(epoch - 1))


class ViewRunner:
    """Runs every plan of a catalog over some histories."""

    def __init__(
        self, spark: SparkSession, catalog: Catalog, vnode_count: int = 16, *, preaggregated: bool = True
    ) -> None:
        self._spark = spark
        self._preaggregated = preaggregated
        self.plans: dict[str, ViewPlan] = Lowerer(catalog, SparkTypes(spark), TableIds(), vnode_count).all()
        self._vnode_count = vnode_count

    def run(self, histories: Sequence[History]) -> None:
        """All epochs of all histories; their views' rows are in `history.views`."""
        known: dict[str, Changelogs] = {}
        for number, history in enumerate(histories):
            for source, epochs in history.sources.items():
                known.setdefault(source, {}).update({(number, at): delta for at, delta in enumerate(epochs)})
            rows = [(INSERT, {ROW_ID: ""})]
            for at in range(len(history.units)):
                known.setdefault(ONE_ROW, {})[number, at] = changes(_ONE_ROW, rows if at == 0 else [])
        for plan in self.plans.values():
            for stage in plan.stages:
                known[stage.stage_id] = self._stage(stage, histories, known)
            last = known[plan.stages[-1].stage_id]
            known[plan.name] = last
            for number, history in enumerate(histories):
                view = history.views[plan.name] = View(plan.key)
                for at in range(len(history.units)):
                    view.apply(last[number, at])

    def rows(self, history: History, view: str) -> list[Row]:
        """The rows that people see."""
        columns = self.plans[view].columns
        return [{name: row[name] for name in columns} for row in history.views[view].all()]

    def _stage(self, stage: Stage, histories: Sequence[History], known: Mapping[str, Changelogs]) -> Changelogs:
        by_input: dict[str, list[Feed]] = {}
        for feed in stage.feeds:
            by_input.setdefault(feed.input, []).append(feed)
        fed = {name: self._fed(stage, feeds, known) for name, feeds in by_input.items()}
        found: Changelogs = {}
        for number, history in enumerate(histories):
            state = _State(stage.operator)
            for at, units in enumerate(history.units):
                deltas = {name: rows[number, at] for name, rows in fed.items() if (number, at) in rows}
                context = history.context(at, bool(stage.watermarks))
                mapping = VnodeMapping.even(units, self._vnode_count)
                found[number, at] = state.epoch(deltas, mapping, context, history.counters)
        return found

    def _fed(self, stage: Stage, feeds: Sequence[Feed], known: Mapping[str, Changelogs]) -> Changelogs:
        """What one input gets: its feeds' steps over everything at once, or epoch by epoch where they look at several rows."""
        if any(isinstance(step, OverGroups) for feed in feeds for step in feed.steps):
            places = sorted({place for feed in feeds for place, frame in known[feed.origin].items() if frame.height})
            return {place: self._steps(stage, feeds, [known[feed.origin] for feed in feeds], place) for place in places}
        done = self._steps(stage, feeds, [known[feed.origin] for feed in feeds])
        by_place = done.partition_by(HISTORY, EPOCH, as_dict=True)
        return {(int(history), int(epoch)): frame for (history, epoch), frame in by_place.items()}

    def _steps(
        self, stage: Stage, feeds: Sequence[Feed], origins: Sequence[Changelogs], only: tuple[int, int] | None = None
    ) -> pl.DataFrame:
        done = reduce(
            lambda left, right: left.unionByName(right),
            [
                apply_steps(self._frame(origin, only), feed.steps, (HISTORY, EPOCH, *feed.ordered_by, *CARRIED))
                for feed, origin in zip(feeds, origins, strict=True)
            ],
        )
        feed = feeds[0]
        if stage.preaggregate is not None and self._preaggregated:
            partials = [expr(f"{partial.sql} AS `{partial.name}`") for partial in stage.preaggregate]
            return as_frame(done.groupBy(HISTORY, EPOCH, *feed.place_by).agg(*partials).toArrow())
        columns = dict.fromkeys([HISTORY, EPOCH, CHANGE, *feed.ordered_by, *feed.schema.names])
        kept = [name for name in columns if name in done.columns]
        found = as_frame(done.select(*(f"`{name}`" for name in kept)).toArrow())
        return found.sort(feed.ordered_by) if feed.ordered_by else found

    def _frame(self, origin: Changelogs, only: tuple[int, int] | None) -> DataFrame:
        """The changes of all epochs of all histories, or of one epoch of one."""
        whole = pl.concat(
            frame.with_columns(pl.lit(place[0]).alias(HISTORY), pl.lit(place[1]).alias(EPOCH))
            for place, frame in origin.items()
            if only is None or place == only
        )
        hours = pl.duration(hours=pl.col(EPOCH))
        now = (pl.lit(START).dt.cast_time_unit("us") + hours).alias(EPOCH_TIMESTAMP)
        return self._spark.createDataFrame(whole.with_columns(now).to_arrow(compat_level=pl.CompatLevel.oldest()))


class _State:
    """One operator's tables, in memory. Every unit gets its own vnodes' rows, and of those only the ones it asked for."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.tables: dict[int, tuple[StateTable, pl.DataFrame]] = {
            table.table_id: (table, as_frame(table.stored_schema.empty_table()).drop(OP))
            for table in operator.state_tables()
        }

    def epoch(
        self, deltas: Mapping[str, pl.DataFrame], mapping: VnodeMapping, context: EpochContext, counters: dict[str, int]
    ) -> pl.DataFrame:
        changelogs = [empty_changelog(self.operator.output_schema)]
        table = self.operator.state_tables()[0]
        placed = {
            name: delta.with_columns(pl.Series("_to", vnodes_of_changes(table, delta), pl.UInt16))
            for name, delta in deltas.items()
        }
        for unit in mapping.units:
            held = mapping.vnodes_of(unit)
            mine = {name: delta.filter(pl.col("_to").is_in(held)).drop("_to") for name, delta in placed.items()}
            slices = {
                table_id: self._slice(table_id, held, keys)
                for table_id, keys in self.operator.keys_needed(mine, context).items()
            }
            result = self.operator.apply(slices, mine, replace(context, holds_first_vnode=0 in held))
            for table_id, writes in result.writes.items():
                self._write(table_id, held, writes)
            for name, count in result.counters.items():
                counters[name] = counters.get(name, 0) + count
            assert result.changelog.schema == changelogs[0].schema
            changelogs.append(result.changelog)
        return pl.concat(changelogs)

    def _slice(self, table_id: int, held: list[int], keys: pl.DataFrame | None) -> pl.DataFrame:
        table, stored = self.tables[table_id]
        rows = stored.filter(pl.col(VNODE).is_in(held)).drop(VNODE)
        if keys is None:
            return rows
        assert set(table.distributed_by) <= set(keys.columns) <= set(table.key)
        return rows.join(keys, on=keys.columns, how="semi", nulls_equal=True)

    def _write(self, table_id: int, held: list[int], writes: pl.DataFrame) -> None:
        table, stored = self.tables[table_id]
        rows = rows_to_write(table, writes)
        assert rows[VNODE].is_in(held).all(), "a unit writes its own vnodes only"
        before = stored.with_columns(pl.lit(0, pl.Int8).alias(OP))
        self.tables[table_id] = (table, live(table, merge(table, [before, rows])))


def changes(schema: pa.Schema, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> pl.DataFrame:
    """A source's delta."""
    wanted = empty_changelog(schema).schema
    return pl.DataFrame([{CHANGE: change, **row} for change, row in rows], schema=wanted, orient="row")
