"""Drivers killed at points of an epoch, continued by others: the views are the recomputation, the sink has each change once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.pipeline.views.epoch.delivery import Delivery
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.fault_harness import replayed
from tests.support.pipeline_process import POINTS
from tests.support.pipelines import (
    GROUPS,
    OVER_GROUPS,
    grouped,
    latest,
    numbered,
    over_grouped,
    send,
    source,
    view_rows,
)
from tests.support.topics import drain

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

    def run(points: tuple[str, ...], *how: str) -> None:
        directory, file, target = tmp_path / "p", tmp_path / "p.sql", f"{topic}-out"
        client.subscribe(target, "kept").close()  # what nobody subscribes to may be deleted
        sink = f"CREATE SINK out FROM v WITH (connector = 'pulsar', service.url = '{server.service_url}', topic = '{target}')"
        text = source(server.service_url, topic) + GROUPS + OVER_GROUPS + sink + " FORMAT DEBEZIUM ENCODE JSON;"
        file.write_text(text)
        sent: list[dict[str, Any]] = []
        for point in points:
            send_more(client, topic, sent)
            command = [sys.executable, "-m", "tests.support.pipeline_process", str(directory), str(file), point, *how]
            with (tmp_path / "driver.log").open("a+") as log:  # the JVM outlives its driver for a moment
                ended = subprocess.run(command, stdout=log, stderr=log, timeout=KILL_TIMEOUT_S, check=False)
            assert ended.returncode == -signal.SIGKILL, f"{point}: {(tmp_path / 'driver.log').read_text()[-3000:]}"
        send_more(client, topic, sent)
        pipeline = Pipeline("p", str(directory), spark)
        pipeline.prepare(low_latency="low-latency" in how)
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


def test_a_sink_that_comes_later_begins_with_the_rows_there_are(
    spark: Any,
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exactly once, though the driver dies before its first delivery, and again behind it."""
    directory, sent = tmp_path / "p", list[dict[str, Any]]()
    targets = {name: f"{topic}-{name}" for name in ("all", "later")}
    for target in targets.values():
        client.subscribe(target, "kept").close()

    def run(*sinks: str) -> None:
        pipeline = Pipeline("p", str(directory), spark, units=2)
        pipeline.sql(source(server.service_url, topic) + GROUPS + "".join(sinks))
        pipeline.run(once=True)

    def sink(name: str, more: str = "") -> str:
        where = f"connector = 'pulsar', service.url = '{server.service_url}', topic = '{targets[name]}'{more}"
        return f"CREATE SINK {name}_s FROM v WITH ({where}) FORMAT DEBEZIUM ENCODE JSON;"

    def dying(*, delivers: bool) -> Callable[..., None]:
        def deliver(self: Delivery, manifest: Any) -> None:
            if delivers:
                real(self, manifest)
            raise OSError("the driver dies")

        return deliver

    send_more(client, topic, sent)
    run()
    before, real = grouped(sent), Delivery.deliver
    both = (sink("all"), sink("later", ", snapshot = 'false'"))
    for delivers in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(Delivery, "deliver", dying(delivers=delivers))
            with pytest.raises(OSError, match="the driver dies"):
                run(*both)
    assert replayed(client, targets["all"]) == before
    send_more(client, topic, sent)
    run(*both)
    assert replayed(client, targets["all"]) == grouped(sent) == view_rows(directory)
    later = [json.loads(message.data()) for message in drain(client, targets["later"])]
    changed = {row["k"] for row in sent[40:]}
    assert [each["op"] for each in later] == ["u"] * len(changed)
    assert latest(directory).changelogs == {}


@pytest.mark.timeout(1800)
def test_a_driver_killed_right_before_and_right_after_its_commit(crash: Callable[..., None]) -> None:
    crash(("units", "committed"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_driver_killed_at_every_point(crash: Callable[..., None]) -> None:
    crash(POINTS)


@pytest.mark.timeout(1800)
def test_a_driver_killed_around_the_commit_of_few_rows(crash: Callable[..., None]) -> None:
    crash(("units", "committed/jobs"), "low-latency")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_driver_killed_at_every_point_of_few_rows(crash: Callable[..., None]) -> None:
    crash(tuple(f"{point}{jobs}" for point in POINTS for jobs in ("", "/jobs")), "low-latency")
