"""The reading side of a cursor: where it reads next, from memory when it keeps up, else from the bookies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from magnetar.base.errors import InvalidArgumentError, MagnetarError
from magnetar.base.limits import BYTES_PER_READ_MAX
from magnetar.bookkeeper.errors import NoSuchEntryError
from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import CursorClosedError, LostLedgerError
from magnetar.managed_ledger.ports import ReadEntriesDone
from magnetar.managed_ledger.position import Position

log = logging.getLogger(__name__)


class ReadGate(Protocol):
    """What may be read of a managed ledger through a cursor, when that is not everything (topics with transactions).

    A cursor without a gate reads everything, and pays one look at an attribute for each read."""

    @property
    def stop(self) -> Position | None:
        """The first position that may not be read yet; it never goes back. None if all may be."""
        ...

    def held_back(self, after: Position) -> int:
        """Entries behind `after` of which nobody knows yet whether they will be read: no backlog."""
        ...

    def admit(self, entries: list[Entry]) -> list[Entry]:
        """The entries, all before `stop`, that may be handed out."""
        ...

    def remaining(self, position: Position, words: list[int] | None) -> list[int] | None:
        """`words`: what is left of a batch, None for all of it; less what may not be handed out now."""
        ...


Kept = Mapping[tuple[int, int], Entry]

Lost = Callable[[int, int, int], None]
"""`lost(ledger_id, first, last)`: these entries are passed over."""


def _nobody(ledger_id: int, first: int, last: int) -> None:
    """The cursor is closed."""


class CursorReader:
    """`ledger_id`/`entry_id`: what is read next. It may point past a ledger's end, and stays there until a newer ledger has entries."""

    __slots__ = ("_acks", "_closed", "_context", "_epoch", "_lost", "_request", "entry_id", "gate", "ledger_id")

    def __init__(self, context: LedgerContext, acks: AckRanges, lost: Lost) -> None:
        self._context = context
        self._acks = acks
        self._lost = lost
        self.gate: ReadGate | None = None
        self._closed = False
        self._epoch = 0
        self._request: tuple[int, int, int, int, int, int, ReadEntriesDone] | None = None
        self.ledger_id, self.entry_id = context.index.next(acks.mark_delete)

    @property
    def position(self) -> Position:
        mark_delete = self._acks.mark_delete
        if (self.ledger_id, self.entry_id) <= mark_delete:
            return self._context.index.next(mark_delete)
        return Position(self.ledger_id, self.entry_id)

    @property
    def has_more(self) -> bool:
        if self.gate is not None and not self._before_stop(self.gate):
            return False
        index = self._context.index
        if self.entry_id < index.entries_in(self.ledger_id):
            return self.position <= index.end() if self.ledger_id <= self._acks.mark_ledger else True
        return index.ledger_after(self.ledger_id) is not None and self.position <= index.end()

    def seek(self, position: Position) -> None:
        """Read from here next; the answer of a read under way is dropped."""
        self._epoch += 1
        self.ledger_id, self.entry_id = position

    def close(self) -> None:
        self._closed = True
        self._epoch += 1
        self._lost = _nobody

    def read(self, max_entries: int, max_bytes: int, done: ReadEntriesDone) -> None:
        if self._closed or self._request is not None or max_entries < 1:
            self._refuse(max_entries, done)
            return
        gate = self.gate
        if gate is not None:
            if not self._before_stop(gate):
                done(None, [])
                return
            max_entries, done = self._gated(gate, max_entries, max_bytes, done)
        ledger_id, entry_id = self.ledger_id, self.entry_id
        context, acks = self._context, self._acks
        index = context.index
        while True:
            limit = index.entries_in(ledger_id)
            entry_id = acks.next_unacknowledged(ledger_id, entry_id)
            if entry_id < limit:
                break
            following = index.ledger_after(ledger_id)
            if following is None:
                self.ledger_id, self.entry_id = (
                    ledger_id,
                    max(entry_id, self.entry_id if ledger_id == self.ledger_id else 0),
                )
                done(None, [])
                return
            ledger_id, entry_id = following, 0
        cached = context.caches.get(ledger_id)
        entry = None if cached is None else cached.entries.get(entry_id)
        if cached is None or entry is None:
            self.ledger_id, self.entry_id = ledger_id, entry_id
            last = min(entry_id + max_entries, limit) - 1
            self._request = (self._epoch, ledger_id, entry_id, last, max_entries, max_bytes, done)
            context.reader.read(ledger_id, entry_id, last, max_bytes, self._stored)
            return
        entries: list[Entry] = []
        get = cached.entries.get
        bits = acks.bits_of(ledger_id)
        left_bytes = max_bytes
        while entry is not None:
            if bits is None or entry_id not in bits:
                left_bytes -= len(entry.data)
                if left_bytes < 0 and entries:
                    break
                entries.append(entry)
                if len(entries) >= max_entries:
                    entry_id += 1
                    break
            entry_id += 1
            entry = get(entry_id)
        self.ledger_id, self.entry_id = ledger_id, entry_id
        context.reads.entries += len(entries)
        done(None, entries)

    def replay(self, positions: Sequence[Position], done: ReadEntriesDone, kept: Kept | None) -> None:
        if self._closed:
            done(CursorClosedError(f"{self._context.name}: the cursor is closed"), [])
            return
        if self.gate is not None:
            done = partial(self._replayed, self.gate, done)
        Replay(self._context, self._acks, positions, done, kept or {}).start()

    # ---- Behind a gate

    def _before_stop(self, gate: ReadGate) -> bool:
        stop = gate.stop
        return stop is None or self.position < stop

    def _gated(
        self, gate: ReadGate, max_entries: int, max_bytes: int, done: ReadEntriesDone
    ) -> tuple[int, ReadEntriesDone]:
        """No more than there is before the stop, unless acknowledged entries lie in between: `_admit` sees to those."""
        stop = gate.stop
        limit = max_entries
        if stop is not None and stop.ledger_id == self.ledger_id:
            limit = max(1, min(limit, stop.entry_id - self.entry_id))
        return limit, partial(self._admit, gate, max_entries, max_bytes, done)

    def _admit(
        self,
        gate: ReadGate,
        max_entries: int,
        max_bytes: int,
        done: ReadEntriesDone,
        error: MagnetarError | None,
        entries: list[Entry],
    ) -> None:
        if error is not None or not entries:
            done(error, entries)
            return
        stop = gate.stop
        if stop is not None and entries[-1].position >= stop:
            before = [entry for entry in entries if entry.position < stop]
            self.ledger_id, self.entry_id = entries[len(before)].position
            entries = before
        admitted = gate.admit(entries)
        if admitted or not self.has_more:
            done(None, admitted)
        else:  # all of them wait for something; what is behind them must not, and the others on this loop have their turn
            asyncio.get_running_loop().call_soon(self.read, max_entries, max_bytes, done)

    @staticmethod
    def _replayed(gate: ReadGate, done: ReadEntriesDone, error: MagnetarError | None, entries: list[Entry]) -> None:
        done(error, gate.admit(entries) if entries else entries)

    # ---- Answers of the bookies

    def _stored(self, error: MagnetarError | None, entries: list[Entry]) -> None:
        assert self._request is not None
        epoch, ledger_id, first, _last, max_entries, max_bytes, done = self._request
        self._request = None
        if epoch != self._epoch:
            done(CursorClosedError(f"{self._context.name}: the cursor is closed") if self._closed else None, [])
            return
        if error is not None:
            if self._passed_over(error, ledger_id, first):
                self.read(max_entries, max_bytes, done)
            else:
                done(error, [])
            return
        self.entry_id = first + len(entries)
        acks = self._acks
        wanted = entries
        if acks.bits_of(ledger_id) is not None or acks.contains(ledger_id, first):
            contains = acks.contains
            wanted = [entry for entry in entries if not contains(ledger_id, entry.entry_id)]
        self._context.reads.from_bookies += 1
        self._context.reads.entries += len(wanted)
        if wanted:
            done(None, wanted)
        else:
            self.read(max_entries, max_bytes, done)

    def _passed_over(self, error: MagnetarError, ledger_id: int, first: int) -> bool:
        """True if the configuration lets this cursor go on without what cannot be read."""
        context = self._context
        if ledger_id not in context.index:  # trimmed while it was read
            return True
        if not context.config.auto_skip_non_recoverable_data:
            return False
        if isinstance(error, LostLedgerError):
            first, last = (
                0,
                context.index.entries_in(ledger_id) - 1,
            )  # what was read before cannot be redelivered either
        elif isinstance(error, NoSuchEntryError):
            last = first
        else:
            return False
        context.reads.passed_over += 1
        log.error(
            "entries lost, passing over them  managed_ledger=%s ledger=%d entries=%d..%d: %s",
            context.name,
            ledger_id,
            first,
            last,
            error,
        )
        self._lost(ledger_id, first, last)
        return True

    def _refuse(self, max_entries: int, done: ReadEntriesDone) -> None:
        if self._closed:
            done(CursorClosedError(f"{self._context.name}: the cursor is closed"), [])
        elif max_entries < 1:
            done(InvalidArgumentError(f"max_entries is {max_entries}, read at least one entry"), [])
        else:
            done(InvalidArgumentError("a read of this cursor is under way; wait for its answer"), [])


