"""Entries that are nobody's backlog, because no consumer is ever given them: which they are, by ledger. Pure.

Only what was added is known. Two bytes would do for an entry; it takes eight.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort

from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.position import Position


class HiddenEntries:
    """Filled in the order of the log, or in any other."""

    __slots__ = ("_by_ledger",)

    def __init__(self) -> None:
        self._by_ledger: dict[int, array[int]] = {}

    def __contains__(self, position: Position) -> bool:
        ids = self._by_ledger.get(position[0])
        if ids is None:
            return False
        place = bisect_left(ids, position[1])
        return place < len(ids) and ids[place] == position[1]

    def __len__(self) -> int:
        return sum(len(ids) for ids in self._by_ledger.values())

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Adding twice is adding once."""
        ids = self._by_ledger.get(ledger_id)
        if ids is None:
            ids = self._by_ledger[ledger_id] = array("q")
        if not ids or entry_id > ids[-1]:
            ids.append(entry_id)
        elif Position(ledger_id, entry_id) not in self:
            insort(ids, entry_id)

    def forget_before(self, ledger_id: int) -> None:
        """Forget hidden entries of ledgers that are gone."""
        for held in [held for held in self._by_ledger if held < ledger_id]:
            del self._by_ledger[held]

    def unacknowledged(self, acks: AckRanges) -> int:
        """The number of hidden entries that a cursor with these acknowledgements has not passed."""
        mark_ledger, mark_entry = acks.mark_ledger, acks.mark_entry
        total = 0
        for ledger_id, ids in self._by_ledger.items():
            if ledger_id < mark_ledger:
                continue
            start = bisect_right(ids, mark_entry) if ledger_id == mark_ledger else 0
            bits = acks.bits_of(ledger_id)
            total += len(ids) - start
            if bits is not None:
                total -= sum(ids[place] in bits for place in range(start, len(ids)))
        return total

    def between(self, after: Position, upto: Position) -> int:
        """The number of hidden entries in (after, upto]."""
        return max(0, self._rank(upto) - self._rank(after))

    def _rank(self, position: Position) -> int:
        total = 0
        for ledger_id, ids in self._by_ledger.items():
            if ledger_id < position[0]:
                total += len(ids)
            elif ledger_id == position[0]:
                total += bisect_right(ids, position[1])
        return total

    def validate(self) -> None:
        for ids in self._by_ledger.values():
            assert len(ids)
            assert list(ids) == sorted(set(ids))
