#!/usr/bin/env python3
"""How long a published message takes to be in a view and behind a sink, and what a pipeline costs while nothing comes.

  freshness.py [--rate N]... [--seconds N] [--keys N] [--no-low-latency] [--hungry] [--json] [--check]

A server, `magnetar pipeline run FILE --serve` and this bench are processes of their own, all with default settings: a JSON topic, a view
with count and max by key, an UPSERT sink. Rows carry a number that grows. A row counts as readable when psycopg reads a number at least
as high from the view, and as received when the sink's topic hands it over; both are timed from just before `send_async`. Idle CPU is
that of the pipeline's processes together, in per cent of one core, over 10 s without a message, the server of views among them.
`--hungry` keeps a core busy beside it. `--check` exits with 1 when a bar for an idle machine with two cores is missed: 8 s from the
command to the first row, 100 and 300 ms to the view (p50, p99) at 1,000 rows/s, 2 % idle; with `--hungry` only p99 below 1.5 s. The
default takes about two minutes there; the load of the machine is printed beside the figures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pulsar

from magnetar.base.clock import SystemClock
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import ManifestStore
from magnetar.testing.server import ServerProcess

TOPIC, SINK = "persistent://public/default/in", "persistent://public/default/out"
SQL = """
CREATE SOURCE src (k VARCHAR, n BIGINT)
  WITH (connector = 'pulsar', service.url = '{url}', topic = '{topic}', startingOffsets = 'earliest') FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS c, max(n) AS newest FROM src GROUP BY k;
CREATE SINK out FROM v WITH (connector = 'pulsar', service.url = '{url}', topic = '{sink}') FORMAT UPSERT ENCODE JSON;
"""
RATES = (20, 1000)
WARM_UP_S = 15.0
"""Of the first rate: a young JVM interprets what it compiles later."""
IDLE_S = 10.0
SETTLE_S = 5.0
"""Before: the JVM compiles on for a while."""
READ_EVERY_S = 0.004
FIRST_ROW_TIMEOUT_S = 600.0
DRAIN_TIMEOUT_S = 180.0
"""For what was published to be seen; an idle machine needs none of it."""
BARS = {"first_row_s": 8.0, "view_p50_ms": 100.0, "view_p99_ms": 300.0, "idle_percent": 2.0}
HUNGRY_BAR_MS = 1500.0


class Watched:
    """When each number was published, and when it was first seen: `seen(newest)` tells that all up to `newest` are there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._published: list[float] = []
        self._next = 0
        self.latencies_s: list[float] = []

    def published(self, number: int) -> None:
        with self._lock:
            assert number == len(self._published)
            self._published.append(time.monotonic())

    def seen(self, newest: int) -> None:
        now = time.monotonic()
        with self._lock:
            upto = min(newest + 1, len(self._published))
            self.latencies_s += [now - at for at in self._published[self._next : upto]]
            self._next = max(self._next, upto)

    def reset(self) -> None:
        with self._lock:
            self.latencies_s = []

    @property
    def waiting(self) -> int:
        return len(self._published) - self._next


