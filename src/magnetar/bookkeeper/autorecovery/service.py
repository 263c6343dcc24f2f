"""Auto-recovery as a part: an auditor and a replication worker, in a process of their own or inside a bookie's."""

from __future__ import annotations

import random
from collections.abc import Collection
from types import TracebackType

from magnetar.base.clock import Clock
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.autorecovery.auditor import Auditor
from magnetar.bookkeeper.autorecovery.config import COPY_READ_BYTES, AutoRecoveryConfig
from magnetar.bookkeeper.autorecovery.ledger_checker import LedgerChecker
from magnetar.bookkeeper.autorecovery.registered import Registered, read_registered
from magnetar.bookkeeper.autorecovery.repair import ChooseReplacement, LedgerRepairer, choose_by_placement
from magnetar.bookkeeper.autorecovery.replicator import ByteRate, FragmentReplicator
from magnetar.bookkeeper.autorecovery.statistics import AutoRecoveryStatistics
from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicationManager
from magnetar.bookkeeper.autorecovery.worker import ReplicationWorker
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.metadata.store import MetadataStore


class CopiesPace:
    """The `Pace` of the check of all copies: counts what it reads and spreads it out."""

    def __init__(self, rate: ByteRate, statistics: AutoRecoveryStatistics) -> None:
        self._rate = rate
        self._statistics = statistics

    async def __call__(self, entries: int, size_bytes: int) -> None:
        self._statistics.copies_read_total += entries
        self._statistics.copies_read_bytes_total += size_bytes
        await self._rate.take(size_bytes + entries * COPY_READ_BYTES)


class AutoRecovery:
    """`async with AutoRecovery(store, client, bookies, clock, rng, config, bookie_id) as recovery:`.

    `bookies` has a channel to every registered bookie, kept so by whoever composes this; `bookie_id` names the process in votes and
    locks (a bookie's own id, or any name that no other auto-recovery of the cluster has). `choose` picks the bookie that takes over
    from a lost one; `retired` bookies count as gone although they may be registered. Raises UnderreplicationFormatError when entered
    on a foreign tree.
    """

    def __init__(
        self,
        store: MetadataStore,
        client: BookKeeperClient,
        bookies: BookieDirectory,
        clock: Clock,
        rng: random.Random,
        config: AutoRecoveryConfig,
        bookie_id: str,
        *,
        choose: ChooseReplacement | None = None,
        retired: Collection[str] = (),
    ) -> None:
        self._retired = frozenset(retired)
        self._config = config
        self._store = store
        self._scope = TaskScope("autorecovery")
        self.statistics = AutoRecoveryStatistics()
        self.marks = UnderreplicationManager(store, clock, bookie_id)
        manager = LedgerManager(store)
        checker = LedgerChecker(bookies, rng, config.read_timeout_s)
        copies_checker = LedgerChecker(
            bookies,
            rng,
            config.read_timeout_s,
            config.auditor_ledger_verification_percentage,
            CopiesPace(ByteRate(config.auditor_verification_rate_by_bytes, clock), self.statistics),
        )
        self.auditor = Auditor(
            store,
            self.marks,
            manager,
            checker,
            clock,
            config,
            self.statistics,
            bookie_id,
            bookies,
            copies_checker,
        )
        self.repairer = LedgerRepairer(
            manager,
            checker,
            FragmentReplicator(
                bookies,
                ByteRate(config.replication_rate_by_bytes, clock),
                self.statistics,
                batch_size=config.rereplication_entry_batch_size,
                timeout_s=config.read_timeout_s,
            ),
            self._registered,
            choose or choose_by_placement(bookies, rng),
            self.statistics,
            config.password,
        )
        self.worker = ReplicationWorker(
            store, self.marks, self.repairer, client, clock, rng, config, self.statistics, self._scope
        )

    async def __aenter__(self) -> AutoRecovery:
        await self.marks.prepare()
        await self._scope.__aenter__()
        if self._config.auditor_enabled:
            self._scope.supervise(self.auditor.run, "auditor")
            self._scope.supervise(self.auditor.run_copies_check, "copies-check")
        if self._config.replication_worker_enabled:
            self._scope.supervise(self.worker.run, "worker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Without the body's exception: a task group would wrap it, and callers could not catch it by its class.
        await self._scope.__aexit__(None, None, None)

    async def _registered(self) -> Registered:
        found = await read_registered(self._store)
        return Registered(found.writable - self._retired, found.available - self._retired)
