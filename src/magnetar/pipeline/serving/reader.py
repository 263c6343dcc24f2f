"""The views of a pipeline at one epoch each: which manifest is the newest, and the rows of its tables, as far as memory goes.

`Views` belongs to a process and is used from several threads. A `Snapshot` is what a statement reads: one manifest, and the tables that
were in memory for it; whatever it needs besides is read from the runs.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa

from magnetar.base.clock import Clock
from magnetar.pipeline.errors import PipelineError, UnknownEpochError
from magnetar.pipeline.serving.held_table import Changed, HeldTable, load
from magnetar.pipeline.state import gc, vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.views.scan.keys import vnode_bits
from magnetar.pipeline.views.scan.stored_views import find_table, open_manifest, shown_columns

T = TypeVar("T")

MEMORY_BYTES: Final = 1 << 30
"""Rows kept in memory; the tables that were not read for longest go first. A table that alone is larger is refused."""

EXPANSION: Final = 6
"""Bytes in memory for a byte in a run, at most."""

KEYS_FROM_FILES_MAX: Final = 64
"""So many keys of a table that is not in memory are read from its runs; for more the table is loaded."""

LIST_S: Final = 1.0
"""Pause between two listings of all manifests while the next number is not there."""


class ViewTooLargeError(PipelineError):
    """A whole view does not fit into the memory that the reader may use."""

    slug = "view-too-large"
    retriable = False


@dataclass(frozen=True)
class Snapshot:
    """One epoch. `held`: tables by id."""

    views: Views
    manifest: Manifest
    held: Mapping[int, HeldTable]

    def state(self, view: str) -> TableState:
        """CatalogError for an unknown view."""
        return find_table(self.manifest, view)

    def columns(self, view: str, *, keyed: bool = False) -> pa.Schema:
        """What people see of a view; `keyed`: all that is stored. CatalogError."""
        table = self.state(view).table
        return pa.schema([table.schema.field(name) for name in self._names(view, keyed)])

    def _names(self, view: str, keyed: bool) -> list[str]:
        return list(self.state(view).table.schema.names if keyed else shown_columns(self.manifest, view))

    def rows(
        self,
        view: str,
        keys: pa.Table | None = None,
        *,
        keyed: bool = False,
        where: tuple[str, list[Any]] | None = None,
    ) -> pa.Table:
        """The rows of a view as people see it; with `keys` those that may have one of these keys, and perhaps others; with `where` (a
        column and values) those that may have one of these there.

        Raises ViewTooLargeError, DamagedStateError, UnknownEpochError when the epoch was collected meanwhile.
        """
        state, columns = self.state(view), self._names(view, keyed)
        vnodes = None if keys is None else list(vnode_set.members(vnode_bits(state.table, keys)))
        held = self.held.get(state.table.table_id)
        if held is None and keys is not None and keys.num_rows <= KEYS_FROM_FILES_MAX:
            assert vnodes is not None
            self.views.want(state.table.table_id)
            return self.views.reading(self, lambda: read_arrow(self.views.files, state, vnodes, keys)).select(columns)
        if held is None:
            held = self.views.load(self, state)
        if where is not None:
            return held.rows_with(*where).select(columns)
        return held.rows(vnodes).select(columns)


class Views:
    """Of one pipeline's directory. `memory_bytes`: for rows."""

    def __init__(self, files: StateFiles, clock: Clock, memory_bytes: int = MEMORY_BYTES) -> None:
        self.files = files
        self.memory_bytes = memory_bytes
        self._clock = clock
        self._store = ManifestStore(files, clock)
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._held: OrderedDict[int, HeldTable] = OrderedDict()
        self._kept: Counter[int] = Counter()
        self._wanted: set[int] = set()
        self._manifest: Manifest | None = None
        self._listed_s = 0.0
        self.on_change: Callable[[Manifest, int, Changed], None] | None = None
        """Told of the changes of tables in memory, by `refresh`."""

    def newest(self) -> Snapshot:
        """Of the manifest that is known as the newest; CatalogError before a pipeline's first one."""
        with self._lock:
            manifest, held = self._manifest, dict(self._held)
        if manifest is None:
            self.refresh()
            return self.newest()
        return Snapshot(self, manifest, {key: table for key, table in held.items() if _fits(table, manifest)})

    def at_epoch(self, epoch: int) -> Snapshot:
        """UnknownEpochError, which says what is kept."""
        with self._lock:
            held = dict(self._held)
        manifest = open_manifest(self.files, self._clock, epoch)
        return Snapshot(self, manifest, {key: table for key, table in held.items() if _fits(table, manifest)})

    def refresh(self) -> bool:
        """Look for newer manifests and bring the tables in memory to the newest; whether there was one. One thread at a time. With a table
        that somebody follows, all manifests that are kept are gone through, so that `on_change` is told of each epoch.

        Raises CatalogError without a pipeline, DamagedStateError.
        """
        known = self._manifest
        if known is not None and not self._may_be_newer(known):
            return False
        numbers = self._store.numbers()
        if known is not None and numbers and numbers[-1] == known.number:
            return False
        with self._lock:
            followed = any(self._kept.values())
        if followed and known is not None:
            for number in numbers[:-1]:
                if number > known.number:
                    with suppress(UnknownEpochError):  # collected since it was listed: the next one tells of it as well
                        self._advance(self._store.read(number))
        self._advance(open_manifest(self.files, self._clock))
        return True

    def _may_be_newer(self, known: Manifest) -> bool:
        """Nearly always the next manifest is the next number, which is a cheap look on a local disk. All are listed once in a while, since
        that one may have been collected before anybody looked."""
        now_s = self._clock.monotonic_s()
        if self.files.local and not self._store.has(known.number + 1) and now_s - self._listed_s < LIST_S:
            return False
        self._listed_s = now_s
        return True

    def _advance(self, manifest: Manifest) -> None:
        with self._lock:
            held = list(self._held.items())
        brought: dict[int, HeldTable] = {}
        for table_id, table in held:
            if table_id in manifest.tables and table.epoch <= manifest.epoch:
                brought[table_id], changed = table.advanced(self.files, manifest.tables[table_id], manifest.epoch)
                if changed is not None and self.on_change is not None:
                    self.on_change(manifest, table_id, changed)
        with self._lock:
            self._manifest = manifest
            for table_id, _ in held:
                if table_id in brought:
                    self._held[table_id] = brought[table_id]
                else:
                    self._held.pop(table_id, None)
            self._evict()

    def load(self, snapshot: Snapshot, state: TableState) -> HeldTable:
        """The whole table, kept for later statements. One load at a time, so that two do not read the same."""
        with self._loading:
            with self._lock:
                there = self._held.get(state.table.table_id)
            if there is not None and there.runs == state.runs:
                return there
            size = EXPANSION * sum(run.size_bytes for run in state.runs)
            if size > self.memory_bytes:
                raise ViewTooLargeError(
                    f"{state.table.name} needs about {size >> 20} MiB in memory and {self.memory_bytes >> 20} MiB are allowed: "
                    "ask for rows by key (WHERE key = ...), or allow more by --memory-mb"
                )
            held = self.reading(snapshot, lambda: load(self.files, state, snapshot.manifest.epoch))
            with self._lock:
                if there is None or there.epoch < held.epoch:
                    self._held[state.table.table_id] = held
                self._held.move_to_end(state.table.table_id)
                self._evict()
        return held

    def reading(self, snapshot: Snapshot, read: Callable[[], T]) -> T:
        """`read` files of a manifest while it is pinned. UnknownEpochError when it has been collected."""
        name = gc.pin(self.files, self._clock, snapshot.manifest)
        try:
            return read()
        except PipelineError as error:
            if snapshot.manifest.number not in self._store.numbers():
                raise UnknownEpochError(
                    f"epoch {snapshot.manifest.epoch} was collected before it was read; ask again"
                ) from error
            raise
        finally:
            gc.unpin(self.files, name)

    def want(self, table_id: int) -> None:
        """Keys of the table were asked for while it was not in memory: the next `warm` loads it."""
        self._wanted.add(table_id)

    def warm(self) -> None:
        """Load the tables that `want` named, as far as they fit. For the thread that refreshes: nobody waits for it."""
        while self._wanted:
            table_id = self._wanted.pop()
            snapshot = self.newest()
            if table_id in snapshot.manifest.tables and table_id not in snapshot.held:
                with suppress(ViewTooLargeError, UnknownEpochError):
                    self.load(snapshot, snapshot.manifest.tables[table_id])

    def keep(self, table_id: int, more: int) -> None:
        """So many more (or fewer) need the table to stay in memory."""
        with self._lock:
            self._kept[table_id] += more

    def _evict(self) -> None:
        size = sum(table.size_bytes for table in self._held.values())
        for table_id in list(self._held)[:-1]:
            if size <= self.memory_bytes:
                return
            if not self._kept[table_id]:
                size -= self._held.pop(table_id).size_bytes


def _fits(table: HeldTable, manifest: Manifest) -> bool:
    """Whether a table in memory is what the manifest says."""
    state = manifest.tables.get(table.table.table_id)
    return state is not None and (state.runs is table.runs or state.runs == table.runs)
