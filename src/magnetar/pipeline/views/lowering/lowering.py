"""From a catalog's plans to stages."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Final

import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.operators.materialize import Materialize, Materialized
from magnetar.pipeline.operators.operator import INPUT
from magnetar.pipeline.operators.upsert import Upsert
from magnetar.pipeline.operators.window import WINDOW_END, WINDOW_START
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.plan import (
    Aggregate,
    Dedup,
    Join,
    LateRows,
    Named,
    OneRow,
    Plan,
    Project,
    Recompute,
    Scan,
    TopN,
    UnionAll,
    Unnest,
    Windowed,
)
from magnetar.pipeline.sql.statements import ROW_KEY, CreateSink, CreateSource, CreateView, Query
from magnetar.pipeline.state.table import StateTable
from magnetar.pipeline.views.lowering.aggregate import lower_aggregate, lower_recompute
from magnetar.pipeline.views.lowering.changes import Changes, Part, Windows, renames
from magnetar.pipeline.views.lowering.context import Lowering, Types
from magnetar.pipeline.views.lowering.join import lower_join
from magnetar.pipeline.views.lowering.message_key import require_message_key
from magnetar.pipeline.views.lowering.stages import (
    ONE_ROW,
    ROW_ID,
    AddElements,
    AddWindows,
    Filter,
    Late,
    OverGroups,
    Select,
    Stage,
    ViewPlan,
    failures,
    quoted,
)
from magnetar.pipeline.views.lowering.table_ids import TableIds
from magnetar.pipeline.views.lowering.top_n import lower_dedup, lower_top_n


def lower(
    catalog: Catalog, name: str, types: Types, table_ids: TableIds, vnode_count: int = DEFAULT_VNODES
) -> ViewPlan:
    """The stages of a view, a table, or a sink with a query of its own. PlanRefusedError with the statement's place."""
    return Lowerer(catalog, types, table_ids, vnode_count).view(name)


