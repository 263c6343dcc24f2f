"""Keeps what is read from the metadata store current: read when it is entered, and again after every change below a node."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from magnetar.base.errors import MetadataError
from magnetar.base.tasks import TaskScope
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

RETRY_INTERVAL_S: Final = 1.0
"""Between attempts to read while the metadata store cannot be reached. What was known before stays."""


class Follower(ABC):
    """`async with` a subclass: what it follows is read when entering returns. Entering raises MetadataError."""

    def __init__(self, metadata: MetadataStore, prefix: str, what: str) -> None:
        """`what`: for the log, such as "the lists of bookies"."""
        self._metadata = metadata
        self._prefix = prefix
        self._what = what
        self._wake = asyncio.Event()
        self._scope = TaskScope(f"follow {prefix}")

    async def __aenter__(self) -> Self:
        self._end = self._metadata.watch(self._changed, self._prefix)
        try:
            await self._read()
        except BaseException:
            self._end()
            raise
        await self._scope.__aenter__()
        self._scope.supervise(self._follow, "follow")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        # Without the body's exception: a task group would wrap it, and callers could not catch it by its class.
        await self._scope.__aexit__(None, None, None)

    def _changed(self, path: str) -> None:
        """`path` has changed, or everything may have (RESYNC)."""
        self._wake.set()

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._read_again()
            except MetadataError as error:
                logger.warning("%s cannot be read: %s; trying again", self._what, error)
                await self._pause()

    async def _pause(self) -> None:
        """A change ends it early: the store can be reached again."""
        try:
            async with asyncio.timeout(RETRY_INTERVAL_S):
                await self._wake.wait()
        except TimeoutError:
            self._wake.set()

    @abstractmethod
    async def _read(self) -> None:
        """Read what is there now."""

    async def _read_again(self) -> None:
        """The same after a change."""
        await self._read()