class Replay:
    """One request; reads its missing runs one after the other. The caller bounds it by the number of positions."""

    __slots__ = ("_acks", "_context", "_done", "_found", "_kept", "_positions", "_run", "_runs")

    def __init__(
        self, context: LedgerContext, acks: AckRanges, positions: Sequence[Position], done: ReadEntriesDone, kept: Kept
    ) -> None:
        self._context = context
        self._acks = acks
        self._positions = positions
        self._done = done
        self._kept = kept
        self._found: dict[tuple[int, int], Entry] = {}
        self._runs: list[tuple[int, int, int]] = []
        self._run = (0, 0, -1)

    def start(self) -> None:
        index, caches, contains = self._context.index, self._context.caches, self._acks.contains
        missing: list[tuple[int, int]] = []
        kept = self._kept
        for ledger_id, entry_id in self._positions:
            if contains(ledger_id, entry_id) or not 0 <= entry_id < index.entries_in(ledger_id):
                continue
            entry = kept.get((ledger_id, entry_id))
            if entry is None and (cached := caches.get(ledger_id)) is not None:
                entry = cached.entries.get(entry_id)
            if entry is None:
                missing.append((ledger_id, entry_id))
            else:
                self._found[ledger_id, entry_id] = entry
        if missing:
            self._runs = _runs_of(missing)
            self._runs.reverse()
            self._next(None)
        else:
            self._done(None, list(self._found.values()))

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
