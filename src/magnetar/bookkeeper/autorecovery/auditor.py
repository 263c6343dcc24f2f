"""The auditor: one in a cluster, elected. It finds ledgers that miss copies and marks them (BookKeeper replication/Auditor).

It looks when a bookie is lost, at intervals for bookies that nobody has registered, and at longer ones into the ledgers themselves.
While auto-recovery is disabled it does nothing and forgets nothing.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from magnetar.base.clock import Clock
from magnetar.base.errors import LedgerError, MetadataError
from magnetar.bookkeeper.autorecovery.auditor_election import auditor_election
from magnetar.bookkeeper.autorecovery.config import AutoRecoveryConfig
from magnetar.bookkeeper.autorecovery.fragments import bookies_of
from magnetar.bookkeeper.autorecovery.ledger_checker import LedgerChecker
from magnetar.bookkeeper.autorecovery.lost_bookies import LostBookies
from magnetar.bookkeeper.autorecovery.registered import read_registered
from magnetar.bookkeeper.autorecovery.statistics import AutoRecoveryStatistics
from magnetar.bookkeeper.autorecovery.underreplication import (
    CHECK_ALL_LEDGERS,
    CHECK_PLACEMENT,
    CHECK_REPLICAS,
    PeriodicCheck,
    UnderreplicationManager,
)
from magnetar.bookkeeper.autorecovery.wake import StoreWake
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.errors import AuditPausedError, LedgerMetadataError, NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore


def misplaced_segments(metadata: LedgerMetadata, bookies: BookieDirectory) -> list[int]:
    """First entry ids of the segments whose bookies the policy would not have put together; of closed ledgers only.

    An open one's writer may be about to replace a bookie.
    """
    if metadata.state is not LedgerState.CLOSED:
        return []
    return [
        segment.first_entry_id
        for segment in metadata.segments
        if not bookies.adheres(segment.ensemble, metadata.write_quorum)
    ]


_logger = logging.getLogger(__name__)

LEDGERS_AT_ONCE = 32
"""Ledgers whose metadata is read at a time."""

PROGRESS_SAVED_EVERY_S = 30.0
"""A pass of the check of all copies is repeated from here at most, when its auditor dies."""

MISPLACED_LOGGED_MAX = 100
"""Ledgers that one check of the placement names in the log; the others are counted."""

WATCHED = (
    paths.AVAILABLE_BOOKIES_PATH,
    paths.REPLICATION_DISABLED_PATH,
    paths.LOST_BOOKIE_RECOVERY_DELAY_PATH,
)
"""What changes when there may be something to audit; marks and locks are the workers'."""


