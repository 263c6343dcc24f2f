"""Position arithmetic over a managed ledger's list of ledgers. Pure.

Ledgers ascend by id; only the last one grows. Positions of ledgers that are not (or no longer) in the list are legal
everywhere: they order by ledger id and count for nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from magnetar.managed_ledger.position import EARLIEST, Position


class LedgerSummary:
    """What is known of one ledger. `timestamp_ms` is when it was closed, 0 while it is open. `extra` holds the stored fields
    nothing here reads (offloading, properties), so that they survive a rewrite."""

    __slots__ = ("entries", "extra", "ledger_id", "size_bytes", "timestamp_ms")

    def __init__(
        self, ledger_id: int, entries: int = 0, size_bytes: int = 0, timestamp_ms: int = 0, extra: bytes = b""
    ) -> None:
        self.ledger_id = ledger_id
        self.entries = entries
        self.size_bytes = size_bytes
        self.timestamp_ms = timestamp_ms
        self.extra = extra

    def __repr__(self) -> str:
        return f"LedgerSummary({self.ledger_id}, entries={self.entries}, size={self.size_bytes})"


class LedgerIndex:
    """The ledgers in order. Whoever appends raises the last summary's `entries` in place, which needs no call here."""

    __slots__ = ("_by_id", "_ids", "_starts")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._by_id: dict[int, LedgerSummary] = {}
        self._starts: list[int] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[LedgerSummary]:
        for ledger_id in self._ids:
            yield self._by_id[ledger_id]

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._by_id

    # ---- Changes

    def add(self, summary: LedgerSummary) -> None:
        """Append a ledger; its id must be above all others."""
        assert not self._ids or summary.ledger_id > self._ids[-1], f"ledger {summary.ledger_id} is not the newest"
        self._ids.append(summary.ledger_id)
        self._by_id[summary.ledger_id] = summary
        self._starts = None

    def remove(self, ledger_id: int) -> None:
        """Drop a ledger; an unknown one is ignored."""
        if self._by_id.pop(ledger_id, None) is not None:
            self._ids.remove(ledger_id)
            self._starts = None

    def copy(self) -> LedgerIndex:
        """The list as it is now, for work that takes several turns."""
        other = LedgerIndex()
        for held in self:
            other.add(LedgerSummary(held.ledger_id, held.entries, held.size_bytes, held.timestamp_ms, held.extra))
        return other

    @property
    def ledger_ids(self) -> list[int]:
        return list(self._ids)

    # ---- Ledgers

    def get(self, ledger_id: int) -> LedgerSummary | None:
        return self._by_id.get(ledger_id)

    @property
    def last(self) -> LedgerSummary | None:
        return self._by_id[self._ids[-1]] if self._ids else None

    def entries_in(self, ledger_id: int) -> int:
        """Entries of a ledger; 0 when it is unknown."""
        summary = self._by_id.get(ledger_id)
        return 0 if summary is None else summary.entries

    def ledger_after(self, ledger_id: int) -> int | None:
        """The next ledger with entries."""
        for place in range(bisect_right(self._ids, ledger_id), len(self._ids)):
            if self._by_id[self._ids[place]].entries:
                return self._ids[place]
        return None

    def ledger_before(self, ledger_id: int) -> int | None:
        """The previous ledger with entries."""
        for place in range(bisect_left(self._ids, ledger_id) - 1, -1, -1):
            if self._by_id[self._ids[place]].entries:
                return self._ids[place]
        return None

    # ---- Positions

    def first(self) -> Position:
        """The position of the oldest entry, or of the first one to come; `Position(0, 0)` without any ledger."""
        return Position(self._ids[0], 0) if self._ids else Position(0, 0)

    def before_first(self) -> Position:
        """The mark-delete position of somebody who has consumed nothing."""
        return Position(self._ids[0], -1) if self._ids else EARLIEST

    def end(self) -> Position:
        """The newest entry; when there is none, the place before the newest ledger's first."""
        for ledger_id in reversed(self._ids):
            entries = self._by_id[ledger_id].entries
            if entries:
                return Position(ledger_id, entries - 1)
        return Position(self._ids[-1], -1) if self._ids else EARLIEST

    def next(self, position: Position) -> Position:
        """The position of the entry after `position`, written or not. Without a later ledger: the same ledger's next id."""
        ledger_id, entry_id = position
        if entry_id + 1 < self.entries_in(ledger_id):
            return Position(ledger_id, entry_id + 1)
        place = bisect_right(self._ids, ledger_id)
        while place < len(self._ids):
            following = self._ids[place]
            if self._by_id[following].entries or place == len(self._ids) - 1:
                return Position(following, 0)
            place += 1
        return Position(ledger_id, entry_id + 1)

    def previous(self, position: Position) -> Position:
        """The entry before `position`: the mark-delete that makes `position` the next one to read."""
        ledger_id, entry_id = position
        entries = self.entries_in(ledger_id)
        if entry_id > 0 and entries:
            return Position(ledger_id, min(entry_id, entries) - 1)
        earlier = self.ledger_before(ledger_id)
        if earlier is None:
            return Position(ledger_id, -1) if ledger_id in self._by_id else self.before_first()
        return Position(earlier, self._by_id[earlier].entries - 1)

    def rank(self, position: Position) -> int:
        """The number of entries at or before `position`."""
        place = bisect_right(self._ids, position[0]) - 1
        if place < 0:
            return 0
        ledger_id = self._ids[place]
        entries = self._by_id[ledger_id].entries
        held = min(max(position[1] + 1, 0), entries) if ledger_id == position[0] else entries
        return self._start_ranks()[place] + held

    def at_rank(self, rank: int) -> Position:
        """The entry with `rank` others before it; 0 <= rank < total."""
        starts = self._start_ranks()
        place = bisect_right(starts, rank) - 1
        position = Position(self._ids[place], rank - starts[place])
        assert 0 <= position.entry_id < self._by_id[position.ledger_id].entries, f"no entry has rank {rank}"
        return position

    def entries_between(self, after: Position, upto: Position) -> int:
        """Entries in (after, upto]; 0 when `upto` is not after `after`."""
        if after[0] == upto[0] and upto[0] in self._by_id:  # both in one ledger, the usual case
            entries = self._by_id[upto[0]].entries
            return max(0, min(upto[1], entries - 1) - max(after[1], -1))
        return max(0, self.rank(upto) - self.rank(after))

    @property
    def total_entries(self) -> int:
        last = self.last
        return 0 if last is None else self._start_ranks()[-1] + last.entries

    def _start_ranks(self) -> list[int]:
        """Entries before each ledger. The last ledger's growth does not change them."""
        if self._starts is None:
            starts: list[int] = []
            total = 0
            for ledger_id in self._ids:
                starts.append(total)
                total += self._by_id[ledger_id].entries
            self._starts = starts
        return self._starts

    def forget_ranks(self) -> None:
        """Call after changing the `entries` of a ledger that is not the last."""
        self._starts = None

    def validate(self) -> None:
        assert self._ids == sorted(self._by_id)
        assert all(summary.entries >= 0 for summary in self)


def size_after(index: LedgerIndex, position: Position) -> int:
    """Bytes of the entries behind `position`."""
    total = 0
    for ledger in index:
        if ledger.ledger_id > position.ledger_id:
            total += ledger.size_bytes
        elif ledger.ledger_id == position.ledger_id and ledger.entries:
            left = max(0, ledger.entries - 1 - position.entry_id)
            total += ledger.size_bytes * left // ledger.entries
    return total


def position_after_bytes(index: LedgerIndex, position: Position, size_bytes: int) -> Position:
    """The position reached from `position` when at least `size_bytes` are passed over, or the last entry."""
    reached = position
    left = size_bytes
    for ledger in index:
        if ledger.ledger_id < position.ledger_id or not ledger.entries:
            continue
        first = position.entry_id + 1 if ledger.ledger_id == position.ledger_id else 0
        entries = ledger.entries - first
        if entries <= 0 or left <= 0:
            continue
        entry_bytes = max(1, ledger.size_bytes // ledger.entries)
        taken = min(entries, -(-left // entry_bytes))
        reached = Position(ledger.ledger_id, first + taken - 1)
        left -= taken * entry_bytes
    return reached
