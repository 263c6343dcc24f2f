"""The check of all copies where there is one bookie, in this process: damage is found and said, and cannot be repaired."""

from __future__ import annotations

import asyncio
import logging
import random

from magnetar.base.clock import Clock
from magnetar.base.errors import LedgerError, MetadataError
from magnetar.bookkeeper.autorecovery.config import COPY_READ_BYTES
from magnetar.bookkeeper.autorecovery.ledger_checker import LedgerChecker
from magnetar.bookkeeper.autorecovery.replicator import ByteRate
from magnetar.bookkeeper.autorecovery.underreplication import CHECK_ALL_LEDGERS, UnderreplicationManager
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.statistics import ClientStatistics
from magnetar.bookkeeper.errors import LedgerMetadataError, NoSuchLedgerError
from magnetar.metadata.store import MetadataStore

_logger = logging.getLogger(__name__)

POLL_S = 10.0
"""Between two looks whether a pass is due."""

READ_TIMEOUT_S = 10.0

ENTRIES_NAMED_MAX = 20
"""Damaged entries of a ledger that one line of the log names; the others are counted."""


class LocalCopiesCheck:
    """`run` it as a task. A pass every `interval_s` (0: never), over `percentage` of the entries, `bytes_per_s` at most (0: no limit)."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieDirectory,
        clock: Clock,
        rng: random.Random,
        statistics: ClientStatistics,
        *,
        interval_s: float,
        percentage: float,
        bytes_per_s: int,
    ) -> None:
        self._manager = LedgerManager(store)
        self._marks = UnderreplicationManager(store, clock, "standalone")
        self._bookies = bookies
        self._clock = clock
        self._statistics = statistics
        self._interval_s = interval_s
        self._rate = ByteRate(bytes_per_s, clock)
        self._checker = LedgerChecker(bookies, rng, READ_TIMEOUT_S, percentage, self._pace)

    async def run(self) -> None:
        """Until cancelled."""
        while self._interval_s > 0:
            try:
                last_ms, now_ms = await self._marks.check_time_ms(CHECK_ALL_LEDGERS), self._clock.now_ms()
                due = last_ms >= 0 and not last_ms <= now_ms < last_ms + self._interval_s * 1000
                if due:
                    await self.check()
                if due or last_ms < 0:  # the first one comes after the interval
                    await self._marks.set_check_time_ms(CHECK_ALL_LEDGERS, now_ms)
            except (MetadataError, LedgerError) as error:
                _logger.warning("check of all copies: %s; going on later", error)
            await asyncio.sleep(min(POLL_S, self._interval_s))

    async def check(self) -> int:
        """One pass, from where an earlier one was broken off; answers how many ledgers have a damaged or missing copy."""
        count = 0
        after = await self._marks.copies_check_progress()
        saved_s = self._clock.monotonic_s()
        for ledger_id in sorted(await self._manager.list_ids()):
            if ledger_id > after:
                count += await self._check(ledger_id)
                if self._clock.monotonic_s() - saved_s >= POLL_S:
                    saved_s = self._clock.monotonic_s()
                    await self._marks.set_copies_check_progress(ledger_id)
        await self._marks.set_copies_check_progress(-1)
        _logger.info("all copies were checked: ledgers_found=%d", count)
        return count

    async def _check(self, ledger_id: int) -> bool:
        try:
            metadata, _ = await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return False
        except LedgerMetadataError as error:
            _logger.error("ledger %d is left out of the check of all copies: %s", ledger_id, error)
            return False
        checks = await self._checker.check(ledger_id, metadata, self._bookies.registered())
        damaged = sorted({entry for check in checks for entries in check.damaged.values() for entry in entries})
        missing = any(index not in check.damaged for check in checks for index in check.bad)
        self._statistics.copies_found_damaged += len(damaged)
        if damaged:
            _logger.error(
                "damaged entries, of which there is no other copy: ledger=%d count=%d entries=%s%s; restore a backup to get them back",
                ledger_id,
                len(damaged),
                ",".join(map(str, damaged[:ENTRIES_NAMED_MAX])),
                "..." if len(damaged) > ENTRIES_NAMED_MAX else "",
            )
        if missing:
            _logger.error("missing entries, of which there is no other copy: ledger=%d", ledger_id)
        return bool(damaged) or missing

    async def _pace(self, entries: int, size_bytes: int) -> None:
        self._statistics.copies_checked += entries
        await self._rate.take(size_bytes + entries * COPY_READ_BYTES)
