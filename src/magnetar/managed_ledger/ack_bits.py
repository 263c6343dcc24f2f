"""The acknowledged entries of one ledger as a bitmap. Pure.

Bit e of the whole is entry e, as in Pulsar's stored form. One bit per entry whatever the pattern: a ledger of 50,000 entries takes
6 KiB at most, however many holes its acknowledgements have. What lies below the mark-delete is cut off in front now and then.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence

_NOT_FULL = re.compile(rb"[^\xff]")
_NOT_EMPTY = re.compile(rb"[^\x00]")
_CUT_BYTES = 8192
"""Consumed bytes in front that are tolerated before they are cut off."""

_FIRST_CLEAR = bytes(next(bit for bit in range(9) if not value >> bit & 1) for value in range(256))
_FIRST_SET = bytes(next((bit for bit in range(8) if value >> bit & 1), 8) for value in range(256))


class LedgerBits:
    """A set of entry ids >= 0. `base` is the first entry id that `bits` covers, a multiple of 64."""

    __slots__ = ("base", "bits", "count")

    def __init__(self, near: int = 0) -> None:
        """`near`: no entry below it will ever be added."""
        self.base = max(near, 0) & -64
        self.bits = bytearray()
        self.count = 0
        """Members that the owner still counts (those above its mark-delete)."""

    def add(self, entry_id: int) -> bool:
        """Add one entry, not below `base`; False when it was there."""
        place = entry_id - self.base
        byte = place >> 3
        bits = self.bits
        if byte >= len(bits):
            bits.extend(bytes((byte | 63) + 1 - len(bits)))
        mask = 1 << (place & 7)
        if bits[byte] & mask:
            return False
        bits[byte] |= mask
        self.count += 1
        return True

    def add_all(self, entry_ids: Sequence[int]) -> int:
        """Add entries, none below `base`; returns the number of new ones."""
        self._cover(max(entry_ids))
        base, bits = self.base, self.bits
        before = self.count
        for entry_id in entry_ids:
            place = entry_id - base
            byte, mask = place >> 3, 1 << (place & 7)
            if not bits[byte] & mask:
                bits[byte] |= mask
                self.count += 1
        return self.count - before

    def add_range(self, first: int, last: int) -> int:
        """Add first..last, both included; returns the number of new ones."""
        first = max(first, self.base)
        if last < first:
            return 0
        self._cover(last)
        low, high = first - self.base, last + 1 - self.base
        start, end = low >> 3, (high + 7) >> 3
        old = int.from_bytes(self.bits[start:end], "little")
        wanted = ((1 << (high - low)) - 1) << (low & 7)
        merged = old | wanted
        self.bits[start:end] = merged.to_bytes(end - start, "little")
        added = merged.bit_count() - old.bit_count()
        self.count += added
        return added

    def __contains__(self, entry_id: int) -> bool:
        place = entry_id - self.base
        if place < 0:
            return False
        byte = place >> 3
        return byte < len(self.bits) and self.bits[byte] >> (place & 7) & 1 == 1

    def next_clear(self, entry_id: int) -> int:
        """The first entry >= `entry_id` that is not a member."""
        place = max(entry_id - self.base, 0)
        byte = place >> 3
        bits = self.bits
        size = len(bits)
        if byte >= size:
            return self.base + place
        rest = bits[byte] | (1 << (place & 7)) - 1
        if rest == 0xFF:
            found = _NOT_FULL.search(bits, byte + 1)
            if found is None:
                return self.base + size * 8
            byte = found.start()
            rest = bits[byte]
        return self.base + byte * 8 + _FIRST_CLEAR[rest]

    def count_between(self, first: int, last: int) -> int:
        """Members in first..last, both included."""
        low, high = max(first - self.base, 0), min(last + 1 - self.base, len(self.bits) * 8)
        if high <= low:
            return 0
        word = int.from_bytes(self.bits[low >> 3 : (high + 7) >> 3], "little") >> (low & 7)
        return (word & (1 << (high - low)) - 1).bit_count()

    def cut_below(self, entry_id: int) -> None:
        """Members below `entry_id` will not be asked for any more."""
        spare = (entry_id - self.base) >> 3 & -8
        if spare >= _CUT_BYTES:
            del self.bits[:spare]
            self.base += spare * 8

    def runs(self, first: int) -> Iterator[tuple[int, int]]:
        """Runs of members from `first` on, as (first, last), ascending."""
        position = max(first, self.base)
        while True:
            start = self._next_set(position)
            if start < 0:
                return
            position = self.next_clear(start)
            yield start, position - 1

    def run_count(self, first: int) -> int:
        """The number of runs that `runs(first)` yields, counted without walking them."""
        low = max(first - self.base, 0)
        word = int.from_bytes(self.bits[low >> 3 :], "little") >> (low & 7)
        return (word & ~(word << 1)).bit_count()

    def words(self, first: int) -> tuple[int, array[int]]:
        """The members from `first` on as signed 64-bit words: (index of the first word, words). Earlier bits are cleared."""
        skipped = max(first - self.base, 0)
        start = skipped >> 6 << 3
        data = bytearray(self.bits[start:])
        cleared = skipped & 63
        if cleared and data:
            head = int.from_bytes(data[:8], "little") >> cleared << cleared
            data[:8] = head.to_bytes(8, "little")
        words = array("q", bytes(data))
        if sys.byteorder == "big":
            words.byteswap()
        return (self.base >> 6) + (start >> 3), words

    def merge_words(self, words: Iterable[int], first: int, end: int) -> None:
        """Add the members of stored words (bit 0 of the first word is entry 0) that lie in first..end-1."""
        values = array("q", words)
        if sys.byteorder == "big":
            values.byteswap()
        value = int.from_bytes(values.tobytes(), "little") & ((1 << max(end, 0)) - 1)
        low = max(first, self.base)
        value = value >> low << low >> self.base
        if not value:
            return
        self._cover(self.base + value.bit_length() - 1)
        merged = int.from_bytes(self.bits, "little")
        self.count += (merged | value).bit_count() - merged.bit_count()
        self.bits[:] = (merged | value).to_bytes(len(self.bits), "little")

    def _cover(self, entry_id: int) -> None:
        byte = (entry_id - self.base) >> 3
        if byte >= len(self.bits):
            self.bits.extend(bytes((byte | 63) + 1 - len(self.bits)))

    def _next_set(self, entry_id: int) -> int:
        place = entry_id - self.base
        byte = place >> 3
        bits = self.bits
        if byte >= len(bits):
            return -1
        rest = bits[byte] >> (place & 7) << (place & 7)
        if not rest:
            found = _NOT_EMPTY.search(bits, byte + 1)
            if found is None:
                return -1
            byte = found.start()
            rest = bits[byte]
        return self.base + byte * 8 + _FIRST_SET[rest]
