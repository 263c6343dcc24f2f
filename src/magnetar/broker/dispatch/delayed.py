"""Delayed messages of one subscription: which are due when. In memory; `subscriptions/delayed_buckets` adds storage."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from magnetar.broker.dispatch.waiting import SLOT_BITS, SLOT_MASK

HEAP_ITEM_BYTES: Final = 140
"""Memory of one message in the heap, for statistics."""


class DelayedIndex:
    """Positions ordered by due time, then by position."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        """(due time in ms, position key << 16 | slot)."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, key: int, slot: int) -> None:
        """Hold a message back. Its position must not be in already."""
        heappush(self._heap, (due_ms, key << SLOT_BITS | slot))

    def owns(self, key: int) -> bool:
        """True if an index that was stored before a restart has this position: the message comes from there, however it is read."""
        return False

    def take_due(self, now_ms: int, limit: int) -> list[tuple[int, int]]:
        """Remove and return up to `limit` positions that are due, with their slots."""
        heap = self._heap
        taken: list[tuple[int, int]] = []
        while heap and heap[0][0] <= now_ms and len(taken) < limit:
            packed = heappop(heap)[1]
            taken.append((packed >> SLOT_BITS, packed & SLOT_MASK))
        return taken

    def next_due_ms(self) -> int | None:
        """Due time of the first message, None without any."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Everything unacknowledged will be read again."""
        self._heap.clear()

    @property
    def size_bytes(self) -> int:
        """Memory, roughly."""
        return len(self._heap) * HEAP_ITEM_BYTES
