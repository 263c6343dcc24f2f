"""The rows of a view in memory as of one epoch, and how they become those of the next one without reading everything again.

The rows lie in two frames: `base`, ordered by vnode so that the rows of a key are in a slice of it, and `newer`, the rows that epochs have
brought since. A key is in one of them at most. Frames are never changed: who reads a table goes on reading the epoch it began with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from magnetar.pipeline.state import vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.lookup import last_rows
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.reader import live, merge, newest_last, read_slices
from magnetar.pipeline.state.run import RunInfo, read_run
from magnetar.pipeline.state.table import VNODE, StateTable, ordered

if TYPE_CHECKING:
    import numpy.typing as npt

NEWER_PART: Final = 0.1
"""Above this share of the base (and `NEWER_MIN` rows) the newer rows are sorted into it."""

NEWER_MIN: Final = 50_000

LOOKUPS_BEFORE_SORTING: Final = 2
"""So often rows are looked up by a column before it is sorted, which takes as long as some scans do: rows may be others soon."""


@dataclass(frozen=True)
class Changed:
    """What happened to the rows of a view: those that went or were replaced, and those that came or replace them. Without `_vnode`."""

    before: pl.DataFrame
    after: pl.DataFrame


@dataclass(frozen=True, slots=True)
class SortedColumn:
    """A column's values in their order, without NULLs, and where each one's row is."""

    values: pl.Series
    order: pl.Series

    @classmethod
    def of(cls, column: pl.Series) -> SortedColumn:
        order = column.arg_sort(nulls_last=True).head(len(column) - column.null_count())
        return cls(column.gather(order), order)

    def places(self, values: list[Any]) -> pl.Series:
        """Of the rows that have one of these values."""
        found = [self.order.head(0)]
        for value in dict.fromkeys(values):
            first, end = (self.values.search_sorted(value, side) for side in ("left", "right"))
            found.append(self.order.slice(int(first), int(end) - int(first)))
        return pl.concat(found)


@dataclass(frozen=True)
class HeldTable:
    """`runs`: those of the manifest whose rows these are; `epoch`: that manifest's."""

    table: StateTable
    runs: tuple[RunInfo, ...]
    epoch: int
    base: pl.DataFrame
    newer: pl.DataFrame
    lookups: dict[str, int | SortedColumn] = field(default_factory=dict, compare=False, repr=False)
    """By column: how often rows of this base were looked up by it, then the column in its order."""

    @cached_property
    def size_bytes(self) -> int:
        """Of the rows, about."""
        return int(self.base.estimated_size() + self.newer.estimated_size())

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """Where the rows of each vnode begin in the base, and its end."""
        vnodes = self.base[VNODE].to_numpy()
        starts: npt.NDArray[np.int64] = np.searchsorted(vnodes, np.arange(self.table.vnode_count + 1))
        return starts

    @cached_property
    def _arrow(self) -> tuple[pa.Table, pa.Table]:
        return _as_arrow(self.table, self.base), _as_arrow(self.table, self.newer)

    def rows(self, vnodes: list[int] | None = None) -> pa.Table:
        """The live rows of all vnodes, or those of these (ascending) and perhaps a few of others. Nothing is copied."""
        base, newer = self._arrow
        if vnodes is None:
            return pa.concat_tables([base, newer]) if newer.num_rows else base
        starts = self._starts
        parts = [base.slice(starts[vnode], starts[vnode + 1] - starts[vnode]) for vnode in vnodes]
        return pa.concat_tables([*parts, newer]) if newer.num_rows or not parts else pa.concat_tables(parts)

    def rows_with(self, column: str, values: list[Any]) -> pa.Table:
        """The live rows that have one of these values in a column, and perhaps others."""
        found = self.lookups.get(column, 0)
        if isinstance(found, int):
            if found < LOOKUPS_BEFORE_SORTING:
                self.lookups[column] = found + 1
                return self.rows()
            found = self.lookups[column] = SortedColumn.of(self.base[column])
        base = _as_arrow(self.table, self.base[found.places(values)])
        newer = self._arrow[1]
        return pa.concat_tables([base, newer]) if newer.num_rows else base

    def advanced(self, files: StateFiles, state: TableState, epoch: int) -> tuple[HeldTable, Changed | None]:
        """The same table as a later manifest has it, and the changes on the way (None: nothing). Raises DamagedStateError."""
        if state.runs == self.runs:
            return HeldTable(self.table, self.runs, epoch, self.base, self.newer, self.lookups), None
        if not self.table.key:
            after = load(files, state, epoch)
            return after, Changed(self.base.drop(VNODE), after.base.drop(VNODE))
        known = {run.path for run in self.runs}
        added = [run for run in state.runs if run.path not in known and run.newest > self.epoch]
        if any(run.oldest <= self.epoch for run in added):
            return self._compared(files, state, epoch, added)
        vnodes = (1 << self.table.vnode_count) - 1
        changes = merge(self.table, [read_run(files, self.table, run, vnodes) for run in newest_last(added)])
        return self._with(state, epoch, changes.select(self.table.key), live(self.table, changes))

    def _compared(
        self, files: StateFiles, state: TableState, epoch: int, added: list[RunInfo]
    ) -> tuple[HeldTable, Changed | None]:
        """The new runs hold older epochs as well, so they do not say what is gone: their vnodes are read anew and compared."""
        bits = 0
        for run in added:
            bits |= run.vnode_bits
        vnodes = list(vnode_set.members(bits))
        now = read_slices(files, state, vnodes)
        there = self._of_vnodes(vnodes)
        same = there.join(now, on=now.columns, how="semi", nulls_equal=True)
        gone = there.join(same, on=self.table.key, how="anti", nulls_equal=True)
        fresh = now.join(same, on=self.table.key, how="anti", nulls_equal=True)
        keys = pl.concat([gone.select(self.table.key), fresh.select(self.table.key)]).unique()
        return self._with(state, epoch, keys, fresh)

    def _of_vnodes(self, vnodes: list[int]) -> pl.DataFrame:
        starts = self._starts
        parts = [self.base.slice(starts[vnode], starts[vnode + 1] - starts[vnode]) for vnode in vnodes]
        return pl.concat([*parts, self.newer.filter(pl.col(VNODE).is_in(vnodes))])

    def _with(
        self, state: TableState, epoch: int, keys: pl.DataFrame, rows: pl.DataFrame
    ) -> tuple[HeldTable, Changed | None]:
        """`keys`: each once, whatever is there of them goes; `rows`: what comes."""
        base, newer = self.base, self.newer
        gone = [base.head(0)]
        frames = []
        for frame in (base, newer):
            at = last_rows(frame, keys) if frame.height and keys.height else np.empty(0, np.int64)
            at = at[at >= 0]
            if len(at):
                gone.append(frame[at])
                kept = np.ones(frame.height, np.bool_)
                kept[at] = False
                frame = frame.filter(pl.Series(kept))
            frames.append(frame)
        base, newer = frames[0], pl.concat([frames[1], rows.select(base.columns)])
        if newer.height > max(NEWER_MIN, NEWER_PART * base.height):
            base, newer = ordered(self.table, pl.concat([base, newer])), newer.head(0)
        before = pl.concat(gone)
        changed = Changed(before.drop(VNODE), rows.drop(VNODE)) if before.height or rows.height else None
        lookups = self.lookups if base is self.base else {}
        return HeldTable(self.table, state.runs, epoch, base, newer, lookups), changed


def load(files: StateFiles, state: TableState, epoch: int) -> HeldTable:
    """All rows of a table. Raises DamagedStateError."""
    rows = read_slices(files, state, range(state.table.vnode_count))
    return HeldTable(state.table, state.runs, epoch, rows, rows.head(0))


def _as_arrow(table: StateTable, frame: pl.DataFrame) -> pa.Table:
    """In the table's types, except that texts and bytes stay as polars has them, which costs nothing."""
    found = frame.select(table.schema.names).to_arrow()
    wanted = pa.schema([_near(table.schema.field(field.name), field) for field in found.schema])
    # a cast imports pyarrow.compute, which takes longer than most queries
    return found if found.schema.equals(wanted) else found.cast(wanted)


def _near(wanted: pa.Field, found: pa.Field) -> pa.Field:
    kind: Any = wanted.type
    plain = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return found if plain else pa.field(wanted.name, kind)
