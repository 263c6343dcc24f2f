"""Where a message is: its ledger and copies; for each subscription whether it was delivered, consumed, expired, or what it waits for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from magnetar.base.clock import Clock, iso_time
from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.bookkeeper.quorum import write_set
from magnetar.broker.dispatch.dispatcher import Where
from magnetar.broker.dispatch.entry_metadata import NO_MARKER, EntryMetadata, metadata_of
from magnetar.broker.dispatch.position_key import key_of
from magnetar.broker.explain.answer import Explanation, iso_or_none, place, stored_metadata
from magnetar.broker.explain.sentences import in_order, text_of, verdict
from magnetar.broker.explain.subscription import HOLDING_UP, standing_of
from magnetar.broker.reasons import Code, Reason, because
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.transactions.types import TxnId
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position

SUBSCRIPTIONS_MAX: Final = 50
"""Subscriptions of one answer; name one to see it alone."""

_ID: Final = re.compile(r"\(?(\d{1,19})[:,](\d{1,19})(?:[:,](-?\d{1,9}))?(?:[:,](-?\d{1,9}))?\)?")


@dataclass(frozen=True, slots=True)
class MessageId:
    """`partition` and `batch_index` are -1 where there is none."""

    position: Position
    partition: int = -1
    batch_index: int = -1

    def __str__(self) -> str:
        return place(self.position) + (f":{self.partition}:{self.batch_index}" if self.batch_index >= 0 else "")


def parse_id(text: str) -> MessageId | None:
    """`ledger:entry[:partition[:batch index]]`, or as the Python client prints one: `(ledger,entry,partition,batch index)`. None: no id."""
    found = _ID.fullmatch(text.replace(" ", ""))
    if found is None:
        return None
    ledger_id, entry_id, partition, batch_index = found.groups()
    position = Position(int(ledger_id), int(entry_id))
    if max(position) >= 2**63:
        return None
    return MessageId(position, int(partition or -1), int(batch_index or -1))


async def explain_message(
    topic: PersistentTopic, message: MessageId, named: str, client: BookKeeperClient, clock: Clock
) -> Explanation:
    """`named`: one subscription, empty for all. Raises SubscriptionNotFoundError."""
    subscriptions = [topic.subscriptions.get(named)] if named else topic.subscriptions.all[:SUBSCRIPTIONS_MAX]
    subject = {"kind": "message", "topic": str(topic.name), "id": str(message)}
    subject |= {"subscription": named} if named else {}
    about = f"Message {message}"
    gone = _not_there(topic, message.position)
    if gone is not None:
        return Explanation(subject, verdict(about, None, [gone]), None, [gone])
    details: dict[str, Any] = {"stored": await _stored(topic, message.position, client)}
    try:
        entry = await topic.ledger.read_entry(message.position)
    except MagnetarError as error:
        unread = because(Code.MESSAGE_UNREADABLE, message=str(message), problem=str(error).rstrip(". "))
        return Explanation(subject, verdict(about, False, [unread]), False, [unread], details)
    metadata = metadata_of(entry)
    details |= _described(entry, metadata)
    held_by_all = _of_topic(topic, message, entry, metadata)
    states = [_of_subscription(topic, each, message, metadata, clock) for each in subscriptions]
    reasons = in_order([*held_by_all, *states])
    if not reasons:
        reasons = [because(Code.NO_SUBSCRIPTION, message=str(message))]
    moving: bool | None = None
    if any(reason.code in STANDING for reason in reasons):
        moving = False
    elif any(reason.code in GOING_ON for reason in reasons):
        moving = True
    return Explanation(subject, verdict(about, moving, reasons), moving, reasons, details)


STANDING: Final = frozenset(
    {Code.MESSAGE_WAITS, Code.MESSAGE_DELAYED, Code.MESSAGE_IN_TRANSACTION, Code.MESSAGE_UNREADABLE}
)
GOING_ON: Final = frozenset({Code.MESSAGE_DELIVERED, Code.MESSAGE_UNREAD})


# ---- The log


def _not_there(topic: PersistentTopic, position: Position) -> Reason | None:
    index = topic.ledger.index
    held = index.get(position.ledger_id)
    shown = place(position)
    if held is None and position < index.first():
        policies = topic.policies
        return because(
            Code.MESSAGE_DELETED,
            message=shown,
            first=place(index.first()),
            retention_minutes=policies.retention_time_minutes,
            retention_mb=policies.retention_size_mb,
        )
    if held is None or position.entry_id >= index.entries_in(position.ledger_id):
        return because(Code.MESSAGE_NEVER_WRITTEN, message=shown, last=place(topic.ledger.last_confirmed))
    return None


async def _stored(topic: PersistentTopic, position: Position, client: BookKeeperClient) -> dict[str, Any]:
    """The ledger, and the bookies that were given the entry."""
    try:
        metadata = await client.read_metadata(position.ledger_id)
    except NoSuchLedgerError:
        return {"ledger": position.ledger_id, "entry": position.entry_id, "bookies": []}
    segment = metadata.segments[metadata.segment_index(position.entry_id)]
    indexes = write_set(position.entry_id, metadata.ensemble_size, metadata.write_quorum)
    bookies = [segment.ensemble[index] for index in indexes]
    there = set(client.bookies.registered())
    return {
        "ledger": position.ledger_id,
        "entry": position.entry_id,
        "state": metadata.state.name,
        "bookies": bookies,
        "bookies_missing": [bookie for bookie in bookies if bookie not in there],
    }


def _described(entry: Entry, metadata: EntryMetadata) -> dict[str, Any]:
    full = stored_metadata(entry)
    if full is None:
        return {"size_bytes": len(entry.data), "damaged": True}
    key = full.partition_key
    return {
        "producer": full.producer_name,
        "sequence_id": full.sequence_id,
        "published": iso_or_none(metadata.publish_time_ms),
        "key": key if isinstance(key, str) else key.decode("utf-8", "replace"),
        "messages_in_entry": metadata.num_messages,
        "size_bytes": len(entry.data),
        "deliver_at": iso_or_none(metadata.deliver_at_ms),
        "replicated_from": full.replicated_from or None,
    }


def _of_topic(topic: PersistentTopic, message: MessageId, entry: Entry, metadata: EntryMetadata) -> list[Reason]:
    """What holds for every subscription."""
    if metadata.marker_type != NO_MARKER:
        return [because(Code.MESSAGE_IS_MARKER, message=str(message))]
    full, buffer = stored_metadata(entry), topic.transactions.buffer
    if buffer is None or full is None or not full.HasField("txnid_most_bits"):
        return []
    txn = TxnId(full.txnid_most_bits, full.txnid_least_bits)
    if buffer.state.is_aborted(txn):
        return [because(Code.MESSAGE_ABORTED, message=str(message), transaction=str(txn))]
    if buffer.state.has(txn):
        return [because(Code.MESSAGE_IN_TRANSACTION, message=str(message), transaction=str(txn))]
    return []


# ---- Subscriptions


def _of_subscription(
    topic: PersistentTopic, subscription: Subscription, message: MessageId, metadata: EntryMetadata, clock: Clock
) -> Reason:
    name, position, shown = subscription.name, message.position, str(message)
    cursor = subscription.cursor
    for expiry in reversed(subscription.expiries):
        if expiry.after < position <= expiry.upto:
            at = iso_time(expiry.at_ms)
            return because(
                Code.MESSAGE_EXPIRED, expiry.at_ms, subscription=name, message=shown, at=at, rule=str(expiry.rule)
            )
    if cursor.is_acknowledged(position) or _batch_index_acknowledged(subscription, message):
        mark = place(cursor.mark_delete_position)
        return because(Code.MESSAGE_ACKNOWLEDGED, subscription=name, message=shown, mark_delete=mark)
    pending = subscription.pending_acks
    if pending is not None:
        holding = pending.state.transactions_of(position)
        if holding:
            names = [f"transaction {txn}" for txn in holding]
            return because(Code.MESSAGE_ACKED_IN_TRANSACTION, subscription=name, message=shown, transactions=names)
    where = subscription.dispatch.dispatcher.where(key_of(*position), metadata.slot)
    if where.holder is not None:
        return _delivered(subscription, shown, where, position)
    if (
        metadata.deliver_at_ms > clock.now_ms()
        and subscription.config.delayed_delivery_enabled
        and position < cursor.read_position
    ):
        return because(Code.MESSAGE_DELAYED, subscription=name, message=shown, until=iso_time(metadata.deliver_at_ms))
    return _waiting(topic, subscription, message, where, clock)


def _batch_index_acknowledged(subscription: Subscription, message: MessageId) -> bool:
    if message.batch_index < 0:
        return False
    left = subscription.cursor.ack_set_of(message.position)
    if left is None:
        return False
    word, bit = divmod(message.batch_index, 64)
    return word >= len(left) or not left[word] >> bit & 1


def _delivered(subscription: Subscription, shown: str, where: Where, position: Position) -> Reason:
    holder = where.holder
    assert holder is not None
    return because(
        Code.MESSAGE_DELIVERED,
        holder.last_consumed_ms if not where.redeliveries else 0,
        subscription=subscription.name,
        message=shown,
        redeliveries=where.redeliveries,
        unacked=holder.unacked_messages,
        **holder.described(),
    )


def _waiting(
    topic: PersistentTopic, subscription: Subscription, message: MessageId, where: Where, clock: Clock
) -> Reason:
    moving, reasons = standing_of(topic, subscription, clock)
    index, position = topic.ledger.index, message.position
    before = index.previous(position)
    mark = subscription.cursor.mark_delete_position
    ahead = index.entries_between(mark, before) if before > mark else 0
    cause = where.reasons[0] if where.reasons else next((each for each in reasons if each.code in HOLDING_UP), None)
    if cause is None or (moving is not False and not where.reasons):
        return because(Code.MESSAGE_UNREAD, subscription=subscription.name, message=str(message), ahead=ahead)
    return because(
        Code.MESSAGE_WAITS,
        cause.since_ms,
        subscription=subscription.name,
        message=str(message),
        ahead=ahead,
        cause=str(cause.code),
        problem=text_of(cause).rstrip("."),
    )
