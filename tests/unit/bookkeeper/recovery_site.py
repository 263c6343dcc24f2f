"""Fake bookies that register and vanish, and auto-recovery over them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.base.clock import SystemClock
from magnetar.bookkeeper.autorecovery.config import AutoRecoveryConfig
from magnetar.bookkeeper.autorecovery.fragments import fragments_of
from magnetar.bookkeeper.autorecovery.service import AutoRecovery
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata import paths
from magnetar.metadata.memory import MemoryMetadataStore
from tests.support.scopes import LoopScope
from tests.unit.bookkeeper.fake_bookies import Cluster, FakeBookie
from tests.unit.bookkeeper.ledger_helpers import append_all

TIMEOUT_S = 20.0


class RecoverySite:
    """`size` registered fake bookies b0, b1, ... Sessions of auto-recoveries are their own: they can expire."""

    def __init__(self, size: int) -> None:
        self.cluster = Cluster(size)
        self.store: MemoryMetadataStore = self.cluster.metadata
        self.client = self.cluster.client
        self.manager = LedgerManager(self.store)
        self.names = [f"b{number}" for number in range(size)]

    async def register_all(self) -> None:
        for name in self.names:
            await self.store.put(paths.cookie_path(name), b"cookie")
            await self.register(name)

    async def register(self, name: str, *, read_only: bool = False) -> None:
        path = paths.read_only_bookie_path(name) if read_only else paths.available_bookie_path(name)
        await self.store.put(path, b"")
        self.cluster.directory.register(name, self.cluster.bookie(name), writable=not read_only)

    async def kill(self, name: str) -> None:
        """The bookie is gone, with its registration; what it stored is still there when it comes back."""
        self.cluster.directory.unregister(name)
        await self.store.delete(paths.available_bookie_path(name))

    async def add_bookie(self) -> str:
        name = f"b{len(self.cluster.bookies)}"
        self.cluster.bookies.append(FakeBookie())
        self.names.append(name)
        await self.register(name)
        return name

    def recovery(
        self, name: str = "worker-1", store: MemoryMetadataStore | None = None, **settings: Any
    ) -> AutoRecovery:
        """Polls quickly; waits for nothing that a test did not ask for."""
        values: dict[str, Any] = {
            "poll_interval_s": 0.05,
            "failed_ledger_backoff_s": 0.05,
            "open_ledger_rereplication_grace_period_s": 0.05,
            "read_timeout_s": 0.5,
        }
        store = store or self.session()
        rng = random.Random(name)
        client = BookKeeperClient(store, self.cluster.directory, SystemClock(), random.Random(1), LoopScope())
        config = AutoRecoveryConfig(**(values | settings))
        return AutoRecovery(store, client, self.cluster.directory, SystemClock(), rng, config, name)

    def session(self) -> MemoryMetadataStore:
        return MemoryMetadataStore(self.store.tree)

    async def write(
        self, count: int, *, ensemble: int = 3, write_quorum: int = 2, ack_quorum: int = 2, close: bool = True
    ) -> LedgerWriter:
        writer = await self.client.create_ledger(
            ensemble_size=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
        )
        await append_all(writer, [b"%05d" % number * 20 for number in range(count)])
        if close:
            await writer.close()
        return writer

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.manager.read(ledger_id))[0]

    async def missing(self, ledger_id: int) -> list[tuple[int, str]]:
        """(entry, bookie) of every copy that the metadata promises and no registered bookie has."""
        available = set(await self.store.children(paths.AVAILABLE_BOOKIES_PATH))
        found: list[tuple[int, str]] = []
        for part in fragments_of(ledger_id, await self.metadata(ledger_id)):
            found += [(-1, name) for name in part.ensemble if name not in available]
            if part.closed:
                for entry_id in range(part.first_entry_id, part.last_entry_id + 1):
                    for name in (part.ensemble[index] for index in part.holders(entry_id)):
                        if entry_id not in self.cluster.bookie(name).entries.get(ledger_id, {}):
                            found.append((entry_id, name))
        return found

    def adds(self) -> int:
        """Adds that any bookie has seen."""
        return sum(len(bookie.add_flags) for bookie in self.cluster.bookies)

    async def marked(self) -> list[str]:
        """Nodes of marked ledgers."""
        return await self._below(paths.UNDERREPLICATED_LEDGERS_PATH)

    async def locks(self) -> list[str]:
        return await self.store.children(paths.UNDERREPLICATION_LOCKS_PATH)

    async def _below(self, path: str) -> list[str]:
        found: list[str] = []
        for name in await self.store.children(path):
            found += [name] if name.startswith("urL") else await self._below(f"{path}/{name}")
        return found


async def eventually(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Until `condition` answers something true."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not await condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what}: did not come true within {TIMEOUT_S:g} s") from None
