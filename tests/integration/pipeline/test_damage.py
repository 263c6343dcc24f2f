"""Damaged files of a pipeline: what the manifest does not need is begun anew, all else is reported by name and never served."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.pipeline.errors import DamagedStateError
from magnetar.pipeline.state.files import TEMPORARY
from magnetar.pipeline.views.control.driver import Driver
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


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    """One bit, in the first pages of a run or the middle of a manifest."""
    at = min(len(data) // 2, 60)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@contextmanager
def damaged(path: Path, damage: Callable[[bytes], bytes]) -> Iterator[None]:
    """A new file in place of the old one, and back: a run is never written twice, so nobody may hold on to what it was."""
    data = path.read_bytes()
    path.write_bytes(damage(data))
    yield
    path.write_bytes(data)


class Harness:
    """A pipeline with rows, and those that were sent."""

    def __init__(self, spark: Any, client: pulsar.Client, topic: str, directory: Path, url: str) -> None:
        self.spark, self.client, self.topic, self.directory = spark, client, topic, directory
        self.text = source(url, topic) + GROUPS + OVER_GROUPS
        self.sent: list[dict[str, Any]] = []

    def more(self) -> None:
        rows = numbered(len(self.sent), len(self.sent) + 50)
        self.sent.extend(rows)
        send(self.client, self.topic, rows)

    def run(self) -> list[EpochReport]:
        reports: list[EpochReport] = []
        pipeline = Pipeline("p", str(self.directory), self.spark, units=2)
        # By a streaming query, whose log may be damaged as well, and whose units read every run that they need from its file: a worker of
        # epochs of few rows still has the runs that it read or wrote before a file was damaged.
        pipeline.prepare(low_latency=False)
        pipeline.sql(self.text)
        pipeline.run(once=True, on_epoch=reports.append)
        return reports

    def scan(self) -> set[tuple[Any, ...]]:
        options = {"pipeline": str(self.directory), "view": "v"}
        return {tuple(row) for row in self.spark.read.format("magnetar.view").options(**options).load().collect()}

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "magnetar", "pipeline", *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "500"}
        )

    def check(self) -> None:
        assert view_rows(self.directory) == self.scan() == grouped(self.sent)
        assert view_rows(self.directory, "w") == over_grouped(self.sent)


@pytest.fixture
def harness(spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path) -> Harness:
    made = Harness(spark, client, topic, tmp_path / "p", server.service_url)
    made.more()
    made.run()
    return made


def test_a_batch_that_comes_twice_is_one_epoch(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, calls = Driver.batch, []

    def twice(driver: Driver, frame: Any, batch_id: int) -> None:
        for _ in range(2):
            batch(driver, frame, batch_id)
            calls.append(batch_id)

    monkeypatch.setattr(Driver, "batch", twice)
    harness.more()
    assert [report.rows_in for report in harness.run()] == [50]
    assert len(calls) >= 2
    harness.check()


def test_the_streaming_engines_log_may_be_damaged_or_lost(harness: Harness) -> None:
    for place in ("commits", "offsets"):
        (log,) = (harness.directory / "checkpoint").iterdir()
        newest = max((log / place).glob("[0-9]*"), key=lambda path: int(path.name))
        (log / place / f".{newest.name}.crc").unlink(missing_ok=True)
        if place == "commits":
            newest.unlink()
        else:
            newest.write_bytes(truncated(newest.read_bytes()))
        harness.more()
        assert sum(report.rows_in for report in harness.run()) == 50
    harness.check()


def test_a_manifest_that_was_half_written_is_none(harness: Harness) -> None:
    newest = max((harness.directory / "manifests").iterdir())
    number = latest(harness.directory).number
    following = newest.with_name(newest.name.replace(str(number), str(number + 1)))
    following.with_name(f"{TEMPORARY}1-{following.name}").write_bytes(truncated(newest.read_bytes()))
    assert latest(harness.directory).number == number
    harness.more()
    harness.run()
    harness.check()


@pytest.mark.parametrize("damage", [truncated, flipped])
def test_a_damaged_run_ends_the_epoch_or_the_scan_that_reads_it(
    harness: Harness, damage: Callable[[bytes], bytes]
) -> None:
    before = latest(harness.directory)
    tables = [state for state in before.tables.values() if state.runs]
    view = next(state.runs[0] for state in tables if state.table.name == "v")
    operator = next(state.runs[0] for state in tables if "aggregate" in state.table.name)
    old = grouped(harness.sent)
    harness.more()  # to every key
    with damaged(harness.directory / operator.path, damage):
        with pytest.raises(DamagedStateError, match=rf"{operator.path}.*put it back from a copy"):
            harness.run()
        assert latest(harness.directory).epoch == before.epoch
        told = harness.command("status", str(harness.directory))
        assert told.returncode == 1
        assert "failed" in told.stdout
        assert operator.path in told.stdout
        assert harness.scan() == old, "what is not damaged is served as of the last epoch"
    with (
        damaged(harness.directory / view.path, damage),
        pytest.raises(Exception, match=rf"DamagedStateError.*{view.path}"),
    ):
        harness.scan()
    harness.run()
    harness.check()


@pytest.mark.parametrize("damage", [truncated, flipped])
def test_a_damaged_newest_manifest_is_named_by_everybody_and_nothing_older_is_served(
    harness: Harness, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    newest = max((harness.directory / "manifests").iterdir())
    before = sorted(path.name for path in newest.parent.iterdir())
    harness.more()
    with damaged(newest, damage):
        with pytest.raises(DamagedStateError, match=newest.name):
            harness.run()
        with pytest.raises(Exception, match=rf"DamagedStateError.*{newest.name}"):
            harness.scan()
        (tmp_path / "p.sql").write_text(harness.text)
        for words in (
            ("run", str(tmp_path / "p.sql"), "--dir", str(harness.directory)),
            ("status", str(harness.directory)),
        ):
            ended = harness.command(*words)
            assert ended.returncode == 1, words
            assert newest.name in ended.stderr, words
        assert sorted(path.name for path in newest.parent.iterdir()) == before
    harness.run()
    harness.check()
