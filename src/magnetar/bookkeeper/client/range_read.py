"""Reading a range of one ledger's entries from its bookies: plain callbacks, every byte checked.

A segment whose bookies all hold every entry (E = Qw) is read in batches from one preferred bookie. A striped one is read entry by
entry, several of them at a time from different bookies, and answered in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.client.replica_read import ReplicaRead

RangeDone = Callable[[MagnetarError | None, list[bytes]], None]
"""`done(error, payloads)`; the payloads are those of a non-empty prefix of the range unless there is an error."""

READS_UNDER_WAY_MAX: Final = 32
"""Entries of one striped range that are asked for at a time; the next one is asked for when the oldest has come."""


class RangeRead:
    """One read of `first..last`; `start` it once."""

    __slots__ = (
        "_bytes_left",
        "_done",
        "_finished",
        "_last",
        "_next",
        "_payloads",
        "_reads",
        "_running",
        "_source",
        "last_length",
    )

    def __init__(self, source: LedgerSource, first: int, last: int, max_bytes: int, done: RangeDone) -> None:
        assert 0 <= first <= last
        self._source = source
        self._next = first
        self._last = last
        self._bytes_left = max(max_bytes, 1)
        self._done = done
        self._payloads: list[bytes] = []
        self._reads: deque[ReplicaRead] = deque()
        self._running = False
        self._finished = False
        self.last_length = 0
        """The ledger's length up to and including the last entry read."""

    def start(self) -> None:
        if self._source.striped:
            self._run()
            return
        source, first, last = self._source, self._next, self._last
        segments = source.metadata.segments
        index = source.metadata.segment_index(first)
        if index + 1 < len(segments):
            last = min(last, segments[index + 1].first_entry_id - 1)
        ReplicaRead(source, first, last - first + 1, self._bytes_left, self._on_batch).start()

    def _on_batch(self, read: ReplicaRead) -> None:
        if read.error is not None:
            self._finish(read.error)
            return
        self._payloads = [entry.payload for entry in read.entries]
        self.last_length = read.entries[-1].length
        self._finish(None)

    # ---- Striped

    def _run(self) -> None:
        """Ask and take until bookies take their time: answers that come at once do not nest."""
        if self._running:
            return
        self._running = True
        while not self._finished:
            if self._reads and self._reads[0].finished:
                self._take(self._reads.popleft())
            elif self._next <= self._last and len(self._reads) < self._window():
                read = ReplicaRead(self._source, self._next, 1, 0, self._on_entry)
                self._next += 1
                self._reads.append(read)
                read.start()
            else:
                break
        self._running = False

    def _window(self) -> int:
        """As many entries as are likely to fit into the bytes that are left."""
        return 1 + min(self._bytes_left // (self._source.entry_bytes + 1), READS_UNDER_WAY_MAX - 1)

    def _on_entry(self, read: ReplicaRead) -> None:
        if not self._finished and self._reads and read is self._reads[0]:
            self._run()

    def _take(self, read: ReplicaRead) -> None:
        """The oldest entry has come."""
        if read.error is not None:
            self._finish(read.error)
            return
        entry = read.entries[0]
        size = self._source.entry_bytes = len(entry.payload)
        if self._payloads and size > self._bytes_left:
            self._finish(None)
            return
        self._payloads.append(entry.payload)
        self.last_length = entry.length
        self._bytes_left -= size
        if read.entry_id == self._last or self._bytes_left <= 0:
            self._finish(None)

    def _finish(self, error: MagnetarError | None) -> None:
        self._finished = True
        for read in self._reads:
            read.cancel()
        if error is not None and self._payloads:
            error = None
        self._done(error, [] if error is not None else self._payloads)


async def length_up_to(source: LedgerSource, entry_id: int) -> int:
    """Payload bytes of the ledger up to and including the entry, as the entry itself says. 0 for entry -1."""
    if entry_id < 0:
        return 0
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, _: list[bytes]) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(None)

    read = RangeRead(source, entry_id, entry_id, 1, done)
    read.start()
    await answer
    return read.last_length
