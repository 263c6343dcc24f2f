"""A pipeline in Python: statements, then `run`.

pipeline = Pipeline("flights")
pipeline.sql(Path("flights.sql").read_text())
pipeline.run()
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from magnetar.base.clock import Clock, SystemClock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.metadata.digest_md5 import Credentials
from magnetar.pipeline.errors import CatalogError, StateLossError
from magnetar.pipeline.home import Place, local_side, pipeline_directory
from magnetar.pipeline.session import build_session, classic
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.changes import Change, applied, changes, rebuilds, renames
from magnetar.pipeline.sql.options import Options
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.sql.printer import print_statement
from magnetar.pipeline.sql.statements import (
    AlterOptions,
    Comment,
    CreateFunction,
    CreateIndex,
    CreateSink,
    CreateSource,
    CreateView,
    Drop,
    Flush,
    Rename,
    SetParallelism,
    Statement,
)
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore
from magnetar.pipeline.views.control.driver import Driver, claim
from magnetar.pipeline.views.control.failures import cause
from magnetar.pipeline.views.control.mapping import SharedMapping
from magnetar.pipeline.views.control.operations import Operations
from magnetar.pipeline.views.control.reporter import Reporter
from magnetar.pipeline.views.control.status import Status
from magnetar.pipeline.views.decorated import function_statement
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.epoch.spark_steps import SparkTypes
from magnetar.pipeline.views.lowering.explain import explain_view
from magnetar.pipeline.views.lowering.graph import GRAPH, graph
from magnetar.pipeline.views.lowering.program import FORMER_NAMES, Program, assemble, forgotten, renamed, unfit
from magnetar.pipeline.views.source.frame import with_columns
from magnetar.pipeline.views.source.options import table_topic
from magnetar.pipeline.views.source.sources import Lag, TopicSources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Done = Callable[[dict[str, Any]], None]
"""Told what became of statements: `done`, and the epoch or the `error`."""

_F = TypeVar("_F", bound=Callable[..., Any])

_DEFINITIONS: Final = (
    CreateFunction,
    CreateSource,
    CreateView,
    CreateSink,
    CreateIndex,
    Comment,
    Drop,
    SetParallelism,
    AlterOptions,
    Rename,
    Flush,
)


class Pipeline:
    """One pipeline. `directory`: a path or fsspec URL, else `$MAGNETAR_HOME/pipelines/NAME`; `spark`: else one of its own on this machine.

    `units`: parallel units of each view; without it as many as Spark has cores, and as before for a pipeline that has run. `trigger_s`: the
    least time between the beginnings of two epochs; without it epochs of few rows follow each other at once, others after half a second.
    """

    def __init__(
        self,
        name: str,
        directory: str | None = None,
        spark: SparkSession | None = None,
        units: int | None = None,
        *,
        trigger_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.files = StateFiles(directory if directory is not None else pipeline_directory(name))
        self._clock = clock if clock is not None else SystemClock()
        self._session = None if spark is None else classic(spark)
        self._units = units
        self._trigger_s = trigger_s
        self._statements: list[Statement] = []
        self._catalog = _catalog(ManifestStore(self.files, self._clock).latest())
        self._driver: Driver | None = None
        self._stop = False
        self._edits: list[tuple[str, Done]] = []
        self._new_session: Callable[[], SparkSession] = build_session
        self._metadata_url: str | None = None
        self._metadata_credentials: Credentials | None = None
        self._metrics_port: int | None = None
        self._rebuilds = False
        self._reports = True
        self._low_latency = True
        self._shared: SharedMapping | None = None
        self._types: SparkTypes | None = None
        self._operations = Operations(self.place, self._clock)

    @property
    def place(self) -> Place:
        """Where it lives, and where what other processes see of it lies on this machine."""
        return Place(self.name, self.files.root_url, local_side(self.files.root_url))

    @property
    def status(self) -> Status:
        """What the present run, or else the last one of this object, has done so far."""
        return self._operations.status

    @property
    def metrics_port(self) -> int | None:
        """Where metrics are served during a run, if they are."""
        return self._operations.port

    def prepare(
        self,
        *,
        session: Callable[[], SparkSession] | None = None,
        units: int | None = None,
        metrics_port: int | None = None,
        metadata_url: str | None = None,
        metadata_credentials: Credentials | None = None,
        rebuild: bool = False,
        report: bool = True,
        low_latency: bool = True,
    ) -> None:
        """For the next runs: how to start Spark if no session was given, units, where to serve metrics (0: any port) and, with
        `metadata_url`, in which metadata store the vnode mapping is shared, and what that asks its clients for.

        `report`: tell the brokers of sources with `admin.url` what the pipeline does, for `explain` and the console. `low_latency`: brokers
        tell when there is something to read, and an epoch of few rows is one job for each stage, whose plan is kept, or none.

        `rebuild`: what edited statements do not keep is built again, instead of a StateLossError."""
        self._rebuilds = rebuild
        self._reports = report
        self._low_latency = low_latency
        self._new_session = session if session is not None else self._new_session
        self._units = units if units is not None else self._units
        self._metadata_url = metadata_url
        self._metadata_credentials = metadata_credentials
        self._metrics_port = metrics_port

    @property
    def spark(self) -> SparkSession:
        """The session that it runs in."""
        if self._session is None:
            self._session = self._new_session()
        return self._session

    @property
    def catalog(self) -> Catalog:
        """What there is, with the statements given so far."""
        return self._catalog

    def sql(self, text: str) -> None:
        """Statements that define the pipeline; they take effect with the next `run`. What is there already may be said again.

        Raises SqlError, PlanRefusedError, CatalogError; then none of them counts.
        """
        statements = parse(text)
        for statement in statements:
            if not isinstance(statement, _DEFINITIONS):
                raise CatalogError(
                    "a pipeline is made of CREATE, ALTER and DROP; ask for rows with `magnetar pipeline query`, or "
                    "spark.read.format('magnetar.view')"
                )
        self._catalog = _applied(self.name, self._catalog, statements)
        self._statements += statements

    def function(
        self, signature: str = "", *, name: str = "", strict: bool = False, batch: bool = False
    ) -> Callable[[_F], _F]:
        """A decorator that makes of a Python function one that statements call: `@pipeline.function("(a INT, b INT) RETURNS INT")`.

        Without a signature the types come from the annotations. It is the same as CREATE FUNCTION ... LANGUAGE python with the function's
        text: what it uses has to be built in or imported, in its module or in itself. The function is returned as it is.

        Raises CatalogError for a function whose text cannot be had or that uses other names of its module, SqlError for its signature.
        """

        def define(function: _F) -> _F:
            self.sql(function_statement(function, signature, name, strict=strict, batch=batch))
            return function

        return define

    def changes(self) -> tuple[Change, ...]:
        """What the statements given so far change in the pipeline as it ran last; everything of one that has never run is created."""
        return changes(_catalog(ManifestStore(self.files, self._clock).latest()), self._catalog, self._statements)

    def explain(self) -> str:
        """The stages of all views and tables, with the statements given so far. Starts Spark. Raises PlanRefusedError, CatalogError."""
        return "\n".join(line for lines in self.explain_views().values() for line in lines)

    def explain_views(self) -> dict[str, list[str]]:
        """The same in lines, by view or table."""
        manifest = ManifestStore(self.files, self._clock).latest()
        catalog = _applied(self.name, _catalog(manifest), self._statements)
        types = SparkTypes(self.spark)
        types.define(catalog.functions.values())
        program, _ = assemble(catalog, {} if manifest is None else manifest.views, types)
        return {plan.name: explain_view(plan) for plan in program.plans}

    def run(
        self,
        once: bool = False,
        on_epoch: Callable[[EpochReport], None] | None = None,
        on_start: Callable[[VnodeMapping], None] | None = None,
    ) -> None:
        """Until `request_stop`, or with `once` until all is read that was there. `on_start` is told the mapping that it begins with.

        Raises StateLossError for an edited statement that does not keep its state (see `changes` and `prepare`), PipelineRunningError
        while another process of this machine runs it, DriverFencedError when another driver has taken the pipeline over, and whatever
        an epoch failed with: running it again goes on behind the last committed epoch.
        """
        self._operations = Operations(self.place, self._clock, metrics_port=self._metrics_port)
        reporter = Reporter(self.name, self._clock, lambda: self.status)
        try:
            with reporter, self._operations:
                begin = on_start
                while True:
                    with ExitStack() as stack:
                        self._run(stack, reporter, once, on_epoch, begin)
                    if self._stop or not self._edits:
                        break
                    begin = None  # the same run goes on, with what was changed
        finally:
            self._stop = False
            self._edits.clear()

    def _run(
        self,
        stack: ExitStack,
        reporter: Reporter,
        once: bool,
        on_epoch: Callable[[EpochReport], None] | None,
        on_start: Callable[[VnodeMapping], None] | None,
    ) -> None:
        operations = self._operations
        units = self._units if self._units is not None else self.spark.sparkContext.defaultParallelism
        types = self._types = self._types or SparkTypes(self.spark)
        before = ManifestStore(self.files, self._clock).latest() or Manifest(0, 0, 0, -1, "")
        self._assembled(before, types)  # what cannot run must not fence a driver that does
        claimed = claim(self.files, self._clock, units)
        accepted = self._accepted(claimed, types)
        claimed, catalog, program, views = self._assembled(claimed, types)
        driver = Driver(
            self.spark,
            self.files,
            self._clock,
            program,
            TopicSources(self.name, views.get(FORMER_NAMES)),
            name=self.name,
            on_epoch=lambda report: self._told(report, on_epoch),
            trigger_s=self._trigger_s,
            low_latency=self._low_latency,
            on_ready=lambda: self._in_force(accepted),
        )
        try:
            driver.start(claimed, {**views, GRAPH: graph(program)})
            self._settled(catalog)
            self._driver = driver
            if self._stop or self._edits:
                driver.request_stop()
            wanted = self._wanted_units(catalog)
            if wanted is not None:
                driver.rescale(wanted)
            mapping = VnodeMapping.from_json(claimed.mapping)
            lag = Lag(program.sources)
            stack.callback(lag.close)
            operations.attach(
                self,
                mapping,
                lambda: lag.by_source(driver.manifest.sources),
                cores=self.spark.sparkContext.defaultParallelism,
                adaptive_from=self._adaptive_from(catalog),
                under_way=lambda: driver.epoch_began_s,
            )
            if self._reports:
                reporter.attach(program.sources, lambda: driver.manifest)
                operations.metrics.consoles = reporter.consoles
            if self._metadata_url is not None:
                self._shared = stack.enter_context(
                    SharedMapping(
                        self._metadata_url, self.name, self._clock, mapping, self.rescale, self._metadata_credentials
                    )
                )
            if on_start is not None:
                on_start(mapping)
            driver.run(once=once)
        finally:
            self._driver = self._shared = None
            driver.close()

    def _accepted(self, claimed: Manifest, types: SparkTypes) -> list[Done]:
        """Take the first of the statements that clients gave, if it can run; who is to be told that it is in force. One at a time: a
        RENAME is one step from the manifest before it."""
        while self._edits:
            text, done = self._edits.pop(0)
            before = self._catalog, list(self._statements)
            try:
                self.sql(as_given_by_a_client(text, self._catalog, self.name, claimed.number))
                self._assembled(claimed, types)
            except Exception as error:
                self._catalog, self._statements = before
                done({"done": False, "error": cause(error)})
            else:
                return [done]
        return []

    def _settled(self, catalog: Catalog) -> None:
        """What the manifest has by now, with its credentials, in place of the statements that led to it: a DROP or RENAME is done once."""
        self._catalog = catalog
        entries = (each.statement for each in catalog.entries.values())
        self._statements = [*catalog.functions.values(), *entries, *catalog.indexes.values()]

    def _in_force(self, accepted: list[Done]) -> None:
        assert self._driver is not None
        for done in accepted:
            done({"done": True, "manifest": self._driver.manifest.number})
        accepted.clear()

    def _assembled(self, manifest: Manifest, types: SparkTypes) -> tuple[Manifest, Catalog, Program, dict[str, Any]]:
        """The manifest without what is built again. Raises StateLossError."""
        known = _catalog(manifest)
        catalog = _applied(self.name, known, self._statements)
        for each in renames(known, self._statements):
            known, manifest = known.renamed(each), renamed(manifest, each.name, each.to)
        again = self._agreed(changes(known, catalog))
        kept = forgotten(manifest, again)
        types.define(catalog.functions.values())
        program, views = assemble(catalog, kept.views, types)
        if misfits := unfit(program, kept):
            kept = forgotten(kept, self._agreed(rebuilds(catalog, misfits)))
            program, views = assemble(catalog, kept.views, types)
        return kept, catalog, program, views

    def _agreed(self, found: tuple[Change, ...]) -> list[str]:
        """The names of what is built again. Raises StateLossError."""
        lost = [change for change in found if not change.keeps_state]
        if lost and not self._rebuilds:
            what = "; ".join(f"{change.name} ({change.why})" for change in lost)
            raise StateLossError(
                f"what is stored does not fit the edited statements of {what}. `magnetar pipeline run --yes` (in Python: "
                "prepare(rebuild=True)) builds them again from what their topics still hold; or give the new ones other names"
            )
        return [change.name for change in lost]

    def _told(self, report: EpochReport, on_epoch: Callable[[EpochReport], None] | None) -> None:
        self._operations.on_epoch(report)
        if report.vnodes_moved and self._shared is not None and self._driver is not None:
            self._shared.took_effect(VnodeMapping.from_json(self._driver.manifest.mapping))
        if on_epoch is not None:
            on_epoch(report)

    def request_stop(self) -> None:
        """After the epoch that is running, if any. From any thread."""
        self._stop = True
        if self._driver is not None:
            self._driver.request_stop()

    def apply(self, text: str, done: Done) -> None:
        """Statements that change the present run between two epochs; `done` is told when they are in force, or why not. From any thread."""
        self._edits.append((text, done))
        if self._driver is not None:
            self._driver.request_stop()

    def rescale(self, units: int) -> None:
        """Another number of units from the next epoch on; no state is written anew. From any thread."""
        self._units = units
        if self._driver is not None:
            self._driver.rescale(units)

    def follow(self, units: int) -> None:
        """Another number of units of the present run, by its load. From any thread."""
        if self._driver is not None:
            self._driver.rescale(units)

    def _adaptive_from(self, catalog: Catalog) -> int | None:
        """The least units of a run that follows its load: SET PARALLELISM = ADAPTIVE, unless somebody gave this run a number."""
        entries = catalog.entries.values()
        if self._units is not None or not any(entry.adaptive for entry in entries):
            return None
        return max((entry.parallelism for entry in entries if entry.parallelism is not None), default=1)

    def _wanted_units(self, catalog: Catalog) -> int | None:
        """The units of this run where somebody said so; the mapping is the pipeline's, so of ALTER ... SET PARALLELISM the most count."""
        if self._units is not None:
            return self._units
        named = [entry.parallelism for entry in catalog.entries.values() if entry.parallelism is not None]
        return max(named, default=None)


