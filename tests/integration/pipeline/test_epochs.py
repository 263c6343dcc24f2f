"""Topics through views: a real server, a real SparkSession, rows read back from the state tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.base.clock import SystemClock
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.views.driver import Driver
from magnetar.pipeline.views.program import Program
from magnetar.pipeline.views.progress import EpochReport
from magnetar.pipeline.views.sources import TopicSources
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import count_and_sum, grouped, json_source, program, send, view_rows

ROWS = [{"k": f"key-{number % 7}", "n": number} for number in range(100)]


@pytest.fixture
def drivers(spark: Any, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """`drivers(program)`: a driver that has claimed the test's directory; closed after the test."""
    made: list[Driver] = []

    def start(what: Program, units: int = 2, **options: Any) -> Driver:
        driver = Driver(spark, StateFiles(str(tmp_path / "p")), SystemClock(), what, TopicSources("p"), **options)
        made.append(driver)
        driver.start(units)
        return driver

    yield start
    for driver in made:
        driver.close()


def test_a_view_of_a_topic(
    drivers: Callable[..., Driver], server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    source = json_source("s", server.service_url, topic)
    view = count_and_sum("v", "s", 1)
    reports: list[EpochReport] = []
    send(client, topic, ROWS)
    drivers(program([source], [view]), on_epoch=reports.append).run(once=True)
    assert view_rows(tmp_path / "p", view.table) == grouped(ROWS)
    assert [(report.epoch, report.rows_in, report.rows_changed) for report in reports] == [(1, 100, {"v": 7})]

    send(client, topic, ROWS[:30])
    drivers(program([source], [view])).run(once=True)
    assert view_rows(tmp_path / "p", view.table) == grouped(ROWS + ROWS[:30])
