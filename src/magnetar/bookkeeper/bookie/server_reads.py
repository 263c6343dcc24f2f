"""The reads of one connection: as many under way as their answers may take up, the others in a bounded queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from magnetar.base.limits import BOOKIE_READ_BYTES_UNDER_WAY_MAX, BOOKIE_READS_WAITING_MAX
from magnetar.bookkeeper.bookie.server_io import FrameConnection

SINGLE_READ_BYTES: Final = 64 * 1024
"""What a read of one entry counts for, whose size nobody knows before it is read."""


class ReadGate:
    """`submit` a read; it must call `ended(size)` exactly once with the same size. Fences and recovery reads do not come here."""

    __slots__ = ("_bytes_under_way", "_connection", "_running", "_waiting")

    def __init__(self, connection: FrameConnection) -> None:
        self._connection = connection
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._bytes_under_way = 0
        self._running = False

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def submit(self, size: int, start: Callable[[], None]) -> bool:
        """Run `start` now or when its turn comes; never when the connection ends before. False: too many wait already."""
        if len(self._waiting) >= BOOKIE_READS_WAITING_MAX:
            return False
        self._waiting.append((size, start))
        self.run()
        return True

    def ended(self, size: int) -> None:
        """A read was answered."""
        self._bytes_under_way -= size
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
            self._bytes_under_way += size
            start()
        self._running = False

    def clear(self) -> None:
        """The connection has ended: nobody waits for these answers."""
        self._waiting.clear()