def as_given_by_a_client(text: str, catalog: Catalog, pipeline: str, number: int) -> str:
    """Statements of a client, with the addresses of the broker where its sources and sinks name none and all that there are have one.

    A table that it creates has a topic of its own, called by the manifest's `number` as well: the topic of a table that was dropped
    outlives it, and its rows are not those of the next one of that name.
    """
    addresses = {}
    for option in ("service.url", "admin.url"):
        entries = [
            each.statement for each in catalog.entries.values() if isinstance(each.statement, CreateSource | CreateSink)
        ]
        named = {each.options[option] for each in entries if option in each.options}
        if len(named) == 1:
            addresses[option] = named.pop()
    there = {name.lower() for name in catalog.entries}
    found = []
    for each in parse(text):
        if isinstance(each, CreateSource | CreateSink) and "service.url" not in each.options:
            each = replace(each, options=Options({**each.options, **addresses}))
        if isinstance(each, CreateSource) and each.is_written and each.name.lower() not in there:
            topic = {"topic": f"{table_topic(pipeline, each.name)}-{number}"}
            given = {} if "topic" in map(str.lower, each.options) else topic
            each = replace(each, options=Options({**each.options, **given}))
        found.append(f"{print_statement(each, with_credentials=True)};")
    return "\n".join(found)


