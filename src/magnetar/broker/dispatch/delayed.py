"""Delayed messages of one subscription: which are due when."""

from __future__ import annotations

from heapq import heappop, heappush


class DelayedIndex:
    """Positions ordered by due time, then by position."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, key: int, slot: int) -> None:
        heappush(self._heap, (due_ms, key << 16 | slot))

    def take_due(self, now_ms: int, limit: int) -> list[tuple[int, int]]:
        """Remove and return up to `limit` positions that are due, with their slots."""
        heap = self._heap
        taken: list[tuple[int, int]] = []
        while heap and heap[0][0] <= now_ms and len(taken) < limit:
            packed = heappop(heap)[1]
            taken.append((packed >> 16, packed & 0xFFFF))
        return taken

    @property
    def size_bytes(self) -> int:
        """Memory, roughly."""
        return len(self._heap) * 140

    def next_due_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        self._heap.clear()
