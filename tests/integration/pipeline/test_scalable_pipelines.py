"""Views over scalable topics that split and merge while they are read: the same as a computation over all that was sent."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.admin.client import AdminClient
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipeline_process import POINTS
from tests.support.pipelines import GROUPS, grouped, latest, numbered, source, view_rows
from tests.support.scalable import active, send_rows

KILL_TIMEOUT_S = 600
STOP_TIMEOUT_S = 240
KEYS = 40
LAST = "CREATE MATERIALIZED VIEW newest AS SELECT k, n FROM kept;"
HIGHEST = "CREATE MATERIALIZED VIEW highest AS SELECT k, max(n) AS n FROM src GROUP BY k;"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """What was read is kept: a view that comes later reads it once more."""
    settings = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
    process = ServerProcess(tmp_path_factory.mktemp("server") / "data", settings).start()
    yield process
    process.close()


@pytest.fixture
def topic(new_scalable_topic: Callable[[int], str]) -> str:
    return new_scalable_topic(2)


def kept(url: str, topic: str) -> str:
    """The newest row of each key."""
    given = f"connector = 'pulsar', service.url = '{url}', topic = '{topic}', startingOffsets = 'earliest'"
    columns = "k VARCHAR PRIMARY KEY, n BIGINT"
    return f"CREATE TABLE kept ({columns}) WITH ({given}) FORMAT UPSERT ENCODE JSON;"


class Topic:
    """What is done to a topic, and all rows that were sent."""

    def __init__(self, server: ServerProcess, admin: AdminClient, name: str) -> None:
        self._server, self._admin, self._name = server, admin, name
        self.sent: list[dict[str, Any]] = []

    def send(self, count: int) -> None:
        rows = numbered(len(self.sent), len(self.sent) + count, KEYS)
        send_rows(self._server.service_url, self._name, rows)
        self.sent += rows

    def split(self, place: int = 0) -> None:
        self._admin.scalable_topics.split(self._name, active(self._admin, self._name)[place])

    def merge(self, place: int = 0) -> None:
        first, second = active(self._admin, self._name)[place : place + 2]
        self._admin.scalable_topics.merge(self._name, first, second)

    def newest(self) -> set[tuple[str, int]]:
        return set({row["k"]: row["n"] for row in self.sent}.items())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("low_latency", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_view_over_a_topic_that_splits_and_merges_while_it_runs(
    spark: Any, server: ServerProcess, admin: AdminClient, topic: str, tmp_path: Path, low_latency: bool
) -> None:
    directory, used = tmp_path / "p", Topic(server, admin, topic)
    text = source(server.service_url, topic) + kept(server.service_url, topic) + GROUPS + LAST
    used.send(80)
    pipeline = Pipeline("p", str(directory), spark, units=2)
    pipeline.prepare(low_latency=low_latency)
    pipeline.sql(text)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.run()
        except BaseException as error:
            failures.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        for count in range(3, 9):
            used.split(-1 if count % 2 else 0)
            assert len(active(admin, topic)) == count
            used.send(80)
        for _ in range(3):
            used.merge(1)
            used.send(80)
    finally:
        pipeline.request_stop()
        running.join(STOP_TIMEOUT_S)
    assert not running.is_alive()
    assert failures == []

    # A view that is created later reads all of it at once.
    later = Pipeline("p", str(directory), spark, units=2)
    later.prepare(low_latency=low_latency)
    later.sql(text + HIGHEST)
    later.run(once=True)
    assert view_rows(directory) == grouped(used.sent)
    assert view_rows(directory, "newest") == used.newest()
    assert view_rows(directory, "highest") == used.newest()
    positions = latest(directory).sources["src"]
    assert {int(name.rpartition("-")[2]) for name in positions} >= set(active(admin, topic))


@pytest.fixture
def crash(spark: Any, server: ServerProcess, admin: AdminClient, topic: str, tmp_path: Path) -> Callable[..., None]:
    """`crash(points)`: a driver killed at each of them in turn, with new rows, a split or a merge before each; then one that ends."""

    def run(points: tuple[str, ...], *how: str) -> None:
        directory, file, used = tmp_path / "p", tmp_path / "p.sql", Topic(server, admin, topic)
        text = source(server.service_url, topic) + kept(server.service_url, topic) + GROUPS + LAST
        file.write_text(text)
        for number, point in enumerate(points):
            used.send(60)
            used.merge() if number % 3 == 2 else used.split(number % 2)
            used.send(60)
            command = [sys.executable, "-m", "tests.support.pipeline_process", str(directory), str(file), point, *how]
            with (tmp_path / "driver.log").open("a+") as log:
                ended = subprocess.run(command, stdout=log, stderr=log, timeout=KILL_TIMEOUT_S, check=False)
            assert ended.returncode == -signal.SIGKILL, f"{point}: {(tmp_path / 'driver.log').read_text()[-3000:]}"
        used.send(60)
        pipeline = Pipeline("p", str(directory), spark)
        pipeline.prepare(low_latency="low-latency" in how)
        pipeline.sql(text)
        pipeline.run(once=True)
        assert view_rows(directory) == grouped(used.sent)
        assert view_rows(directory, "newest") == used.newest()

    return run


@pytest.mark.timeout(1200)
def test_a_driver_killed_right_after_the_commit_that_finishes_a_segment(crash: Callable[..., None]) -> None:
    crash(("committed",), "low-latency")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", [(), ("low-latency",)])
def test_a_driver_killed_at_every_point_between_splits_and_merges(
    crash: Callable[..., None], how: tuple[str, ...]
) -> None:
    crash(POINTS, *how)
