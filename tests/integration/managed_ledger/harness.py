"""Everything real in one process: metadata in SQLite, a bookie with its files, the ledger client, managed ledgers on top."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path

from magnetar.base.clock import SystemClock
from magnetar.base.executor import ThreadExecutor
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.sqlite import SqliteMetadataStore

NAME = "public/default/persistent/orders"


class Harness:
    """`async with Harness(path) as harness:`; a second one in the same path comes after the first has ended."""

    def __init__(self, path: Path, cache_bytes: int = 64 * 1024 * 1024) -> None:
        self.path = path
        self._cache_bytes = cache_bytes
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Harness:
        stack = self._stack
        executor = ThreadExecutor("metadata")
        stack.callback(executor.close)
        self.metadata = await SqliteMetadataStore.open(self.path / "metadata.db", executor)
        stack.push_async_callback(self.metadata.close)
        manager = LedgerManager(self.metadata)
        config = BookieConfig(data_dir=self.path / "bookie", entry_log_bytes=4 * 1024 * 1024)
        bookie = Bookie(config, list_ledgers=manager.list_ids, ledger_exists=manager.exists)
        self.bookie = await stack.enter_async_context(bookie)
        directory = BookieDirectory()
        directory.register(config.bookie_id, self.bookie)
        self.scope = await stack.enter_async_context(TaskScope("managed ledgers"))
        self.client = BookKeeperClient(self.metadata, directory, SystemClock(), random.Random(1), self.scope)
        self.factory = self.new_factory()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def new_factory(self) -> ManagedLedgerFactory:
        """Another owner, as another broker would be."""
        return ManagedLedgerFactory(
            self.metadata,
            self.client,
            SystemClock(),
            self.scope,
            random.Random(2),
            EntryCache(self._cache_bytes),
        )

    def disk_bytes(self) -> int:
        """What the entry logs take."""
        return sum(path.stat().st_size for path in (self.path / "bookie").rglob("*.log"))
