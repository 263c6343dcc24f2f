"""Walks over the log for seeks, skips and peeks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import EARLIEST, Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.cursor import ManagedCursor
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
    last = ledger.last_confirmed
    found: Position | None = None
    count = 0
    while count < number and position < last:
        position = ledger.next_position(position)
        if position > last:
            break
        if not cursor.is_acknowledged(position):
            found = position
            count += 1
    return found, count
