"""Keeps a `BookieDirectory` told where the bookies stand, from Pulsar's `/bookies` node."""

from __future__ import annotations

import logging

from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.errors import RackMappingError
from magnetar.bookkeeper.rack_mapping import locations_of, read_mapping
from magnetar.metadata import paths
from magnetar.metadata.follower import Follower
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)


class RackFollower(Follower):
    """`async with RackFollower(metadata, directory):`. A mapping that cannot be read leaves the last good one in force."""

    def __init__(self, metadata: MetadataStore, directory: BookieDirectory) -> None:
        super().__init__(metadata, paths.BOOKIE_RACKS_PATH, "the racks of the bookies")
        self._directory = directory

    async def _read(self) -> None:
        try:
            self._directory.set_locations(locations_of(await read_mapping(self._metadata)))
        except RackMappingError as error:
            logger.warning("the racks of the bookies stay as they were: %s", error)
