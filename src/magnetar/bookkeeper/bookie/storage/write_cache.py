"""Entries that are not in an entry log yet: two halves, one that takes adds and one that is being flushed.

An entry enters here before it enters the journal. So when the halves are swapped, every entry that is durable in the journal is in
the half that is flushed, or was flushed before: that is what allows the checkpoint mark to move.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Final

_FREED_AT_ONCE: Final = 2000

GAP_ENTRIES_MAX: Final = 16
"""So many ids may be missing within a run: where entries take turns among bookies (E > Qw) each of them gets some of every few, and runs of
one or two entries would cost several times as much in the entry log and in the index."""

ABSENT: Final = b""
"""In the place of an entry that is missing."""


class HeldEntries:
    """Packed entries of one ledger by id, in runs: nearly always they come in the order of their ids, and then one list holds them all,
    with `b""` where a few are missing; never at its ends.

    `next_entry_id`: the one that would prolong the last run, whose entries are `newest`: `AddPath` appends to it without a call.
    """

    __slots__ = ("_firsts", "_runs", "newest", "next_entry_id")

    def __init__(self, first_entry_id: int, entries: list[bytes]) -> None:
        """The list stays the caller's; there has to be an entry in it."""
        self.newest = entries[:]
        self.next_entry_id = first_entry_id + len(entries)
        self._firsts = [first_entry_id]
        self._runs = [self.newest]

    def put_run(self, first_entry_id: int, entries: list[bytes]) -> None:
        """The last one put for an id wins."""
        if first_entry_id == self.next_entry_id:
            self.newest += entries
            self.next_entry_id += len(entries)
        elif 0 < first_entry_id - self.next_entry_id <= GAP_ENTRIES_MAX:
            self.newest += [ABSENT] * (first_entry_id - self.next_entry_id)
            self.newest += entries
            self.next_entry_id = first_entry_id + len(entries)
        elif first_entry_id > self.next_entry_id:
            self.newest = entries[:]
            self.next_entry_id = first_entry_id + len(entries)
            self._firsts.append(first_entry_id)
            self._runs.append(self.newest)
        else:
            for entry_id, entry in enumerate(entries, first_entry_id):
                if entry:
                    self._put_late(entry_id, entry)

    def _put_late(self, entry_id: int, entry: bytes) -> None:
        if entry_id >= self.next_entry_id:
            self.put_run(entry_id, [entry])
            return
        number = bisect_right(self._firsts, entry_id)
        if number:
            index, run = entry_id - self._firsts[number - 1], self._runs[number - 1]
            if index < len(run):
                run[index] = entry
                return
            if index == len(run):  # what follows begins later, or it would have been found
                run.append(entry)
                return
        self._firsts.insert(number, entry_id)
        self._runs.insert(number, [entry])

    def get(self, entry_id: int) -> bytes | None:
        first = self._firsts[-1]
        if entry_id >= first:
            return (self.newest[entry_id - first] or None) if entry_id < self.next_entry_id else None
        number = bisect_right(self._firsts, entry_id) - 1
        if number < 0:
            return None
        index, run = entry_id - self._firsts[number], self._runs[number]
        return (run[index] or None) if index < len(run) else None

    def runs(self) -> Iterator[tuple[int, list[bytes]]]:
        """(first entry id, entries), ascending; `b""` where one is missing."""
        return zip(self._firsts, self._runs, strict=True)

    def __iter__(self) -> Iterator[int]:
        """The ids, ascending."""
        for first_entry_id, entries in self.runs():
            yield from compress(range(first_entry_id, first_entry_id + len(entries)), entries)


