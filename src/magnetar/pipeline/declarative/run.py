"""A run of a project: every dataset brought up to date, each after those that it reads."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StructType

from magnetar.base.clock import Clock, SystemClock
from magnetar.pipeline.declarative.catalyst import analysed, children, kind, nodes
from magnetar.pipeline.declarative.materialize import Materializer, Refreshed
from magnetar.pipeline.declarative.project import Project, ProjectError
from magnetar.pipeline.declarative.registry import Dataset, Flow, read_definitions, struct
from magnetar.pipeline.declarative.storage import Storage, Stored, entry_of, file_format
from magnetar.pipeline.session import classic
from magnetar.pipeline.views.control.driver_lock import DriverLock
from magnetar.pipeline.views.control.failures import cause, told
from magnetar.pipeline.views.scan.session_catalog import VIEW_PROVIDER, TableEntry, drop, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DATABASE: Final = "default"


@dataclass(frozen=True)
class Planned:
    """What a run would do with a dataset. `kept`: whether its rows are kept; `how`: in words, with the reason where they are not."""

    name: str
    kind: str
    kept: bool
    how: str
    place: str

    def describe(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"name": self.name, "kind": self.kind, "kept": self.kept, "how": self.how, "place": self.place}


@dataclass
class _Known:
    """A dataset with its key (`database.name`), and what it reads of the project."""

    key: str
    dataset: Dataset
    reads: set[str] = field(default_factory=set)
    schema: StructType | None = None


class Run:
    """Over one session, which must be a classic one: `spark` is used by the project's files as theirs."""

    def __init__(
        self,
        spark: SparkSession,
        project: Project,
        clock: Clock | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark = classic(spark)
        self._project = project
        self._clock = clock if clock is not None else SystemClock()
        self._say = say
        self._storage = Storage(project.storage)
        self._database = project.database or _DATABASE
        self._owner = str(self._storage.root)
        self._empty: list[tuple[str, str]] = []
        self._scratch = ""
        self._materializer = Materializer(spark, self._storage, self._clock)

    def dry_run(self) -> list[Planned]:
        """What a run would do, without doing it; the session's catalog is as it was afterwards. ProjectError."""
        with self._project_session():
            known = self._analysed()
            try:
                return self._all_planned(known)
            finally:
                for database, name in self._empty:
                    drop(self._spark, database, name, self._owner)
                self._attach()

    def run(
        self, refresh: Collection[str] = (), full_refresh: Collection[str] = (), full_refresh_all: bool = False
    ) -> list[Refreshed]:
        """Bring datasets up to date: all, or those named by `refresh` and `full_refresh`, of which the latter are computed anew.

        Raises ProjectError, PipelineRunningError while another process runs the project, and what a query fails with.
        """
        with DriverLock(self._storage.root, self._project.name, self._clock) as lock, self._project_session():
            lock.announce()
            known = self._analysed()
            wanted = self._wanted(known, refresh, full_refresh)
            anew = {self._key(name) for name in full_refresh}
            done = []
            for each in known:
                if each.key in wanted or each.dataset.kind == "temporary view":
                    refreshed = self._refresh(each, full_refresh_all or each.key in anew)
                    if each.dataset.kind != "temporary view":
                        done.append(refreshed)
                        self._say(refreshed.text())
            for name in set(self._storage.datasets) - {each.key for each in known}:
                drop(self._spark, *name.split(".", 1), self._owner)  # type: ignore[call-arg]
                self._storage.forget(name)
            return done

    @contextmanager
    def _project_session(self) -> Iterator[None]:
        before, current = Path.cwd(), self._spark.catalog.currentDatabase()
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS `{self._database}`")
        self._attach()
        os.chdir(self._project.root)
        self._spark.catalog.setCurrentDatabase(self._database)
        try:
            with tempfile.TemporaryDirectory(prefix="magnetar-empty-") as self._scratch:
                yield
        finally:
            os.chdir(before)
            self._spark.catalog.setCurrentDatabase(current)

    def _attach(self) -> None:
        """What earlier runs have made, as tables of this session."""
        for stored in self._storage.datasets.values():
            self._put(entry_of(self._storage, stored))

    def _put(self, entry: TableEntry) -> None:
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS `{entry.database}`")
        put(self._spark, entry)

    def _analysed(self) -> list[_Known]:
        """All datasets, each behind those that it reads. ProjectError with what Spark's analyser says, and where."""
        datasets = read_definitions(self._spark, self._project)
        known = {key: _Known(key, each) for key, each in ((self._key(d.name), d) for d in datasets.values())}
        left, failed = list(known.values()), {}
        while left:
            again = []
            for each in left:
                try:
                    self._analyse(each, known)
                except AnalysisException as error:
                    failed[each.key] = error
                    again.append(each)
            if len(again) == len(left):
                raise self._unanalysed(left, failed)
            left = again
        return _in_order(known)

    def _unanalysed(self, left: Sequence[_Known], failed: dict[str, AnalysisException]) -> ProjectError:
        """What keeps these from being analysed: one of them, or that each waits for another."""
        keys = {each.key for each in left}
        waits = {each.key: self._missing(failed[each.key]) in keys for each in left}
        first = next((each for each in left if not waits[each.key]), None)
        if first is None:
            names = ", ".join(each.dataset.name for each in left)
            return ProjectError(f"{left[0].dataset.flows[0].place}: datasets read each other in a circle: {names}")
        return ProjectError(f"{first.dataset.flows[0].place}: {first.dataset.name}: {_said(failed[first.key])}")

    def _missing(self, error: AnalysisException) -> str | None:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            return None
        return self._key((error.getMessageParameters() or {}).get("relationName", ""))

    def _analyse(self, each: _Known, known: dict[str, _Known]) -> None:
        frames = [self._query(flow) for flow in each.dataset.flows]
        for frame in frames:
            each.reads |= {key for key in self._read(frame) if key in known and key != each.key}
        dataset = each.dataset
        if dataset.kind == "temporary view":
            frames[0].createOrReplaceTempView(dataset.name)
        elif dataset.kind != "sink":
            each.schema = _schema(dataset, frames)
            stored = self._storage.datasets.get(each.key)
            if stored is None or StructType.fromJson(_json(stored.schema)) != each.schema:
                self._put_empty(each, frames)

    def _put_empty(self, each: _Known, frames: Sequence[DataFrame]) -> None:
        """A table without rows in the place of one that is to come, so that what reads it can be analysed."""
        assert each.schema is not None
        database, name = each.key.split(".", 1)
        groups = each.dataset.kind == "materialized view" and self._materializer.is_bare_groups(each.dataset, frames[0])
        if groups:
            options = {"pipeline": str(self._storage.root / "none"), "view": name}
            entry = TableEntry(database, name, VIEW_PROVIDER, each.schema.json(), self._owner, None, options)
        else:
            empty = tempfile.mkdtemp(dir=self._scratch)
            kept = {"recursiveFileLookup": "true"}
            entry = TableEntry(database, name, "parquet", each.schema.json(), self._owner, empty, kept)
        self._put(entry)
        self._empty.append((database, name))

    def _read(self, frame: DataFrame) -> set[str]:
        """The names of tables and views in its plan, as keys."""
        found = set()
        for node in nodes(analysed(frame)):
            if kind(node) == "SubqueryAlias" and kind(children(node)[0]) not in ("SubqueryAlias", "Project", "Filter"):
                found.add(self._key(node.identifier().toString()))
        return found

    def _query(self, flow: Flow) -> DataFrame:
        with self._settings(flow):
            frame = flow.query()
        if not hasattr(frame, "_jdf"):
            raise ProjectError(f"{flow.place}: {flow.name} gives {type(frame).__name__} and not a DataFrame")
        return frame

    @contextmanager
    def _settings(self, flow: Flow) -> Iterator[None]:
        before = {name: self._spark.conf.get(name, None) for name in flow.conf}
        for name, value in flow.conf.items():
            self._spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    self._spark.conf.unset(name)
                else:
                    self._spark.conf.set(name, old)

    def _all_planned(self, known: Sequence[_Known]) -> list[Planned]:
        found: dict[str, Planned] = {}
        for each in known:
            planned = self._planned(each)
            anew = [name for name in sorted(each.reads) if name in found and not found[name].kept]
            if each.dataset.kind == "materialized view" and planned.kept and anew:
                planned = replace(
                    planned, kept=False, how=f"full refresh: reads {found[anew[0]].name}, which is computed anew"
                )
            found[each.key] = planned
        return list(found.values())

    def _planned(self, each: _Known) -> Planned:
        dataset = each.dataset
        flow = dataset.flows[0] if dataset.flows else None
        if dataset.kind == "materialized view":
            assert flow is not None
            is_kept, how = self._materializer.plan(dataset, self._query(flow))
        elif dataset.kind == "streaming table":
            for one in dataset.flows:
                _streaming(one, self._query(one))
            is_kept, how = True, "new rows are appended by Spark's streaming queries"
        elif dataset.kind == "sink":
            is_kept, how = True, "new rows are sent by Spark's streaming queries"
        else:
            is_kept, how = True, "is part of the queries that read it"
        if dataset.partition_by:
            how += "; partition columns are ignored"
        return Planned(dataset.name, dataset.kind, is_kept, how, str(flow.place if flow else dataset.place))

    def _refresh(self, each: _Known, anew: bool) -> Refreshed:
        dataset = each.dataset
        place = dataset.flows[0].place if dataset.flows else dataset.place
        try:
            if dataset.kind == "temporary view":
                self._query(dataset.flows[0]).createOrReplaceTempView(dataset.name)
                return Refreshed(dataset.name, "", 0.0)
            began_s = self._clock.monotonic_s()
            if dataset.kind == "materialized view":
                flow = dataset.flows[0]
                with self._settings(flow):
                    stored, what = self._materializer.refresh(each.key, dataset, flow.query(), anew)
            elif dataset.kind == "streaming table":
                stored, what = self._stream(each, anew)
            else:
                stored, what = None, self._send(each)
        except PySparkException as error:
            raise ProjectError(f"{place}: {dataset.name}: {cause(told(error))}") from error
        if stored is not None:
            self._storage.commit(stored)
            self._put(entry_of(self._storage, stored))
        return Refreshed(dataset.name, what, self._clock.monotonic_s() - began_s)

    def _stream(self, each: _Known, anew: bool) -> tuple[Stored, str]:
        dataset, key = each.dataset, each.key
        stored = self._storage.datasets.get(key)
        frames = [self._query(flow) for flow in dataset.flows]
        schema = _schema(dataset, frames)
        form = file_format(dataset.format, dataset.place)
        if anew or stored is None or stored.how != "stream" or stored.provider != form:
            version = self._storage.next_version(key)
        else:
            version = stored.version
            schema = _grown(StructType.fromJson(_json(stored.schema)), schema, dataset)
        directory = self._storage.directory(key, version)
        directory.mkdir(parents=True, exist_ok=True)
        if stored is None:  # so that a run which dies in its first batch goes on with it
            self._storage.commit(Stored(key, "stream", version, schema.json(), form, comment=dataset.comment))
        rows = 0
        for flow, frame in zip(dataset.flows, frames, strict=True):
            _streaming(flow, frame)
            name = re.sub(r"[^A-Za-z0-9_-]", "_", flow.name)

            def write(batch: DataFrame, number: int, name: str = name) -> None:
                self._storage.write_part(directory, f"{name}-{number}", batch, form)

            checkpoint = self._storage.checkpoint(key, version, name)
            with self._settings(flow):
                writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
                rows += _to_its_end(writer.queryName(f"{key}: {flow.name}"))
        return Stored(key, "stream", version, schema.json(), form, comment=dataset.comment), f"{rows} new rows appended"

    def _send(self, each: _Known) -> str:
        dataset, rows = each.dataset, 0
        for flow in dataset.flows:
            frame = self._query(flow)
            _streaming(flow, frame)
            checkpoint = self._storage.checkpoint(each.key, 1, re.sub(r"[^A-Za-z0-9_-]", "_", flow.name))
            with self._settings(flow):
                writer = frame.writeStream.format(dataset.format or "").options(**dataset.options)
                writer = writer.option("checkpointLocation", str(checkpoint)).queryName(f"{each.key}: {flow.name}")
                rows += _to_its_end(writer)
        return f"{rows} new rows sent"

    def _wanted(self, known: Sequence[_Known], refresh: Collection[str], full: Collection[str]) -> set[str]:
        named = {self._key(name) for name in (*refresh, *full)}
        unknown = named - {each.key for each in known}
        if unknown:
            there = ", ".join(each.dataset.name for each in known)
            raise ProjectError(f"the project defines no {', '.join(sorted(unknown))}; there are: {there}")
        return named or {each.key for each in known}

    def _key(self, name: str) -> str:
        parts = [part.strip("`").lower() for part in name.split(".")]
        if parts[0] == "spark_catalog" and len(parts) == 3:
            parts = parts[1:]
        if len(parts) > 2:
            raise ProjectError(
                f"{name}: only tables of the session's own catalog are kept here; name it DATABASE.TABLE"
            )
        return ".".join(parts if len(parts) == 2 else [self._database.lower(), *parts])


def _in_order(known: dict[str, _Known]) -> list[_Known]:
    """Each behind what it reads. ProjectError for a circle."""
    found: dict[str, _Known] = {}

    def visit(each: _Known, way: tuple[str, ...]) -> None:
        if each.key in way:
            circle = " reads ".join((*way[way.index(each.key) :], each.key))
            raise ProjectError(f"{each.dataset.place}: datasets read each other in a circle: {circle}")
        if each.key not in found:
            for name in sorted(each.reads):
                visit(known[name], (*way, each.key))
            found[each.key] = each

    for each in known.values():
        visit(each, ())
    return list(found.values())


def _schema(dataset: Dataset, frames: Sequence[DataFrame]) -> StructType:
    """What the table is to have: as the project says, else what its flows give together."""
    if dataset.schema is not None:
        return struct(dataset.schema)
    return reduce(lambda one, other: _grown(one, other, dataset), (frame.schema for frame in frames))


def _grown(old: StructType, new: StructType, dataset: Dataset) -> StructType:
    """The old columns, and the new ones behind them. ProjectError for a column of another type."""
    by_name = {each.name.lower(): each for each in old.fields}
    fields = list(old.fields)
    for each in new.fields:
        known = by_name.get(each.name.lower())
        if known is None:
            fields.append(each)
        elif known.dataType != each.dataType:
            raise ProjectError(
                f"{dataset.place}: column {each.name} of {dataset.name} was {known.dataType.simpleString()} and is "
                f"{each.dataType.simpleString()} now; cast it, or run with --full-refresh {dataset.name}"
            )
    return StructType(fields)


def _streaming(flow: Flow, frame: DataFrame) -> None:
    if not frame.isStreaming:
        raise ProjectError(
            f"{flow.place}: flow {flow.name} is not a stream; a streaming table or sink takes spark.readStream or STREAM(table)"
        )


def _to_its_end(writer: Any) -> int:
    """Run a streaming query until it has read what is there; its rows."""
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(each.numInputRows for each in query.recentProgress)


def _said(error: PySparkException) -> str:
    """In one line, without Spark's class and number of the error, and without the plan."""
    text = re.split(r"\s+SQLSTATE:", str(error))[0]
    return " ".join(re.sub(r"^\[[A-Z0-9_.]+\] ", "", text).split())


def _json(text: str) -> Any:
    import json

    return json.loads(text)
