"""Structured tasks: the only module that creates them.

A long-lived part enters a `TaskScope`; its background tasks die with the scope. For every task it is decided where it is spawned what
its failure means: FATAL ends the owner of the scope, and with it the process, with the error shown; REPORTED is logged and counted,
and everything else goes on. A loop that has to go on as well is given to `supervise`. Nothing on the message path creates a task
(measured: 14 to 24 times the cost of a plain call chain).
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0
"""The pause before a supervised loop that has failed begins anew; it doubles with each failure."""

RESTART_AFTER_MAX_S = 60.0
"""The longest such pause. A loop that has run for longer than this begins with the shortest one again."""

SAID_AGAIN_AFTER_S = 60.0
"""A failure of the same kind in the same work is logged again after this time at the earliest; all of them are counted."""


TURN_S = 0.001
"""Work of a background task in one turn of the loop, as long as its single steps are shorter."""


class TurnClock:
    """By which `in_turns` measures. The simulator puts a clock of its own here: with the real one a seed would depend on the machine."""

    def __init__(self) -> None:
        self.now_s: Callable[[], float] = time.perf_counter


TURN_CLOCK = TurnClock()
"""Of this process."""


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, one after the other; the loop serves everybody else each time that a turn's work is done.

    For periodic work on all topics, cursors, ... of a server: there may be a hundred thousand of them.
    """
    end_s = TURN_CLOCK.now_s() + TURN_S
    for item in items:
        yield item
        if TURN_CLOCK.now_s() >= end_s:
            await asyncio.sleep(0)
            end_s = TURN_CLOCK.now_s() + TURN_S


class OnFailure(enum.Enum):
    """What an exception in a background task means."""

    FATAL = "fatal"
    """The process must not go on: what it would say or do without this work would be wrong. Storage, journal, the order of metadata."""

    REPORTED = "reported"
    """It is logged and counted; the other tasks and the clients go on."""


FATAL, REPORTED = OnFailure.FATAL, OnFailure.REPORTED


class Failures:
    """Exceptions of reported tasks: counted by the work they happened in, and logged once a minute for each kind."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.counts: dict[str, int] = {}
        """By the coroutine function's qualified name, which no client chooses."""
        self.raises = False
        """Nothing is only reported: for tests and the simulator, where an error that nobody expected must not be overlooked."""
        self._said: dict[tuple[str, type[BaseException]], tuple[float, int]] = {}

    def report(self, work: str, name: str, error: Exception) -> None:
        """Raises `error` if that is switched on."""
        if self.raises:
            raise error
        count = self.counts[work] = self.counts.get(work, 0) + 1
        kind = work, type(error)
        said_s, said_count = self._said.get(kind, (float("-inf"), 0))
        now_s = self._now_s()
        if now_s - said_s >= SAID_AGAIN_AFTER_S:
            self._said[kind] = now_s, count
            logger.error("background task failed task=%r failures=%d", name, count - said_count, exc_info=error)


FAILURES = Failures()
"""Of this process."""


class TaskScope:
    """`async with TaskScope("bookie") as scope: scope.spawn(journal(), "journal", FATAL)`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._group = asyncio.TaskGroup()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._count = 0
        self._ending = False

    async def __aenter__(self) -> TaskScope:
        await self._group.__aenter__()
        return self

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, on_failure: OnFailure) -> asyncio.Task[Any]:
        """Run `work` until it ends or the scope does. Its task's result is None after a failure that is only reported.

        While the scope ends, new work is cancelled before it starts; afterwards this raises RuntimeError.
        """
        self._count += 1
        number = self._count
        full_name = f"{self.name}/{name}"
        run = _reported(work, full_name) if on_failure is REPORTED else work
        try:
            task = self._group.create_task(run, name=full_name)
        except RuntimeError:
            run.close()
            work.close()
            raise
        if run is not work:
            task.add_done_callback(
                lambda _: work.close()
            )  # one that was cancelled before it began would be missed by nobody
        if self._ending:
            task.cancel()
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return task

    def supervise(self, loop: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[Any]:
        """Run `loop()` for as long as the scope lasts: after a failure, which is reported, it begins anew."""
        return self.spawn(_again_and_again(loop, f"{self.name}/{name}"), name, REPORTED)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        for number in sorted(self._tasks, reverse=True):
            self._tasks[number].cancel()
        await self._group.__aexit__(kind, error, trace)


def _kind(work: Coroutine[Any, Any, Any]) -> str:
    return str(getattr(work, "__qualname__", type(work).__name__))


async def _reported(work: Coroutine[Any, Any, Any], name: str) -> Any:
    try:
        return await work
    except Exception as error:
        FAILURES.report(_kind(work), name, error)
        return None


async def _again_and_again(loop: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    pause_s = RESTART_AFTER_S
    now_s = asyncio.get_running_loop().time
    while True:
        work = loop()
        started_s = now_s()
        try:
            await work
            return
        except Exception as error:
            FAILURES.report(_kind(work), name, error)
        if now_s() - started_s > RESTART_AFTER_MAX_S:
            pause_s = RESTART_AFTER_S
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, RESTART_AFTER_MAX_S)


class LooseTasks:
    """Tasks that come and go with connections and requests; what one raises is reported. No scope waits for them: `cancel` ends them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(_reported(work, f"{self.name}/{name}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())
        return task

    async def wait(self, timeout_s: float) -> None:
        """Until all have ended, or the time has."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()
