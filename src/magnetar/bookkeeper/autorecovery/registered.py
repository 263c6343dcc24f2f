"""Who is registered, straight from the metadata store."""

from __future__ import annotations

from typing import NamedTuple

from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore

_READ_ONLY = paths.READ_ONLY_BOOKIES_PATH.rpartition("/")[2]


class Registered(NamedTuple):
    """Ids of the bookies that take new entries, and of all that are alive."""

    writable: frozenset[str]
    available: frozenset[str]


async def read_registered(store: MetadataStore) -> Registered:
    """A bookie that changes between writable and read-only meanwhile is never missing: it is in one place before it leaves the other.

    (Writable, read-only, writable: whichever way it goes, one of the three looks sees it.)
    """
    before = await store.children(paths.AVAILABLE_BOOKIES_PATH)
    read_only = await store.children(paths.READ_ONLY_BOOKIES_PATH)
    writable = frozenset(await store.children(paths.AVAILABLE_BOOKIES_PATH)) - {_READ_ONLY}
    return Registered(writable, (writable | set(before) | set(read_only)) - {_READ_ONLY})