class Lowerer:
    """Lowers the objects of one catalog, each once."""

    def __init__(self, catalog: Catalog, types: Types, table_ids: TableIds, vnode_count: int = DEFAULT_VNODES) -> None:
        self._catalog = catalog
        self._types = types
        self._ids = table_ids
        self._vnode_count = vnode_count
        self._views: dict[str, tuple[ViewPlan, Changes]] = {}
        self._sources: dict[str, Changes] = {}

    def all(self) -> dict[str, ViewPlan]:
        """Everything that has stages, by name, in order of dependency."""
        names = [name for name in self._catalog.topological() if self._has_stages(name)]
        return {name: self.view(name) for name in names}

    def view(self, name: str) -> ViewPlan:
        """As `lower`."""
        return self._lowered(name)[0]

    def relation(self, name: str) -> Changes:
        """What is known of the rows of a source, table or view: the changelog that a reader of it gets."""
        entry = self._catalog.find(name)
        name = entry.statement.name
        if entry.kind == "SOURCE":
            if name not in self._sources:
                self._sources[name] = self._source(entry.statement)
            return self._sources[name]
        return self._lowered(name)[1]

    def _has_stages(self, name: str) -> bool:
        entry = self._catalog.find(name)
        return entry.kind not in ("SOURCE", "VIEW") and not (entry.kind == "SINK" and isinstance(entry.plan, Scan))

    def _lowered(self, name: str) -> tuple[ViewPlan, Changes]:
        entry = self._catalog.find(name)
        statement = entry.statement
        if statement.name not in self._views:
            if not self._has_stages(name):
                raise CatalogError(f"{name} is a {entry.kind}, which has no stages of its own")
            place = _place(statement)
            lowering = Lowering(
                statement.name,
                place,
                self._types,
                self._ids,
                self.relation,
                changes_of,
                self._vnode_count,
                late_rows=statement.late_rows if isinstance(statement, CreateView) else "drop",
                plan_of=lambda view: self._catalog.find(view).plan,
                on_error=statement.on_error if isinstance(statement, CreateView) else "null",
                vnode_hash=statement.vnode_hash if isinstance(statement, CreateView) else "crc32",
            )
            if isinstance(statement, CreateSource):
                changes = self._table(lowering, statement)
            else:
                assert entry.plan is not None
                emit = isinstance(statement, CreateView) and statement.emit_on_window_close
                changes = _on_close(lowering, entry.plan) if emit else lowering.changes(entry.plan)
                if lowering.late_rows == "fail" and not any(stage.watermarks for stage in lowering.stages):
                    raise lowering.refuse(f"late_rows needs windows that close; {CLOSING}")
            self._views[statement.name] = self._finished(lowering, changes)
            if lowering.on_error == "dead_letter":
                _require_messages(lowering, self._views[statement.name][0], self._catalog)
            if lowering.vnode_hash == "segment":
                require_message_key(lowering, self._views[statement.name][0], self._catalog)
        return self._views[statement.name]

    def _source(self, statement: object) -> Changes:
        assert isinstance(statement, CreateSource)
        if statement.format.format != "PLAIN":
            raise CatalogError(
                f"{statement.name} is FORMAT {statement.format.format}, whose older rows must be kept to be read; "
                f"write CREATE TABLE {statement.name}"
            )
        schema = self._types.of_source(statement)
        columns = tuple(name for name in schema.names if name != ROW_ID)
        watermark = statement.watermark
        times = {} if watermark is None else {watermark.column: frozenset({statement.name})}
        return Changes((Part(statement.name),), schema, (ROW_ID,), columns, True, times)

    def _table(self, lowering: Lowering, statement: CreateSource) -> Changes:
        """A table is its source's rows: the last of each primary key, or all."""
        schema = self._types.of_source(statement)
        columns = tuple(name for name in schema.names if name != ROW_ID)
        shown = tuple(name for name in columns if name != ROW_KEY)
        below = Changes((Part(statement.name),), schema, (ROW_ID,), columns, not statement.primary_key)
        if statement.only_grows and statement.watermark is not None:
            below = replace(below, times={statement.watermark.column: frozenset({statement.name})})
        if not statement.primary_key:
            return below
        by_name = {name.lower(): name for name in columns}
        key = tuple(by_name[column.lower()] for column in statement.primary_key)
        stage_id = lowering.stage_id("upsert")
        schema = pa.schema([schema.field(column) for column in columns])
        with lowering.refusing():
            operator = Upsert(lowering.ids.of_view(lowering.view), lowering.view, schema, key, lowering.vnode_count)
        rows = below.after((), schema)
        found = lowering.stage(stage_id, {INPUT: (rows, key)}, operator, append_only=False, ordered_by=(ROW_ID,))
        return replace(found, columns=shown)

    def _finished(self, lowering: Lowering, changes: Changes) -> tuple[ViewPlan, Changes]:
        """The rows stored, in the last stage where it can be, else in one more."""
        table = self._stored(lowering, changes)
        watermarks = tuple(self._watermark(source) for source in _sources(lowering.stages))
        plan = ViewPlan(lowering.view, tuple(lowering.stages), table, changes.columns, changes.append_only, watermarks)
        return plan, replace(changes, parts=(Part(lowering.view),), schema=table.schema)

    def _stored(self, lowering: Lowering, changes: Changes) -> StateTable:
        view, stages = lowering.view, lowering.stages
        if stages and isinstance(stages[-1].operator, Upsert):
            return stages[-1].operator.state_tables()[0]
        table_id = lowering.ids.of_view(view)
        if stages and [part.origin for part in changes.parts] == [stages[-1].stage_id]:
            last = stages[-1]
            names = renames(changes.parts[0].steps, last.operator.output_schema)
            placed = None if names is None else _placed(last, names, changes.key)
            if names is not None and placed is not None:
                given = last.operator.output_schema
                schema = pa.schema([pa.field(name, given.field(old).type) for name, old in names.items()])
                table = StateTable(
                    table_id, view, schema, changes.key, lowering.vnode_count, placed, lowering.vnode_hash
                )
                stages[-1] = replace(last, operator=Materialized(last.operator, table, names))
                return table
        with lowering.refusing():
            table = StateTable(
                table_id, view, changes.schema, changes.key, lowering.vnode_count, vnode_hash=lowering.vnode_hash
            )
        operator, stage_id = Materialize(table), lowering.stage_id("materialize")
        lowering.stage(stage_id, {INPUT: (changes, changes.key)}, operator, append_only=changes.append_only)
        return table

    def _watermark(self, source: str) -> tuple[str, str, int]:
        statement = self._catalog.find(source).statement
        assert isinstance(statement, CreateSource)
        assert statement.watermark is not None
        return source, quoted(statement.watermark.column), statement.watermark.delay_us


