#!/usr/bin/env python3
"""What a client of PostgreSQL waits for when it reads a view: a row by its key, a scan with filter and aggregate, and the shell's query.

  serving.py [--rows N] [--lookups N] [--scans N] [--epochs] [--json]

A table is written as a pipeline writes it, `magnetar pipeline serve` serves it in a process of its own, psycopg asks. `--epochs` commits an
epoch of 1,000 changed rows about twice a second meanwhile. No Spark, no broker. Targets are those of an idle machine with two cores; the
load of the machine is printed beside the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from magnetar.base.clock import SystemClock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.state import vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState
from magnetar.pipeline.state.run import write_run
from magnetar.pipeline.state.table import PUT, StateTable

COLUMNS = [
    ("id", pa.int64()),
    ("name", pa.string()),
    ("quantity", pa.int64()),
    ("price", pa.float64()),
    ("at", pa.timestamp("us", "UTC")),
]
TABLE = StateTable(1, "orders", pa.schema(COLUMNS), ("id",))
SCAN = "SELECT name, count(*), sum(price) FROM orders WHERE quantity < 50 GROUP BY name"
TARGETS_MS = {"look-up p99": 10.0, "scan p50": 150.0, "cold query": 700.0}


def rows(ids: Any, rng: Any) -> pa.Table:
    count = len(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([f"name-{number % 1000}" for number in ids.tolist()]),
            "quantity": pa.array(rng.integers(0, 100, count), pa.int64()),
            "price": pa.array(rng.random(count) * 100),
            "at": pa.array(1_700_000_000_000_000 + ids * 1_000_000, pa.timestamp("us", "UTC")),
        },
        TABLE.schema,
    )


class Writer:
    """The table, and epochs of changes to it."""

    def __init__(self, root: str, count: int) -> None:
        self._files = StateFiles(root)
        self._store = ManifestStore(self._files, SystemClock())
        self._every = vnode_set.of(range(TABLE.vnode_count))
        self._rng = np.random.default_rng(1)
        self._count = count
        views = {"catalog": [], "tables": {"orders": 1}, "stages": {}}
        self._manifest = self._store.claim(
            Manifest(0, 0, 0, -1, VnodeMapping.even(2).to_json(), {1: TableState(TABLE)}, views=views)
        )
        self.epoch(np.arange(count), 100)

    def epoch(self, ids: Any, level: int = 0) -> None:
        number = self._manifest.epoch + 1
        frame = TABLE.with_vnodes(rows(ids, self._rng), PUT)
        run = write_run(self._files, TABLE, frame, level=level, oldest=number, newest=number, vnode_bits=self._every)
        state = TableState(TABLE, (*self._manifest.tables[1].runs, run))
        self._manifest = self._store.commit(self._manifest.next(epoch=number, tables={1: state}))

    def until(self, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            self.epoch(np.unique(self._rng.integers(0, self._count, 1000)))


def timed(ask: Any, times: int) -> list[float]:
    """Milliseconds of each."""
    found = []
    for number in range(times):
        began = time.perf_counter()
        ask(number)
        found.append((time.perf_counter() - began) * 1000)
    return found


def measure(url: str, count: int, lookups: int, scans: int) -> dict[str, float]:
    keys = np.random.default_rng(2).integers(0, count, lookups + 200).tolist()
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:

        def look_up(number: int) -> None:
            assert connection.execute("SELECT * FROM orders WHERE id = %s", [keys[number]]).fetchone() is not None

        first = timed(lambda _: connection.execute(SCAN).fetchall(), 1)[0]
        timed(look_up, 200)
        found = timed(look_up, lookups)
        scanned = timed(lambda _: connection.execute(SCAN).fetchall(), scans)
    return {
        "look-up p50": float(np.percentile(found, 50)),
        "look-up p99": float(np.percentile(found, 99)),
        "first scan (loads the view)": first,
        "scan p50": float(np.percentile(scanned, 50)),
        "scan p99": float(np.percentile(scanned, 99)),
    }


def cold(home: Path) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "magnetar",
        "pipeline",
        "query",
        "SELECT * FROM orders WHERE id = 77",
        "-p",
        "orders",
        "--json",
    ]
    environment = os.environ | {"MAGNETAR_HOME": str(home)}

    def ask(_: int) -> None:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert json.loads(done.stdout)[0]["id"] == 77

    before = os.times()
    found = timed(ask, 5)
    after = os.times()
    used = (after.children_user - before.children_user + after.children_system - before.children_system) / 5
    return {"cold query": float(np.median(found)), "cold query, CPU": used * 1000}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--lookups", type=int, default=2000)
    parser.add_argument("--scans", type=int, default=50)
    parser.add_argument("--epochs", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-serving-") as directory:
        home = Path(directory)
        writer = Writer(str(home / "pipelines" / "orders"), given.rows)
        found = cold(home)
        command = [sys.executable, "-m", "magnetar", "pipeline", "serve", "orders", "--port", "0"]
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"MAGNETAR_HOME": str(home)}
        )
        ended = threading.Event()
        thread = threading.Thread(target=writer.until, args=(ended,))
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1].replace("postgresql://", "postgresql://me@")
            if given.epochs:
                thread.start()
            found |= measure(url, given.rows, given.lookups, given.scans)
        finally:
            ended.set()
            if given.epochs:
                thread.join()
            server.terminate()
            server.wait()
    report = {
        "rows": given.rows,
        "load": round(os.getloadavg()[0], 1),
        "ms": {name: round(value, 2) for name, value in found.items()},
    }
    if given.json:
        print(json.dumps(report))
        return 0
    print(f"{given.rows} rows, load of the machine {report['load']} on {os.cpu_count()} cores")
    for name, value in found.items():
        target = f"   (target < {TARGETS_MS[name]:.0f})" if name in TARGETS_MS else ""
        print(f"  {name:30} {value:9.2f} ms{target}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
