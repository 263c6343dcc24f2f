"""The workload `view`: a pipeline keeps an aggregate over a topic while its server and its own processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from bench.faults.workloads import NAMESPACE, Run, contents, keep_all, publishing, retried

from magnetar.base.ports import free_ports

SQL = """
CREATE SOURCE src (who VARCHAR, n BIGINT)
  WITH (connector = 'pulsar', service.url = '{url}', topic = '{topic}', startingOffsets = 'earliest')
  FORMAT PLAIN ENCODE CSV (delimiter = ':', without_header = 'true');
CREATE MATERIALIZED VIEW v AS SELECT who, count(*) AS rows, sum(n) AS total FROM src GROUP BY who;
"""
QUERY = "SELECT who, rows, total FROM v"
LIFE_S = (10.0, 40.0)
"""Of the driver, from the first epoch that it is seen to have made to the next kill -9 of all its processes."""
START_S = 300.0
CATCH_UP_S = 300.0


class Driver:
    """`magnetar pipeline run --serve`, in a process group of its own. `url`: a server that stays at its port."""

    def __init__(self, folder: Path, url: str, topic: str, variables: dict[str, str]) -> None:
        self._folder = folder
        self._variables = os.environ | variables
        self._file = folder / "view.sql"
        self._file.write_text(SQL.format(url=url, topic=topic))
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, *options: str) -> list[str]:
        words = ["pipeline", "run", str(self._file), "--dir", str(self._folder / "view"), "--units", "2", *options]
        return [sys.executable, "-m", "magnetar", *words]

    def start(self) -> None:
        log = (self._folder / "driver.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self.command("--serve", str(self.port)),
                stdout=log,
                stderr=log,
                env=self._variables,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def last_words(self) -> str:
        return (self._folder / "driver.log").read_text(errors="replace")[-1000:]

    def kill(self) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it had ended by itself
            self._process.wait()

    def once(self) -> None:
        """Process what is in the topic now, and end."""
        done = subprocess.run(
            self.command("--once"), capture_output=True, text=True, env=self._variables, timeout=START_S + CATCH_UP_S
        )
        if done.returncode:
            raise RuntimeError(f"the pipeline ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def rows(self) -> list[list[Any]]:
        """The view as it is now. Raises OperationalError while nobody serves it."""
        with psycopg.connect(f"host=127.0.0.1 port={self.port} dbname=view", connect_timeout=5) as connection:
            return sorted([who, rows, int(total)] for who, rows, total in connection.execute(QUERY))


def watching(run: Run, process: int, driver: Driver, ready: threading.Event) -> None:
    """Reads of the view; the first one that differs from what was seen before a kill lets the driver's life begin."""
    last: list[list[Any]] = []
    while not run.over.is_set():
        try:
            rows = driver.rows()
        except psycopg.Error:
            run.over.wait(0.5)
            continue
        run.history.add(process, "ok", "view", rows)
        if rows != last:
            ready.set()
        last = rows
        run.over.wait(0.5)


def killing(run: Run, process: int, driver: Driver, ready: threading.Event) -> None:
    """Kills of the driver, its JVM and its workers together, at moments that the seed chooses."""
    rng = run.random("driver")
    while not run.over.is_set():
        driver.start()
        began_s = time.monotonic()
        while not ready.wait(0.2) and not run.over.is_set() and not driver.ended:
            if time.monotonic() - began_s > START_S:
                raise RuntimeError(f"the view was not served within {START_S:.0f} s of the driver's start")
        life_ends_s = time.monotonic() + rng.uniform(*LIFE_S)
        while not run.over.wait(0.2) and not driver.ended and time.monotonic() < life_ends_s:
            pass
        if driver.ended:
            run.history.add("driver", "info", "driver ended by itself", driver.last_words())
        else:
            run.history.add("driver", "info", "driver killed", None)
        driver.kill()
        ready.clear()


def views(run: Run) -> Callable[[], None]:
    topic = f"{NAMESPACE}/view-{run.seed}"
    keep_all(run.target, topic, "keep")
    answer = run.target.dial(topic).lookup(topic).lookupTopicResponse.brokerServiceUrl
    driver, ready = Driver(run.target.folder, answer, topic, run.target.variables), threading.Event()
    run.closing.callback(driver.kill)
    run.start(lambda run, process: publishing(run, process, topic), 3)
    run.start(lambda run, process: watching(run, process, driver, ready), 1, first=3)
    run.start(lambda run, process: killing(run, process, driver, ready), 1, first=4)
    if not ready.wait(START_S):
        raise RuntimeError(f"the view was not served within {START_S:.0f} s; see driver.log")

    def end() -> None:
        driver.kill()
        driver.once()
        driver.start()
        run.history.add(3, "ok", "view", _served(driver), final=True)
        read = [text for _, text in retried(lambda: contents(run.target, topic))]
        run.history.add("reader", "ok", "read", read)

    return end


def _served(driver: Driver) -> list[list[Any]]:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return driver.rows()
        except psycopg.Error:
            if time.monotonic() > deadline or driver.ended:
                raise
            time.sleep(0.5)
