"""How many messages and bytes lie ahead of a stream, from entries' metadata: each entry comes to the driver once and is not unpacked."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from magnetar.pipeline.connect.offsets import EARLIEST, Position, Range
from magnetar.pipeline.connect.options import ReadOptions
from magnetar.pipeline.connect.raw.connection import is_supported
from magnetar.pipeline.connect.raw.entries import Counted, Entry, RawEntries, count_entry
from magnetar.pipeline.connect.reading.entries import ClientEntries
from magnetar.pipeline.connect.reading.range_reader import POLL_S, has_ended


class Counter:
    """Of one topic partition. What it has seen and a micro-batch did not take is kept for the next one: at most what one read brings."""

    def __init__(self, options: ReadOptions, topic: str) -> None:
        self._options = options
        self._topic = topic
        self._ahead: deque[Counted] = deque()
        self._source: RawEntries[Counted] | ClientEntries | None = None
        self._next = EARLIEST
        """Where the counter goes on: what lies before it is taken, or ahead."""
        self._last = (-1, -1)

    def take(self, part: Range, rows: int | None, size: int | None, at_least_one: bool) -> tuple[Position, int, int]:
        """(end, messages, bytes) from the start of the range within these limits, at least one message if that is asked for.

        Bytes are those before compression; within a batch all messages count as equally large.
        """
        count, total = 0, 0
        for each in self._entries(part):
            first = part.start.batch if (each.ledger, each.entry) == part.start[:2] else 0
            last = part.end.batch if (each.ledger, each.entry) == part.end[:2] else each.messages
            there, one = max(last - first, 0), each.size_bytes / max(each.messages, 1)
            fitting = there if rows is None else min(there, rows - count)
            if size is not None:
                fitting = min(fitting, int((size - total) / one) if one else there)
            if at_least_one and count == 0 and there:
                fitting = max(fitting, 1)
            count, total = count + fitting, total + round(one * fitting)
            if fitting < there:
                self._ahead.appendleft(each)
                at = Position(each.ledger, each.entry, first + fitting)
                return (at if count else part.start), count, total
        return part.end, count, total

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None
        self._ahead.clear()

    def _entries(self, part: Range) -> Iterator[Counted]:
        """Those that touch the range. One that is not taken as a whole has to be put back."""
        source = self._open(part.start)
        waited_s = 0.0
        while True:
            while self._ahead:
                each = self._ahead.popleft()
                if Position(each.ledger, each.entry) >= part.end:
                    self._ahead.appendleft(each)
                    return
                if (each.ledger, each.entry) >= part.start[:2]:
                    yield each
            if self._next >= part.end:
                return
            begun = time.monotonic()
            found = [_counted(each) for each in source.receive(POLL_S)]
            fresh = [each for each in found if (each.ledger, each.entry) > self._last]
            self._ahead += fresh
            if fresh:
                self._last = fresh[-1][:2]
                self._next = Position(fresh[-1].ledger, fresh[-1].entry + 1)
            waited_s = 0.0 if found else waited_s + time.monotonic() - begun
            if not found and has_ended(source, self._options, part, max(self._next, part.start), waited_s):
                return

    def _open(self, start: Position) -> RawEntries[Counted] | ClientEntries:
        begins = Position(*self._ahead[0][:2]) if self._ahead else self._next
        if self._source is not None and begins[:2] <= start[:2]:
            return self._source
        self.close()
        self._next, self._last = start, (-1, -1)
        connection, queue = self._options.connection, self._options.receiver_queue
        if is_supported(connection):
            self._source = RawEntries(connection, self._topic, start, count_entry, queue)
        else:
            self._source = ClientEntries(connection, self._topic, start, queue)
        return self._source


def _counted(each: Counted | Entry) -> Counted:
    """The official client hands a batch over message by message: its first one stands for all."""
    if isinstance(each, Counted):
        return each
    messages = max(each.batch_size, 1)
    return Counted(each.ledger, each.entry, messages, messages * len(each.messages.data))
