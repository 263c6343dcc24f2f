"""Where a ledger lies: its segments and the bookies of each, what keeps it from being deleted, and which copies it lacks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicatedLedger
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.quorum import write_sets
from magnetar.broker.errors import InvalidTopicNameError
from magnetar.broker.explain.answer import Explanation, iso_or_none, place
from magnetar.broker.explain.sentences import in_order, verdict
from magnetar.broker.naming import TopicName
from magnetar.broker.reasons import Code, Named, Reason, because
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.retention import deletable


async def open_segment(ledger: ManagedLedger, client: BookKeeperClient) -> dict[str, Any]:
    """The ledger that is written now, and the bookies that get its next entry."""
    ledger_id = ledger.current_ledger_id
    try:
        metadata = await client.read_metadata(ledger_id)
    except NoSuchLedgerError:
        return {"ledger": ledger_id, "ensemble": []}
    return {
        "ledger": ledger_id,
        "ensemble": list(metadata.last_segment.ensemble),
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "first_entry": metadata.last_segment.first_entry_id,
    }


@dataclass(frozen=True, slots=True)
class Owner:
    """What a ledger belongs to. `managed_ledger`: `tenant/namespace/persistent/topic`, empty for what is none's."""

    managed_ledger: str
    cursor: str
    component: str


async def read_ledger(client: BookKeeperClient, ledger_id: int) -> tuple[LedgerMetadata, Owner]:
    """Raises NoSuchLedgerError."""
    metadata = await client.read_metadata(ledger_id)
    told = {name: value.decode("utf-8", "replace") for name, value in metadata.custom_metadata.items()}
    return metadata, Owner(
        told.get("pulsar/managed-ledger", ""), told.get("pulsar/cursor", ""), told.get("component", "")
    )


def topic_of(owner: Owner) -> TopicName | None:
    """The topic whose messages, or whose subscription's positions, are in the ledger."""
    parts = owner.managed_ledger.split("/")
    if len(parts) < 4:
        return None
    try:
        return TopicName.parse(f"{parts[2]}://{parts[0]}/{parts[1]}/{unquote('/'.join(parts[3:]))}")
    except InvalidTopicNameError:
        return None


def explain_ledger(
    ledger_id: int,
    metadata: LedgerMetadata,
    owner: Owner,
    topic: PersistentTopic | None,
    registered: Collection[str],
    mark: UnderreplicatedLedger | None,
    now_ms: int,
) -> Explanation:
    """`topic`: the one that it belongs to, if this broker has it loaded. `mark`: that copies are missing, if the auditor says so."""
    reasons: list[Reason] = []
    segments = [_segment(place, metadata, registered) for place in range(len(metadata.segments))]
    for segment in segments:
        if segment["missing"]:
            left = metadata.write_quorum - segment["worst"]
            reasons.append(
                because(
                    Code.COPIES_MISSING,
                    ledger=ledger_id,
                    first_entry=segment["first_entry"],
                    missing=segment["missing"],
                    copies_left=max(0, left),
                    write_quorum=metadata.write_quorum,
                    ack_quorum=metadata.ack_quorum,
                )
            )
    if mark is not None:
        bookies = list(mark.replicas) or ["one that is not named"]
        reasons.append(because(Code.UNDERREPLICATED, max(0, mark.ctime_ms), ledger=ledger_id, missing=bookies))
    if metadata.state is not LedgerState.CLOSED:
        reasons.append(because(Code.LEDGER_OPEN, ledger=ledger_id, state=metadata.state.name))
    if topic is not None and not owner.cursor:
        reasons += _kept_by(ledger_id, topic, now_ms)
    elif topic is not None and owner.cursor:
        reasons.append(because(Code.KEPT_FOR_CURSOR, ledger=ledger_id, subscription=unquote(owner.cursor)))
    elif not owner.managed_ledger:
        reasons.append(
            because(Code.KEPT_BY_NOBODY, ledger=ledger_id, component=owner.component or "none that is named")
        )
    details: dict[str, Any] = {
        "managed_ledger": owner.managed_ledger or None,
        "cursor": owner.cursor or None,
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "last_entry": metadata.last_entry_id,
        "length": metadata.length,
        "created": iso_or_none(metadata.ctime_ms),
        "segments": [{name: segment[name] for name in ("first_entry", "ensemble", "missing")} for segment in segments],
    }
    reasons = in_order(reasons)
    unsafe = any(reason.code in (Code.COPIES_MISSING, Code.UNDERREPLICATED) for reason in reasons)
    subject = {"kind": "ledger", "id": ledger_id}
    return Explanation(
        subject, verdict(f"Ledger {ledger_id}", None, reasons), False if unsafe else None, reasons, details
    )


def _segment(number: int, metadata: LedgerMetadata, registered: Collection[str]) -> dict[str, Any]:
    """`worst`: the most copies of one entry that are on missing bookies."""
    segment = metadata.segments[number]
    missing = [bookie for bookie in segment.ensemble if bookie not in registered]
    sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
    worst = max(sum(segment.ensemble[index] in missing for index in indexes) for indexes in sets)
    return {
        "first_entry": segment.first_entry_id,
        "ensemble": list(segment.ensemble),
        "missing": missing,
        "worst": worst,
    }


def _kept_by(ledger_id: int, topic: PersistentTopic, now_ms: int) -> list[Reason]:
    """What keeps it from being deleted."""
    ledger = topic.ledger
    if ledger.index.get(ledger_id) is None:
        return [because(Code.LEDGER_DROPPED, ledger=ledger_id, topic=str(topic.name))]
    if ledger_id == ledger.current_ledger_id:
        return [because(Code.LEDGER_CURRENT, ledger=ledger_id, topic=str(topic.name))]
    marks = {cursor.name: cursor.mark_delete_position for cursor in ledger.cursors.values() if cursor.durable}
    last = Position(ledger_id, ledger.index.entries_in(ledger_id) - 1)
    behind = {name: place(mark) for name, mark in marks.items() if mark < last}
    if behind:
        return [
            because(Code.KEPT_BY_SUBSCRIPTION, ledger=ledger_id, topic=str(topic.name), subscriptions=Named(behind))
        ]
    slowest = min(marks.values(), default=None)
    if ledger_id in deletable(ledger.index, ledger.current_ledger_id, slowest, now_ms, ledger.config):
        return [because(Code.LEDGER_DELETABLE, ledger=ledger_id, topic=str(topic.name))]
    summary = ledger.index.get(ledger_id)
    written_ms = summary.timestamp_ms if summary is not None else 0
    policies = topic.policies
    return [
        because(
            Code.KEPT_BY_RETENTION,
            written_ms,
            ledger=ledger_id,
            topic=str(topic.name),
            retention_minutes=policies.retention_time_minutes,
            retention_mb=policies.retention_size_mb,
        )
    ]