class Bench:
    """`file`: the pipeline's statements; `directory`: where it lives."""

    def __init__(self, service_url: str, file: Path, directory: Path, given: list[str]) -> None:
        options: dict[str, Any] = {"logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr")}
        self._client = pulsar.Client(service_url, **options)
        self._producer = self._client.create_producer(TOPIC, batching_max_publish_delay_ms=1, block_if_queue_full=True)
        self._sink = self._client.subscribe(SINK, "bench", receiver_queue_size=10_000)
        self.view, self.behind = Watched(), Watched()
        self._number = 0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._manifests = ManifestStore(StateFiles(str(directory)), SystemClock())
        self.started_s = time.monotonic()
        command = [sys.executable, "-m", "magnetar", "pipeline", "run", str(file), "--dir", str(directory)]
        self.process = subprocess.Popen(
            [*command, "--serve", "0", *given], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._ports: queue.Queue[int] = queue.Queue()
        self.said: list[str] = []
        self._start(self._listen)

    def _start(self, run: Any) -> None:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.search(r"postgresql://[^/\s]*:(\d+)/", line):
                self._ports.put(int(found[1]))

    def first_row_s(self) -> float:
        """From the command to the first row in the view."""
        self.publish(1)
        while not self._has_epoch():
            if self.process.poll() is not None or time.monotonic() - self.started_s > FIRST_ROW_TIMEOUT_S:
                raise SystemExit("the pipeline has not made an epoch:\n" + "".join(self.said))
            time.sleep(0.01)
        took_s = time.monotonic() - self.started_s
        port = self._ports.get(timeout=FIRST_ROW_TIMEOUT_S)
        self._start(lambda: self._read(port))
        self._start(self._receive)
        return took_s

    def _has_epoch(self) -> bool:
        manifest = self._manifests.latest()
        return manifest is not None and manifest.epoch > 0

    def _read(self, port: int) -> None:
        connection = psycopg.connect(f"host=127.0.0.1 port={port} user=bench dbname=p", autocommit=True)
        while not self._ended.is_set():
            row = connection.execute("SELECT max(newest) FROM v").fetchone()
            if row is not None and row[0] is not None:
                self.view.seen(int(row[0]))
            time.sleep(READ_EVERY_S)

    def _receive(self) -> None:
        while not self._ended.is_set():
            try:
                message = self._sink.receive(200)
            except pulsar.Timeout:
                continue
            self._sink.acknowledge(message)
            self.behind.seen(int(json.loads(message.data())["newest"]))

    def publish(self, keys: int) -> None:
        value = json.dumps({"k": f"key-{self._number % keys}", "n": self._number}).encode()
        self.view.published(self._number)
        self.behind.published(self._number)
        self._producer.send_async(value, lambda *_: None)
        self._number += 1

    def run(self, rate: int, seconds: float, keys: int) -> None:
        """Publish evenly, then wait until everything has been seen."""
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            while sent < passed * rate:
                self.publish(keys)
                sent += 1
            time.sleep(max(min(0.002, 1 / rate), 0.0005))
        end = time.monotonic() + DRAIN_TIMEOUT_S
        while self.process.poll() is None and (self.view.waiting or self.behind.waiting) and time.monotonic() < end:
            time.sleep(0.05)
        if self.view.waiting or self.behind.waiting:
            missing = f"{self.view.waiting} rows never came to the view, {self.behind.waiting} not to the sink"
            raise SystemExit("".join([missing, "; the pipeline said:\n", *self.said[-20:]]))

    def measure(self, rate: int, seconds: float, keys: int) -> dict[str, float]:
        self.view.reset()
        self.behind.reset()
        before_s = cpu_s(self.process.pid)
        began = time.monotonic()
        self.run(rate, seconds, keys)
        percent = 100 * (cpu_s(self.process.pid) - before_s) / (time.monotonic() - began)
        found = {"rate": float(rate), "cpu_percent": percent}
        for name, watched in (("view", self.view), ("sink", self.behind)):
            ordered = sorted(watched.latencies_s)
            for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
                found[f"{name}_{label}_ms"] = 1000 * ordered[min(int(len(ordered) * share), len(ordered) - 1)]
        return found

    def idle_percents(self) -> dict[str, float]:
        """By what the processes are."""
        self._ended.set()  # nobody reads or waits either
        time.sleep(SETTLE_S)
        before_s, began = cpu_by_process_s(self.process.pid), time.monotonic()
        time.sleep(IDLE_S)
        after_s, passed = cpu_by_process_s(self.process.pid), time.monotonic() - began
        found: dict[str, float] = {}
        for (kind, process_id), spent in after_s.items():
            found[kind] = found.get(kind, 0.0) + 100 * (spent - before_s.get((kind, process_id), 0.0)) / passed
        return found

    def close(self) -> None:
        self._ended.set()
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(10)
        self._client.close()


def cpu_s(pid: int) -> float:
    """Of a process and all below it."""
    return sum(cpu_by_process_s(pid).values())


def cpu_by_process_s(pid: int) -> dict[tuple[str, int], float]:
    """The same by what a process is and its number: one that ends takes its time with it."""
    found: dict[tuple[str, int], float] = {}
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times, words = process.cpu_times(), process.cmdline()
                kinds = {"pyspark.daemon": "python workers", "serve": "server of views"}
                kind = next(
                    (kinds[word] for word in words if word in kinds), "jvm" if "java" in process.name() else "driver"
                )
                found[kind, process.pid] = times.user + times.system
    return found


def keep_busy() -> None:
    while True:
        pass


def bench(rates: list[int], seconds: float, keys: int, hungry: bool, options: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="magnetar-freshness-") as place:
        server = ServerProcess(Path(place) / "data", {"brokerDeduplicationEnabled": "true"}).start()
        eater = multiprocessing.Process(target=keep_busy, daemon=True)
        try:
            file = Path(place) / "p.sql"
            file.write_text(SQL.format(url=server.service_url, topic=TOPIC, sink=SINK))
            run = Bench(server.service_url, file, Path(place) / "p", options)
            try:
                found: dict[str, Any] = {"load": os.getloadavg()[0], "first_row_s": run.first_row_s()}
                run.run(rates[-1], min(WARM_UP_S, 3 * seconds), keys)
                if hungry:
                    eater.start()
                found["rates"] = [run.measure(rate, seconds, keys) for rate in rates]
                found["idle_percents"] = run.idle_percents()
                found["idle_percent"] = sum(found["idle_percents"].values())
                found["load_at_end"] = os.getloadavg()[0]
                return found
            finally:
                run.close()
        finally:
            if eater.pid is not None:
                eater.kill()
                eater.join()
            server.close()


def missed(found: dict[str, Any], hungry: bool) -> list[str]:
    """The bars that are, in words."""
    fast = found["rates"][-1]
    if hungry:
        return [] if fast["view_p99_ms"] < HUNGRY_BAR_MS else [f"view_p99_ms {fast['view_p99_ms']:.0f}"]
    values = {**fast, "first_row_s": found["first_row_s"], "idle_percent": found["idle_percent"]}
    return [f"{name} {values[name]:.1f} (bar {bar:g})" for name, bar in BARS.items() if values[name] >= bar]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=int, action="append", help="rows/s; may be repeated (default: 20, then 1000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each rate")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--no-low-latency", action="store_true", help="run the pipeline with --no-low-latency")
    parser.add_argument("--hungry", action="store_true", help="a process that needs a core beside it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    found = bench(
        given.rate or list(RATES), given.seconds, given.keys, given.hungry, ["--no-low-latency"] * given.no_low_latency
    )
    late = missed(found, given.hungry)
    if given.json:
        print(json.dumps({**found, "missed": late}))
    else:
        print(f"load {found['load']:.1f} at the beginning, {found['load_at_end']:.1f} at the end")
        parts = ", ".join(f"{name} {percent:.1f}" for name, percent in found["idle_percents"].items())
        print(
            f"first row {found['first_row_s']:.1f} s after the command; idle {found['idle_percent']:.1f} % of a core ({parts})"
        )
        for each in found["rates"]:
            view, sink = (
                " / ".join(f"{each[f'{name}_{label}_ms']:.0f}" for label in ("p50", "p90", "p99"))
                for name in ("view", "sink")
            )
            print(
                f"{each['rate']:.0f} rows/s: view {view} ms, sink {sink} ms (p50 / p90 / p99); {each['cpu_percent']:.0f} % of a core"
            )
        for each in late:
            print(f"missed: {each}")
    return 1 if given.check and late else 0


if __name__ == "__main__":
    sys.exit(main())
