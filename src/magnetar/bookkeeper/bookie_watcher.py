"""Which bookies there are, from their registrations (BookKeeper discover/ZKRegistrationClient)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from magnetar.base.errors import MetadataError
from magnetar.bookkeeper.errors import RegistrationError
from magnetar.bookkeeper.service_info import BookieServiceInfo
from magnetar.metadata import paths
from magnetar.metadata.follower import Follower
from magnetar.metadata.store import RESYNC, MetadataStore

logger = logging.getLogger(__name__)

LISTINGS_MAX: Final = 5
"""Times that the lists are read until they hold still; bookies that change lists faster are seen by the next notification."""

_READ_ONLY_NAME: Final = paths.READ_ONLY_BOOKIES_PATH.rpartition("/")[2]


class BookieWatcher(Follower):
    """`async with BookieWatcher(store, on_change) as bookies:`; `on_change()` is called after either list has changed."""

    def __init__(self, metadata: MetadataStore, on_change: Callable[[], None] | None = None) -> None:
        super().__init__(metadata, paths.AVAILABLE_BOOKIES_PATH, "the lists of bookies")
        self._on_change = on_change
        self.writable: dict[str, BookieServiceInfo] = {}
        self.read_only: dict[str, BookieServiceInfo] = {}
        """Bookie id -> what it registered, sorted by id. Replaced as a whole, never changed."""
        self._stale: set[str] = set()
        self._stale_all = False

    @property
    def known(self) -> dict[str, BookieServiceInfo]:
        """Writable and read-only ones."""
        return self.read_only | self.writable

    def _changed(self, path: str) -> None:
        if path == RESYNC:
            self._stale_all = True
        else:
            self._stale.add(path)
        super()._changed(path)

    async def _read_again(self) -> None:
        before = self.writable, self.read_only
        try:
            await self._read()
        except MetadataError:
            self._stale_all = True
            raise
        finally:
            if (self.writable, self.read_only) != before and self._on_change is not None:
                self._on_change()

    async def _read(self) -> None:
        stale, self._stale = self._stale, set()
        fresh, self._stale_all = self._stale_all, False
        writable, read_only = await self._list()
        known_writable = {} if fresh else self.writable
        known_read_only = {} if fresh else self.read_only
        self.writable = await self._read_infos(paths.AVAILABLE_BOOKIES_PATH, writable, known_writable, stale)
        self.read_only = await self._read_infos(paths.READ_ONLY_BOOKIES_PATH, read_only, known_read_only, stale)

    async def _list(self) -> tuple[list[str], list[str]]:
        """Names in both lists, so read that a bookie which changes from one to the other is not missed."""
        metadata = self._metadata
        before = await metadata.children(paths.AVAILABLE_BOOKIES_PATH)
        for _ in range(LISTINGS_MAX):
            read_only = await metadata.children(paths.READ_ONLY_BOOKIES_PATH)
            after = await metadata.children(paths.AVAILABLE_BOOKIES_PATH)
            if after == before:
                break
            before = after
        writable = [name for name in after if name != _READ_ONLY_NAME]
        # while a bookie changes lists it is in both: the refusal of one write costs less than a bookie too few
        return writable, [name for name in read_only if name not in set(writable)]

    async def _read_infos(
        self, parent: str, names: list[str], known: dict[str, BookieServiceInfo], stale: set[str]
    ) -> dict[str, BookieServiceInfo]:
        found: dict[str, BookieServiceInfo] = {}
        for name in names:
            path = f"{parent}/{name}"
            if name in known and path not in stale:
                found[name] = known[name]
                continue
            node = await self._metadata.get(path)
            if node is None:
                continue
            try:
                found[name] = BookieServiceInfo.from_bytes(node.value, name)
            except RegistrationError as error:
                logger.warning("%s; it is left out", error)
        return found
