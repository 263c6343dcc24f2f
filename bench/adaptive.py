#!/usr/bin/env python3
"""A view that follows its load: rows come slowly, fast, and slowly again, and `SET PARALLELISM = ADAPTIVE` changes its units.

  adaptive.py [--light N] [--heavy N] [--seconds A,B,C] [--hurry N] [--keys N] [--cores N] [--directory DIR] [--plot FILE] [--json]

A server, a topic, a producer in a process of its own that keeps to so many rows a second, Spark on `local[--cores]`. Each second is
sampled: units, shares of time that epochs take and units work, entries behind. Of each change of units it is said how many runs of the
manifest before are not in the one after (0, unless a merge was due in that epoch); in the end the view is compared with a recomputation
over what was sent, count(DISTINCT) included, for which the units keep every row. The times after which units change are those of
`views/adaptive.py`: nothing is judged in the first 20 s, fewer units take a minute, more of them 10 s.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar

from magnetar.base.clock import SystemClock
from magnetar.pipeline.session import build_session
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.views.control import rescale as adaptive
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.pipeline.views.scan.stored_views import find_table
from magnetar.testing.server import ServerProcess

TOPIC = "persistent://public/default/events"
SQL = """
CREATE SOURCE events (k VARCHAR, n BIGINT) WITH (connector = 'pulsar', topic = '{topic}', service.url = '{service}',
  admin.url = '{admin}', startingOffsets = 'earliest', minPartitions = '2') FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW sums AS SELECT k, count(*) AS c, sum(n) AS s, count(DISTINCT n) AS d, max(n) AS hi FROM events GROUP BY k;
ALTER MATERIALIZED VIEW sums SET PARALLELISM = ADAPTIVE;
"""
TICK_S = 0.05


def key_of(number: int, keys: int) -> str:
    return f"key-{number * 2654435761 % keys}"


def produce(service_url: str, keys: int, phases: Sequence[tuple[float, float]]) -> int:
    """`phases`: (rows a second, seconds). The rows sent: their numbers are 0, 1, ..."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        TOPIC, batching_enabled=True, batching_max_publish_delay_ms=20, block_if_queue_full=True
    )
    sent, due = 0, 0.0
    at = time.monotonic()
    for rate, seconds in phases:
        until = at + seconds
        while at < until:
            due += rate * TICK_S
            while sent < int(due):
                producer.send_async(b'{"k":"%s","n":%d}' % (key_of(sent, keys).encode(), sent), None)
                sent += 1
            at += TICK_S
            time.sleep(max(at - time.monotonic(), 0))
    producer.flush()
    client.close()
    return sent


class Watched:
    """The pipeline, what each second was like, and what each change of units did to the runs."""

    def __init__(self, spark: Any, server: ServerProcess, directory: Path) -> None:
        self._store = ManifestStore(StateFiles(str(directory)), SystemClock())
        self._files = StateFiles(str(directory))
        self.pipeline = Pipeline("adaptive", str(directory), spark)
        self.pipeline.sql(SQL.format(topic=TOPIC, service=server.service_url, admin=server.http_url))
        self.samples: list[dict[str, Any]] = []
        self.changes: list[dict[str, Any]] = []
        self.rows = 0
        self._before: Manifest | None = None
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self.pipeline.run, kwargs={"on_epoch": self._on_epoch})

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.pipeline.request_stop()
        self._thread.join()

    def sample(self) -> dict[str, Any]:
        status = self.pipeline.status
        self.samples.append(
            {
                "at_s": round(time.monotonic() - self._began, 1),
                "units": status.units,
                "busy": round(status.busy, 3),
                "work": round(status.work, 3),
                "rows_per_s": round(status.rows_per_s),
                "behind": status.lag_messages,
                "epoch_s": round(status.epoch_s, 3),
                "epochs": status.epochs,
                "phases_s": {name: round(each, 3) for name, each in status.phases_s.items()},
            }
        )
        return self.samples[-1]

    def _on_epoch(self, report: EpochReport) -> None:
        self.rows += report.rows_in
        manifest = self._store.latest()
        assert manifest is not None
        if report.vnodes_moved and self._before is not None:
            gone = self._before.run_paths() - manifest.run_paths()
            adaptive = self.pipeline.status.adaptive or {}
            self.changes.append(
                {
                    "at_s": round(time.monotonic() - self._began, 1),
                    "units": report.units,
                    "vnodes_moved": report.vnodes_moved,
                    "pause_ms": round(report.pause_s * 1000, 2),
                    "epoch_s": round(report.duration_s["total"], 3),
                    "runs_before": len(self._before.run_paths()),
                    "runs_gone": len(gone),
                    "reason": adaptive.get("reason"),
                }
            )
        self._before = manifest

    def view(self) -> dict[str, tuple[int, int, int, int]]:
        assert self._before is not None
        state = find_table(self._before, "sums")
        rows = read_arrow(self._files, state, range(state.table.vnode_count)).to_pylist()
        found = {row["k"]: (row["c"], row["s"], row["d"], row["hi"]) for row in rows}
        assert len(found) == len(rows), "a key twice"
        return found


