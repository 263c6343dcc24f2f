"""One stored entry in memory, shared by the entry cache and all readers."""

from __future__ import annotations

from typing import Any

from magnetar.managed_ledger.position import Position


class Entry:
    """`data` is what was appended. `parsed` belongs to the broker: what it has once decoded stays with the cached entry."""

    __slots__ = ("data", "entry_id", "ledger_id", "parsed")

    def __init__(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.data = data
        self.parsed: Any = None

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)

    def __repr__(self) -> str:
        return f"Entry({self.ledger_id}:{self.entry_id}, {len(self.data)} bytes)"
