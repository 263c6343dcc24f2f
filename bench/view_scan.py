#!/usr/bin/env python3
"""How rows spread over the tasks of a scan when keys only grow: by groups of vnodes, and by ranges of keys. No Spark, no broker.

  view_scan.py [--rows N] [--epochs N] [--tasks N] [--json] [--plot FILE]

A table is written as a pipeline writes it, an epoch of new keys after another. The ranges are cut where they are even after the first
epoch, as a table that is split by its keys is when it is made; the groups of vnodes are those that `format("magnetar.view")` reads in
the end. Counted is what each task reads, of all rows and of the newest tenth.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magnetar.base.clock import SystemClock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.state import vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState
from magnetar.pipeline.state.run import write_run
from magnetar.pipeline.state.table import PUT, StateTable
from magnetar.pipeline.views.scan.options import view_options
from magnetar.pipeline.views.scan.source import ViewReader, spark_schema

TABLE = StateTable(1, "orders", pa.schema([("id", pa.int64()), ("amount", pa.float64())]), ("id",))
Counts = npt.NDArray[np.int64]


def write(root: str, rows: int, epochs: int) -> None:
    files = StateFiles(root)
    store = ManifestStore(files, SystemClock())
    state, every = TableState(TABLE), vnode_set.of(range(TABLE.vnode_count))
    views = {"catalog": [], "tables": {"orders": 1}, "stages": {}}
    manifest = store.claim(Manifest(0, 0, 0, -1, VnodeMapping.even(4).to_json(), {1: state}, views=views))
    for epoch in range(1, epochs + 1):
        ids = np.arange(rows * (epoch - 1) // epochs, rows * epoch // epochs)
        frame = TABLE.with_vnodes(pa.table({"id": ids, "amount": ids / 7}), PUT)
        run = write_run(files, TABLE, frame, level=0, oldest=epoch, newest=epoch, vnode_bits=every)
        state = TableState(TABLE, (*state.runs, run))
        manifest = store.commit(manifest.next(epoch=epoch, tables={1: state}))


def by_vnodes(root: str, tasks: int, newest: int) -> tuple[Counts, Counts]:
    reader = ViewReader(view_options({"pipeline": root, "view": "orders", "groups": str(tasks)}), spark_schema(TABLE))
    found = []
    for part in reader.partitions():
        ids = np.concatenate([batch.column("id").to_numpy() for batch in reader.read(part)])
        found.append((len(ids), int((ids >= newest).sum())))
    return np.array([every for every, _ in found]), np.array([late for _, late in found])


def by_ranges(rows: int, epochs: int, tasks: int, newest: int) -> tuple[Counts, Counts]:
    first = rows // epochs
    cuts = [first * task // tasks for task in range(1, tasks)]
    ids = np.arange(rows)
    task = np.searchsorted(cuts, ids, side="right")
    return np.bincount(task, minlength=tasks), np.bincount(task[ids >= newest], minlength=tasks)


def line(name: str, counts: Counts) -> dict[str, Any]:
    return {
        "name": name,
        "rows_per_task": [int(count) for count in counts],
        "largest_over_mean": float(counts.max() / counts.mean()),
        "tasks_without_rows": int((counts == 0).sum()),
    }


def plot(path: Path, lines: list[dict[str, Any]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "magnetar", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for axes, about in zip(panels, ("all rows", "newest tenth"), strict=True):
        shown = [each for each in lines if each["name"].endswith(about)]
        width = 0.8 / len(shown)
        for number, each in enumerate(shown):
            places = [task + number * width for task in range(len(each["rows_per_task"]))]
            label = f"{each['name'].partition(',')[0]}: largest {each['largest_over_mean']:.2f} x mean"
            axes.bar(places, each["rows_per_task"], width, label=label)
        axes.set_title(f"{about}, keys that only grow")
        axes.set_xlabel("task")
        axes.set_ylabel("rows")
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    newest = options.rows * 9 // 10
    with tempfile.TemporaryDirectory(prefix="magnetar-scan-") as root:
        write(root, options.rows, options.epochs)
        vnodes = by_vnodes(root, options.tasks, newest)
    ranges = by_ranges(options.rows, options.epochs, options.tasks, newest)
    lines = [
        line(f"{name}, {about}", counts)
        for name, both in (("groups of vnodes", vnodes), ("ranges of keys", ranges))
        for about, counts in zip(("all rows", "newest tenth"), both, strict=True)
    ]
    if options.plot:
        plot(options.plot, lines)
    if options.json:
        print(json.dumps(lines))
    else:
        for each in lines:
            print(
                f"{each['name']:32} largest task {each['largest_over_mean']:.2f} x mean, {each['tasks_without_rows']} of "
                f"{options.tasks} tasks without rows"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
