"""A task scope for tests that have no structure to hang one on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from magnetar.base.tasks import FATAL, OnFailure, TaskScope


class LoopScope(TaskScope):
    """Spawns on the running loop. A crash shows when the loop of the test ends."""

    def __init__(self) -> None:
        super().__init__("test")
        self._spawned: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, on_failure: OnFailure = FATAL) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._spawned.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._spawned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": task.get_name(), "exception": error})
