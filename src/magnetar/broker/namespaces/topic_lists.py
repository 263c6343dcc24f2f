"""Lists of a namespace's stored topics: read once for all who ask at the same time, and again only after a topic came or went."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.naming import PENDING_ACKS_SUFFIX, SYSTEM_TOPIC_PREFIX, NamespaceName, is_transaction_log
from magnetar.metadata import paths
from magnetar.metadata.store import RESYNC, MetadataStore, Stat

LISTED_MAX = 2_000_000
"""Names that are asked of a metadata store elsewhere in one answer; a million take some 2 s, in which its other writes wait. With more,
lists are refused, and counts include the server's own topics."""

T = TypeVar("T")

NAMES_PER_TURN = 1_000
"""Names of a long list that are handled at a time; then other connections get their turn."""

NAMES_KEPT_MAX = 200_000
"""Names in all lists that are kept, some 25 MiB: the least recently used lists go first. A longer list is never kept."""


class TooManyTopicsError(PreconditionFailedError):
    """The namespace has more topics than one answer of the metadata store should carry (HTTP 412)."""

    slug = "too-many-topics"


async def listable(metadata: MetadataStore, parent: str) -> bool:
    """True if the children of a node may be listed in one request."""
    return metadata.session_timeout_s == 0 or await metadata.children_count(parent) <= LISTED_MAX


class TopicCounts:
    """The store counts the nodes; which of them are the server's own is listed once and again when one comes or goes.

    A namespace is watched from the first time that it is asked about: brokers without a limit hear of no topic that is created.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._own: dict[NamespaceName, int] = {}
        self._watches: dict[NamespaceName, Callable[[], None]] = {}
        self._changes = 0

    def close(self) -> None:
        for end in self._watches.values():
            end()
        self._watches.clear()

    async def stored(self, name: NamespaceName) -> int:
        """Persistent topics, partitions separately, without those of the server."""
        parent = paths.managed_ledgers_path(name.tenant, name.namespace, "persistent")
        if name not in self._watches:
            self._watches[name] = self._metadata.watch(lambda path: self._changed(name, path), parent)
        while name not in self._own:
            changes = self._changes
            if not await listable(self._metadata, parent):
                return await self._metadata.children_count(parent)
            names = await self._metadata.children(parent)
            if changes == self._changes:
                self._own[name] = sum(_belongs_to_server(name, each) for each in names)
        return await self._metadata.children_count(parent) - self._own[name]

    def _changed(self, name: NamespaceName, path: str) -> None:
        # Called for every new ledger of every topic: the common case is decided by two searches in a short text.
        if path == RESYNC or f"/{SYSTEM_TOPIC_PREFIX}" in path or path.endswith(PENDING_ACKS_SUFFIX):
            self._changes += 1
            self._own.pop(name, None)


def _belongs_to_server(namespace: NamespaceName, encoded: str) -> bool:
    return encoded.startswith(SYSTEM_TOPIC_PREFIX) or is_transaction_log(str(namespace), encoded)


_Place = tuple[int, int]
"""The transaction that created or deleted a child last, and how many have."""


class _Kept:
    __slots__ = ("at", "names", "number")

    def __init__(self, names: tuple[str, ...], at: _Place | None, number: int) -> None:
        self.names = names
        self.at = at
        """State of the node before the names were read; None if the store does not report it."""
        self.number = number


class TopicLists:
    """`names` is as fresh as a list read from the store at the moment of the call."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._kept: OrderedDict[NamespaceName, _Kept] = OrderedDict()
        self._kept_names = 0
        self._reading: dict[NamespaceName, _Reading] = {}
        self._started = 0

    async def names(self, name: NamespaceName) -> tuple[str, ...]:
        """Complete names (partitions separately), sorted; the same object for as long as they stay the same. Raises TooManyTopicsError."""
        asked_after = self._started
        parent = paths.managed_ledgers_path(name.tenant, name.namespace, "persistent")
        stat = await self._metadata.stat(parent)
        if stat is None:
            return ()
        kept = self._kept.get(name)
        if kept is not None and kept.at == _place_of(stat):
            self._kept.move_to_end(name)
            return kept.names
        reading = self._reading.setdefault(name, _Reading())
        reading.wanted += 1
        try:
            async with reading.lock:
                last = reading.last
                if last is not None and last.number > asked_after:
                    return last.names  # its reading began after this question
                reading.last = await self._read(name, parent)
                return reading.last.names
        finally:
            reading.wanted -= 1
            if not reading.wanted:
                del self._reading[name]

    async def _read(self, name: NamespaceName, parent: str) -> _Kept:
        self._started += 1
        number = self._started
        if not await listable(self._metadata, parent):
            raise TooManyTopicsError(
                f"{name} has more than {LISTED_MAX} topics: too many for one answer of the metadata store. Ask for its partitioned "
                "topics, or use smaller namespaces"
            )
        stat = await self._metadata.stat(parent)
        found = await in_turns(await self._metadata.children(parent), _namer(name))
        kept = _Kept(tuple(found), _place_of(stat) if stat is not None else None, number)
        self._keep(name, kept)
        return kept

    def _keep(self, name: NamespaceName, kept: _Kept) -> None:
        before = self._kept.pop(name, None)
        self._kept_names -= len(before.names) if before is not None else 0
        if kept.at is None or len(kept.names) > NAMES_KEPT_MAX:
            return
        self._kept[name] = kept
        self._kept_names += len(kept.names)
        while self._kept_names > NAMES_KEPT_MAX:
            self._kept_names -= len(self._kept.popitem(last=False)[1].names)


class _Reading:
    """The reading of one namespace's list: one at a time, with the result of the last one."""

    __slots__ = ("last", "lock", "wanted")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.last: _Kept | None = None
        self.wanted = 0


def _place_of(stat: Stat) -> _Place | None:
    """Equal only while no child came or went."""
    return (stat.pzxid, stat.cversion) if stat.pzxid else None


def _namer(name: NamespaceName) -> Callable[[Sequence[str]], list[str]]:
    namespace = str(name)
    prefix = f"persistent://{namespace}/"

    def complete(children: Sequence[str]) -> list[str]:
        return [prefix + topic for topic in map(paths.decode, children) if not is_transaction_log(namespace, topic)]

    return complete


async def in_turns(items: Sequence[str], work: Callable[[Sequence[str]], list[T]]) -> list[T]:
    """`work` on all items, some at a time; in between others get their turn."""
    found: list[T] = []
    for first in range(0, len(items), NAMES_PER_TURN):
        if first:
            await asyncio.sleep(0)
        found += work(items[first : first + NAMES_PER_TURN])
    return found
