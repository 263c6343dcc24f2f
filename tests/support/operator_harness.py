"""A pipeline's directory that one operator keeps: units read slices, apply their part of an epoch, write runs; one manifest commits."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa

from magnetar.base.clock import SystemClock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.operators.operator import (
    Deltas,
    EpochContext,
    Operator,
    OperatorResult,
    Slices,
    keys_to_read,
    rows_to_write,
    vnodes_of_changes,
)
from magnetar.pipeline.state import compaction, vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState
from magnetar.pipeline.state.reader import read_arrow, read_slices
from magnetar.pipeline.state.run import write_run
from magnetar.pipeline.state.table import VNODE, StateTable
from tests.support.operators import View


class OperatorHarness:
    """Nothing is remembered between epochs but the directory, the view that stands for a sink, and the mapping."""

    def __init__(self, root: str, operator: Operator, units: int) -> None:
        self.operator = operator
        self.view = View(operator.output_key)
        self._files = StateFiles(root)
        self._store = ManifestStore(self._files, SystemClock())
        tables = {table.table_id: TableState(table) for table in operator.state_tables()}
        mapping = VnodeMapping.even(units, operator.state_tables()[0].vnode_count)
        self._store.claim(Manifest(0, 0, 0, -1, mapping.to_json(), tables))

    def rescale(self, units: int) -> None:
        manifest = self._store.latest()
        assert manifest is not None
        mapping = VnodeMapping.from_json(manifest.mapping).rescale(units)
        self._store.commit(manifest.next(mapping=mapping.to_json()))

    def epoch(self, deltas: Deltas) -> None:
        manifest = self._store.latest()
        assert manifest is not None
        context = EpochContext(manifest.epoch + 1, 0)
        mapping = VnodeMapping.from_json(manifest.mapping)
        tables = dict(manifest.tables)
        for unit in mapping.units:
            held = mapping.vnodes_of(unit)
            result = self._unit(manifest, held, deltas, context)
            for table_id, writes in result.writes.items():
                tables[table_id] = self._written(tables[table_id], held, writes, context.epoch)
            self.view.apply(result.changelog.drop(VNODE, strict=False))
        self._store.commit(manifest.next(epoch=context.epoch, tables=tables))

    def stored(self, table_id: int) -> pa.Table:
        manifest = self._store.latest()
        assert manifest is not None
        state = manifest.tables[table_id]
        return read_arrow(self._files, state, range(state.table.vnode_count))

    def _unit(self, manifest: Manifest, held: list[int], deltas: Deltas, context: EpochContext) -> OperatorResult:
        table = self.operator.state_tables()[0]
        mine = {name: _numbered(table, delta).filter(pl.col(VNODE).is_in(held)) for name, delta in deltas.items()}
        slices: dict[int, Any] = {}
        for table_id, keys in self.operator.keys_needed(mine, context).items():
            state = manifest.tables[table_id]
            slices[table_id] = read_slices(self._files, state, held, keys_to_read(state.table, keys))
        found: Slices = slices
        return self.operator.apply(found, mine, context)

    def _written(self, state: TableState, held: list[int], writes: pl.DataFrame, epoch: int) -> TableState:
        table, runs = state.table, state.runs
        bits = vnode_set.of(held)
        merged = compaction.plan(runs, bits)
        if merged is not None:
            runs = compaction.replace_runs(runs, merged, compaction.run_merge(self._files, state, merged))
        if VNODE in writes.columns:
            assert (vnodes_of_changes(table, writes) == writes[VNODE].to_numpy()).all(), "carried to another row"
        rows = rows_to_write(table, writes)
        assert rows[VNODE].is_in(held).all(), "a unit writes its own vnodes only"
        if rows.height:
            run = write_run(self._files, table, rows, level=0, oldest=epoch, newest=epoch, vnode_bits=bits)
            runs = (*runs, run)
        return TableState(table, runs)


def _numbered(table: StateTable, delta: pl.DataFrame) -> pl.DataFrame:
    """With vnodes, as a shuffle leaves it."""
    return delta.with_columns(pl.Series(VNODE, vnodes_of_changes(table, delta), dtype=pl.UInt16))
