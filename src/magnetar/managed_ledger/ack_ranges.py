"""What one cursor has consumed: a mark-delete position, acknowledged entries above it, partly acknowledged batches. Pure.

The mark-delete never passes an unacknowledged entry. Adding is idempotent: entries already consumed, not written yet, or of ledgers
that do not exist are ignored. One bit per entry above the mark-delete, so the number of holes has no limit and nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from magnetar.managed_ledger.ack_bits import LedgerBits
from magnetar.managed_ledger.position import Position

WORD_MASK = 2**64 - 1
BATCH_SIZE_MAX = 1_000_000
"""Messages in one batch whose indexes are tracked; indexes of a larger (forged) batch are ignored, the whole entry still acks."""


class LedgerSpace(Protocol):
    """The part of the ledger list that acknowledgements need; `LedgerIndex` satisfies it."""

    def entries_in(self, ledger_id: int) -> int: ...
    def ledger_after(self, ledger_id: int) -> int | None: ...


class AckRanges:
    """`mark_ledger`/`mark_entry` is the mark-delete position; `acked_count` the entries acknowledged above it."""

    __slots__ = ("_batches", "_bits", "_space", "acked_count", "mark_entry", "mark_ledger")

    def __init__(self, space: LedgerSpace, mark_delete: Position) -> None:
        self._space = space
        self.mark_ledger, self.mark_entry = mark_delete
        self.acked_count = 0
        self._bits: dict[int, LedgerBits] = {}
        self._batches: dict[tuple[int, int], int] = {}

    @property
    def mark_delete(self) -> Position:
        return Position(self.mark_ledger, self.mark_entry)

    # ---- Acknowledging

    def add(self, ledger_id: int, entry_id: int) -> bool:
        """Acknowledge one entry; False when nothing changed."""
        mark_ledger = self.mark_ledger
        if ledger_id == mark_ledger:
            mark_entry = self.mark_entry
            if entry_id <= mark_entry:
                return False
        elif ledger_id < mark_ledger:
            return False
        else:
            mark_entry = -1
        if not 0 <= entry_id < self._space.entries_in(ledger_id):
            return False
        if self._batches:
            self._batches.pop((ledger_id, entry_id), None)
        bits = self._bits.get(ledger_id)
        if bits is None:
            if ledger_id == mark_ledger and entry_id == mark_entry + 1:
                self.mark_entry = entry_id
                if self._bits:
                    self._advance()
                return True
            bits = self._bits[ledger_id] = LedgerBits(mark_entry + 1)
        if not bits.add(entry_id):
            return False
        self.acked_count += 1
        if entry_id == mark_entry + 1:
            self._advance()
        return True

    def add_all(self, positions: Sequence[tuple[int, int]]) -> bool:
        """Acknowledge several entries; True when anything changed."""
        changed = False
        mark_ledger, mark_entry = self.mark_ledger, self.mark_entry
        done = 0
        if not self._bits and not self._batches:
            entries = self._space.entries_in(mark_ledger)
            for ledger_id, entry_id in positions:
                if entry_id != mark_entry + 1 or entry_id >= entries or ledger_id != mark_ledger:
                    break
                mark_entry = entry_id  # one after the other, which is how most consumers do it
                done += 1
            self.mark_entry = mark_entry
            changed = done > 0
            if done == len(positions):
                return changed
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, entry_id in positions[done:] if done else positions:
            if ledger_id in by_ledger:
                by_ledger[ledger_id].append(entry_id)
            else:
                by_ledger[ledger_id] = [entry_id]
        for ledger_id, entry_ids in by_ledger.items():
            changed |= self._add_to(ledger_id, entry_ids)
        self._advance()
        return changed

    def _add_to(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        """Acknowledge entries of one ledger, without moving the mark-delete; True when anything changed."""
        if ledger_id < self.mark_ledger:
            return False
        floor, end = self._floor(ledger_id), self._space.entries_in(ledger_id)
        entry_ids = [entry_id for entry_id in entry_ids if floor <= entry_id < end]
        if not entry_ids:
            return False
        if self._batches:
            for entry_id in entry_ids:
                self._batches.pop((ledger_id, entry_id), None)
        added = self._bits_of(ledger_id).add_all(entry_ids)
        self.acked_count += added
        return added > 0

    def add_range(self, ledger_id: int, first: int, last: int) -> bool:
        """Acknowledge first..last of one ledger, as far as they exist; True when anything changed."""
        if ledger_id < self.mark_ledger:
            return False
        if ledger_id == self.mark_ledger:
            first = max(first, self.mark_entry + 1)
        first, last = max(first, 0), min(last, self._space.entries_in(ledger_id) - 1)
        if last < first:
            return False
        for key in [key for key in self._batches if key[0] == ledger_id and first <= key[1] <= last]:
            del self._batches[key]
        added = self._bits_of(ledger_id).add_range(first, last)
        self.acked_count += added
        self._advance()
        return added > 0

    def add_batch(self, ledger_id: int, entry_id: int, ack_set: Sequence[int], batch_size: int) -> tuple[bool, bool]:
        """Acknowledge indexes of one batch; bits that are set in `ack_set` (64-bit words) are not acknowledged.

        Answers (anything changed, the whole entry became acknowledged).
        """
        if not 0 < batch_size <= BATCH_SIZE_MAX or self.contains(ledger_id, entry_id):
            return False, False
        if ledger_id < self.mark_ledger or not 0 <= entry_id < self._space.entries_in(ledger_id):
            return False, False
        key = (ledger_id, entry_id)
        before = self._batches.get(key, (1 << batch_size) - 1)
        after = before & words_to_int(ack_set, batch_size)
        if not after:
            self._batches.pop(key, None)
            self.add(ledger_id, entry_id)
            return True, True
        if after == before:
            return False, False
        self._batches[key] = after
        return True, False

    def mark_deleted_upto(self, position: tuple[int, int]) -> bool:
        """Acknowledge everything up to and including `position`; False when that is consumed already."""
        if position <= (self.mark_ledger, self.mark_entry):
            return False
        ledger_id, entry_id = position
        for passed in [held for held in self._bits if held < ledger_id]:
            self.acked_count -= self._bits.pop(passed).count
        bits = self._bits.get(ledger_id)
        if bits is not None:
            covered = bits.count_between(self.mark_entry + 1 if ledger_id == self.mark_ledger else 0, entry_id)
            self._uncount(ledger_id, bits, covered)
            bits.cut_below(entry_id + 1)
        self.mark_ledger, self.mark_entry = ledger_id, entry_id
        if self._batches:
            for key in [key for key in self._batches if key <= (ledger_id, entry_id)]:
                del self._batches[key]
        self._advance()
        return True

    def reset(self, mark_delete: Position) -> None:
        """Start over: everything after `mark_delete` is unconsumed."""
        self._bits.clear()
        self._batches.clear()
        self.acked_count = 0
        self.mark_ledger, self.mark_entry = mark_delete

    def settle(self) -> None:
        """Advance over what has become contiguous because the ledger list changed."""
        self._advance()

    # ---- Asking

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the entry is consumed, by mark-delete or individually."""
        if ledger_id == self.mark_ledger:
            if entry_id <= self.mark_entry:
                return True
        elif ledger_id < self.mark_ledger:
            return True
        bits = self._bits.get(ledger_id)
        return bits is not None and entry_id in bits

    def bits_of(self, ledger_id: int) -> LedgerBits | None:
        """The bitmap of one ledger, for readers that test many entries above the mark-delete; None if none is acknowledged."""
        return self._bits.get(ledger_id)

    def next_unacknowledged(self, ledger_id: int, entry_id: int) -> int:
        """The first entry id >= `entry_id` of the ledger that is not consumed; may lie past the ledger's end."""
        if ledger_id < self.mark_ledger:
            return self._space.entries_in(ledger_id)
        if ledger_id == self.mark_ledger:
            entry_id = max(entry_id, self.mark_entry + 1)
        bits = self._bits.get(ledger_id)
        return entry_id if bits is None else bits.next_clear(entry_id)

    def remaining_of_batch(self, ledger_id: int, entry_id: int) -> list[int] | None:
        """The words of the indexes still to be acknowledged, None when the batch is untouched (or done)."""
        if not self._batches:
            return None
        remaining = self._batches.get((ledger_id, entry_id))
        return None if remaining is None else int_to_words(remaining)

    def ranges(self) -> Iterator[tuple[Position, Position]]:
        """Acknowledged runs above the mark-delete, per ledger: (exclusive lower, inclusive upper), ascending."""
        for ledger_id in sorted(self._bits):
            for first, last in self._bits[ledger_id].runs(self._floor(ledger_id)):
                yield Position(ledger_id, first - 1), Position(ledger_id, last)

    def range_count(self) -> int:
        return sum(bits.run_count(self._floor(ledger_id)) for ledger_id, bits in self._bits.items())

    def ledger_bitmaps(self) -> Iterator[tuple[int, int, LedgerBits]]:
        """(ledger, first entry id above the mark-delete, bits), ascending."""
        for ledger_id in sorted(self._bits):
            yield ledger_id, self._floor(ledger_id), self._bits[ledger_id]

    def partial_batches(self) -> Iterator[tuple[Position, list[int]]]:
        """Partly acknowledged batches with the words of what remains, ascending."""
        for key in sorted(self._batches):
            yield Position(*key), int_to_words(self._batches[key])

    # ---- Restoring

    def restore_words(self, ledger_id: int, words: Iterable[int]) -> None:
        """Merge a stored bitmap; bits outside the ledger or at the mark-delete are dropped. Call `settle` at the end."""
        entries = self._space.entries_in(ledger_id)
        if ledger_id < self.mark_ledger or not entries:
            return
        bits = self._bits_of(ledger_id)
        before = bits.count
        bits.merge_words(words, self._floor(ledger_id), entries)
        self.acked_count += bits.count - before

    def restore_batch(self, ledger_id: int, entry_id: int, words: Iterable[int]) -> None:
        """Take over a stored batch unless its entry is consumed or gone."""
        remaining = words_to_int(words)
        if remaining and 0 <= entry_id < self._space.entries_in(ledger_id) and not self.contains(ledger_id, entry_id):
            self._batches[ledger_id, entry_id] = remaining

    def validate(self) -> None:
        for ledger_id, bits in self._bits.items():
            assert ledger_id >= self.mark_ledger
            floor = self._floor(ledger_id)
            assert bits.count == bits.count_between(floor, self._space.entries_in(ledger_id))
            assert bits.base <= floor
        assert self.acked_count == sum(bits.count for bits in self._bits.values())
        assert all(not self.contains(*key) and remaining for key, remaining in self._batches.items())

    # ---- Inside

    def _bits_of(self, ledger_id: int) -> LedgerBits:
        bits = self._bits.get(ledger_id)
        if bits is None:
            bits = self._bits[ledger_id] = LedgerBits(self._floor(ledger_id))
        return bits

    def _floor(self, ledger_id: int) -> int:
        return self.mark_entry + 1 if ledger_id == self.mark_ledger else 0

    def _uncount(self, ledger_id: int, bits: LedgerBits, passed: int) -> None:
        """`passed` members are now below the mark-delete."""
        bits.count -= passed
        self.acked_count -= passed
        if not bits.count:
            del self._bits[ledger_id]

    def _advance(self) -> None:
        """Move the mark-delete over entries that are acknowledged without a gap, from ledger to ledger."""
        while True:
            ledger_id, start = self.mark_ledger, self.mark_entry + 1
            bits = self._bits.get(ledger_id)
            if bits is not None:
                end = bits.next_clear(start)
                if end > start:
                    self.mark_entry = end - 1
                    self._uncount(ledger_id, bits, end - start)
                    bits.cut_below(end)
            if not self._bits or self.mark_entry + 1 < self._space.entries_in(ledger_id):
                return
            following = self._space.ledger_after(ledger_id)
            if following is None:
                return
            bits = self._bits.get(following)
            if bits is None or 0 not in bits:
                return
            self.mark_ledger, self.mark_entry = following, -1


def words_to_int(words: Iterable[int], size: int | None = None) -> int:
    """64-bit words (signed or not, lowest first) as one integer of at most `size` bits."""
    value = 0
    shift = 0
    for word in words:
        if size is not None and shift >= size:
            break
        value |= (word & WORD_MASK) << shift
        shift += 64
    return value if size is None else value & ((1 << size) - 1)


def int_to_words(value: int) -> list[int]:
    """The inverse, as signed words without trailing zeros (Java's BitSet.toLongArray)."""
    words = []
    while value:
        word = value & WORD_MASK
        words.append(word - (1 << 64) if word >> 63 else word)
        value >>= 64
    return words
