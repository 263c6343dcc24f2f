"""Structured tasks: the only module that creates them.

A long-lived part enters a `TaskScope`; its background tasks die with the scope, and a crash in one of them cancels the owner
with the error shown. Nothing on the message path creates a task (measured: 14 to 24 times the cost of a plain call chain).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class TaskScope:
    """`async with TaskScope("bookie") as scope: scope.spawn(loop(), "journal")`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._group = asyncio.TaskGroup()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._count = 0
        self._ending = False

    async def __aenter__(self) -> TaskScope:
        await self._group.__aenter__()
        return self

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` until it ends or the scope does. An exception in it cancels the scope's owner.

        While the scope ends, new work is cancelled before it starts; afterwards this raises RuntimeError.
        """
        self._count += 1
        number = self._count
        try:
            task = self._group.create_task(work, name=f"{self.name}/{name}")
        except RuntimeError:
            work.close()
            raise
        if self._ending:
            task.cancel()
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return task

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        for number in sorted(self._tasks, reverse=True):
            self._tasks[number].cancel()
        await self._group.__aexit__(kind, error, trace)
