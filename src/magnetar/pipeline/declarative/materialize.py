"""Materialized views brought up to date: kept where that is exact, computed anew by Spark where it is not."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from magnetar.base.clock import Clock
from magnetar.pipeline.declarative.catalyst import analysed, frame_of
from magnetar.pipeline.declarative.files import Delta, Listing, Rewritten, fingerprint, list_files
from magnetar.pipeline.declarative.kept import Groups, program_of
from magnetar.pipeline.declarative.registry import Dataset, struct
from magnetar.pipeline.declarative.split import CannotBeKeptError, Kept, above, split
from magnetar.pipeline.declarative.storage import Storage, Stored, file_format
from magnetar.pipeline.views.scan.session_catalog import VIEW_PROVIDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Refreshed:
    """What became of a dataset."""

    name: str
    what: str
    duration_s: float

    def text(self) -> str:
        """One line."""
        return f"{self.name}: {self.what} ({self.duration_s:.1f} s)"


class Materializer:
    """Of one project."""

    def __init__(self, spark: SparkSession, storage: Storage, clock: Clock) -> None:
        self._spark = spark
        self._storage = storage
        self._clock = clock

    def plan(self, dataset: Dataset, frame: DataFrame) -> tuple[bool, str]:
        """Whether it is kept, and how, in words."""
        try:
            kept = self._split(dataset, frame)
            list_files(self._spark, kept.below)
        except CannotBeKeptError as error:
            return False, f"full refresh: {error}"
        if kept.calls is None:
            return True, "kept: rows of new files are added"
        return True, "kept: an aggregate that takes in rows of new files"

    def is_bare_groups(self, dataset: Dataset, frame: DataFrame) -> bool:
        """Whether its table will be the groups themselves."""
        try:
            kept = self._split(dataset, frame)
        except CannotBeKeptError:
            return False
        return kept.calls is not None and kept.aggregate is None

    def refresh(self, key: str, dataset: Dataset, frame: DataFrame, anew: bool) -> tuple[Stored, str]:
        """What is to be committed, and what was done, in words. `key`: `database.name`."""
        frame = _shaped(dataset, frame)
        stored = None if anew else self._storage.datasets.get(key)
        try:
            kept = self._split(dataset, frame)
            now = list_files(self._spark, kept.below)
        except CannotBeKeptError as error:
            return self._full(key, dataset, frame, str(error))
        mark = fingerprint(self._spark, analysed(frame))
        wanted = Stored(
            key,
            "rows" if kept.calls is None else "groups",
            0,
            frame.schema.json(),
            self._provider(dataset, kept),
            mark,
            comment=dataset.comment,
        )
        take = self._rows if kept.calls is None else self._groups
        if stored is not None and (stored.how, stored.fingerprint, stored.provider) == (
            wanted.how,
            mark,
            wanted.provider,
        ):
            known = stored.read if kept.calls is None else self._groups_of(stored).read or {}
            try:
                before = replace(wanted, version=stored.version, parts=stored.parts, read=stored.read)
                return take(before, kept, known, now)
            except Rewritten:
                pass
        version = self._storage.next_version(key)
        found, what = take(replace(wanted, version=version), kept, {}, now)
        return found, what if stored is None else f"{what}; built again"

    def _split(self, dataset: Dataset, frame: DataFrame) -> Kept:
        kept = split(self._spark, _shaped(dataset, frame))
        if kept.calls is not None:
            program_of("v", kept, frame_of(self._spark, kept.below))  # which says what state tables do not take
        return kept

    def _provider(self, dataset: Dataset, kept: Kept) -> str:
        if kept.calls is not None and kept.aggregate is None:
            return VIEW_PROVIDER
        return file_format(dataset.format, dataset.place)

    def _rows(self, wanted: Stored, kept: Kept, known: Listing, now: Listing) -> tuple[Stored, str]:
        directory = self._storage.directory(wanted.name, wanted.version)
        directory.mkdir(parents=True, exist_ok=True)
        delta = Delta(self._spark, kept.below, known, now)
        count = delta.new_files()
        rows = delta.frame() if count or not known else None
        if rows is not None:
            self._storage.write_part(directory, str(wanted.parts), rows, wanted.provider)
        found = replace(wanted, parts=wanted.parts + (rows is not None), read=now)
        return found, f"kept: rows of {_files(count)} added"

    def _groups(self, wanted: Stored, kept: Kept, known: Listing, now: Listing) -> tuple[Stored, str]:
        groups = self._groups_of(wanted)
        delta = Delta(self._spark, kept.below, known, now)
        count = delta.new_files()
        is_first = groups.read is None
        done = None
        if count or is_first:
            view = wanted.name.split(".", 1)[1]
            program = program_of(view, kept, frame_of(self._spark, kept.below))
            done = groups.epoch(self._spark, program, delta.frame(), now)
        if kept.aggregate is not None and (
            done is not None or wanted.read != now
        ):  # or a run died before it wrote them
            wanted = replace(wanted, parts=wanted.parts + 1, read=now)
            self._write_results(wanted, kept)
        changed = 0 if done is None else done["rows_changed"]
        return wanted, f"kept: {_files(count)}, {changed} changes of groups"

    def _write_results(self, wanted: Stored, kept: Kept) -> None:
        """What the query makes of the groups, as files of their own."""
        view = wanted.name.split(".", 1)[1]
        options = {"pipeline": str(self._storage.groups(wanted.name, wanted.version)), "view": view}
        groups = self._spark.read.format(VIEW_PROVIDER).options(**options).load()
        directory = self._storage.results(wanted)
        directory.mkdir(parents=True, exist_ok=True)
        self._storage.write_part(directory, "0", above(self._spark, kept, groups), wanted.provider)
        for path in directory.parent.iterdir():
            if path.name.isdigit() and int(path.name) < wanted.parts - 1:
                shutil.rmtree(path, ignore_errors=True)

    def _groups_of(self, stored: Stored) -> Groups:
        return Groups(self._storage.groups(stored.name, stored.version), self._clock)

    def _full(self, key: str, dataset: Dataset, frame: DataFrame, why: str) -> tuple[Stored, str]:
        form = file_format(dataset.format, dataset.place)
        version = self._storage.next_version(key)
        directory = self._storage.directory(key, version)
        directory.mkdir(parents=True, exist_ok=True)
        self._storage.write_part(directory, "0", frame, form)
        stored = Stored(key, "full", version, frame.schema.json(), form, parts=1, comment=dataset.comment)
        return stored, f"full refresh, since it {why}" if not why.startswith(("two", "/")) else f"full refresh: {why}"


def _shaped(dataset: Dataset, frame: DataFrame) -> DataFrame:
    """With the columns that the project says."""
    return frame if dataset.schema is None else frame.to(struct(dataset.schema))


def _files(count: int) -> str:
    return f"{count} new file{'' if count == 1 else 's'}"
