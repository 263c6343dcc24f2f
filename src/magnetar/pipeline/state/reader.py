"""A table as of one manifest: runs merged, the newest row of a key wins, deletions take it away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from magnetar.pipeline.state import vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.lookup import last_rows
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.run import RunInfo, read_run
from magnetar.pipeline.state.table import DELETE, OP, VNODE, StateTable, as_arrow, as_frame, ordered

PRUNED_KEYS_PER_VNODE: Final = 4
"""Keys for which it is worth while to find out whose vnodes they are."""


def read_slices(
    files: StateFiles,
    state: TableState,
    vnodes: Iterable[int],
    keys: pa.Table | None = None,
    columns: Collection[str] | None = None,
) -> pl.DataFrame:
    """The live rows of these vnodes with `_vnode`, in storage order.

    `keys`: only rows with these values in these key columns, which are at least those that the table is distributed by; the rows are
    in no order when these are the whole key. `columns`: read no others but these and the key.

    Raises DamagedStateError.
    """
    table = state.table
    bits = vnode_set.of(vnodes)
    wanted = None
    if keys is not None:
        wanted = as_frame(keys.select([name for name in table.key if name in keys.column_names]))
        few = wanted.height <= PRUNED_KEYS_PER_VNODE * table.vnode_count  # more of them are in every vnode anyway
        if few or any(kind.is_float() for kind in wanted.dtypes):  # polars 2.1 may lose NaN in a key of one column
            wanted = wanted.with_columns(pl.Series(VNODE, table.vnodes_of(keys), dtype=pl.UInt16))
            bits &= vnode_set.of(int(vnode) for vnode in wanted[VNODE].unique())
            wanted = wanted.unique(maintain_order=True)
    if columns is not None:
        kept = {*columns, *table.key}
        table = replace(table, schema=pa.schema([column for column in table.schema if column.name in kept]))
    runs = newest_last(state.runs)
    if wanted is not None and table.key and set(table.key) <= set(wanted.columns):
        return live(table, _newest(table, [_part(files, table, run, bits, None) for run in runs], wanted))
    return live(table, merge(table, [_part(files, table, run, bits, wanted) for run in runs]))


def read_arrow(files: StateFiles, state: TableState, vnodes: Iterable[int], keys: pa.Table | None = None) -> pa.Table:
    """`read_slices` with the table's own columns and types."""
    return as_arrow(state.table, read_slices(files, state, vnodes, keys))


def newest_last(runs: Iterable[RunInfo]) -> list[RunInfo]:
    """In the order in which later ones override earlier ones. For one vnode the epochs of runs never overlap."""
    return sorted(runs, key=lambda run: (run.newest, run.level))


def merge(table: StateTable, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One row for each key, that of the last part that has it, deletions included; in storage order."""
    filled = [part for part in parts if part.height]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return as_frame(table.stored_schema.empty_table())
    together = pl.concat(filled)
    if not table.key:
        return together.tail(1)
    keys = together.select(table.key)
    return ordered(table, together.filter(pl.Series(last_rows(keys, keys) == np.arange(together.height))))


def _newest(table: StateTable, parts: Sequence[pl.DataFrame], wanted: pl.DataFrame) -> pl.DataFrame:
    """Of the parts, oldest first, the last row of each key wanted, deletions included."""
    filled = [part for part in parts if part.height]
    if not filled:
        return as_frame(table.stored_schema.empty_table())
    together = pl.concat(filled)
    found = last_rows(together, wanted.select(table.key))
    chosen = np.zeros(together.height, np.bool_)
    chosen[found[found >= 0]] = True
    return together.filter(pl.Series(chosen))


def live(table: StateTable, merged: pl.DataFrame) -> pl.DataFrame:
    """Without the deleted keys and without `_op`."""
    if merged.height and merged[OP].max() == DELETE:
        merged = merged.filter(pl.col(OP) != DELETE)
    return merged.drop(OP)


def _part(files: StateFiles, table: StateTable, run: RunInfo, bits: int, wanted: pl.DataFrame | None) -> pl.DataFrame:
    found = read_run(files, table, run, bits)
    if wanted is None or not found.height:
        return found
    return found.join(wanted, on=wanted.columns, how="semi", nulls_equal=True, maintain_order="left")
