"""The only way off the event loop: blocking work runs on a named thread (production) or inline (simulation)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Executor(Protocol):
    """Runs blocking functions, in the order in which they were submitted."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """The function's result; its exception is raised here. One that is cancelled before its turn is not called."""
        ...

    def close(self) -> None:
        """Wait for what runs, refuse what comes."""
        ...


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: tuple[object, ...]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class ThreadExecutor:
    """One thread of this name, which starts with the first call. A call costs a third less than one of `concurrent.futures`: each commit
    of the journal is one."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        # a daemon: whoever forgets to close it does not keep the process from ending
        self._thread = threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True)
        self._closed = False

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return await self._submit(function, args)  # no variable holds the future: an error would be in a circle with it

    def _submit(self, function: Callable[..., T], args: tuple[object, ...]) -> asyncio.Future[T]:
        if self._closed:
            raise RuntimeError(f"the thread {self._thread.name} has ended")
        if self._thread.ident is None:
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._calls.put(_Call(function, args, answer, loop))
        return answer

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread.ident is not None:
            self._calls.put(None)
            self._thread.join()


def _work(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        function, args, answer, loop = call
        if not answer.cancelled():
            result: Any = None
            error: BaseException | None = None
            try:
                result = function(*args)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(_settle, answer, result, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                pass
            del result, error
        del call, function, args, answer, loop  # nothing is kept alive until the next call


def _settle(answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if answer.done():  # cancelled meanwhile
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


class InlineExecutor:
    """Runs the function at once on the caller's thread: for tests and the simulator."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return function(*args)

    def close(self) -> None:
        return None