class CacheHalf:
    """`ledgers[ledger id]` has the packed entries. Bytes count what was put; a repeated entry id counts twice."""

    __slots__ = ("entries_count", "ledgers", "size_bytes")

    def __init__(self) -> None:
        self.ledgers: dict[int, HeldEntries] = {}
        self.size_bytes = 0
        self.entries_count = 0

    def put_run(self, ledger_id: int, first_entry_id: int, entries: list[bytes], size_bytes: int) -> None:
        """The last one put for an id wins. `size_bytes`: of all of them. `AddPath` does the same in place."""
        held = self.ledgers.get(ledger_id)
        if held is None:
            self.ledgers[ledger_id] = HeldEntries(first_entry_id, entries)
        else:
            held.put_run(first_entry_id, entries)
        self.size_bytes += size_bytes
        self.entries_count += len(entries)

    def put_scattered(self, ledger_id: int, entry_ids: Sequence[int], entries: list[bytes]) -> None:
        """Ascending, with gaps. Nothing is counted."""
        first_entry_id = entry_ids[0]
        span = entry_ids[-1] - first_entry_id + 1
        if span <= GAP_ENTRIES_MAX * len(entries):
            run = [ABSENT] * span
            for entry_id, entry in zip(entry_ids, entries, strict=True):
                run[entry_id - first_entry_id] = entry
            held = self.ledgers.get(ledger_id)
            if held is None:
                self.ledgers[ledger_id] = HeldEntries(first_entry_id, run)
            else:
                held.put_run(first_entry_id, run)
            return
        start = 0
        for number in range(1, len(entries) + 1):
            if number == len(entries) or entry_ids[number] != entry_ids[number - 1] + 1:
                some = entries[start:number]
                held = self.ledgers.get(ledger_id)
                if held is None:
                    self.ledgers[ledger_id] = HeldEntries(entry_ids[start], some)
                else:
                    held.put_run(entry_ids[start], some)
                start = number

    def runs(self) -> Iterator[tuple[int, int, list[bytes]]]:
        """(ledger id, first entry id, entries), sorted; `b""` where an entry is missing."""
        for ledger_id in sorted(self.ledgers):
            for first_entry_id, entries in self.ledgers[ledger_id].runs():
                yield ledger_id, first_entry_id, entries

    def discard(self, hand_over: Callable[[], None]) -> None:
        """Free everything, on a side thread: tens of thousands of frees would hold up the event loop."""
        freed = 0
        while self.ledgers:
            _, held = self.ledgers.popitem()
            for _, entries in held.runs():
                while entries:
                    freed += len(entries)
                    del entries[-_FREED_AT_ONCE:]
                    if freed >= _FREED_AT_ONCE:
                        freed = 0
                        hand_over()

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger's entries; their bytes keep counting until the half is empty again."""
        self.ledgers.pop(ledger_id, None)


class WriteCache:
    """`active` takes adds; `flushing` is None or the half whose content is on its way to the entry logs."""

    __slots__ = ("active", "flushing")

    def __init__(self) -> None:
        self.active = CacheHalf()
        self.flushing: CacheHalf | None = None

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The packed entry, from whichever half holds the newer one."""
        entries = self.active.ledgers.get(ledger_id)
        if entries is not None and (entry := entries.get(entry_id)) is not None:
            return entry
        flushing = self.flushing
        if flushing is not None and (entries := flushing.ledgers.get(ledger_id)) is not None:
            return entries.get(entry_id)
        return None

    def of_ledger(self, ledger_id: int) -> list[HeldEntries]:
        """What is held of a ledger, for those that look at many entries: first the half to ask first."""
        halves = (self.active, self.flushing)
        return [held for half in halves if half is not None and (held := half.ledgers.get(ledger_id)) is not None]

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id held here, -1 when there is none."""
        return max((held.next_entry_id - 1 for held in self.of_ledger(ledger_id)), default=-1)

    def swap(self) -> CacheHalf:
        """Turn the active half into the flushing one. The previous flush must have ended."""
        assert self.flushing is None, "the previous half is still being flushed"
        self.flushing = self.active
        self.active = CacheHalf()
        return self.flushing

    def drop(self, ledger_id: int) -> None:
        self.active.drop(ledger_id)
        if self.flushing is not None:
            self.flushing.drop(ledger_id)

    @property
    def entries_count(self) -> int:
        """Entries put into both halves."""
        return self.active.entries_count + (self.flushing.entries_count if self.flushing is not None else 0)

    @property
    def size_bytes(self) -> int:
        return self.active.size_bytes + (self.flushing.size_bytes if self.flushing is not None else 0)
