"""What all composition roots have in common: parts entered one after the other and left in reverse, and one way to fail."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


async def enter_alone(stack: AsyncExitStack, part: AbstractAsyncContextManager[T]) -> T:
    """Enter a part that is left without the body's exception: its task group would wrap it, and nobody could catch it by class."""
    entered = await part.__aenter__()
    stack.push_async_callback(part.__aexit__, None, None, None)
    return entered


class Composition(ABC):
    """`async with Server(config) as server:` serves until it is left. `failure` is set when a part had to stop itself.

    A subclass enters its parts into `_stack` in `_start`.
    """

    def __init__(self) -> None:
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        self._stack = AsyncExitStack()

    @abstractmethod
    async def _start(self) -> None:
        """Enter the parts. What it raises takes those entered so far down again."""

    @property
    @abstractmethod
    def urls(self) -> Sequence[str]:
        """What the ready line names."""

    def fail(self, error: BaseException) -> None:
        """The process has to end, with this error."""
        if self.failure is None:
            self.failure = error
        self.failed.set()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)