def recomputed(rows: int, keys: int) -> dict[str, tuple[int, int, int, int]]:
    found: dict[str, tuple[int, int, int, int]] = {}
    for number in range(rows):
        key = key_of(number, keys)
        count, total, _, _ = found.get(key, (0, 0, 0, 0))
        found[key] = (count + 1, total + number, count + 1, number)
    return found


def measure(
    spark: Any, server: ServerProcess, directory: Path, keys: int, phases: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """Everything that was seen. AssertionError when the view is not the recomputation."""
    watched = Watched(spark, server, directory)
    pulsar_client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    pulsar_client.create_producer(TOPIC).close()
    pulsar_client.close()
    watched.start()
    said = json.dumps({"service_url": server.service_url, "keys": keys, "phases": phases})
    producing = subprocess.Popen([sys.executable, __file__, "--produce", said], stdout=subprocess.PIPE, text=True)
    while producing.poll() is None:
        time.sleep(1)
        print(json.dumps(watched.sample()), file=sys.stderr, flush=True)
    assert producing.stdout is not None
    sent = int(producing.stdout.read())
    while watched.rows < sent:
        time.sleep(0.2)
    watched.stop()
    assert watched.view() == recomputed(sent, keys), "the view is not what was sent"
    return {"sent": sent, "phases": phases, "changes": watched.changes, "samples": watched.samples}


def main() -> int:
    arguments = parse_arguments()
    if arguments.produce:
        given = json.loads(arguments.produce)
        print(produce(given["service_url"], given["keys"], given["phases"]))
        return 0
    for name in ("START_S", "GROW_AFTER_S", "SHRINK_AFTER_S", "SETTLE_S"):
        setattr(adaptive, name, getattr(adaptive, name) / arguments.hurry)
    seconds = [float(text) for text in arguments.seconds.split(",")]
    phases = list(zip((arguments.light, arguments.heavy, arguments.light), seconds, strict=True))
    work = Path(tempfile.mkdtemp(prefix="adaptive-", dir=arguments.directory))
    spark = build_session(f"local[{arguments.cores}]")
    try:
        with closing(ServerProcess(work / "server").start()) as server:
            found = measure(spark, server, work / "state", arguments.keys, phases)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if arguments.plot:
        plot(arguments.plot, found)
    if arguments.json:
        print(json.dumps(found))
        return 0
    print(f"{found['sent']:,} rows; the view is what was sent")
    for change in found["changes"]:
        print(
            f"at {change['at_s']:5.1f} s {change['reason']}: {change['vnodes_moved']} vnodes moved, pause {change['pause_ms']} ms, "
            f"{change['runs_gone']} of {change['runs_before']} runs gone"
        )
    return 0


def plot(path: Path, found: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "magnetar", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, (rates, shares, units) = plt.subplots(3, 1, figsize=(9, 6), sharex=True, layout="constrained")
    at = [each["at_s"] for each in found["samples"]]
    rates.plot(at, [each["rows_per_s"] for each in found["samples"]])
    rates.set_ylabel("rows/s")
    for name in ("busy", "work"):
        shares.plot(at, [each[name] for each in found["samples"]], label=name)
    shares.legend(loc="upper left")
    shares.set_ylabel("share of time")
    units.step(at, [each["units"] for each in found["samples"]], where="post")
    units.set_ylabel("units")
    units.set_xlabel("seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--light", type=float, default=20, help="rows a second")
    parser.add_argument("--heavy", type=float, default=40_000)
    parser.add_argument("--seconds", default="105,50,80")
    parser.add_argument("--hurry", type=float, default=1, help="divides the times after which units change")
    parser.add_argument("--keys", type=int, default=5000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
