"""How many topics a namespace has, without listing them: for the limit that every creation is held against."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.naming import PENDING_ACKS_SUFFIX, NamespaceName, is_transaction_log
from magnetar.metadata import paths
from magnetar.metadata.store import RESYNC, MetadataStore

SYSTEM_TOPIC_PREFIX = "__"
"""Topics that belong to the server: no limit counts them."""


LISTED_MAX = 2_000_000
"""Names that are asked of a metadata store elsewhere in one answer; a million take some 2 s, in which its other writes wait. With more,
lists are refused, and counts include the server's own topics."""


class TooManyTopicsError(PreconditionFailedError):
    """The namespace has more topics than one answer of the metadata store should carry (HTTP 412)."""

    slug = "too-many-topics"


async def listable(metadata: MetadataStore, parent: str) -> bool:
    """Whether the children of a node may be asked for in one go."""
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
