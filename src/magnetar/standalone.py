"""One process: metadata, bookie, broker and admin, started in order and stopped in reverse (`magnetar standalone`).

A composition and nothing else: every part is the one that a cluster runs as well.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from magnetar.admin.server import AdminServer
from magnetar.base.clock import SystemClock
from magnetar.base.errors import StorageError
from magnetar.base.executor import ThreadExecutor
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.autorecovery.local_check import LocalCopiesCheck
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.statistics import BookieStatistics
from magnetar.bookkeeper.bookie.storage.directory_lock import DirectoryLock
from magnetar.bookkeeper.bookie.storage.disk import Disk
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.cluster import MetadataCookies, initialize_cluster
from magnetar.broker.service import Broker
from magnetar.metadata import paths
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.sqlite_file import FILE_NAME
from magnetar.metadata.store import MetadataStore
from magnetar.processes.bookie_config import bookie_config
from magnetar.processes.broker_config import broker_config
from magnetar.processes.broker_serving import serve_broker
from magnetar.processes.composition import Composition, enter_alone
from magnetar.processes.configurations import StandaloneConfig
from magnetar.processes.data_backup import BOOKIE_DIR, BOOKIE_ID, BackupSocket
from magnetar.processes.directories import SpaceReserve, prepare_directory
from magnetar.processes.listeners import Listeners
from magnetar.processes.serving import serve_until_told


class Standalone(Composition):
    """`async with Standalone(config) as server:` serves until it is left. `failure` is set when a part had to stop itself."""

    def __init__(self, config: StandaloneConfig, disk: Disk | None = None) -> None:
        """`disk`: the bookie's, the operating system's files by default."""
        super().__init__()
        self.config = config
        self._disk = disk
        self._bookies = BookieDirectory()

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        clock, rng = SystemClock(), random.Random(os.urandom(16))
        listeners = Listeners(config)
        stack.push_async_callback(listeners.close)
        prepare_directory(config.data_dir)
        stack.enter_context(DirectoryLock(str(config.data_dir)))
        executor = ThreadExecutor("metadata")
        stack.callback(executor.close)
        reserve = SpaceReserve(config.data_dir, executor)
        reserve.release()
        metadata = await SqliteMetadataStore.open(config.data_dir / FILE_NAME, executor)
        stack.push_async_callback(metadata.close)
        if not await metadata.exists(paths.INSTANCE_ID_PATH):  # a backup says by it whose tree it is
            await initialize_cluster(metadata, rng)
        manager = LedgerManager(metadata)
        bookies = self._bookies
        self.bookie = Bookie(
            bookie_config(config, config.data_dir / BOOKIE_DIR, BOOKIE_ID),
            clock=clock,
            disk=self._disk,
            rng=random.Random(rng.random()),
            list_ledgers=manager.list_ids,
            ledger_exists=manager.must_keep,
            cookie_store=MetadataCookies(metadata, adopts_unmarked=True),
            on_fatal=self._bookie_failed,
            on_read_only_change=lambda read_only: self._register(bookies, not read_only),
        )
        await stack.enter_async_context(self.bookie)
        await manager.check_ids(self.bookie.known_ledger_ids())
        self._register(bookies, not self.bookie.read_only)
        await enter_alone(stack, BackupSocket(config.data_dir, self.bookie))
        scope = await stack.enter_async_context(TaskScope("ledger client"))
        scope.supervise(reserve.run, "reserve")
        client = BookKeeperClient(metadata, bookies, clock, random.Random(rng.random()), scope)
        self._watch_copies(metadata, client, scope)
        self.broker = await stack.enter_async_context(
            Broker(
                config=broker_config(config, listeners, only_broker=True),
                metadata=metadata,
                bookkeeper=client,
                clock=clock,
                rng=random.Random(rng.random()),
                admission=listeners.admission,
            )
        )
        # `failed` without a failure: the server was told over HTTP to stop
        shut_down = self.failed.set
        storage = OwnBookie(self.bookie)
        admin = await stack.enter_async_context(AdminServer(self.broker, storage, shut_down))
        await serve_broker(self.broker, admin, listeners)

    def _watch_copies(self, metadata: MetadataStore, client: BookKeeperClient, scope: TaskScope) -> None:
        """Damage is counted when a read meets it, and looked for at intervals. There is no other copy to repair it from."""

        def damaged(ledger_id: int, bookie_id: str) -> None:
            client.statistics.damaged_copies += 1

        self._bookies.on_damage = damaged
        config = self.config
        check = LocalCopiesCheck(
            metadata,
            self._bookies,
            SystemClock(),
            random.Random(),
            client.statistics,
            interval_s=config.auditor_periodic_check_interval_s,
            percentage=config.auditor_ledger_verification_percentage,
            bytes_per_s=config.auditor_verification_rate_by_bytes,
        )
        scope.supervise(check.run, "copies-check")

    def _register(self, bookies: BookieDirectory, writable: bool) -> None:
        bookies.register(BOOKIE_ID, self.bookie, writable=writable)

    def _bookie_failed(self, error: StorageError) -> None:
        """Without a bookie to write to, what is under way fails now instead of going from ledger to ledger."""
        self._register(self._bookies, False)
        self.fail(error)

    @property
    def urls(self) -> Sequence[str]:
        return self.service_url, self.web_service_url

    @property
    def service_url(self) -> str:
        return self.broker.config.service_url

    @property
    def web_service_url(self) -> str:
        return self.broker.config.web_service_url


class OwnBookie:
    """The storage that the admin side looks at."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    def problem(self) -> str | None:
        if self._bookie.failed is not None:
            return "the bookie failed and stores nothing; see the server's log"
        return "the bookie is read-only: make room on its disk" if self._bookie.read_only else None

    def bookie_statistics(self) -> BookieStatistics:
        return self._bookie.statistics()


async def run(config: StandaloneConfig) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    return await serve_until_told(Standalone(config), config.warnings())
