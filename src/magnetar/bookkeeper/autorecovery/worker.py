"""The replication worker: takes marked ledgers one after the other and repairs them (BookKeeper replication/ReplicationWorker)."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from functools import partial

from magnetar.base.clock import Clock
from magnetar.base.errors import LedgerError, MetadataError
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.bookkeeper.autorecovery.backoff import Backoff
from magnetar.bookkeeper.autorecovery.config import AutoRecoveryConfig
from magnetar.bookkeeper.autorecovery.registered import read_registered
from magnetar.bookkeeper.autorecovery.repair import LedgerRepairer, Outcome, Repair
from magnetar.bookkeeper.autorecovery.statistics import AutoRecoveryStatistics
from magnetar.bookkeeper.autorecovery.underreplication import LedgerLock, UnderreplicationManager
from magnetar.bookkeeper.autorecovery.wake import StoreWake
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore

_logger = logging.getLogger(__name__)

DEFERRED_MAX = 100
"""Open ledgers whose grace period runs at a time; further ones stay marked until there is room."""


WATCHED = (paths.UNDERREPLICATED_LEDGERS_PATH, paths.REPLICATION_DISABLED_PATH, paths.AVAILABLE_BOOKIES_PATH)
"""What changes when there may be something to repair; what others lock and unlock is looked at with the next poll."""


class ReplicationWorker:
    """`run` it in `scope`, which also holds the grace periods of open ledgers. All locks are given back when the scope ends."""

    def __init__(
        self,
        store: MetadataStore,
        marks: UnderreplicationManager,
        repairer: LedgerRepairer,
        client: BookKeeperClient,
        clock: Clock,
        rng: random.Random,
        config: AutoRecoveryConfig,
        statistics: AutoRecoveryStatistics,
        scope: TaskScope,
    ) -> None:
        self._store = store
        self._marks = marks
        self._repairer = repairer
        self._client = client
        self._clock = clock
        self._rng = rng
        self._config = config
        self._statistics = statistics
        self._scope = scope
        self._backoff = Backoff(config.failed_ledger_backoff_s, config.failed_ledger_backoff_max_s)
        self._deferred: set[int] = set()
        self._registered: frozenset[str] = frozenset()

    def unrepairable(self) -> dict[int, str]:
        """Ledgers that could not be repaired so far, and why."""
        return self._backoff.reasons()

    async def run(self) -> None:
        with StoreWake(self._store, *WATCHED) as wake:
            while True:
                try:
                    lock = await self._next()
                except MetadataError as error:
                    _logger.warning("replication worker: the metadata store failed, trying again: %s", error)
                    await wake.wait(self._config.poll_interval_s)
                    continue
                if lock is None:
                    await wake.wait(self._pause_s())
                else:
                    await self._work(lock)

    async def _next(self) -> LedgerLock | None:
        if len(self._deferred) >= DEFERRED_MAX or not await self._marks.enabled():
            return None
        registered = (await read_registered(self._store)).available
        now_s = self._clock.monotonic_s()
        if registered != self._registered:
            self._registered = registered
            self._backoff.retry_all(now_s)
        return await self._marks.acquire(self._rng, self._backoff.waiting(now_s) | self._deferred)

    def _pause_s(self) -> float:
        now_s = self._clock.monotonic_s()
        next_s = self._backoff.next_s(now_s)
        longest_s = self._config.poll_interval_s
        return longest_s if next_s is None else max(0.0, min(longest_s, next_s - now_s))

    async def _work(self, lock: LedgerLock) -> None:
        keep = False
        try:
            repair = await self._attempt(lock)
            keep = repair.outcome is Outcome.OPEN
            if keep:
                self._defer(lock)
            else:
                await self._settle(lock, repair)
        finally:
            if not keep:
                await self._release(lock)

    async def _attempt(self, lock: LedgerLock) -> Repair:
        try:
            return await self._repair(lock)
        except (LedgerError, MetadataError) as error:
            return Repair(Outcome.FAILED, str(error))

    async def _repair(self, lock: LedgerLock) -> Repair:
        """Raises LedgerError, MetadataError."""
        note = await self._marks.damaged(lock.ledger_id)
        suspects = () if note is None else note.bookies
        repair = await self._repairer.repair(lock.ledger_id, partial(self._marks.holds, lock), suspects)
        if note is not None and repair.outcome is Outcome.SOUND and not await self._marks.damage_repaired(note):
            return Repair(Outcome.FAILED, f"ledger {lock.ledger_id}: more damage was reported meanwhile")
        return repair

    async def _settle(self, lock: LedgerLock, repair: Repair) -> None:
        """Note how the repair went: the mark goes, or the ledger waits."""
        statistics, ledger_id = self._statistics, lock.ledger_id
        if repair.outcome is Outcome.SOUND:
            try:
                if await self._marks.mark_replicated(lock):
                    statistics.ledgers_repaired_total += 1
                if (note := await self._marks.damaged(ledger_id)) is not None:  # reported while the mark was going
                    await self._marks.mark(ledger_id, note.bookies)
                self._backoff.repaired(ledger_id)
            except MetadataError as error:
                repair = Repair(Outcome.FAILED, str(error))
        if repair.outcome is not Outcome.SOUND:
            statistics.ledgers_failed_total += 1
            if self._backoff.failed(ledger_id, self._clock.monotonic_s(), repair.reason):
                _logger.warning("ledger %d stays short of copies: %s", ledger_id, repair.reason)
        statistics.ledgers_waiting = len(self._backoff)

    async def _release(self, lock: LedgerLock) -> None:
        with suppress(MetadataError):  # the lock goes with the session, or before the next one is taken
            await self._marks.release(lock)

    # ---- Ledgers that are being written

    def _defer(self, lock: LedgerLock) -> None:
        """Give the writer time to replace the bookie itself; the lock is kept."""
        self._deferred.add(lock.ledger_id)
        self._statistics.ledgers_deferred = len(self._deferred)
        self._scope.spawn(self._after_grace(lock), f"ledger-{lock.ledger_id}", REPORTED)

    async def _after_grace(self, lock: LedgerLock) -> None:
        ledger_id = lock.ledger_id
        try:
            await asyncio.sleep(self._config.open_ledger_rereplication_grace_period_s)
            await self._settle(lock, await self._take_over(lock))
        finally:
            self._deferred.discard(ledger_id)
            self._statistics.ledgers_deferred = len(self._deferred)
            await self._release(lock)

    async def _take_over(self, lock: LedgerLock) -> Repair:
        """Nobody has replaced the bookie: fence the writer, close the ledger, and repair it like any other."""
        ledger_id = lock.ledger_id
        try:
            if not await self._marks.holds(lock):
                return Repair(Outcome.FAILED, f"ledger {ledger_id}: the lock was lost with the session")
            if await self._repairer.open_members_missing(ledger_id):
                reader = await self._client.open_ledger(
                    ledger_id, recover=True, password=await self._password(ledger_id)
                )
                await reader.close()
                self._statistics.ledgers_taken_over_total += 1
                _logger.info("ledger %d taken over and closed: its writer did not replace a lost bookie", ledger_id)
            repair = await self._repair(lock)
        except (LedgerError, MetadataError) as error:
            return Repair(Outcome.FAILED, str(error))
        if repair.outcome is Outcome.OPEN:
            return Repair(Outcome.FAILED, f"ledger {ledger_id}: another bookie of its writer was lost meanwhile")
        return repair

    async def _password(self, ledger_id: int) -> bytes:
        metadata = await self._client.read_metadata(ledger_id)
        return self._config.password if metadata.password is None else metadata.password
