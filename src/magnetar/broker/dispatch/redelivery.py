"""Entries that were delivered and must be delivered again: which, and the number of times each has been.

Positions are the ints of `position_key`. A waiting entry costs about 90 bytes (the int, a heap slot, a set slot): a million
waits in 90 MB, and the default limit of 200,000 unacknowledged messages a subscription keeps it far below that.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush


class RedeliveryQueue:
    """A set of positions that gives out the smallest first. Adding twice is adding once."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._members: set[int] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, key: int) -> bool:
        return key in self._members

    def add(self, key: int) -> None:
        if key not in self._members:
            self._members.add(key)
            heappush(self._heap, key)

    def update(self, keys: Iterable[int]) -> None:
        """Add many: linear in what is there, so it suits the thousands that a leaving consumer held."""
        fresh = set(keys) - self._members
        if fresh:
            self._members |= fresh
            self._heap.extend(fresh)
            heapify(self._heap)

    def discard(self, key: int) -> None:
        """Remove an acknowledged position. Its heap slot goes when it comes to the top."""
        self._members.discard(key)
        if not self._members:
            self._heap.clear()

    def first(self) -> int | None:
        """The smallest position, None when nothing waits."""
        heap = self._heap
        members = self._members
        while heap:
            if heap[0] in members:
                return heap[0]
            heappop(heap)
        return None

    def take(self, limit: int) -> list[int]:
        """Remove and return up to `limit` positions, smallest first."""
        taken: list[int] = []
        heap = self._heap
        members = self._members
        while heap and len(taken) < limit:
            key = heappop(heap)
            if key in members:
                members.remove(key)
                taken.append(key)
        return taken

    def keys(self) -> list[int]:
        """All positions, smallest first."""
        return sorted(self._members)

    def clear(self) -> None:
        self._heap.clear()
        self._members.clear()

    def validate(self) -> None:
        """Assert that every member can be found through the heap, which is one."""
        heap = self._heap
        assert self._members <= set(heap)
        assert all(heap[(index - 1) // 2] <= heap[index] for index in range(1, len(heap)))


class RedeliveryCounts:
    """Number of redeliveries of each unacknowledged entry. Forgotten with the acknowledgement and on restart."""

    __slots__ = ("by_key",)

    def __init__(self) -> None:
        self.by_key: dict[int, int] = {}
        """Only entries with a count above zero, so the usual look-up finds an empty dict."""

    def increment(self, key: int) -> None:
        self.by_key[key] = self.by_key.get(key, 0) + 1

    def increment_all(self, keys: Iterable[int]) -> None:
        """The same for the thousands that a leaving consumer held; each of `keys` once."""
        before = self.by_key.get
        self.by_key.update([(key, before(key, 0) + 1) for key in keys])

    def forget(self, key: int) -> None:
        self.by_key.pop(key, None)
