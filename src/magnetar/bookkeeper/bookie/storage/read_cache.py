"""Entries read ahead from the entry logs, oldest out first."""

from __future__ import annotations

from collections.abc import Iterable


class ReadCache:
    """Bounded by bytes; used on the event loop only."""

    __slots__ = ("_entries", "_size_bytes_max", "size_bytes")

    def __init__(self, size_bytes_max: int) -> None:
        self._entries: dict[tuple[int, int], bytes] = {}
        self._size_bytes_max = size_bytes_max
        self.size_bytes = 0

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        return self._entries.get((ledger_id, entry_id))

    def put_all(self, ledger_id: int, first_entry_id: int, entries: Iterable[bytes]) -> None:
        """Consecutive entries of one ledger."""
        cached = self._entries
        for entry_id, entry in enumerate(entries, first_entry_id):
            key = (ledger_id, entry_id)
            previous = cached.pop(key, None)
            if previous is not None:
                self.size_bytes -= len(previous)
            cached[key] = entry
            self.size_bytes += len(entry)
        while self.size_bytes > self._size_bytes_max and cached:
            oldest = next(iter(cached))
            self.size_bytes -= len(cached.pop(oldest))

    def __len__(self) -> int:
        return len(self._entries)
