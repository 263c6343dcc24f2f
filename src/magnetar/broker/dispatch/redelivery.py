"""Entries that were delivered and must be delivered again: which, and the number of times each has been.

Positions are the ints of `position_key`. A waiting entry costs about 90 bytes (the int, a heap slot, a set slot): a million
waits in 90 MB, and the default limit of 200,000 unacknowledged messages a subscription keeps it far below that.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView
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
        """Add many: a few operations on whole lists, so it suits the thousands that a leaving consumer held."""
        members = self._members
        fresh = [key for key in dict.fromkeys(keys) if key not in members] if members else list(dict.fromkeys(keys))
        if not fresh:
            return
        members.update(fresh)
        if self._heap:
            self._heap.extend(fresh)
            heapify(self._heap)
        else:
            fresh.sort()  # what a consumer held is sorted but for what was redelivered, and sorted is a heap
            self._heap = fresh

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

    def increment_all(self, keys: KeysView[int]) -> None:
        """The same for the thousands that a leaving consumer held."""
        by_key = self.by_key
        again = {key: by_key[key] + 1 for key in by_key.keys() & keys} if by_key else {}
        by_key.update(dict.fromkeys(keys, 1))
        by_key.update(again)

    def forget(self, key: int) -> None:
        self.by_key.pop(key, None)
