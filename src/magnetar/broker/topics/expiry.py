"""Message TTL: a subscription's backlog older than the TTL counts as consumed, without ever having been delivered."""

from __future__ import annotations

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position


async def position_older_than(ledger: ManagedLedger, cutoff_ms: int) -> Position | None:
    """The last entry published before `cutoff_ms`, None when there is none. A binary search: a handful of reads."""

    def older(entry: Entry) -> bool:
        return metadata_of(entry).publish_time_ms < cutoff_ms

    return await ledger.find_last_matching(older)


async def first_published_at(ledger: ManagedLedger, timestamp_ms: int) -> Position:
    """The first entry with publish time >= `timestamp_ms`; the place behind the last entry when all are older."""
    older = await position_older_than(ledger, timestamp_ms)
    return ledger.first_position if older is None else ledger.next_position(older)
