"""A scope ends with all of its work, also with work that is started while it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import time

import pytest

from magnetar.base import tasks
from magnetar.base.tasks import FATAL, REPORTED, SAID_AGAIN_AFTER_S, TURN_S, Failures, LooseTasks, TaskScope, in_turns


async def test_work_started_while_the_scope_ends_does_not_keep_it_open() -> None:
    started: list[str] = []

    async def late() -> None:
        started.append("late", FATAL)
        await asyncio.Event().wait()

    async def stubborn(scope: TaskScope) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            scope.spawn(late(), "late", FATAL)
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        async with TaskScope("test") as scope:
            scope.spawn(stubborn(scope), "stubborn", FATAL)
            await asyncio.sleep(0)
    assert started == []


async def test_an_ended_scope_takes_no_work() -> None:
    async with TaskScope("test") as scope:
        pass
    work = asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        scope.spawn(work, "too late", FATAL)


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    """Fresh ones, whose clock is at zero."""
    found = Failures(lambda: 0.0)
    monkeypatch.setattr(tasks, "FAILURES", found)
    return found


async def test_a_fatal_failure_ends_the_owner(failures: Failures) -> None:
    async def work() -> None:
        raise OSError(24, "Too many open files")

    async def owner() -> None:
        async with TaskScope("test") as scope:
            scope.spawn(work(), "journal", FATAL)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await owner()
    assert caught.group_contains(OSError)
    assert not failures.counts


async def test_a_reported_failure_is_counted_and_everything_else_goes_on(
    failures: Failures, caplog: pytest.LogCaptureFixture
) -> None:
    async def measure() -> None:
        raise OSError(24, "Too many open files")

    async with asyncio.timeout(60):
        async with TaskScope("test") as scope:
            for number in range(5):
                assert await scope.spawn(measure(), f"measure {number}", REPORTED) is None
    (count,) = failures.counts.values()
    assert count == 5
    assert [record.exc_info is not None for record in caplog.records if "background task failed" in record.message] == [
        True
    ]


async def test_a_supervised_loop_begins_anew_after_each_failure(
    failures: Failures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "RESTART_AFTER_S", 0.001)
    starts = asyncio.Queue[int]()

    async def loop() -> None:
        starts.put_nowait(0)
        raise OSError(24, "Too many open files")

    async with asyncio.timeout(60):
        async with TaskScope("test") as scope:
            scope.supervise(loop, "loads")
            for _ in range(4):
                await starts.get()
    (count,) = failures.counts.values()
    assert count >= 3


async def test_a_supervised_loop_that_ends_is_not_started_again(failures: Failures) -> None:
    starts: list[int] = []

    async def loop() -> None:
        starts.append(0)

    async with asyncio.timeout(60):
        async with TaskScope("test") as scope:
            await scope.supervise(loop, "once")
    assert starts == [0]


async def test_loose_tasks_report_and_are_cancelled(failures: Failures) -> None:
    async def bad() -> None:
        raise ValueError("no")

    loose = LooseTasks("test")
    await loose.start(bad(), "bad")
    waiting = loose.start(asyncio.Event().wait(), "waits")
    await loose.wait(0.01)
    assert not waiting.done()
    loose.cancel()
    await asyncio.wait([waiting])
    assert list(failures.counts.values()) == [1]


def test_the_same_failure_is_logged_once_a_minute_and_another_at_once(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    failures = Failures(lambda: now_s)
    with caplog.at_level(logging.ERROR):
        for _ in range(10):
            failures.report("work", "scope/work", OSError("full"))
        failures.report("work", "scope/work", ValueError("else"))
        now_s = SAID_AGAIN_AFTER_S
        failures.report("work", "scope/work", OSError("full"))
    said = [record.getMessage() for record in caplog.records]
    assert [message.rpartition("failures=")[2] for message in said] == ["1", "11", "11"]
    assert failures.counts == {"work": 12}


async def test_supervised_work_that_is_cancelled_before_it_begins_leaves_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def loop() -> None:
        raise AssertionError("never begins")

    async with TaskScope("test") as scope:
        scope.supervise(loop, "loop")
        scope.spawn(loop(), "once", REPORTED)
    gc.collect()
    assert not recwarn.list


async def test_long_work_over_many_items_is_done_in_turns() -> None:
    """Between two turns everything else on the loop runs; nothing is left out."""
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    seen = []
    async for item in in_turns(range(50)):
        time.sleep(TURN_S / 4)
        seen.append(item)
    running.cancel()
    assert seen == list(range(50))
    assert others >= 5
