"""The only way off the event loop: blocking work runs on a named thread (production) or inline (simulation)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Executor(Protocol):
    """Runs blocking functions. With one worker, calls run in the order in which they were submitted."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """The function's result; its exception is raised here."""
        ...

    def close(self) -> None:
        """Wait for what runs, refuse what comes."""
        ...


class ThreadExecutor:
    """`workers` threads called `name-0`, `name-1`, ... They start with the first call."""

    def __init__(self, name: str, workers: int = 1) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class InlineExecutor:
    """Runs the function at once on the caller's thread: for tests and the simulator."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return function(*args)

    def close(self) -> None:
        return None
