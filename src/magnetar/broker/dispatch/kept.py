"""Entries that were read and wait for their consumer: they stay in memory while there is room, and need not be read again.

The oldest go first when a subscription or all subscriptions together keep too much. Nothing depends on it: what is not kept is read again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from magnetar.base.limits import KEPT_ENTRIES_BYTES_MAX, KEPT_ENTRIES_OF_SUBSCRIPTION_BYTES_MAX
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import ENTRY_OVERHEAD_BYTES


class KeptEntries:
    """Those of one subscription. `by_position` is for looking."""

    total_bytes: ClassVar[int] = 0
    """Of all subscriptions of the process."""

    __slots__ = ("by_position", "size_bytes")

    def __init__(self) -> None:
        self.by_position: OrderedDict[tuple[int, int], Entry] = OrderedDict()
        self.size_bytes = 0

    def add(self, entry: Entry) -> None:
        """Keep an entry that is not kept yet."""
        entries = self.by_position
        position = entry.ledger_id, entry.entry_id
        if position in entries:
            return
        entries[position] = entry
        self._count(len(entry.data) + ENTRY_OVERHEAD_BYTES)
        while entries and (
            self.size_bytes > KEPT_ENTRIES_OF_SUBSCRIPTION_BYTES_MAX or self.total_bytes > KEPT_ENTRIES_BYTES_MAX
        ):
            _, oldest = entries.popitem(last=False)
            self._count(-len(oldest.data) - ENTRY_OVERHEAD_BYTES)

    def discard(self, position: tuple[int, int]) -> None:
        entry = self.by_position.pop(position, None)
        if entry is not None:
            self._count(-len(entry.data) - ENTRY_OVERHEAD_BYTES)

    def clear(self) -> None:
        self.by_position.clear()
        self._count(-self.size_bytes)

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        KeptEntries.total_bytes += size_bytes

    def validate(self) -> None:
        """Assert that the sizes fit."""
        held = sum(len(entry.data) + ENTRY_OVERHEAD_BYTES for entry in self.by_position.values())
        assert self.size_bytes == held <= KEPT_ENTRIES_OF_SUBSCRIPTION_BYTES_MAX
