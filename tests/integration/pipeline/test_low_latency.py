"""Pipelines whose driver follows the ends of topics, with epochs of few rows by kept plans: the same rows, and nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.pipeline.views.epoch.kept_plans import KeptPlans
from magnetar.pipeline.views.epoch.plain_stage import PlainStage
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
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
from tests.support.topics import produce

WAIT_S = 240.0


class Running:
    """A pipeline in a thread, with the epochs that it has made."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.reports: list[EpochReport] = []
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.pipeline.run(on_epoch=self._told)
        except BaseException as error:
            self._error = error
        with self._changed:
            self._changed.notify_all()

    def _told(self, report: EpochReport) -> None:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    def rows(self, count: int) -> None:
        """Until so many have been read."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._error is not None or sum(each.rows_in for each in self.reports) >= count, WAIT_S
            )
        if self._error is not None:
            raise self._error
        assert sum(each.rows_in for each in self.reports) == count

    def stop(self) -> None:
        self.pipeline.request_stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "p"


@pytest.fixture
def start(spark: Any, directory: Path) -> Iterator[Callable[[str], Running]]:
    running: list[Running] = []

    def begin(text: str) -> Running:
        pipeline = Pipeline("p", str(directory), spark, units=2)
        pipeline.prepare(low_latency=True)
        pipeline.sql(text)
        running.append(Running(pipeline))
        return running[-1]

    yield begin
    for each in running:
        each.pipeline.request_stop()


@pytest.mark.timeout(600)
def test_rows_come_to_views_as_they_are_sent_also_while_units_change(
    start: Callable[[str], Running],
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    directory: Path,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_kept: list[str] = []
    by_itself: list[bool] = []
    stage_of, run_plain = KeptPlans.stage, PlainStage.run

    def watched(self: KeptPlans, *arguments: Any) -> Any:
        by_kept.append(arguments[-1].stage_id)
        return stage_of(self, *arguments)

    def watched_plain(self: PlainStage, *arguments: Any) -> Any:
        found = run_plain(self, *arguments)
        by_itself.append(found is not None)
        return found

    monkeypatch.setattr(KeptPlans, "stage", watched)
    monkeypatch.setattr(PlainStage, "run", watched_plain)
    text = source(server.service_url, topic) + GROUPS + OVER_GROUPS
    rows = numbered(0, 40)
    send(client, topic, rows)
    run = start(text)
    run.rows(40)
    for first in (40, 60, 80):
        more = numbered(first, first + 20)
        send(client, topic, more)
        rows += more
        run.rows(len(rows))
        run.pipeline.rescale(3 if first == 40 else 2)
    produce(client, topic, [b"this is no JSON", b'{"k": "key-0", "n": 1}'])
    rows += [{"k": None, "n": 0}, {"k": "key-0", "n": 1}]
    run.rows(len(rows))
    run.stop()
    assert by_kept, "an epoch with a message that only Spark judges"
    assert by_itself.count(True) > 1, "epochs of plain messages, of both views"
    assert by_itself.count(False) >= 1
    assert sum(report.counters.get("undecodable", 0) for report in run.reports) == 1
    expected = {(key, count, total if key is not None else None) for key, count, total in grouped(rows)}
    assert view_rows(directory) == expected
    sums: dict[int, list[int]] = {}
    for _, count, total in expected:
        sums.setdefault(count, []).append(total or 0)
    assert {(count, keys) for count, keys, _ in view_rows(directory, "w")} == {(c, len(t)) for c, t in sums.items()}

    again = Pipeline("p", str(directory), spark, units=2)  # the other way to run it goes on where this one ended
    again.sql(text)
    more = numbered(0, 10)
    send(client, topic, more)
    again.run(once=True)
    assert sum(count for _, count, _ in view_rows(directory)) == len(rows) + 10
    assert latest(directory).changelogs == {}


def test_what_is_there_is_read_once(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    rows: list[dict[str, Any]] = []
    text = source(server.service_url, topic, maxMessagesPerTrigger=25) + GROUPS + OVER_GROUPS
    for count in (60, 30):
        more = numbered(len(rows), len(rows) + count)
        send(client, topic, more)
        rows += more
        reports: list[EpochReport] = []
        pipeline = Pipeline("p", str(directory), spark, units=2)
        pipeline.prepare(low_latency=True)
        pipeline.sql(text)
        pipeline.run(once=True, on_epoch=reports.append)
        assert [report.rows_in for report in reports] == [25, 25, 10] if count == 60 else [25, 5]
        assert view_rows(directory) == grouped(rows)
        assert view_rows(directory, "w") == over_grouped(rows)
