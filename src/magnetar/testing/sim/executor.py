"""Threads of a simulated process: blocking functions run as greenlets that give way whenever they wait for a disk.

So a crash can fall between any two disk calls, and what another thread of the process does meanwhile happens in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

from magnetar.testing.sim.loop import Process, SimLoop

T = TypeVar("T")

HAND_OVER_S: Final = 20e-6
"""Virtual time from the event loop to the thread, and back."""


class Worker(greenlet):
    """One blocking call under way."""

    process: Process


def wait(delay_s: float) -> None:
    """Let `delay_s` virtual seconds pass for the calling thread; code that runs on the event loop itself does not wait."""
    worker = getcurrent()
    if isinstance(worker, Worker):
        assert worker.parent is not None
        worker.parent.switch(delay_s)


def stop_for_good() -> None:
    """The process of the calling thread is dead: never return."""
    worker = getcurrent()
    if isinstance(worker, Worker):
        worker.process.graveyard.append(worker)
        assert worker.parent is not None
        worker.parent.switch(None)


class SimExecutor:
    """See `base.executor.Executor`: one worker, calls in the order of submission."""

    def __init__(self, loop: SimLoop, process: Process) -> None:
        self._loop = loop
        self._process = process
        self._queue: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[object, ...]]] = deque()
        self._busy = False
        self._closed = False

    async def run(self, function: Callable[..., T], *args: object) -> T:
        if self._closed:
            raise RuntimeError("the executor is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.append((future, function, args))
        if not self._busy:
            self._busy = True
            self._loop.call_later(HAND_OVER_S, self._next)
        return await future

    def close(self) -> None:
        self._closed = True

    def _next(self) -> None:
        if not self._queue:
            self._busy = False
            return
        future, function, args = self._queue.popleft()
        outcome: list[Any] = [None, None]

        def call() -> None:
            try:
                outcome[0] = function(*args)
            except Exception as error:
                outcome[1] = error

        worker = Worker(call)
        worker.process = self._process
        self._go_on(worker, future, outcome)

    def _go_on(self, worker: Worker, future: asyncio.Future[Any], outcome: list[Any]) -> None:
        delay_s = worker.switch()
        if not worker.dead:
            if delay_s is not None:
                self._loop.call_later(delay_s, self._go_on, worker, future, outcome)
            return
        if not future.done():
            result, error = outcome
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
        self._loop.call_later(HAND_OVER_S, self._next)
