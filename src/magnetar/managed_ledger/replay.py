"""Reading given positions of a managed ledger: runs of neighbours together, the answer in the order asked."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import BYTES_PER_READ_MAX
from magnetar.bookkeeper.errors import NoSuchEntryError
from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import LostLedgerError
from magnetar.managed_ledger.ports import ReadEntriesDone
from magnetar.managed_ledger.position import Position


class Replay:
    """One request; reads its missing runs one after the other. The caller bounds it by the number of positions."""

    __slots__ = ("_acks", "_context", "_done", "_found", "_positions", "_run", "_runs")

    def __init__(
        self, context: LedgerContext, acks: AckRanges, positions: Sequence[Position], done: ReadEntriesDone
    ) -> None:
        self._context = context
        self._acks = acks
        self._positions = positions
        self._done = done
        self._found: dict[tuple[int, int], Entry] = {}
        self._runs: list[tuple[int, int, int]] = []
        self._run = (0, 0, -1)

    def start(self) -> None:
        index, caches, contains = self._context.index, self._context.caches, self._acks.contains
        missing: list[tuple[int, int]] = []
        for ledger_id, entry_id in self._positions:
            if contains(ledger_id, entry_id) or not 0 <= entry_id < index.entries_in(ledger_id):
                continue
            cached = caches.get(ledger_id)
            entry = None if cached is None else cached.entries.get(entry_id)
            if entry is None:
                missing.append((ledger_id, entry_id))
            else:
                self._found[ledger_id, entry_id] = entry
        if missing:
            self._runs = _runs_of(missing)
            self._runs.reverse()
            self._next(None)
        else:
            self._finish()

    def _next(self, error: MagnetarError | None) -> None:
        if error is not None and not self._is_gone(error):
            self._done(error, [])
            return
        if not self._runs:
            self._finish()
            return
        self._run = self._runs.pop()
        ledger_id, first, last = self._run
        self._context.reader.read(ledger_id, first, last, BYTES_PER_READ_MAX, self._stored)

    def _stored(self, error: MagnetarError | None, entries: list[Entry]) -> None:
        for entry in entries:
            self._found[entry.ledger_id, entry.entry_id] = entry
        ledger_id, first, last = self._run
        if error is None and first + len(entries) <= last:
            self._runs.append((ledger_id, first + len(entries), last))
        self._next(error)

    def _is_gone(self, error: MagnetarError) -> bool:
        """The entries were trimmed meanwhile, or are lost and may be passed over."""
        if self._run[0] not in self._context.index:
            return True
        lost = isinstance(error, LostLedgerError | NoSuchEntryError)
        return lost and self._context.config.auto_skip_non_recoverable_data

    def _finish(self) -> None:
        found, contains = self._found, self._acks.contains
        wanted = [found[position] for position in self._positions if position in found]
        self._done(None, [entry for entry in wanted if not contains(entry.ledger_id, entry.entry_id)])


def _runs_of(positions: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Ascending, without duplicates: (ledger, first, last)."""
    runs: list[tuple[int, int, int]] = []
    for ledger_id, entry_id in sorted(set(positions)):
        if runs and runs[-1][0] == ledger_id and runs[-1][2] == entry_id - 1:
            runs[-1] = (ledger_id, runs[-1][1], entry_id)
        else:
            runs.append((ledger_id, entry_id, entry_id))
    return runs
