"""The ledger that is being written: runs of entries under way, completed strictly in order. One object per ledger handle."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from magnetar.base.errors import MagnetarError
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import LedgerCache
from magnetar.managed_ledger.ledger_index import LedgerSummary
from magnetar.managed_ledger.ports import RunDone, WritableLedger

DRAIN_TIMEOUT_S = 120.0
"""Appends that get no answer for so long while their ledger is being ended are given up: they go to the next ledger, or fail."""

PendingAppend = tuple[list[bytes], int, RunDone]
"""Entries, their bytes, and who is told; a run that is answered in pieces becomes shorter."""


class AppenderOwner(Protocol):
    """The managed ledger, as its appender sees it."""

    pending_add_bytes: int
    caching: bool
    wake_scheduled: bool

    def schedule_wake(self) -> None: ...
    def append_failed(self, appender: Appender, error: MagnetarError) -> None: ...


class Appender:
    """`created_s` (monotonic) and `patience` (1.0 and a little) tell the ledger's age. `pushed` and `pushed_bytes` count what was
    handed to the handle, `summary` what is confirmed. `seen_*` is for whoever watches that completions arrive.

    After a failure or `retire` no completion of the handle has any effect: its entries belong to the next appender.
    """

    __slots__ = (
        "_drained",
        "_owner",
        "cache",
        "created_s",
        "handle",
        "patience",
        "pending",
        "pushed",
        "pushed_bytes",
        "retired",
        "seen_entries",
        "seen_s",
        "summary",
    )

    def __init__(
        self,
        owner: AppenderOwner,
        handle: WritableLedger,
        summary: LedgerSummary,
        cache: LedgerCache,
        created_s: float,
        patience: float = 1.0,
    ) -> None:
        self._owner = owner
        self.handle = handle
        self.summary = summary
        self.cache = cache
        self.created_s = created_s
        self.patience = patience
        self.seen_entries = 0
        self.seen_s = created_s
        self.pending: deque[PendingAppend] = deque()
        self.pushed = 0
        self.pushed_bytes = 0
        self.retired = False
        self._drained: asyncio.Event | None = None

    def append(self, run: list[bytes], size_bytes: int, done: RunDone) -> None:
        """Hand entries of so many bytes to the ledger."""
        self.pending.append((run, size_bytes, done))
        self.pushed += len(run)
        self.pushed_bytes += size_bytes
        try:
            self.handle.append_run(run, self.completed)
        except MagnetarError as error:  # the handle is closed: as if the entries had failed
            self.completed(error, len(run))

    def completed(self, error: MagnetarError | None, count: int) -> None:
        """The handle's answer to the oldest pending entries, which are of one run."""
        if self.retired:
            return
        if error is not None:
            self.retire()
            self._owner.append_failed(self, error)
            return
        run, size_bytes, done = self.pending.popleft()
        if count < len(run):
            rest = run[count:]
            run = run[:count]
            left_bytes = sum(map(len, rest))
            self.pending.appendleft((rest, left_bytes, done))
            size_bytes -= left_bytes
        summary = self.summary
        owner = self._owner
        entry_id = summary.entries
        ledger_id = summary.ledger_id
        summary.entries = entry_id + count
        summary.size_bytes += size_bytes
        owner.pending_add_bytes -= size_bytes
        if owner.caching:
            insert = self.cache.insert
            for cached_id, data in enumerate(run, entry_id):
                insert(Entry(ledger_id, cached_id, data))
        if not owner.wake_scheduled:
            owner.schedule_wake()
        if self._drained is not None and not self.pending:
            self._drained.set()
        done(None, ledger_id, entry_id, count)

    def retire(self) -> None:
        """Ignore the handle's answers from now on."""
        self.retired = True
        if self._drained is not None:
            self._drained.set()

    async def drained(self) -> None:
        """Wait until nothing is pending, the appender was retired, or no answer came in time. Appending must have ended."""
        if self.pending and not self.retired:
            self._drained = asyncio.Event()
            try:
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    await self._drained.wait()
            except TimeoutError:
                self.retire()

    def settle(self, last_add_confirmed: int) -> None:
        """Recovery found entries up to `last_add_confirmed`: the pending ones among them are stored after all."""
        self.retired = False
        while self.pending and self.summary.entries <= last_add_confirmed:
            self.completed(None, min(len(self.pending[0][0]), last_add_confirmed + 1 - self.summary.entries))
        self.retired = True
