"""Keeps a `BookieDirectory` told where the bookies stand, from Pulsar's `/bookies` node."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final

from magnetar.base.errors import MetadataError
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.errors import RackMappingError
from magnetar.bookkeeper.rack_mapping import locations_of, read_mapping
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore

RETRY_INTERVAL_S: Final = 1.0
"""Between attempts while the metadata store cannot be reached. What was known before stays."""

_logger = logging.getLogger(__name__)


class RackFollower:
    """`async with RackFollower(metadata, directory):`. A mapping that cannot be read leaves the last good one in force."""

    def __init__(self, metadata: MetadataStore, directory: BookieDirectory) -> None:
        self._metadata = metadata
        self._directory = directory
        self._wake = asyncio.Event()
        self._scope = TaskScope("bookie racks")

    async def __aenter__(self) -> RackFollower:
        """The places are known when it returns. Raises MetadataError."""
        self._end = self._metadata.watch(lambda _: self._wake.set(), paths.BOOKIE_RACKS_PATH)
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

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._read()
            except MetadataError as error:
                _logger.warning("the racks of the bookies cannot be read: %s; trying again", error)
                await asyncio.sleep(RETRY_INTERVAL_S)
                self._wake.set()

    async def _read(self) -> None:
        try:
            self._directory.set_locations(locations_of(await read_mapping(self._metadata)))
        except RackMappingError as error:
            _logger.warning("the racks of the bookies stay as they were: %s", error)
