"""Positions that wait for a consumer or a slot, as compact as possible: no entry data, 10 bytes for the usual one.

Two parts, read as one ascending sequence: a queue of two parallel arrays for positions that arrive in log order (look-ahead), and
a heap for those that come back out of order (redelivered, due, released by a draining slot; about 50 bytes each).
A packed item is `key << 16 | slot`, which sorts like the key.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final

SLOT_BITS: Final = 16
SLOT_MASK: Final = (1 << SLOT_BITS) - 1

COMPACT_AT: Final = 4096
"""Consumed places at the front of the arrays that are tolerated before they are cut off."""


class Waiting:
    """An ascending queue of (position key, slot). Every position is in at most once; the caller sees to that."""

    __slots__ = ("_head", "_keys", "_slots", "heap")

    def __init__(self) -> None:
        self._keys: array[int] = array("Q")
        self._slots: array[int] = array("H")
        self._head = 0
        self.heap: list[int] = []

    def __len__(self) -> int:
        return len(self._keys) - self._head + len(self.heap)

    def __bool__(self) -> bool:
        return bool(self.heap) or self._head < len(self._keys)

    def append(self, key: int, slot: int) -> None:
        """Add a position above all that were appended before."""
        self._keys.append(key)
        self._slots.append(slot)

    def insert(self, packed: int) -> None:
        """Add a position anywhere."""
        heappush(self.heap, packed)

    def first(self) -> int:
        """The smallest packed item. Only when there is one."""
        head = self._head
        if head < len(self._keys):
            packed = self._keys[head] << SLOT_BITS | self._slots[head]
            return packed if not self.heap or packed < self.heap[0] else self.heap[0]
        return self.heap[0]

    def pop(self) -> int:
        """Remove and return the smallest packed item. Only when there is one."""
        head = self._head
        keys = self._keys
        heap = self.heap
        if head < len(keys):
            packed = keys[head] << SLOT_BITS | self._slots[head]
            if heap and heap[0] < packed:
                return heappop(heap)
            head += 1
            if head == len(keys):
                del keys[:]
                del self._slots[:]
                head = 0
            elif head >= COMPACT_AT and head * 2 >= len(keys):
                del keys[:head]
                del self._slots[:head]
                head = 0
            self._head = head
            return packed
        return heappop(heap)

    def __iter__(self) -> Iterator[int]:
        """All packed items, in no promised order."""
        for index in range(self._head, len(self._keys)):
            yield self._keys[index] << SLOT_BITS | self._slots[index]
        yield from self.heap

    def validate(self) -> None:
        """Assert order and that no position is in twice."""
        keys = self._keys[self._head :]
        assert len(self._keys) == len(self._slots)
        assert all(low < high for low, high in pairwise(keys))
        items = list(self)
        assert len(set(items)) == len(items)
