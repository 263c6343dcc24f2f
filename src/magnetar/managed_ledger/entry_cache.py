"""The newest entries of all managed ledgers in memory, for readers that keep up. One byte budget for all of them.

Entries go in as they are stored, so each ledger's part is one run of ids; the oldest of a ledger leave first. When the budget is
passed the ledgers give up entries in turn, the one that was opened first before the others.
"""

from __future__ import annotations

from collections import OrderedDict

from magnetar.base.limits import ENTRY_CACHE_BYTES_MAX
from magnetar.managed_ledger.entry import Entry

ENTRY_OVERHEAD_BYTES = 250
"""What an entry costs besides its data: object, bytes header and dictionary slot. Counted, so that tiny entries stay bounded."""

EVICTION_ENTRIES = 64
"""Entries that one ledger gives up before it is the next one's turn."""


class LedgerCache:
    """The cached run of one ledger. `entries` is read directly by cursors; only this file changes it."""

    __slots__ = ("_cache", "_first", "attached", "entries", "ledger_id")

    def __init__(self, cache: EntryCache, ledger_id: int) -> None:
        self._cache = cache
        self._first = -1
        self.ledger_id = ledger_id
        self.entries: dict[int, Entry] = {}
        self.attached = True

    def insert(self, entry: Entry) -> None:
        """Add the next entry of this ledger. A gap (entries that were not cached) drops what was held before it."""
        entries = self.entries
        entry_id = entry.entry_id
        if not entries:
            if not self.attached:
                return
            self._first = entry_id
            self._cache.queue.setdefault(self)
        elif entry_id != self._first + len(entries):
            self.drop_oldest(len(entries))
            self._first = entry_id
        entries[entry_id] = entry
        cache = self._cache
        cache.size_bytes += len(entry.data) + ENTRY_OVERHEAD_BYTES
        if cache.size_bytes > cache.max_bytes:
            cache.evict()

    def drop_before(self, entry_id: int) -> None:
        """Forget entries below `entry_id`."""
        self.drop_oldest(entry_id - self._first)

    def drop_oldest(self, count: int) -> None:
        entries = self.entries
        first = self._first
        end = first + min(count, len(entries))
        if end <= first:
            return
        freed = 0
        for entry_id in range(first, end):
            freed += len(entries.pop(entry_id).data) + ENTRY_OVERHEAD_BYTES
        self._first = end
        self._cache.size_bytes -= freed

    def detach(self) -> None:
        """Forget everything for good: the ledger was deleted, or its managed ledger closed."""
        self.attached = False
        self.drop_oldest(len(self.entries))
        self._cache.queue.pop(self, None)


class EntryCache:
    """Shared by all managed ledgers of a process. `size_bytes` never stays above `max_bytes`."""

    __slots__ = ("evictions", "max_bytes", "queue", "size_bytes")

    def __init__(self, max_bytes: int = ENTRY_CACHE_BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.evictions = 0
        self.queue: OrderedDict[LedgerCache, None] = OrderedDict()
        """Ledgers that may hold entries, in the order in which they give some up."""

    def attach(self, ledger_id: int) -> LedgerCache:
        """The cache of a ledger that is now being written."""
        return LedgerCache(self, ledger_id)

    def evict(self) -> None:
        """Drop oldest entries until the budget holds."""
        queue = self.queue
        while self.size_bytes > self.max_bytes:
            ledger, _ = queue.popitem(last=False)
            held = len(ledger.entries)
            ledger.drop_oldest(EVICTION_ENTRIES)
            self.evictions += held - len(ledger.entries)
            if ledger.entries:
                queue[ledger] = None

    def validate(self) -> None:
        held = [entry for ledger in self.queue for entry in ledger.entries.values()]
        assert self.size_bytes == sum(len(entry.data) + ENTRY_OVERHEAD_BYTES for entry in held)
        assert self.size_bytes <= self.max_bytes