def _catalog(manifest: Manifest | None) -> Catalog:
    return Catalog.from_plain(manifest.views.get("catalog", [])) if manifest is not None else Catalog()


def _applied(pipeline: str, catalog: Catalog, statements: list[Statement] | tuple[Statement, ...]) -> Catalog:
    former = {each.to.lower(): each.name.lower() for each in statements if isinstance(each, Rename)}
    known = {name.lower(): entry.statement for name, entry in catalog.entries.items()}

    def completed(source: CreateSource) -> CreateSource:
        name = source.name.lower()
        return _completed(pipeline, source, known.get(name) or known.get(former.get(name, name)))

    return applied(catalog, [completed(each) if isinstance(each, CreateSource) else each for each in statements])


def _completed(pipeline: str, source: CreateSource, known: object) -> CreateSource:
    """A table that is written has a topic. A source that names no columns has those it was created with, whatever schema its topic has by
    now. `known`: the statement that created it."""
    if source.is_written and "topic" not in {option.lower() for option in source.options}:
        topic = known.options.get("topic") if isinstance(known, CreateSource) and known.is_written else None
        named = {"topic": topic or table_topic(pipeline, source.name)}
        return replace(source, options=Options({**source.options, **named}))
    if source.columns:
        return source
    if isinstance(known, CreateSource):
        return replace(source, columns=known.columns)
    return with_columns(source)
