"""Where a micro-batch ends by maxMessagesPerTrigger and maxBytesPerTrigger; each topic partition gets a fair share.

Messages are counted exactly, from the metadata of entries. Bytes alone are taken from the admin API's statistics of ledgers where there
is an `admin.url`: nothing is read, and the limit holds about, in whole entries as they are stored. Without it they are counted as
messages are.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.pipeline.connect.admin_rest import LedgerSize
from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.offsets import Offsets, Position, Range
from magnetar.pipeline.connect.options import ReadOptions
from magnetar.pipeline.connect.reading.counting import Counter


class Limits:
    """Of one stream. Keeps a connection for each partition that is counted."""

    def __init__(self, options: ReadOptions, topics: Topics) -> None:
        self._options = options
        self._topics = topics
        self._counters: dict[str, Counter] = {}

    def ends(self, parts: Sequence[Range]) -> Offsets:
        """What one partition does not use is left to those behind it. At least one message is taken, however large."""
        rows, size = self._options.max_messages, self._options.max_bytes
        found: Offsets = {}
        taken = False
        for number, part in enumerate(parts):
            left = len(parts) - number
            share_rows = None if rows is None else -(-rows // left)
            share_size = None if size is None else -(-size // left)
            if taken and 0 in (share_rows, share_size):
                found[part.topic] = part.start
                continue
            end, used_rows, used_size = self._take(part, share_rows, share_size, not taken)
            found[part.topic] = end
            taken = taken or end > part.start
            rows = None if rows is None else max(rows - used_rows, 0)
            size = None if size is None else max(size - used_size, 0)
        return found

    def close(self) -> None:
        for counter in self._counters.values():
            counter.close()
        self._counters.clear()

    def _take(self, part: Range, rows: int | None, size: int | None, at_least_one: bool) -> tuple[Position, int, int]:
        ledgers = self._topics.ledger_sizes(part.topic) if rows is None else None
        if ledgers is not None and size is not None:
            end, used = by_statistics(part, ledgers, size, at_least_one)
            return end, 0, used
        counter = self._counters.setdefault(part.topic, Counter(self._options, part.topic))
        return counter.take(part, rows, size, at_least_one)


def by_statistics(part: Range, ledgers: Sequence[LedgerSize], size: int, at_least_one: bool) -> tuple[Position, int]:
    """(end, bytes) of whole entries from the start of a range, each as large as its ledger's entries are on average."""
    used, at = 0.0, part.start
    for each in ledgers:
        first = max(part.start.entry, 0) if each.ledger == part.start.ledger else 0
        if each.ledger < part.start.ledger or first >= each.entries:
            continue
        if Position(each.ledger, first) >= part.end:
            break
        one = each.size_bytes / each.entries
        there = each.entries - first
        fitting = min(there, int((size - used) / one)) if one else there
        if at_least_one and at == part.start:
            fitting = max(fitting, 1)
        if fitting:
            used += fitting * one
            at = Position(each.ledger, first + fitting)
        if at >= part.end:
            return part.end, round(used)
        if fitting < there:
            return at, round(used)
    return part.end, round(used)
