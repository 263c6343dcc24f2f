"""Real bookies on disk with registrations, in one process: reached directly, or through TCP. Each has its own metadata session."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from magnetar.base.clock import SystemClock
from magnetar.base.network import AsyncioNetwork
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.autorecovery.config import AutoRecoveryConfig
from magnetar.bookkeeper.autorecovery.service import AutoRecovery
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.server.server import BookieServer
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.channel.channel import RemoteBookie
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.cluster import MetadataCookies, initialize_cluster
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.registration import BookieRegistration
from magnetar.bookkeeper.service_info import service_info
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import MetadataStore
from tests.unit.bookkeeper.bookie_helpers import small_config

NETWORK = AsyncioNetwork()


class RunningBookie:
    """One bookie, its server and its registration."""

    def __init__(self, cluster: BookieCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        cluster, stack = self._cluster, self._stack
        self.store = await cluster.open_session()
        stack.push_async_callback(self.store.close)
        config = small_config(cluster.path / self.name.replace(":", "-"), bookie_id=self.name, index="auto")
        self.bookie = await stack.enter_async_context(Bookie(config, cookie_store=MetadataCookies(self.store)))
        scope = await stack.enter_async_context(TaskScope(self.name))
        self.server = BookieServer(self.bookie, scope)
        stack.push_async_callback(self.server.close)
        listener = NETWORK.bind("127.0.0.1", 0)
        await self.server.serve(listener)
        self.port = listener.port
        registration = BookieRegistration(self.store, self.name, service_info("127.0.0.1", listener.port))
        await stack.enter_async_context(registration)

    async def stop(self) -> None:
        """In order: leaves the lists, then stops."""
        await self._stack.aclose()

    async def crash(self) -> None:
        """Its server is gone first, then its session. (Its files are closed, so that it can be started again here.)"""
        await self.server.close()
        await self.store.close()
        await self._stack.aclose()


class BookieCluster:
    """`async with BookieCluster(path, 4, tcp=True) as cluster:`; bookies are called bookie0:3181, bookie1:3181, ..."""

    def __init__(
        self, path: Path, size: int, *, tcp: bool, open_session: Callable[[], Awaitable[MetadataStore]] | None = None
    ) -> None:
        """`open_session`: another one of the metadata store; without it in memory."""
        self.path = path
        self.tcp = tcp
        self._size = size
        tree = MemoryTree()

        async def in_memory() -> MetadataStore:
            return MemoryMetadataStore(tree)

        self.open_session = open_session or in_memory
        self.running: dict[str, RunningBookie] = {}
        self._stack = AsyncExitStack()
        self.directory = BookieDirectory()
        self._channels: dict[str, RemoteBookie] = {}

    async def __aenter__(self) -> BookieCluster:
        self.store = await self._session()
        await initialize_cluster(self.store, random.Random(1))
        self.scope = await self._stack.enter_async_context(TaskScope("cluster"))
        self.client = self.new_client(self.store, 1)
        self.manager = LedgerManager(self.store)
        for number in range(self._size):
            await self.start(f"bookie{number}:3181")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.running):
            await self.stop(name)
        for channel in self._channels.values():
            channel.close()
        await self._stack.aclose()

    def new_client(self, store: MetadataStore, seed: int) -> BookKeeperClient:
        return BookKeeperClient(store, self.directory, SystemClock(), random.Random(seed), self.scope)

    async def start(self, name: str) -> None:
        bookie = RunningBookie(self, name)
        await bookie.start()
        self.running[name] = bookie
        if self.tcp:
            address = ("127.0.0.1", bookie.port)
            channel = RemoteBookie(address, NETWORK, SystemClock(), random.Random(7), self.scope)
            self._channels[name] = channel
            self.directory.register(name, channel)
        else:
            self.directory.register(name, bookie.bookie)

    async def stop(self, name: str) -> None:
        self.directory.unregister(name)
        await self.running.pop(name).stop()

    async def crash(self, name: str) -> None:
        """Clients find out by themselves when they are remote."""
        if not self.tcp:
            self.directory.unregister(name)
        await self.running.pop(name).crash()
        self.directory.unregister(name)

    async def _session(self) -> MetadataStore:
        store = await self.open_session()
        self._stack.push_async_callback(store.close)
        return store

    async def recovery(self, name: str, **settings: Any) -> AutoRecovery:
        values: dict[str, Any] = {
            "poll_interval_s": 0.2,
            "failed_ledger_backoff_s": 0.2,
            "auditor_second_look_s": 0.5,
            "open_ledger_rereplication_grace_period_s": 0.2,
        }
        store = await self._session()
        client = self.new_client(store, 2)
        config = AutoRecoveryConfig(**(values | settings))
        rng = random.Random(name)
        return AutoRecovery(store, client, self.directory, SystemClock(), rng, config, name)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.manager.read(ledger_id))[0]
