"""A position as one int, so that sets, heaps and arrays of positions stay small and sort in storage order.

Ledger ids and entry ids must each be below 2^32, as with every ledger id BookKeeper gives out before its 31-bit ids are
used up and every entry id within one ledger of Pulsar's size.
"""

from __future__ import annotations

from typing import Final

from magnetar.managed_ledger.position import Position

ENTRY_BITS: Final = 32
ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1


def key_of(ledger_id: int, entry_id: int) -> int:
    """The key of a position; hot loops write the expression out."""
    return ledger_id << ENTRY_BITS | entry_id


def position_of(key: int) -> Position:
    """The position of a key."""
    return Position(key >> ENTRY_BITS, key & ENTRY_MASK)
