"""Binary search over all entries of a managed ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import EntryNotFoundError
from magnetar.managed_ledger.ledger_index import LedgerIndex
from magnetar.managed_ledger.position import Position


async def find_last_matching(
    index: LedgerIndex, read_entry: Callable[[Position], Awaitable[Entry]], predicate: Callable[[Entry], bool]
) -> Position | None:
    """The last entry for which `predicate` holds, given that it holds for a (perhaps empty) beginning of the ledger and for
    nothing after it. None when it holds for no entry. Reads about log2(entries) entries.

    Entries that retention removes meanwhile count as matching: they are older than all that stay.
    """
    index = index.copy()
    low, high = 0, index.total_entries  # ranks below `low` match, ranks from `high` on do not
    while low < high:
        middle = (low + high) // 2
        if await _matches(index.at_rank(middle), read_entry, predicate):
            low = middle + 1
        else:
            high = middle
    return index.at_rank(low - 1) if low else None


async def _matches(
    position: Position, read_entry: Callable[[Position], Awaitable[Entry]], predicate: Callable[[Entry], bool]
) -> bool:
    try:
        return predicate(await read_entry(position))
    except EntryNotFoundError:
        return True
