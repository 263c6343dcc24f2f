"""Drivers killed at points of an epoch, continued by others: the views are the recomputation, the sink has each change once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.fault_site import replayed
from tests.support.pipeline_process import POINTS
from tests.support.pipelines import GROUPS, OVER_GROUPS, grouped, numbered, over_grouped, send, source, view_rows

KILL_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With deduplication, as an exact sink needs it."""
    process = ServerProcess(tmp_path_factory.mktemp("server") / "data", {"brokerDeduplicationEnabled": "true"}).start()
    yield process
    process.close()


@pytest.fixture
def crash(spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path) -> Callable[..., None]:
    """`crash(points)`: a driver killed at each of them in turn, with new rows before each; then one that ends, and the comparison."""

    def run(points: tuple[str, ...]) -> None:
        directory, file, target = tmp_path / "p", tmp_path / "p.sql", f"{topic}-out"
        client.subscribe(target, "kept").close()  # what nobody subscribes to may be deleted
        sink = f"CREATE SINK out FROM v WITH (connector = 'pulsar', service.url = '{server.service_url}', topic = '{target}')"
        text = source(server.service_url, topic) + GROUPS + OVER_GROUPS + sink + " FORMAT DEBEZIUM ENCODE JSON;"
        file.write_text(text)
        sent: list[dict[str, Any]] = []
        for point in points:
            send_more(client, topic, sent)
            command = [sys.executable, "-m", "tests.support.pipeline_process", str(directory), str(file), point]
            with (tmp_path / "driver.log").open("a+") as log:  # the JVM outlives its driver for a moment
                ended = subprocess.run(command, stdout=log, stderr=log, timeout=KILL_TIMEOUT_S, check=False)
            assert ended.returncode == -signal.SIGKILL, f"{point}: {(tmp_path / 'driver.log').read_text()[-3000:]}"
        send_more(client, topic, sent)
        pipeline = Pipeline("p", str(directory), spark)
        pipeline.sql(text)
        pipeline.run(once=True)
        assert view_rows(directory) == grouped(sent)
        assert view_rows(directory, "w") == over_grouped(sent)
        assert replayed(client, target) == grouped(sent)

    return run


def send_more(client: pulsar.Client, topic: str, sent: list[dict[str, Any]]) -> None:
    rows = numbered(len(sent), len(sent) + 40)
    sent.extend(rows)
    send(client, topic, rows)


@pytest.mark.timeout(1800)
def test_a_driver_killed_right_before_and_right_after_its_commit(crash: Callable[..., None]) -> None:
    crash(("units", "committed"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_driver_killed_at_every_point(crash: Callable[..., None]) -> None:
    crash(POINTS)
