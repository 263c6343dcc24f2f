"""Message TTL: a subscription's backlog older than the TTL counts as consumed, without ever having been delivered."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import EntryNotFoundError
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position

WALK_MAX: Final = 100_000
"""Entries that one walk reads at most; the next check goes on where it stopped."""
_YIELD_EVERY: Final = 100


async def position_older_than(ledger: ManagedLedger, cutoff_ms: int) -> Position | None:
    """The last entry published before `cutoff_ms`, None when there is none. A binary search: a handful of reads.

    Right as long as entries lie in the order of their publish times.
    """

    def older(entry: Entry) -> bool:
        return metadata_of(entry).publish_time_ms < cutoff_ms

    return await ledger.find_last_matching(older)


async def last_of_older_row(ledger: ManagedLedger, after: Position, cutoff_ms: int) -> Position | None:
    """The end of the unbroken row of entries behind `after` that were published before `cutoff_ms`, None when it is empty.

    For topics in which publish times do not ascend: what another cluster sends keeps its times, so a row of old messages may lie behind
    young ones, and a binary search that meets it would count the young ones as old. Reads each entry of the row.
    """
    last = None
    position = ledger.next_position(after)
    for count in range(1, WALK_MAX + 1):
        if position > ledger.last_confirmed or not await _is_older(ledger, position, cutoff_ms):
            break
        last, position = position, ledger.next_position(position)
        if count % _YIELD_EVERY == 0:
            await asyncio.sleep(0)  # reads that find the entry in a cache do not wait
    return last


async def _is_older(ledger: ManagedLedger, position: Position, cutoff_ms: int) -> bool:
    try:
        return metadata_of(await ledger.read_entry(position)).publish_time_ms < cutoff_ms
    except EntryNotFoundError:  # removed by retention meanwhile
        return True


async def first_published_at(ledger: ManagedLedger, timestamp_ms: int) -> Position:
    """The first entry with publish time >= `timestamp_ms`; the place behind the last entry when all are older."""
    older = await position_older_than(ledger, timestamp_ms)
    return ledger.first_position if older is None else ledger.next_position(older)


async def publish_time_after_ms(ledger: ManagedLedger, position: Position) -> int | None:
    """When the entry behind `position` was published; None at the end, and if retention has just removed it."""
    following = ledger.next_position(position)
    if following > ledger.last_confirmed:
        return None
    try:
        return metadata_of(await ledger.read_entry(following)).publish_time_ms
    except EntryNotFoundError:
        return None