def _sources(stages: list[Stage]) -> list[str]:
    return sorted({source for stage in stages for source in stage.watermarks})


def _placed(stage: Stage, names: dict[str, str], key: tuple[str, ...]) -> tuple[str, ...] | None:
    """The first columns of the key, when rows with those names lie where the stage's rows are placed."""
    place_by = stage.feeds[0].place_by
    first = key[: len(place_by)]
    return first if tuple(names[name] for name in first) == place_by else None


def _place(statement: CreateSource | CreateView | CreateSink) -> tuple[int, int]:
    query = statement.query if isinstance(statement, CreateView) else getattr(statement, "source", None)
    return (query.line, query.column) if isinstance(query, Query) else (1, 1)


def _on_close(lowering: Lowering, plan: Plan) -> Changes:
    """EMIT ON WINDOW CLOSE: of the aggregate on top."""
    if isinstance(plan, Aggregate):
        return lower_aggregate(lowering, plan, on_close=True)
    if isinstance(plan, Project):
        return lowering.project(_on_close(lowering, plan.input), plan.outputs, plan.condition)
    raise lowering.refuse(
        "EMIT ON WINDOW CLOSE is for GROUP BY window_start or window_end of a TUMBLE or HOP; leave it out"
    )


def changes_of(lowering: Lowering, plan: Plan) -> Changes:
    """The changelog of a plan."""
    match plan:
        case Scan(name):
            return lowering.relation(name)
        case OneRow():
            return Changes((Part(ONE_ROW),), pa.schema([pa.field(ROW_ID, pa.string())]), (ROW_ID,), (), True)
        case Project():
            return lowering.project(lowering.changes(plan.input), plan.outputs, plan.condition)
        case LateRows(Scan(name)):
            return lower_late_rows(lowering, name)
        case Windowed():
            return _windowed(lowering, plan)
        case Unnest():
            return _unnested(lowering, plan)
        case Aggregate():
            return lower_aggregate(lowering, plan)
        case Join():
            return lower_join(lowering, plan)
        case TopN():
            return lower_top_n(lowering, plan)
        case Dedup():
            return lower_dedup(lowering, plan)
        case Recompute():
            return lower_recompute(lowering, plan)
        case UnionAll():
            return lower_union(lowering, plan)


def _windowed(lowering: Lowering, plan: Windowed) -> Changes:
    below = lowering.changes(plan.input)
    steps = (AddWindows(plan.spark_sql),)
    time = below.column(plan.time_column)
    sources = below.times.get(time or "", frozenset())
    return below.after(
        steps,
        lowering.after(below.schema, steps),
        key=(*below.key, WINDOW_START),
        columns=(*below.columns, WINDOW_START, WINDOW_END),
        windows=Windows(WINDOW_START, WINDOW_END, sources),
    )


def _unnested(lowering: Lowering, plan: Unnest) -> Changes:
    below = lowering.changes(plan.input)
    position = plan.ordinality or "_key_at"
    while plan.ordinality is None and position in below.schema.names:
        position += "_"
    steps = (AddElements(plan.array, plan.name, position, plan.outer),)
    shown = (plan.name,) if plan.ordinality is None else (plan.name, plan.ordinality)
    return below.after(
        steps,
        lowering.after(below.schema, steps),
        key=(*below.key, position),
        columns=(*below.columns, *shown),
    )


_BRANCH = "_key_branch"


