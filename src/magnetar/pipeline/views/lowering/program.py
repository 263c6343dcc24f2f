"""What a driver runs: sources, the plans of views in an order in which nothing reads from what comes later, and sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.statements import CreateSink, CreateSource
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.state.table import StateTable
from magnetar.pipeline.views.lowering.context import Types
from magnetar.pipeline.views.lowering.lowering import Lowerer
from magnetar.pipeline.views.lowering.stages import Feed, Select, Stage, ViewPlan
from magnetar.pipeline.views.lowering.table_ids import TableIds
from magnetar.pipeline.views.scan.stored_views import COLUMNS
from magnetar.pipeline.views.sink.options import Sink, sink_of
from magnetar.pipeline.views.sink.sinks import PRODUCER, changelog_name

FORMER_NAMES: Final = "former_names"
"""In a manifest's `views`: by source that was renamed, the name by which its subscription is called."""
BACKFILL: Final = "backfill"
"""In a manifest's `views`: views that do not have their rows yet."""
BEFORE_US: Final = "watermarks_before_us"
"""In a manifest's `views`: the watermarks that the epoch before had."""
STARTS: Final = "starts"
"""In a manifest's `views`: where each source began."""


@dataclass(frozen=True)
class Program:
    """A table that reads a topic is a source and a plan of the same name: its own plan reads the topic, all others the table."""

    sources: Mapping[str, CreateSource]
    plans: tuple[ViewPlan, ...]
    sinks: tuple[Sink, ...] = ()

    def reads_source(self, plan: ViewPlan, feed: Feed) -> bool:
        """Whether a feed takes the rows of a topic, not the changes of a table, view or stage."""
        return feed.origin in self.sources and (feed.origin == plan.name or feed.origin not in self._views)

    @cached_property
    def source_readers(self) -> dict[str, int]:
        """Feeds that take the rows of each source."""
        found: dict[str, int] = {}
        for plan in self.plans:
            for stage in plan.stages:
                for feed in stage.feeds:
                    if self.reads_source(plan, feed):
                        found[feed.origin] = found.get(feed.origin, 0) + 1
        return found

    @cached_property
    def counting_stages(self) -> dict[str, str]:
        """By source: the stage that gets each of its rows once and nothing else. Not where a watermark has to see the rows."""
        found: dict[str, str] = {}
        for plan in self.plans:
            for stage in plan.stages:
                match stage.feeds:
                    case (feed,) if self.reads_source(plan, feed) and self.source_readers[feed.origin] == 1:
                        is_whole = all(isinstance(step, Select) for step in feed.steps) and not feed.sends_failed
                        if feed.origin not in self.watermarks and is_whole:
                            found[feed.origin] = stage.stage_id
        return found

    @cached_property
    def read_by_units(self) -> frozenset[str]:
        """Sources of which each unit reads the rows of its own vnodes."""
        return frozenset(
            feed.origin
            for plan in self.plans
            for stage in plan.stages
            for feed in stage.feeds
            if stage.vnode_hash == "segment" and self.reads_source(plan, feed)
        )

    @cached_property
    def sending(self) -> frozenset[str]:
        """Sources of which a view sends the messages to a dead-letter topic for which an expression fails."""
        return frozenset(
            feed.origin for plan in self.plans for stage in plan.stages for feed in stage.feeds if feed.sends_failed
        )

    @cached_property
    def changes_read(self) -> frozenset[str]:
        """Views and stages from whose changes another stage reads."""
        return frozenset(
            feed.origin
            for plan in self.plans
            for stage in plan.stages
            for feed in stage.feeds
            if not self.reads_source(plan, feed)
        )

    @cached_property
    def tables(self) -> dict[int, StateTable]:
        """Every state table by id."""
        found = {}
        for plan in self.plans:
            for table in (plan.table, *(table for stage in plan.stages for table in stage.operator.state_tables())):
                found[table.table_id] = table
        return found

    @cached_property
    def watermarks(self) -> dict[str, tuple[str, int]]:
        """By relation: the time in its rows (Spark SQL), and the delay in microseconds."""
        return {relation: (sql, delay) for plan in self.plans for relation, sql, delay in plan.watermarks}

    @cached_property
    def _views(self) -> frozenset[str]:
        return frozenset(plan.name for plan in self.plans)

    def keeps_changes(self, name: str) -> bool:
        """Whether the changes of a view outlive their epoch, for a sink."""
        return any(sink.view == name for sink in self.sinks)


def materializes(plan: ViewPlan, stage: Stage) -> bool:
    """Whether the runner has to keep the rows of the view after this stage, because its operator does not."""
    own = {table.table_id for table in stage.operator.state_tables()}
    return stage is plan.stages[-1] and plan.table.table_id not in own


