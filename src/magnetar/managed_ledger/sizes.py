"""Bytes behind a position, estimated from the sizes of whole ledgers: backlog sizes and quotas. Pure.

Inside a ledger entries count as equally large; between ledgers the figures are exact.
"""

from __future__ import annotations

from magnetar.managed_ledger.ledger_index import LedgerIndex
from magnetar.managed_ledger.position import Position


def size_after(index: LedgerIndex, position: Position) -> int:
    """Bytes of the entries behind `position`."""
    total = 0
    for ledger in index:
        if ledger.ledger_id > position.ledger_id:
            total += ledger.size_bytes
        elif ledger.ledger_id == position.ledger_id and ledger.entries:
            left = max(0, ledger.entries - 1 - position.entry_id)
            total += ledger.size_bytes * left // ledger.entries
    return total


def position_after_bytes(index: LedgerIndex, position: Position, size_bytes: int) -> Position:
    """The position reached from `position` when at least `size_bytes` are passed over, or the last entry."""
    reached = position
    left = size_bytes
    for ledger in index:
        if ledger.ledger_id < position.ledger_id or not ledger.entries:
            continue
        first = position.entry_id + 1 if ledger.ledger_id == position.ledger_id else 0
        entries = ledger.entries - first
        if entries <= 0 or left <= 0:
            continue
        entry_bytes = max(1, ledger.size_bytes // ledger.entries)
        taken = min(entries, -(-left // entry_bytes))
        reached = Position(ledger.ledger_id, first + taken - 1)
        left -= taken * entry_bytes
    return reached
