"""What readers, and bookies at their start, find out about damaged copies becomes marks, so that a replication worker repairs them at once.

A report is a hint: the worker reads the copies itself before it writes anything.
"""

from __future__ import annotations

import asyncio
import logging

from magnetar.base.clock import Clock
from magnetar.base.errors import LedgerError, MetadataError
from magnetar.base.limits import DAMAGE_REPORTS_WAITING_MAX
from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicationManager
from magnetar.bookkeeper.client.statistics import ClientStatistics

_logger = logging.getLogger(__name__)

SILENT_S = 60.0
"""A bookie's copies of a ledger are reported once in this time: every further read of them finds the same until they are repaired."""

PAUSE_S = 0.1
"""Between two reports, so that a bookie with many damaged files does not make readers flood the metadata store."""

RETRY_S = 5.0
"""After the metadata store has failed."""


class DamageReports:
    """`note` is the hook of a `BookieDirectory`; `run` as a task writes what it heard."""

    def __init__(self, marks: UnderreplicationManager, clock: Clock, statistics: ClientStatistics) -> None:
        self._marks = marks
        self._clock = clock
        self._waiting: dict[tuple[int, str], None] = {}
        self._reported_s: dict[tuple[int, str], float] = {}
        self._wake = asyncio.Event()
        self._statistics = statistics

    def note(self, ledger_id: int, bookie_id: str) -> None:
        """Plain and quick: called from the path of a read."""
        self._statistics.damaged_copies += 1
        key = ledger_id, bookie_id
        if key in self._waiting or self._clock.monotonic_s() - self._reported_s.get(key, -SILENT_S) < SILENT_S:
            return
        if len(self._waiting) >= DAMAGE_REPORTS_WAITING_MAX:
            self._statistics.damage_reports_dropped += 1
            return
        self._waiting[key] = None
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                key = next(iter(self._waiting))
                try:
                    await self._report(*key)
                except (MetadataError, LedgerError) as error:
                    _logger.warning("a damaged copy could not be reported, trying again: %s", error)
                    await asyncio.sleep(RETRY_S)
                    continue
                del self._waiting[key]
                await asyncio.sleep(PAUSE_S)

    async def _report(self, ledger_id: int, bookie_id: str) -> None:
        now_s = self._clock.monotonic_s()
        if len(self._reported_s) >= DAMAGE_REPORTS_WAITING_MAX:
            self._reported_s = {key: at_s for key, at_s in self._reported_s.items() if now_s - at_s < SILENT_S}
        if await self._marks.report_damage(ledger_id, bookie_id):
            self._statistics.damage_reports += 1
            _logger.warning(
                "a copy is damaged, or may be: ledger=%d bookie=%s; it is marked for repair", ledger_id, bookie_id
            )
        self._reported_s[ledger_id, bookie_id] = now_s