def assemble(catalog: Catalog, views: Mapping[str, Any], types: Types) -> tuple[Program, dict[str, Any]]:
    """The program of a catalog, and what the next manifest's `views` is to say. `views`: those of the manifest before.

    Raises PlanRefusedError, and CatalogError for what has to be said differently.
    """
    ids = TableIds(views)
    for name in set(views.get("tables", {})) - set(catalog.entries):
        ids.forget(name)
    plans = Lowerer(catalog, types, ids).all()
    sources, sinks = {}, []
    for name, entry in catalog.entries.items():
        statement = entry.statement
        if isinstance(statement, CreateSource | CreateSink) and statement.options.has_redacted():
            raise CatalogError(
                f"{name}: its credentials are in no manifest; run the file with its CREATE statement again, or use authParams 'file:...'"
            )
        if isinstance(statement, CreateSource):
            sources[name] = statement
        elif isinstance(statement, CreateSink):
            sinks.append(_sink(statement, plans))
    program = Program(sources, tuple(plans.values()), tuple(sinks))
    used = {
        name: replace(source, sends_failed=name in program.sending)
        for name, source in sources.items()
        if name in program.source_readers
    }
    shown = {plan.name: list(plan.columns) for plan in program.plans}
    plain = {**views, "catalog": catalog.to_plain(), COLUMNS: shown, **ids.to_plain()}
    if FORMER_NAMES in views:
        plain[FORMER_NAMES] = {name: known for name, known in views[FORMER_NAMES].items() if name in sources}
    return Program(used, program.plans, program.sinks), plain


def unfit(program: Program, manifest: Manifest) -> dict[str, str]:
    """By name, views whose stored rows lie in other columns than this version of magnetar gives them, and in which ones."""
    found: dict[str, str] = {}
    for plan in program.plans:
        for table in (plan.table, *(each for stage in plan.stages for each in stage.operator.state_tables())):
            state = manifest.tables.get(table.table_id)
            if state is not None and (difference := _difference(state.table, table)):
                found.setdefault(plan.name, difference)
    return found


def _difference(stored: StateTable, wanted: StateTable) -> str:
    was = {field.name: str(field.type) for field in stored.schema}
    now = {field.name: str(field.type) for field in wanted.schema}
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            said = f"{was.get(name, 'nothing')}, and is {now.get(name, 'nothing')} now"
            return f"another version of magnetar stored its rows: {name} was {said}"
    if (stored.key, stored.distributed_by, stored.vnode_count, stored.vnode_hash) != (
        wanted.key,
        wanted.distributed_by,
        wanted.vnode_count,
        wanted.vnode_hash,
    ):
        return "another version of magnetar stored its rows under another key"
    return ""


def forgotten(manifest: Manifest, names: Iterable[str]) -> Manifest:
    """The manifest as if these had never been there: what has their names begins anew, with state tables of other numbers."""
    ids = TableIds(manifest.views)
    gone = {name.lower() for name in names}
    numbers = {
        number for name in list(manifest.views.get("tables", {})) if name.lower() in gone for number in ids.forget(name)
    }
    if not gone:
        return manifest

    def kept(found: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value for name, value in found.items() if name.removeprefix(changelog_name("")).lower() not in gone
        }

    return replace(
        manifest,
        views={**manifest.views, **ids.to_plain(), STARTS: kept(manifest.views.get(STARTS, {}))},
        tables={number: state for number, state in manifest.tables.items() if number not in numbers},
        sources=kept(manifest.sources),
        watermarks_us=kept(manifest.watermarks_us),
        sinks=kept(manifest.sinks),
        changelogs=kept(manifest.changelogs),
    )


def renamed(manifest: Manifest, old: str, new: str) -> Manifest:
    """The manifest in which an object has always had its new name. Its subscription and its producers keep theirs, by which brokers know
    what was read and sent."""
    ids = TableIds(manifest.views)
    known = next((name for name in _named(manifest) if name.lower() == old.lower()), old)
    ids.rename(known, new)

    def moved(found: Mapping[str, Any]) -> dict[str, Any]:
        names = {known: new, changelog_name(known): changelog_name(new)}
        return {names.get(name, name): value for name, value in found.items()}

    views = {**manifest.views, **ids.to_plain()}
    for by_name in (STARTS, COLUMNS, BEFORE_US):
        if by_name in views:
            views[by_name] = moved(views[by_name])
    if BACKFILL in views:
        views[BACKFILL] = [new if name == known else name for name in views[BACKFILL]]
    former = moved(views.get(FORMER_NAMES, {}))
    views[FORMER_NAMES] = {**former, **({new: known} if new not in former and known in manifest.sources else {})}
    sinks = moved(manifest.sinks)
    if new in sinks:
        sinks[new] = {PRODUCER: known, **sinks[new]}
    return replace(
        manifest,
        views=views,
        sources=moved(manifest.sources),
        watermarks_us=moved(manifest.watermarks_us),
        sinks=sinks,
        changelogs=moved(manifest.changelogs),
    )


def _named(manifest: Manifest) -> list[str]:
    return [*manifest.views.get("tables", {}), *manifest.sources, *manifest.sinks]


def _sink(statement: CreateSink, plans: Mapping[str, ViewPlan]) -> Sink:
    name = statement.source if isinstance(statement.source, str) and statement.name not in plans else statement.name
    plan = next((plan for known, plan in plans.items() if known.lower() == name.lower()), None)
    if plan is None:
        raise CatalogError(
            f"sink {statement.name}: {name} is a source; write CREATE SINK {statement.name} AS SELECT ... FROM {name}"
        )
    # what people do not see is not sent either, so a key that is hidden is none for a sink
    schema = pa.schema([plan.schema.field(column) for column in plan.columns])
    key = plan.key if set(plan.key) <= set(plan.columns) else ()
    found = sink_of(statement, schema, key, plan.append_only)
    return replace(found, view=plan.name)