def lower_union(lowering: Lowering, node: UnionAll) -> Changes:
    """The changes of all inputs. Columns get the type that Spark finds for all of them."""
    branches = [lowering.changes(plan) for plan in node.inputs]
    columns = branches[0].columns
    names: list[dict[str, str]] = []
    keys: list[tuple[str, pa.DataType]] = []
    for place, branch in enumerate(branches):
        names.append({column: f"_key_{place}_{column}" for column in branch.key})
        keys += [(name, branch.schema.field(column).type) for column, name in names[-1].items()]
    types = [_common(lowering, branches, place) for place in range(len(columns))]
    parts = []
    for place, branch in enumerate(branches):
        outputs = [
            Named(_cast(branch, given, kind, lowering), column)
            for given, column, kind in zip(branch.columns, columns, types, strict=True)
        ]
        mine = {name: column for column, name in names[place].items()}
        outputs.append(Named(str(place), _BRANCH))
        for name, kind in keys:
            sql = quoted(mine[name]) if name in mine else f"CAST(NULL AS {lowering.spark_name(kind)})"
            outputs.append(Named(sql, name))
        key = (_BRANCH, *(name for name, _ in keys))
        parts.append(lowering.select(branch, None, outputs, key))
    times = {
        column: reduce(frozenset.union, [part.times[column] for part in parts])
        for column in columns
        if all(column in part.times for part in parts)
    }
    first = parts[0]
    return Changes(
        tuple(each for part in parts for each in part.parts),
        first.schema,
        first.key,
        columns,
        all(part.append_only for part in parts),
        times,
    )


def _common(lowering: Lowering, branches: list[Changes], place: int) -> pa.DataType:
    kinds = [branch.schema.field(branch.columns[place]).type for branch in branches]
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    both = pa.schema([pa.field(f"c{number}", kind) for number, kind in enumerate(kinds)])
    return lowering.after(both, [Select((Named(f"coalesce({', '.join(both.names)})", "c"),))]).field(0).type


def _cast(branch: Changes, column: str, kind: pa.DataType, lowering: Lowering) -> str:
    same = branch.schema.field(column).type == kind
    return quoted(column) if same else f"CAST({quoted(column)} AS {lowering.spark_name(kind)})"


def _require_messages(lowering: Lowering, plan: ViewPlan, catalog: Catalog) -> None:
    """Raises PlanRefusedError unless each row for which an expression may fail is one message of a source."""
    for feed in (feed for stage in plan.stages for feed in stage.feeds if feed.sends_failed):
        entry = catalog.entries.get(feed.origin)
        made = tuple(
            step for step in feed.steps[: feed.fallible[-1]] if isinstance(step, AddElements | Late | OverGroups)
        )
        if entry is not None and entry.kind == "SOURCE" and not made:
            continue
        if feed.origin == ONE_ROW:
            origin = "constants"
        elif entry is None or made:
            origin = "what a join, GROUP BY, OVER, unnest or LATE_ROWS has made of messages"
        else:
            origin = f"the stored rows of the {entry.kind} {feed.origin}"
        text = failures(feed.steps[feed.fallible[-1]])[0][1]
        raise lowering.refuse(
            f"on.error = 'dead_letter' sends the message for which an expression fails, and {text} is computed from {origin}; write it so "
            "that it cannot fail (nullif(x, 0), CASE), or before that: in a view WITH (on.error = 'dead_letter') of the source which "
            "this one reads; or write on.error = 'null' or 'strict'"
        )


CLOSING: Final = (
    "it takes GROUP BY window_start or window_end of a TUMBLE or HOP over a time with a watermark: WATERMARK FOR ts AS ts - INTERVAL "
    "'5 seconds' in the source"
)


def lower_late_rows(lowering: Lowering, view: str) -> Changes:
    """The input of the view's GROUP BY, with its windows, of rows for which the watermark had reached the window's end."""
    aggregate = _aggregate(lowering.plan_of(view))
    if aggregate is None:
        raise lowering.refuse(f"LATE_ROWS({view}): no window of {view} ever closes; {CLOSING}")
    below = lowering.changes(aggregate.input)
    windows = below.windows
    if windows is None or windows.end is None or not windows.sources:
        raise lowering.refuse(f"LATE_ROWS({view}): no window of {view} ever closes; {CLOSING}")
    if not below.append_only:
        raise lowering.refuse(
            f"LATE_ROWS({view}): rows of its input change later, and a change has no window of its own"
        )
    late = Late(windows.end, tuple(sorted(windows.sources)))
    steps = (late,) if aggregate.condition is None else (Filter(aggregate.condition), late)
    # their time is over: no window of late rows would ever close again
    return below.after(steps, below.schema, times={}, windows=None)


def _aggregate(plan: Plan | None) -> Aggregate | None:
    while isinstance(plan, Project):
        plan = plan.input
    return plan if isinstance(plan, Aggregate) else None
