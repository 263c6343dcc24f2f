"""Counts what a subscription still has to consume, entry by entry: batches are unpacked only in number."""

from __future__ import annotations

from typing import Any

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.position import Position

ENTRIES_MAX = 10_000
"""A longer backlog is counted so far, and `aborted` says so (Pulsar: subscriptionBacklogScanMaxEntries)."""

_FILTERED = ("Accepted", "Rejected", "Rescheduled")


async def analyzed(subscription: Subscription, start: Position | None) -> dict[str, Any]:
    """Pulsar's AnalyzeSubscriptionBacklogResult. No filters exist here, so that every message is accepted."""
    ledger, cursor = subscription.ledger, subscription.cursor
    position = ledger.next_position(cursor.mark_delete_position)
    if start is not None:
        position = max(position, start)
    last = ledger.last_confirmed
    entries = messages = scanned = 0
    ends: list[Position] = []
    while position <= last and scanned < ENTRIES_MAX:
        scanned += 1
        if not cursor.is_acknowledged(position):
            entry = await ledger.read_entry(position)
            metadata = metadata_of(entry)
            entries += 1
            messages += metadata.num_messages if metadata.batched else 1
            ends = [ends[0] if ends else position, position]
        position = ledger.next_position(position)
    document: dict[str, Any] = {"entries": entries, "messages": messages, "markerMessages": 0}
    for kind in _FILTERED:
        document[f"filter{kind}Entries"] = entries if kind == "Accepted" else 0
        document[f"filter{kind}Messages"] = messages if kind == "Accepted" else 0
    document["aborted"] = position <= last
    document["firstMessageId"], document["lastMessageId"] = (_text(ends[0]), _text(ends[1])) if ends else (None, None)
    return document


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"
