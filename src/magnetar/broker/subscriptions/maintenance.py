"""Walks over the log for seeks, skips and peeks; acknowledging without a consumer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.managed_ledger.reads import resolve_durable

if TYPE_CHECKING:
    from magnetar.managed_ledger.cursor.cursor import ManagedCursor
    from magnetar.managed_ledger.ledger import ManagedLedger


async def first_at_or_after(ledger: ManagedLedger, publish_time_ms: int) -> Position | None:
    """The first entry published at or after a time, EARLIEST when that is the first one, None when there is none yet."""

    def before(entry: Entry) -> bool:
        return metadata_of(entry).publish_time_ms < publish_time_ms

    last_before = await ledger.find_last_matching(before)
    if last_before is None:
        return EARLIEST
    if last_before >= ledger.last_confirmed:
        return None
    return ledger.next_position(last_before)


def nth_unacknowledged(ledger: ManagedLedger, cursor: ManagedCursor, number: int) -> tuple[Position | None, int]:
    """The position of the unacknowledged entry at place `number` (or of the last one before the end) and its place."""
    position = cursor.mark_delete_position
    last = readable_end(ledger, cursor)
    found: Position | None = None
    count = 0
    while count < number and position < last:
        position = ledger.next_position(position)
        if position > last:
            break
        if not cursor.is_acknowledged(position) and position not in ledger.hidden:
            found = position
            count += 1
    return found, count


def readable_end(ledger: ManagedLedger, cursor: ManagedCursor) -> Position:
    """The last position that consumers of the cursor may get."""
    stop = cursor.gate.stop if cursor.gate is not None else None
    return ledger.last_confirmed if stop is None else ledger.index.previous(stop)


def acknowledge_upto(cursor: ManagedCursor, position: Position) -> asyncio.Future[None]:
    """Everything up to `position`, at once; the future ends when that is durable."""
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cursor.acknowledge_cumulative(position, None, resolve_durable(stored))
    return stored
