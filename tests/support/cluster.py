"""Looking into a cluster's metadata from a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from magnetar.base.clock import SystemClock
from magnetar.base.executor import ThreadExecutor
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.testing.cluster import ClusterProcesses

T = TypeVar("T")


def in_metadata(cluster: ClusterProcesses, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """What `work` answers, on a session of its own."""

    async def run() -> T:
        executor = ThreadExecutor("metadata")
        try:
            store = await open_store(
                cluster.metadata_url,
                clock=SystemClock(),
                executor=executor,
                credentials=cluster.metadata_credentials,
            )
            try:
                return await work(store)
            finally:
                await store.close()
        finally:
            executor.close()

    return asyncio.run(run())


def all_ledgers(cluster: ClusterProcesses) -> dict[int, LedgerMetadata]:
    """Every ledger's metadata by id."""

    async def read(store: MetadataStore) -> dict[int, LedgerMetadata]:
        manager = LedgerManager(store)
        found = {}
        for ledger_id in await manager.list_ids():
            with suppress(NoSuchLedgerError):  # deleted meanwhile
                found[ledger_id] = (await manager.read(ledger_id))[0]
        return found

    return in_metadata(cluster, read)


def ledgers_of(cluster: ClusterProcesses, topic: str, cursor: str = "") -> list[LedgerMetadata]:
    """Of a topic (`public/default/persistent/name`), or of one of its subscriptions; oldest first."""
    wanted = {"pulsar/managed-ledger": topic.encode()} | ({"pulsar/cursor": cursor.encode()} if cursor else {})
    found = []
    for _, metadata in sorted(all_ledgers(cluster).items()):
        custom = {key: value for key, value in metadata.custom_metadata.items() if key.startswith("pulsar/")}
        if custom == wanted:
            found.append(metadata)
    return found
