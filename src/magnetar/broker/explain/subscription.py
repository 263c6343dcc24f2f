"""Why a subscription stands still, or what is held up in one that moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from magnetar.base.clock import Clock, iso_time
from magnetar.base.errors import MagnetarError
from magnetar.broker.dispatch import why
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.dispatch.position_key import position_of
from magnetar.broker.explain.answer import Explanation, iso_or_none, place, stored_metadata
from magnetar.broker.explain.sentences import in_order, verdict
from magnetar.broker.naming import TopicName
from magnetar.broker.reasons import Code, Named, Reason, Standing, because
from magnetar.broker.replication.status import status_of
from magnetar.broker.scalable.replicated_subscriptions import TopicStatus as ScalableStatus
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.nonpersistent import NonPersistentSubscription
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position

ACTIVE_MS: Final = 10_000
"""Where everything is delivered, a subscription moves while the last acknowledgement is younger."""

DETAILED_MAX: Final = 100
"""Consumers that an answer has details of."""

STOPPED: Final = (Code.NOT_READING, Code.READ_FAILED)
"""Then nobody gets anything, whatever the dispatcher could do."""


def standing_of(topic: PersistentTopic, subscription: Subscription, clock: Clock) -> Standing:
    """Whether it moves, and all reasons that are known without reading anything: cheap enough for every subscription now and then."""
    now_ms = clock.now_ms()
    backlog = subscription.backlog_entries
    open_transaction = _open_transaction(topic, subscription)
    delayed = _delayed(subscription)
    reasons = [*open_transaction, *delayed, *_pending(subscription), *_expired(subscription)]
    moving: bool | None
    if not backlog and not open_transaction:
        moving = None
        reasons.append(because(Code.CAUGHT_UP, message=place(subscription.cursor.mark_delete_position)))
    elif not subscription.consumers:
        moving = False
        since_ms = now_ms - round((clock.monotonic_s() - subscription.last_used_s) * 1000)
        reasons.append(because(Code.NO_CONSUMERS, since_ms, backlog=backlog))
    else:
        dispatcher, has_more = subscription.dispatch.dispatcher, subscription.dispatch.source.has_more
        waiting = has_more or dispatcher.leftover or dispatcher.waiting_count > 0
        pump = subscription.dispatch.pump.standing()
        moving, found = dispatcher.standing(has_more)
        reasons += [*pump, *found]
        if any(reason.code in STOPPED for reason in pump):
            moving = False
        elif not waiting and not found:
            left = backlog - subscription.delayed_messages
            if left > 0:
                reasons.append(_not_acknowledged(subscription, left))
            moving = left > 0 and now_ms - subscription.last_acked_ms < ACTIVE_MS
    return Standing(moving, in_order(reasons))


def _open_transaction(topic: PersistentTopic, subscription: Subscription) -> list[Reason]:
    buffer = topic.transactions.buffer
    first = buffer.state.first_open if buffer is not None else None
    if buffer is None or first is None:
        return []
    index = subscription.ledger.index
    waiting = index.entries_between(index.previous(first), index.end())
    transaction = str(buffer.state.oldest_open)
    return [because(Code.TRANSACTION_OPEN, transaction=transaction, message=place(first), waiting=waiting)]


def _delayed(subscription: Subscription) -> list[Reason]:
    delayed = subscription.dispatch.dispatcher.delayed
    if delayed is None or not len(delayed):
        return []
    due_ms = delayed.next_due_ms()
    until = iso_time(due_ms) if due_ms is not None else "a time that is being loaded"
    return [because(Code.DELAYED, messages=len(delayed), until=until)]


def _pending(subscription: Subscription) -> list[Reason]:
    pending = subscription.pending_acks
    if pending is None or not pending.state:
        return []
    transactions = [f"transaction {txn}" for txn in pending.state.transactions]
    return [because(Code.ACKNOWLEDGED_IN_TRANSACTION, entries=pending.state.count, transactions=transactions)]


def _expired(subscription: Subscription) -> list[Reason]:
    if not subscription.expiries:
        return []
    last = subscription.expiries[-1]
    return [
        because(
            Code.EXPIRED,
            last.at_ms,
            entries=subscription.expired_total,
            at=iso_time(last.at_ms),
            rule=str(last.rule),
            upto=place(last.upto),
        )
    ]


def _not_acknowledged(subscription: Subscription, left: int) -> Reason:
    dispatcher = subscription.dispatch.dispatcher
    since_ms = max((consumer.last_consumed_ms for consumer in subscription.consumers), default=0)
    if dispatcher.holds_entries:
        holders = {each.name: each.unacked_messages for each in subscription.consumers if each.unacked_messages}
        most = sorted(holders.items(), key=lambda item: -item[1])[: why.CONSUMERS_NAMED_MAX]
        unacked = dispatcher.unacked_messages or left
        return because(Code.NOT_ACKNOWLEDGED, since_ms, unacked=unacked, holders=Named(most))
    active = dispatcher.active_consumer
    holding = Named({active.name: left}) if active is not None else Named()
    return because(Code.NOT_ACKNOWLEDGED, since_ms, unacked=left, holders=holding)


def snapshot_missing(topic: PersistentTopic, subscription: Subscription, now_ms: int) -> list[Reason]:
    """Why other clusters do not know where a replicated subscription is."""
    if not subscription.replicated:
        return []
    found = status_of(topic.replicated_subscriptions, topic.ledger, now_ms)
    own = next((each for each in found.subscriptions if each.name == subscription.name), None)
    if own is None or not own.reason:
        return []
    missing = [each.cluster for each in found.clusters if each.missing]
    return [
        because(
            Code.SNAPSHOT_MISSING,
            found.snapshot_ms,
            problem=own.reason,
            would_repeat=own.would_repeat,
            missing=missing,
        )
    ]


# ---- The whole answer


async def explain_subscription(
    topic: PersistentTopic, name: str, clock: Clock, others: Sequence[Reason] = ()
) -> Explanation:
    """`others`: what else may be the cause, such as consumers that were refused. They weigh most where nobody is connected.

    Raises SubscriptionNotFoundError."""
    subscription = topic.subscriptions.get(name)
    moving, reasons = standing_of(topic, subscription, clock)
    retried = await _retried(subscription)
    reasons = in_order([*reasons, *snapshot_missing(topic, subscription, clock.now_ms()), *retried])
    reasons = [await completed(topic.ledger, reason) for reason in reasons]
    reasons = [*reasons, *others] if subscription.consumers else [*others, *reasons]
    return Explanation(
        subject_of(str(topic.name), name),
        verdict(f"Subscription {name}", moving, reasons),
        moving,
        reasons,
        _details(topic.ledger, subscription),
    )


def explain_cursor(topic: PersistentTopic, name: str, now_ms: int) -> Explanation:
    """Where a replicated subscription is in other clusters, and why not further. Raises SubscriptionNotFoundError."""
    subscription = topic.subscriptions.get(name)
    found = status_of(topic.replicated_subscriptions, topic.ledger, now_ms)
    own = next((each for each in found.subscriptions if each.name == name), None)
    clusters = [each.cluster for each in found.clusters]
    reasons: list[Reason] = []
    moving: bool | None = None
    if own is None:
        reasons.append(because(Code.NOT_REPLICATED, subscription=name))
    else:
        reasons += snapshot_missing(topic, subscription, now_ms)
        moving = not reasons
        if own.told is not None:
            reasons.append(
                because(
                    Code.CURSOR_FOLLOWS,
                    found.snapshot_ms,
                    subscription=name,
                    clusters=clusters,
                    at=place(own.told),
                    would_repeat=own.would_repeat or 0,
                    mark_delete=place(own.mark_delete),
                )
            )
    subject = {"kind": "cursor", "topic": str(topic.name), "subscription": name}
    details = {
        "cluster": found.cluster,
        "last_snapshot": iso_or_none(found.snapshot_ms),
        "snapshot_pending": found.pending,
        "clusters": [each._asdict() for each in found.clusters],
    }
    about = f"The place of subscription {name} in other clusters"
    return Explanation(subject, verdict(about, moving, reasons), moving, reasons, details)


def explain_scalable_cursor(topic: TopicName, name: str, found: ScalableStatus | None) -> Explanation:
    """The same of a scalable topic, by what its controller says; None: nothing is replicated. Clusters may have other segments."""
    own = next((each for each in found.subscriptions if each.name == name), None) if found is not None else None
    reasons: list[Reason] = []
    details: dict[str, Any] = {}
    moving: bool | None = None
    if found is None or own is None:
        reasons.append(because(Code.NOT_REPLICATED, subscription=name))
    else:
        if own.reason:
            missing = [each.cluster for each in found.clusters if each.missing or not each.connected]
            reasons.append(
                because(
                    Code.ROUND_MISSING,
                    found.snapshot_ms,
                    subscription=name,
                    problem=own.reason,
                    would_repeat=own.would_repeat,
                    missing=missing,
                )
            )
        moving = not reasons
        if own.elsewhere:
            reasons.append(
                because(
                    Code.SEGMENTS_FOLLOW,
                    found.snapshot_ms,
                    subscription=name,
                    topic=str(topic),
                    clusters=sorted(own.elsewhere),
                    snapshot=iso_time(found.snapshot_ms),
                    acknowledged=own.acknowledged,
                    told=[f"{cluster}: {places}" for cluster, places in own.elsewhere.items()],
                    would_repeat=own.would_repeat,
                )
            )
        details = {
            "cluster": found.cluster,
            "last_snapshot": iso_or_none(found.snapshot_ms),
            "snapshot_pending": found.pending,
            "clusters": [each._asdict() for each in found.clusters],
            "acknowledged": own.acknowledged,
            "elsewhere": dict(own.elsewhere),
        }
    subject = {"kind": "cursor", "topic": str(topic), "subscription": name}
    about = f"The place of subscription {name} in other clusters"
    return Explanation(subject, verdict(about, moving, reasons), moving, reasons, details)


def explain_non_persistent(topic: str, subscription: NonPersistentSubscription) -> Explanation:
    """Nothing waits there, but what finds no room is dropped."""
    reasons = why.those_held_up(subscription.consumers)
    if not subscription.consumers:
        reasons.append(because(Code.NO_CONSUMERS, backlog=0))
    reasons.append(because(Code.DROPS_WITHOUT_PERMITS, dropped=subscription.messages_dropped))
    moving = any(why.held_up(consumer) is None for consumer in subscription.consumers)
    details = {"consumers": [_consumer(consumer, []) for consumer in subscription.consumers[:DETAILED_MAX]]}
    return Explanation(
        subject_of(topic, subscription.name),
        verdict(f"Subscription {subscription.name}", moving, in_order(reasons)),
        moving,
        in_order(reasons),
        details,
    )


def subject_of(topic: str, subscription: str) -> dict[str, str]:
    return {"kind": "subscription", "topic": topic, "subscription": subscription}


async def completed(ledger: ManagedLedger, reason: Reason) -> Reason:
    """With what has to be read: keys of waiting messages, and since when a transaction is open."""
    if reason.code is Code.TRANSACTION_OPEN:
        ledger_id, _, entry_id = str(reason.facts["message"]).partition(":")
        published = [each async for each in _published_ms(ledger, [Position(int(ledger_id), int(entry_id))])]
        return replace(reason, since_ms=published[0]) if published else reason
    if not reason.keys_at:
        return reason
    keys = [key async for key in _keys(ledger, reason.keys_at)]
    return replace(reason, facts={**reason.facts, "keys": list(dict.fromkeys(keys))})


RETRIES_PROPERTY: Final = "RECONSUMETIMES"
ORIGIN_PROPERTY: Final = "REAL_TOPIC"
"""What clients give a message that they put into a retry topic."""

RETRIES_MANY: Final = 3


async def _retried(subscription: Subscription) -> list[Reason]:
    """Whether the next message goes round through a retry topic."""
    try:
        entry = await subscription.peek(1)
    except MagnetarError:
        return []
    metadata = stored_metadata(entry) if entry is not None else None
    if entry is None or metadata is None:
        return []
    properties = {pair.key: pair.value for pair in metadata.properties}
    times = properties.get(RETRIES_PROPERTY, "")
    if not (times.isascii() and times.isdigit() and len(times) < 10 and int(times) >= RETRIES_MANY):
        return []
    origin = properties.get(ORIGIN_PROPERTY) or "a topic that it does not name"
    return [because(Code.RETRIED_OFTEN, message=place(entry.position), times=int(times), origin=origin)]


async def _published_ms(ledger: ManagedLedger, positions: Sequence[Position]) -> Any:
    for position in positions:
        try:
            yield metadata_of(await ledger.read_entry(position)).publish_time_ms
        except MagnetarError:
            continue


async def _keys(ledger: ManagedLedger, position_keys: Sequence[int]) -> Any:
    """Of entries that can be read and have one."""
    for position_key in position_keys:
        try:
            metadata = stored_metadata(await ledger.read_entry(position_of(position_key)))
        except MagnetarError:
            continue
        key = metadata.partition_key if metadata is not None else ""
        if key:
            yield key if isinstance(key, str) else key.decode("utf-8", "replace")


def _details(ledger: ManagedLedger, subscription: Subscription) -> Mapping[str, Any]:
    dispatcher, cursor = subscription.dispatch.dispatcher, subscription.cursor
    kind = subscription.type
    return {
        "type": kind.name if kind is not None else None,
        "backlog": subscription.backlog_entries,
        "unacked": subscription.unacked_messages,
        "delayed": subscription.delayed_messages,
        "waiting": dispatcher.waiting_count,
        "mark_delete_position": cursor.mark_delete_position,
        "read_position": cursor.read_position,
        "last_confirmed": ledger.last_confirmed,
        "last_acknowledged": iso_or_none(subscription.last_acked_ms),
        "consumers_count": len(subscription.consumers),
        "consumers": [
            _consumer(consumer, dispatcher.key_ranges_of(consumer))
            for consumer in subscription.consumers[:DETAILED_MAX]
        ],
    }


def _consumer(consumer: Consumer, ranges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    reason = why.held_up(consumer)
    return {
        "consumer": consumer.name,
        "address": consumer.client_address,
        "active": consumer.is_active,
        "permits": consumer.permits,
        "unacked": consumer.unacked_messages,
        "held_up_by": str(reason.code) if reason is not None else None,
        "last_sent": iso_or_none(consumer.last_consumed_ms),
        "last_acknowledged": iso_or_none(consumer.last_acked_ms),
        "slots": sum(end - start + 1 for start, end in ranges),
    }


def blocked_by(standing: Standing) -> Iterator[Code]:
    """The codes of what holds something up, for metrics and log lines."""
    yield from dict.fromkeys(reason.code for reason in standing.reasons if reason.code in HOLDING_UP)


HOLDING_UP: Final = frozenset(code for place, code in enumerate(Code) if place < list(Code).index(Code.CAUGHT_UP))
"""Codes that say that something does not go on; the others are worth knowing."""
