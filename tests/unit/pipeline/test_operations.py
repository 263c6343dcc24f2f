"""A driver's surroundings without a driver: lock, requests and answers, status, metrics, and the plan of a rescale."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.base.clock import SystemClock
from magnetar.base.errors import BadVersionError, StartupError
from magnetar.cli.main import run
from magnetar.cli.storage.store_access import StoreSource, opened_store
from magnetar.hashing.mapping import VnodeMapping
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.pipeline.errors import CatalogError, PipelineRunningError
from magnetar.pipeline.home import Place, local_side
from magnetar.pipeline.views.control import operations as operations_module
from magnetar.pipeline.views.control import requests as control
from magnetar.pipeline.views.control import rescale as adaptive
from magnetar.pipeline.views.control.driver_lock import DriverLock, holder
from magnetar.pipeline.views.control.mapping import MappingStore, SharedMapping
from magnetar.pipeline.views.control.operations import Operations
from magnetar.pipeline.views.control.rescale import Load, RescalePlan, wanted_units
from magnetar.pipeline.views.control.status import KILLED, STOPPED, Meter, Status, read_status
from magnetar.pipeline.views.epoch.progress import EpochReport
from tests.support.waiting import wait_until

MAPPING = VnodeMapping.even(3)


class Steered:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.stops = 0
        self.units: list[int] = []

    def request_stop(self) -> None:
        self.stops += 1

    def rescale(self, units: int) -> None:
        self.units.append(units)

    def follow(self, units: int) -> None:
        self.units.append(units)

    def apply(self, text: str, done: Callable[[dict[str, Any]], None]) -> None:
        threading.Thread(target=done, args=({"done": "DROP" not in text, "manifest": 7},)).start()


def report(epoch: int, units: int = 3, rows: int = 100, **more: object) -> EpochReport:
    values = {"rows_changed": {"v": 7}, "duration_s": {"total": 0.2, "commit": 0.01}, "state_bytes": 5} | more
    return EpochReport(epoch=epoch, batch_id=epoch, rows_in=rows, units=units, **values)  # type: ignore[arg-type]


def place(path: Path) -> Place:
    return Place("p", str(path), path)


def test_a_second_driver_is_refused_and_a_dead_one_is_not_counted(tmp_path: Path) -> None:
    clock = SystemClock()
    with DriverLock(tmp_path, "p", clock) as lock:
        lock.announce()
        held = holder(tmp_path)
        assert held is not None
        assert held.pid == os.getpid()
        with (
            pytest.raises(PipelineRunningError, match=f"process {os.getpid()} already; stop it with"),
            DriverLock(tmp_path, "p", clock),
        ):
            pass
    assert holder(tmp_path) is None
    code = (
        "import sys, os, pathlib\n"
        "from magnetar.base.clock import SystemClock\n"
        "from magnetar.pipeline.views.control.driver_lock import DriverLock\n"
        "DriverLock(pathlib.Path(sys.argv[1]), 'p', SystemClock()).__enter__().announce()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert json.loads((tmp_path / "driver.lock").read_text())["pid"] > 0
    assert holder(tmp_path) is None, "its number says a process that is gone"
    with DriverLock(tmp_path, "p", clock):
        pass


def test_requests_reach_the_driver_and_are_answered(tmp_path: Path) -> None:
    clock, steered = SystemClock(), Steered()
    control.ask(tmp_path, clock, "stop")
    with Operations(place(tmp_path), clock) as operations:
        assert not control.pending(tmp_path), "what was asked of an earlier driver is not for this one"
        operations.attach(steered, MAPPING)
        same = control.ask(tmp_path, clock, "rescale", 3)
        wait_until(lambda: (tmp_path / f"control/{same}.answer.json").exists())
        assert control.take_answer(tmp_path, same) == {
            "done": True, "epoch": 0, "units": 3, "vnodes_moved": 0, "pause_s": 0.0,
        }  # fmt: skip
        first = control.ask(tmp_path, clock, "rescale", 4)
        wait_until(lambda: 4 in steered.units)
        second = control.ask(tmp_path, clock, "rescale", 5)
        wait_until(lambda: 5 in steered.units)
        answer = control.take_answer(tmp_path, first)
        assert answer is not None
        assert "later request" in answer["error"]
        operations.on_epoch(report(7, units=3))
        assert control.take_answer(tmp_path, second) is None, "not before it took effect"
        operations.on_epoch(report(8, units=5, vnodes_moved=51, pause_s=0.25))
        answer = control.take_answer(tmp_path, second)
        assert answer == {"done": True, "epoch": 8, "units": 5, "vnodes_moved": 51, "pause_s": 0.25}
        bad = control.ask(tmp_path, clock, "rescale", 300)
        wait_until(lambda: (tmp_path / f"control/{bad}.answer.json").exists())
        assert "300 units for 256 vnodes" in (control.take_answer(tmp_path, bad) or {})["error"]
        for text, expected in (("CREATE", True), ("DROP", False), (" ", False)):
            change = control.ask(tmp_path, clock, "apply", text=text)
            wait_until(lambda change=change: (tmp_path / f"control/{change}.answer.json").exists())
            assert (control.take_answer(tmp_path, change) or {})["done"] is expected
        stop = control.ask(tmp_path, clock, "stop")
        wait_until(lambda: steered.stops == 1)
        assert control.take_answer(tmp_path, stop) is None
    assert (control.take_answer(tmp_path, stop) or {})["done"]
    assert 300 not in steered.units
    assert (read_status(tmp_path) or Status("", "")).state == STOPPED


def test_units_follow_the_load_until_somebody_gives_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "GROW_AFTER_S", 0.0)
    monkeypatch.setattr(adaptive, "START_S", 0.0)
    monkeypatch.setattr(operations_module, "STATUS_S", 0.05)
    clock, steered = SystemClock(), Steered()
    busy = {"duration_s": {"total": 60.0}, "work_s": 120.0}
    with Operations(place(tmp_path), clock) as operations:
        operations.attach(steered, VnodeMapping.even(2), cores=4, adaptive_from=1)
        operations.on_epoch(report(1, units=2, **busy))
        wait_until(lambda: steered.units == [4])
        status = None

        def is_told() -> bool:
            """The status is written after the units were set."""
            nonlocal status
            status = read_status(tmp_path)
            return status is not None and status.adaptive is not None and status.adaptive["reason"] is not None

        wait_until(is_told)
        assert status is not None
        assert status.adaptive is not None
        assert (status.adaptive["least"], status.adaptive["most"]) == (1, 4)
        assert status.adaptive["reason"].startswith("4 units: epochs take 100% of the time, units work 100%")
        fixed = control.ask(tmp_path, clock, "rescale", 3)
        wait_until(lambda: steered.units == [4, 3])
        assert operations.status.adaptive is None
        operations.on_epoch(report(2, units=3, vnodes_moved=1, **busy))
        assert control.take_answer(tmp_path, fixed) is not None
        again = control.ask(tmp_path, clock, "adapt", 300)
        wait_until(lambda: (tmp_path / f"control/{again}.answer.json").exists())
        assert "300 units for 256 vnodes" in (control.take_answer(tmp_path, again) or {})["error"]
        again = control.ask(tmp_path, clock, "adapt", 5, 2)
        wait_until(lambda: (tmp_path / f"control/{again}.answer.json").exists())
        assert control.take_answer(tmp_path, again) == {"done": True, "least": 2, "most": 5, "reason": None}
        wait_until(lambda: steered.units == [4, 3, 5])


def test_a_failure_is_in_the_status_and_a_killed_driver_as_well(tmp_path: Path) -> None:
    def fail() -> None:
        with Operations(place(tmp_path), SystemClock()) as operations:
            operations.on_epoch(report(3))
            raise ZeroDivisionError("of the\nview")

    with pytest.raises(ZeroDivisionError):
        fail()
    status = read_status(tmp_path)
    assert status is not None
    assert (status.state, status.error, status.epoch) == ("failed", "of the view", 3)
    document = json.loads((tmp_path / "status.json").read_text())
    (tmp_path / "status.json").write_text(json.dumps(document | {"state": "running", "field_of_the_future": 1}))
    status = read_status(tmp_path)
    assert status is not None
    assert status.state == KILLED
    (tmp_path / "status.json").write_text("{")
    assert read_status(tmp_path) is None


def test_metrics_are_served_and_a_taken_port_is_refused(tmp_path: Path) -> None:
    with Operations(place(tmp_path), SystemClock(), metrics_port=0) as operations:
        base = f"http://127.0.0.1:{operations.port}"
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{base}/readyz", timeout=30)
        with urllib.request.urlopen(f"{base}/healthz", timeout=30) as answer:
            assert answer.read() == b"ok\n"
        operations.metrics.consoles = {"broker<1>": "http://b:8080/console/pipelines/p", "bad": "javascript:alert(1)"}
        with urllib.request.urlopen(operations.status.metrics_url or "", timeout=30) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            page = answer.read().decode()
        assert '<a href="http://b:8080/console/pipelines/p">Console of broker&lt;1&gt;</a>' in page
        assert "javascript" not in page
        operations.on_epoch(report(3, lag_messages=12, counters={"late_rows": 2}))
        with urllib.request.urlopen(f"http://127.0.0.1:{operations.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        with urllib.request.urlopen(f"{base}/readyz", timeout=30) as answer:
            assert answer.read() == b"ok\n"
        for line in [
            'magnetar_pipeline_rows_total{pipeline="p"} 100.0',
            'magnetar_pipeline_lag_messages{pipeline="p"} 12.0',
            'magnetar_pipeline_view_changes_total{pipeline="p",view="v"} 7.0',
            'magnetar_pipeline_events_total{event="late_rows",pipeline="p"} 2.0',
            'magnetar_pipeline_epoch_seconds_count{pipeline="p"} 1.0',
        ]:
            assert line in text
        taken = Operations(place(tmp_path / "other"), SystemClock(), metrics_port=operations.port)
        with pytest.raises(StartupError, match="give another --metrics-port"), taken:
            pass
    with Operations(place(tmp_path / "other"), SystemClock()):
        pass  # the failed one has let go of its lock


def test_rates_are_of_the_last_seconds() -> None:
    meter = Meter(Status("p", "d"))
    for second in range(30):
        status = meter.add(report(second, rows=1000), float(second), 0)
    assert status.rows == 30_000
    assert status.rows_per_s == pytest.approx(1000, rel=0.15)
    assert 0.15 < status.busy < 0.25
    assert status.views == {"v": {"changes": 210, "last": 7}}
    meter.tick(60.0)
    assert (status.rows_per_s, status.busy) == (0.0, 0.0)


def test_an_epoch_that_takes_long_is_neither_idleness_nor_work() -> None:
    """What units do in it is not known before it is over: until then what was known before it counts."""
    meter = Meter(Status("p", "d"), slots=2)
    for second in range(10):
        status = meter.add(report(second, rows=1000, units=4, work_s=1.0), second + 0.2, 0)
    before = (status.rows_per_s, status.work)
    assert 0.5 < status.work < 0.6, "four units on two cores: half of a second for each"
    for now_s in (12.0, 60.0):
        meter.tick(now_s, under_way_s=9.2)
        assert (status.rows_per_s, status.work) == pytest.approx(before)
    assert status.busy > 0.8
    status = meter.add(report(10, rows=50_000, units=4, duration_s={"total": 50.8}, work_s=90.0), 60.0, 0)
    assert (status.rows_per_s, status.work) == pytest.approx((50_000 / 50.8, 45 / 50.8))
    assert status.busy == 1.0
    meter.tick(71.0, under_way_s=70.5)
    assert (status.rows_per_s, status.work) == (0.0, 0.0)
    assert status.busy == 1.0


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_picture_marks_exactly_what_moves(before: int, after: int) -> None:
    plan = RescalePlan.to(VnodeMapping.even(before), after)
    assert plan.describe()["vnodes_moved"] == len(plan.moves)
    assert sum(line.count("^") for line in plan.picture()) == len(plan.moves)
    assert plan.describe()["units_after"] == after


@given(
    units=st.integers(1, 64),
    busy=st.floats(0, 1),
    share=st.floats(0, 1),
    rows=st.floats(0, 1e6),
    lag=st.none() | st.integers(0, 10**7),
    least=st.integers(1, 4),
)
def test_what_a_load_asks_for_steps_within_its_bounds(
    units: int, busy: float, share: float, rows: float, lag: int | None, least: int
) -> None:
    wanted, reason = wanted_units(Load(units, busy, busy * share, rows, lag), least, 64)
    assert least <= wanted <= 64
    assert wanted <= 2 * units or wanted == least
    assert reason
    more, _ = wanted_units(Load(units, 0.95, 0.5, rows, lag), 1, 128)
    assert units < more <= 2 * units
    assert wanted_units(Load(units, 0.95, 0.2, rows, lag), 1, 128)[0] == units, "units are not what takes the time"
    fewer, _ = wanted_units(Load(units, 0.4, 0.05, rows, 0), 1, 128)
    assert fewer == (units + 1) // 2
    assert wanted_units(Load(units, 0.74, 0.6, rows, 0), 1, 64)[0] == units


async def test_the_mapping_in_a_metadata_store_changes_by_compare_and_set() -> None:
    store = MemoryMetadataStore()
    mappings = MappingStore(store, "flights/a b")
    assert mappings.path.count("/") == 4
    with pytest.raises(CatalogError, match="run --metadata"):
        await mappings.rescale(2)
    first = await mappings.publish(MAPPING)
    assert await mappings.publish(VnodeMapping.even(9)) == first, "the first driver's counts"
    changed = await mappings.change(first, 5)
    assert changed.mapping.version == 2
    with pytest.raises(BadVersionError):
        await mappings.change(first, 4)
    assert await mappings.rescale(5) == changed == await mappings.read()


def test_where_a_pipeline_elsewhere_keeps_what_is_of_this_machine() -> None:
    environment = {"MAGNETAR_HOME": "/h"}
    one, other = (local_side(f"s3://{bucket}/flights/", environment) for bucket in "ab")
    assert one != other
    assert str(one).startswith("/h/remote/flights-")
    assert local_side("s3://a/flights", environment) == one
    assert local_side("/x/y", environment) == Path("/x/y")


def test_a_driver_follows_the_mapping_in_a_metadata_store(tmp_path: Path) -> None:
    """Through ZooKeeper's protocol, as several processes would."""
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'magnetar[zookeeper]'")
    steered = Steered()
    with metadata_server(tmp_path) as url, SharedMapping(url, "p", SystemClock(), MAPPING, steered.rescale) as shared:
        assert run(["pipeline", "rescale", "p", "--units", "5", "--metadata", url]) == 0
        wait_until(lambda: steered.units == [5])
        after = MAPPING.rescale(5)
        shared.took_effect(after)
        shared.took_effect(after.rescale(2))  # asked for at the driver itself
        wait_until(lambda: stored_units(url) == 2)
        assert steered.units == [5], "what the driver did itself does not come back as a request"
    assert run(["pipeline", "rescale", "q", "--units", "5", "--metadata", "memory:"]) == 1


def stored_units(url: str) -> int:
    async def read() -> int:
        async with opened_store(StoreSource(url, None, None)) as store:
            found = await MappingStore(store, "p").read()
            assert found is not None
            return len(found.mapping.units)

    return asyncio.run(read())


@contextmanager
def metadata_server(path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "magnetar", "metadata-server", "--port", "0", "--data-dir", str(path / "metadata")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