class Auditor:
    """`run` it. The checks can also be called one by one; they do not need the election."""

    def __init__(
        self,
        store: MetadataStore,
        marks: UnderreplicationManager,
        manager: LedgerManager,
        checker: LedgerChecker,
        clock: Clock,
        config: AutoRecoveryConfig,
        statistics: AutoRecoveryStatistics,
        bookie_id: str,
        bookies: BookieDirectory,
        copies_checker: LedgerChecker,
    ) -> None:
        """`checker` looks quickly; `copies_checker` reads what the configuration wants to be read, at its pace."""
        self._copies_checker = copies_checker
        self._leads = False
        self._store = store
        self._marks = marks
        self._manager = manager
        self._checker = checker
        self._clock = clock
        self._config = config
        self._statistics = statistics
        self._bookie_id = bookie_id
        self._bookies = bookies
        self._term_begins = True
        self._lost: LostBookies | None = None
        self._next_bookie_audit_s = 0.0
        self._look_again = False

    async def run(self) -> None:
        """Stand for election, and audit while elected. A metadata store that fails is asked again later."""
        with StoreWake(self._store, *WATCHED) as wake:

            def changed(leads: bool) -> None:
                self._elected(leads)
                wake.wake()

            async with auditor_election(self._store, self._bookie_id, changed) as election:
                while True:
                    pause_s = self._config.poll_interval_s
                    try:
                        if election.is_leader:
                            pause_s = await self.audit()
                    except (MetadataError, LedgerError) as error:
                        self._statistics.audits_failed_total += 1
                        _logger.warning("auditor: %s; trying again", error)
                    await wake.wait(min(pause_s, self._config.poll_interval_s))

    async def audit(self) -> float:
        """Do what is due now; answers how long nothing will be, unless something changes (seconds)."""
        if not await self._marks.enabled():
            return self._config.poll_interval_s
        if self._term_begins:  # what an earlier term knew is out of date
            self._term_begins = False
            self._lost = None
            self._next_bookie_audit_s = 0.0
        lost = await self._watch_begun()
        delay_s = await self._marks.lost_bookie_recovery_delay_s()
        lost.set_delay(self._config.lost_bookie_recovery_delay_s if delay_s is None else delay_s)
        now_s = self._clock.monotonic_s()
        given_up = lost.observe((await read_registered(self._store)).available, now_s)
        self._statistics.bookies_missing = len(lost.waiting)
        if given_up:
            self._next_bookie_audit_s = now_s  # until an audit has succeeded
            self._look_again = True
            self._statistics.bookies_lost_total += len(given_up)
            _logger.warning("bookies lost: %s; their ledgers are to be copied", ", ".join(sorted(given_up)))
        if now_s >= self._next_bookie_audit_s:
            await self.audit_bookies(spare=lost.waiting)
            interval_s = self._config.auditor_periodic_bookie_check_interval_s or float("inf")
            self._next_bookie_audit_s = now_s + (self._config.auditor_second_look_s if self._look_again else interval_s)
            self._look_again = False
        await self._periodically(CHECK_REPLICAS, self._config.auditor_replicas_check_interval_s, self.check_replicas)
        await self._periodically(CHECK_PLACEMENT, self._config.auditor_placement_check_interval_s, self.check_placement)
        due_s = min(self._next_bookie_audit_s, float("inf") if lost.due_s is None else lost.due_s)
        return max(0.0, due_s - self._clock.monotonic_s())

    async def run_copies_check(self) -> None:
        """Check all copies when that is due and this auditor is elected. Beside `run`, since a pass may take days."""
        while True:
            try:
                if self._leads:
                    await self.check_copies_when_due()
            except (MetadataError, LedgerError) as error:
                self._statistics.audits_failed_total += 1
                _logger.warning("check of all copies: %s; going on later", error)
            await asyncio.sleep(self._config.poll_interval_s)

    async def check_copies_when_due(self) -> None:
        """One pass over all ledgers if the last one lies far enough back and auto-recovery is not disabled."""
        if await self._marks.enabled():
            interval_s = self._config.auditor_periodic_check_interval_s
            await self._periodically(CHECK_ALL_LEDGERS, interval_s, self.check_all_ledgers)

    async def audit_bookies(self, spare: Collection[str] = ()) -> int:
        """Mark every ledger that names a bookie which is not registered, but for those in `spare`. Answers how many."""
        self._statistics.bookie_audits_total += 1
        suspects: dict[int, set[str]] = {}
        before = (await read_registered(self._store)).available | set(spare)
        async for ledger_id, metadata in self.all_ledgers():
            absent = bookies_of(metadata) - before
            if absent:
                suspects[ledger_id] = absent
        # Reading all that took its time: who has come meanwhile is not absent.
        available = (await read_registered(self._store)).available
        count = 0
        for ledger_id, absent in suspects.items():
            if missing := absent - available:
                count += 1
                await self._mark(ledger_id, missing)
        return count

    async def check_all_ledgers(self) -> int:
        """Read every copy, or the percentage that is configured, and mark the ledgers of which one is missing or damaged.

        Answers how many. A pass that was broken off is continued where it was, by whichever auditor there is then. Raises
        AuditPausedError when this one is not to go on.
        """
        statistics = self._statistics
        progress = await self._marks.copies_check_progress()
        ids = sorted(await self._manager.list_ids())
        count = done = 0
        saved_s = self._clock.monotonic_s()
        try:
            async for ledger_id, metadata in self.all_ledgers(after=progress):
                done = bisect_right(ids, ledger_id)
                statistics.copies_check_progress_ratio = done / max(len(ids), 1)
                count += await self._check_ledger(self._copies_checker, ledger_id, metadata, lists=False)
                now_s = self._clock.monotonic_s()
                if now_s - saved_s >= PROGRESS_SAVED_EVERY_S:
                    saved_s = now_s
                    await self._marks.set_copies_check_progress(ledger_id)
                    if not await self._marks.enabled():
                        raise AuditPausedError("auto-recovery was disabled")
        finally:
            statistics.copies_check_progress_ratio = 0.0
        await self._marks.set_copies_check_progress(-1)
        statistics.all_ledgers_checks_total += 1
        return count

    async def check_replicas(self) -> int:
        """Ask every bookie which entries it holds, and mark the ledgers that miss any copy. Answers how many."""
        self._checker.ask_all_again()
        count = await self._check_ledgers(lists=True)
        self._statistics.replicas_checks_total += 1
        return count

    async def check_placement(self) -> int:
        """Count the closed ledgers that lie elsewhere than the placement policy wants. Answers how many; repairs nothing."""
        count = 0
        async for ledger_id, metadata in self.all_ledgers():
            if misplaced := misplaced_segments(metadata, self._bookies):
                count += 1
                if count <= MISPLACED_LOGGED_MAX:
                    _logger.warning(
                        "ledger %d does not adhere to the %s placement policy: segments_from=%s write_quorum=%d",
                        ledger_id,
                        self._bookies.policy.name,
                        misplaced,
                        metadata.write_quorum,
                    )
        if count:
            _logger.warning("%d ledgers do not adhere to the %s placement policy", count, self._bookies.policy.name)
        self._statistics.ledgers_not_adhering_to_placement_policy = count
        self._statistics.placement_checks_total += 1
        return count

    async def _check_ledgers(self, *, lists: bool) -> int:
        count = 0
        async for ledger_id, metadata in self.all_ledgers():
            count += await self._check_ledger(self._checker, ledger_id, metadata, lists=lists)
        return count

    async def _check_ledger(
        self, checker: LedgerChecker, ledger_id: int, metadata: LedgerMetadata, *, lists: bool
    ) -> bool:
        """Whether a copy is missing or damaged; the ledger is marked then."""
        available = (await read_registered(self._store)).available
        spare = self._lost.waiting if self._lost is not None else frozenset()
        checks = await checker.check(ledger_id, metadata, available, self._config.password, lists=lists)
        self._statistics.ledgers_checked_total += 1
        damaged: dict[str, list[int]] = {}
        for check in checks:
            for index, entries in check.damaged.items():
                damaged.setdefault(check.fragment.ensemble[index], []).extend(entries)
        for name, found in sorted(damaged.items()):
            self._statistics.copies_damaged_total += len(found)
            if await self._marks.report_damage(ledger_id, name):
                self._statistics.ledgers_marked_total += 1
                _logger.warning(
                    "damaged copies found: ledger=%d bookie=%s entries=%d first=%d",
                    ledger_id,
                    name,
                    len(found),
                    found[0],
                )
        missing = {name for check in checks for name in check.bookies(check.bad)} - spare - damaged.keys()
        if missing:
            await self._mark(ledger_id, missing)
        return bool(missing or damaged)

    async def all_ledgers(self, after: int = -1) -> AsyncIterator[tuple[int, LedgerMetadata]]:
        """Every ledger with a higher id than `after` whose metadata can be read, in order of ids."""
        ids = sorted(each for each in await self._manager.list_ids() if each > after)
        for start in range(0, len(ids), LEDGERS_AT_ONCE):
            some = ids[start : start + LEDGERS_AT_ONCE]
            for ledger_id, metadata in zip(some, await asyncio.gather(*map(self.read_metadata, some)), strict=True):
                if metadata is not None:
                    yield ledger_id, metadata

    # ---- Parts

    def _elected(self, leads: bool) -> None:
        self._leads = leads
        self._statistics.auditor_elected = leads
        self._term_begins |= leads
        _logger.info("auditor: %s", "elected" if leads else "no longer elected")

    async def _watch_begun(self) -> LostBookies:
        """Bookies that have a cookie and are not there when an auditor begins may come back in time like any other."""
        if self._lost is None:
            await self._marks.initialize_lost_bookie_recovery_delay(self._config.lost_bookie_recovery_delay_s)
            cookies = await self._store.children(paths.COOKIES_PATH)
            self._lost = LostBookies(cookies, self._config.lost_bookie_recovery_delay_s)
        return self._lost

    async def _periodically(self, check: PeriodicCheck, interval_s: float, run: Callable[[], Awaitable[int]]) -> None:
        """Run a check whose last time lies `interval_s` back; 0: never. A new cluster's first one is due after the interval.

        A last time in the future is due as well: some auditor's clock was wrong, and the check would rest until then.
        """
        if interval_s <= 0:
            return
        last_ms = await self._marks.check_time_ms(check)
        now_ms = self._clock.now_ms()
        if last_ms < 0:
            await self._marks.set_check_time_ms(check, now_ms)
        elif not last_ms <= now_ms < last_ms + interval_s * 1000:
            count = await run()
            await self._marks.set_check_time_ms(check, now_ms)
            _logger.info("check %s done: ledgers_found=%d", check.path.rpartition("/")[2], count)

    async def _mark(self, ledger_id: int, bookies: Collection[str]) -> None:
        if await self._marks.mark(ledger_id, bookies):
            self._statistics.ledgers_marked_total += 1

    async def read_metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """None when the ledger is gone, or its metadata cannot be read (which is counted and logged)."""
        try:
            metadata, _ = await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return None
        except LedgerMetadataError as error:
            self._statistics.ledgers_unreadable_metadata_total += 1
            _logger.error("ledger %d is left out: %s", ledger_id, error)
            return None
        return metadata
