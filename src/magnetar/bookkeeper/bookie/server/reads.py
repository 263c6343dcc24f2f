"""The reads of one connection: as many under way as their answers may take up, the others in a bounded queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from magnetar.base.limits import BOOKIE_READ_BYTES_UNDER_WAY_MAX, BOOKIE_READS_WAITING_MAX
from magnetar.bookkeeper.bookie.server.connection import FrameConnection

_ENTRY_BYTES_AT_FIRST: Final = 1024 * 1024
_ENTRY_BYTES_MIN: Final = 1024
"""What a read of one entry counts for follows the sizes of those read before it, from the first of these down to the second."""


class ReadGate:
    """`submit` a read; it is started with what it counts for, and must call `ended` with that once. Fences and recovery reads do
    not come here."""

    __slots__ = ("_bytes_under_way", "_connection", "_entry_bytes", "_running", "_waiting")

    def __init__(self, connection: FrameConnection) -> None:
        self._connection = connection
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()
        self._bytes_under_way = 0
        self._entry_bytes = _ENTRY_BYTES_AT_FIRST
        self._running = False

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def submit(self, size: int, start: Callable[[int], None]) -> bool:
        """Run `start` now or when its turn comes; never when the connection ends before. False: too many wait already.

        `size`: the most that the answer may hold; 0 for a single entry, whose size nobody knows."""
        if len(self._waiting) >= BOOKIE_READS_WAITING_MAX:
            return False
        self._waiting.append((size, start))
        self.run()
        return True

    def ended(self, size: int, entry: bytes | None = None) -> None:
        """A read was answered; `entry` if it was one of a single entry."""
        self._bytes_under_way -= size
        if entry is not None:
            known, found = self._entry_bytes, max(len(entry), _ENTRY_BYTES_MIN)
            self._entry_bytes = found if found > known else known - (known - found) // 4
        if self._waiting:
            self.run()

    def run(self) -> None:
        """Start what may start. Reads that memory answers end before `start` returns, and do not nest."""
        if self._running:
            return
        self._running = True
        waiting = self._waiting
        connection = self._connection
        while waiting and self._bytes_under_way < BOOKIE_READ_BYTES_UNDER_WAY_MAX and not connection.output_full:
            size, start = waiting.popleft()
            size = size or self._entry_bytes
            self._bytes_under_way += size
            start(size)
        self._running = False

    def clear(self) -> None:
        """The connection has ended: nobody waits for these answers."""
        self._waiting.clear()
