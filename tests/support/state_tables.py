"""A pipeline's directory for tests: epochs of changes applied by units, as drivers and tasks do it, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from magnetar.base.clock import SystemClock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.state import compaction, vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.state.run import write_run
from magnetar.pipeline.state.table import DELETE, OP, PUT, VNODE, StateTable

VNODES = 16
TABLE = StateTable(7, "t", pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.float64())]), ("k", "n"), VNODES)

Key = tuple[str | None, int | None]


class StateTableHarness:
    """One driver and its units."""

    def __init__(self, root: str, units: int = 3) -> None:
        self.files = StateFiles(root)
        self.store = ManifestStore(self.files, SystemClock())
        self.mapping = VnodeMapping.even(units, VNODES)
        first = Manifest(0, 0, 0, -1, self.mapping.to_json(), {TABLE.table_id: TableState(TABLE)})
        self.manifest = self.store.claim(first)

    @property
    def state(self) -> TableState:
        return self.manifest.tables[TABLE.table_id]

    def rows(self, state: TableState | None = None) -> dict[Key, float]:
        found = read_arrow(self.files, state or self.state, range(VNODES))
        rows = {(row["k"], row["n"]): row["v"] for row in found.to_pylist()}
        assert len(rows) == found.num_rows, "each key once"
        return rows

    def epoch(self, changes: Mapping[Key, float | None], compacts: bool = True) -> None:
        """Apply puts and (None) deletions, each unit its own vnodes, and commit."""
        rows = pa.table(
            {
                "k": pa.array([key[0] for key in changes], pa.string()),
                "n": pa.array([key[1] for key in changes], pa.int64()),
                "v": pa.array([0.0 if value is None else value for value in changes.values()], pa.float64()),
                OP: pa.array([DELETE if value is None else PUT for value in changes.values()], pa.int8()),
            }
        )
        frame = TABLE.with_vnodes(rows)
        number = self.manifest.epoch + 1
        runs = self.state.runs
        for unit in self.mapping.units:
            held = self.mapping.vnodes_of(unit)
            bits = vnode_set.of(held)
            merged = compaction.plan(self.state.runs, bits) if compacts else None
            if merged is not None:
                runs = compaction.replace_runs(runs, merged, compaction.run_merge(self.files, self.state, merged))
            mine = frame.filter(frame[VNODE].is_in(held))
            if mine.height:
                run = write_run(self.files, TABLE, mine, level=0, oldest=number, newest=number, vnode_bits=bits)
                runs = (*runs, run)
        self.commit(tables={TABLE.table_id: TableState(TABLE, runs)}, epoch=number, mapping=self.mapping.to_json())

    def commit(self, **changes: Any) -> None:
        self.manifest = self.store.commit(self.manifest.next(**changes))
