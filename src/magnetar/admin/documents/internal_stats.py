"""A managed ledger in Pulsar's PersistentTopicInternalStats: its ledgers and cursors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from magnetar.base.clock import iso_time
from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.managed_ledger.append_pipeline import State
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position

STATES = {
    State.OPEN: "LedgerOpened",
    State.SWITCHING: "CreatingLedger",
    State.WRITE_FAILED: "WriteFailed",
    State.FENCED: "Fenced",
    State.TERMINATED: "Terminated",
    State.CLOSED: "Closed",
}
NO_LEDGER = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}


def internal_stats(topic: PersistentTopic) -> dict[str, Any]:
    consumed = {subscription.name for subscription in topic.subscriptions.all if subscription.consumers}
    return ledger_stats(topic.ledger, topic.compaction.current, consumed)


def ledger_stats(
    ledger: ManagedLedger, compacted: CompactedLedger | None = None, consumed: Collection[str] = ()
) -> dict[str, Any]:
    """`consumed`: the cursors that somebody reads from now."""
    last = ledger.index.last
    return {
        "entriesAddedCounter": ledger.index.total_entries,
        "numberOfEntries": ledger.index.total_entries,
        "totalSize": ledger.size_bytes,
        "currentLedgerEntries": last.entries if last is not None else 0,
        "currentLedgerSize": last.size_bytes if last is not None else 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": _text(ledger.last_confirmed),
        "state": STATES[ledger.state],
        "ledgers": [
            {
                "ledgerId": held.ledger_id,
                "entries": held.entries,
                "size": held.size_bytes,
                "offloaded": False,
                "underReplicated": False,
            }
            for held in ledger.index
        ],
        "cursors": {name: _cursor(ledger, cursor, active=name in consumed) for name, cursor in ledger.cursors.items()},
        "schemaLedgers": [],
        "compactedLedger": _compacted(compacted),
        "properties": ledger.properties,
    }


RANGES_SHOWN_MAX = 1000
"""Acknowledged ranges of a cursor that are printed; the count covers all of them."""


def _compacted(current: CompactedLedger | None) -> dict[str, Any]:
    if current is None:
        return NO_LEDGER
    numbers = {"ledgerId": current.ledger_id, "entries": current.entries, "size": current.size_bytes}
    return {**numbers, "offloaded": False, "underReplicated": False}


def _cursor(ledger: ManagedLedger, cursor: ManagedCursor, *, active: bool) -> dict[str, Any]:
    return {
        "markDeletePosition": _text(cursor.mark_delete_position),
        "readPosition": _text(cursor.read_position),
        "waitingReadOp": False,
        "pendingReadOps": 0,
        "messagesConsumedCounter": ledger.index.total_entries - cursor.backlog_entries,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": _ranges(cursor.individual_ranges(RANGES_SHOWN_MAX)),
        "lastLedgerSwitchTimestamp": iso_time(cursor.last_active_ms),
        "state": "Open" if cursor.durable else "NonDurable",
        "active": active,
        "numberOfEntriesSinceFirstNotAckedMessage": _between(ledger, cursor),
        "totalNonContiguousDeletedMessagesRange": cursor.acks.range_count(),
        "properties": dict(cursor.properties),
    }


def _between(ledger: ManagedLedger, cursor: ManagedCursor) -> int:
    """From the mark-delete position to the read position, which may be that of an entry that is yet to come."""
    after, upto = cursor.mark_delete_position, cursor.read_position
    if after.ledger_id == upto.ledger_id:
        return max(0, upto.entry_id - after.entry_id)
    return ledger.index.entries_between(after, upto)


def _ranges(ranges: list[tuple[Position, Position]]) -> str:
    """`[(1:2..1:5],(1:7..1:8]]`, as Guava prints a range set."""
    return "[" + ",".join(f"({_text(low)}..{_text(high)}]" for low, high in ranges) + "]"


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"
