"""Entries that are not in an entry log yet: two halves, one that takes adds and one that is being flushed.

An entry enters here before it enters the journal. So when the halves are swapped, every entry that is durable in the journal is in
the half that is flushed, or was flushed before: that is what allows the checkpoint mark to move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

_FREED_AT_ONCE: Final = 2000
_NOTHING: Final[Mapping[int, bytes]] = {}


class CacheHalf:
    """`ledgers[ledger id][entry id]` is the packed entry. Bytes count what was put; a repeated entry id counts twice."""

    __slots__ = ("entries_count", "ledgers", "size_bytes")

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.size_bytes = 0
        self.entries_count = 0

    def put(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        """The last one put for an id wins. `AddPath` does the same for runs."""
        entries = self.ledgers.get(ledger_id)
        if entries is None:
            self.ledgers[ledger_id] = {entry_id: entry}
        else:
            entries[entry_id] = entry
        self.size_bytes += len(entry)
        self.entries_count += 1

    def discard(self, hand_over: Callable[[], None]) -> None:
        """Free everything, on a side thread: tens of thousands of frees would hold up the event loop."""
        while self.ledgers:
            _, entries = self.ledgers.popitem()
            left = list(entries.values())
            entries.clear()
            while left:
                del left[-_FREED_AT_ONCE:]
                hand_over()

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger's entries; their bytes keep counting until the half is empty again."""
        self.ledgers.pop(ledger_id, None)


class WriteCache:
    """`active` takes adds; `flushing` is None or the half whose content is on its way to the entry logs."""

    __slots__ = ("active", "flushing")

    def __init__(self) -> None:
        self.active = CacheHalf()
        self.flushing: CacheHalf | None = None

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The packed entry, from whichever half holds the newer one."""
        entries = self.active.ledgers.get(ledger_id)
        if entries is not None and (entry := entries.get(entry_id)) is not None:
            return entry
        flushing = self.flushing
        if flushing is not None and (entries := flushing.ledgers.get(ledger_id)) is not None:
            return entries.get(entry_id)
        return None

    def of_ledger(self, ledger_id: int) -> tuple[Mapping[int, bytes], Mapping[int, bytes]]:
        """The packed entries of a ledger by id, for those that look at many: first the half to ask first."""
        flushing = self.flushing
        older = None if flushing is None else flushing.ledgers.get(ledger_id)
        return self.active.ledgers.get(ledger_id) or _NOTHING, older or _NOTHING

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id held here, -1 when there is none."""
        halves = (self.active,) if self.flushing is None else (self.active, self.flushing)
        return max((max(entries) for half in halves if (entries := half.ledgers.get(ledger_id))), default=-1)

    def swap(self) -> CacheHalf:
        """Turn the active half into the flushing one. The previous flush must have ended."""
        assert self.flushing is None, "the previous half is still being flushed"
        self.flushing = self.active
        self.active = CacheHalf()
        return self.flushing

    def drop(self, ledger_id: int) -> None:
        self.active.drop(ledger_id)
        if self.flushing is not None:
            self.flushing.drop(ledger_id)

    @property
    def entries_count(self) -> int:
        """Entries put into both halves."""
        return self.active.entries_count + (self.flushing.entries_count if self.flushing is not None else 0)

    @property
    def size_bytes(self) -> int:
        return self.active.size_bytes + (self.flushing.size_bytes if self.flushing is not None else 0)
