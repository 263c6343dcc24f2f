"""A table as of one manifest: runs merged, the newest row of a key wins, deletions take it away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import polars as pl
import pyarrow as pa

from magnetar.pipeline.state import vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.run import RunInfo, read_run
from magnetar.pipeline.state.table import DELETE, OP, VNODE, StateTable, as_arrow, as_frame, ordered


def read_slices(
    files: StateFiles,
    state: TableState,
    vnodes: Iterable[int],
    keys: pa.Table | None = None,
    columns: Collection[str] | None = None,
) -> pl.DataFrame:
    """The live rows of these vnodes with `_vnode`, in storage order. `keys`: only rows with these values in these key
    columns, which are at least those that the table is distributed by. `columns`: read no others but these and the key.

    Raises DamagedStateError.
    """
    table = state.table
    bits = vnode_set.of(vnodes)
    wanted = None
    if keys is not None:
        wanted = as_frame(keys.select([name for name in table.key if name in keys.column_names])).with_columns(
            pl.Series(VNODE, table.vnodes_of(keys), dtype=pl.UInt16)
        )
        bits &= vnode_set.of(int(vnode) for vnode in wanted[VNODE].unique())
        wanted = wanted.unique(maintain_order=True)
    if columns is not None:
        kept = {*columns, *table.key}
        table = replace(table, schema=pa.schema([column for column in table.schema if column.name in kept]))
    parts = [_part(files, table, run, bits, wanted) for run in newest_last(state.runs)]
    return live(table, merge(table, parts))


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
    return ordered(table, together.unique(subset=[VNODE, *table.key], keep="last", maintain_order=True))


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
