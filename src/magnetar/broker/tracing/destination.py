"""Where a message would go that is not stored: what would refuse it, which consumer of each subscription would get it, or why none."""

from __future__ import annotations

from typing import Final

from magnetar.base.clock import Clock, iso_time
from magnetar.base.errors import client_text
from magnetar.broker.dispatch import why
from magnetar.broker.dispatch.entry_metadata import EntryMetadata, from_message_metadata
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.receiver import Receiver
from magnetar.broker.explain.sentences import text_of
from magnetar.broker.explain.topic import closed_by
from magnetar.broker.reasons import Code, Reason
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.deduplication import DuplicateStatus
from magnetar.broker.topics.nonpersistent import NonPersistentTopic
from magnetar.broker.topics.publish import PublishOp
from magnetar.broker.topics.registry import AnyTopic
from magnetar.broker.tracing.trace import Kind, Trace
from magnetar.wire.pulsar.headers import metadata_bounds
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

SUBSCRIPTIONS_TOLD_MAX: Final = 30
"""Subscriptions that one answer speaks of; the others are counted."""


def where_it_would_go(
    trace: Trace, topic: AnyTopic, op: PublishOp, metadata: MessageMetadata, data: bytes, clock: Clock
) -> None:
    """Note it. `op`: the publish that is not made."""
    for problem in _refusals(topic, op, data, bool(metadata.num_chunks_from_msg > 1)):
        trace.note(Kind.WOULD_BE_REFUSED, problem)
    told = from_message_metadata(metadata, len(data) - metadata_bounds(data)[1])
    if isinstance(topic, NonPersistentTopic):
        for each in list(topic.subscriptions)[:SUBSCRIPTIONS_TOLD_MAX]:
            kind = Kind.WOULD_BE_DELIVERED if each.consumers else Kind.WOULD_WAIT
            text = f"{len(each.consumers)} consumers" if each.consumers else "no consumer: it would be dropped"
            trace.note(kind, text, subscription=each.name)
        return
    if not topic.terminated:
        trace.note(Kind.WOULD_BE_STORED, f"in ledger {topic.ledger.current_ledger_id}, or the next one if that is full")
    subscriptions = topic.subscriptions.all
    for subscription in subscriptions[:SUBSCRIPTIONS_TOLD_MAX]:
        _to_subscription(trace, subscription, told, clock)
    if not subscriptions:
        trace.note(Kind.WOULD_WAIT, "the topic has no subscription: it would be deleted when retention ends")
    elif len(subscriptions) > SUBSCRIPTIONS_TOLD_MAX:
        trace.note(Kind.WOULD_WAIT, f"{len(subscriptions) - SUBSCRIPTIONS_TOLD_MAX} more subscriptions are not told of")
    for cluster, connected in topic.replicators.links().items():
        if metadata.replicate_to and cluster not in metadata.replicate_to:
            continue
        text = "" if connected else "once its replicator is connected"
        trace.note(Kind.WOULD_BE_REPLICATED, text, cluster=cluster)


def _refusals(topic: AnyTopic, op: PublishOp, data: bytes, is_chunk: bool) -> list[str]:
    publishers = topic.publishers
    own = publishers.producers.exclusive is op.producer
    closed = [reason for reason in closed_by(topic, None) if not (own and reason.code is Code.EXCLUSIVE_PRODUCER)]
    found = [text_of(reason) for reason in closed]
    if publishers.gate is not None:
        error = publishers.gate.problem(op, data, is_chunk)
        found += [client_text(error)] if error is not None else []
    dedup = publishers.dedup
    if dedup is not None and publishers.dedup_producers:
        status = dedup.check(op.sequence_name, op.last_sequence_id)
        if status is not DuplicateStatus.NEW:
            found.append(
                "deduplication: the topic has a message of this producer with this sequence id or a higher one"
            )
    return found


def _to_subscription(trace: Trace, subscription: Subscription, told: EntryMetadata, clock: Clock) -> None:
    name = subscription.name
    if not subscription.consumers:
        backlog = subscription.backlog_entries
        trace.note(Kind.WOULD_WAIT, f"no consumer is connected; {backlog} entries wait already", subscription=name)
        return
    dispatcher = subscription.dispatch.dispatcher
    reasons: list[Reason] = list(subscription.dispatch.pump.standing())
    consumer: Receiver | None = dispatcher.active_consumer
    if isinstance(dispatcher, KeySharedDispatcher):
        lane = dispatcher.lanes.owner(told.slot)
        consumer = lane.consumer if lane is not None else None
        reasons += why.of_slot(dispatcher.lanes, told.slot)
    if consumer is not None:
        held_up = why.held_up(consumer)
        reasons += [held_up] if held_up is not None else []
    elif not reasons:
        moving, found = dispatcher.standing(True)
        reasons += found if moving is False else []
    if (
        dispatcher.holds_entries
        and subscription.config.delayed_delivery_enabled
        and told.deliver_at_ms > clock.now_ms()
    ):
        trace.note(Kind.WOULD_WAIT, f"delayed until {iso_time(told.deliver_at_ms)}", subscription=name)
    if reasons:
        text = f"{reasons[0].code}: {text_of(reasons[0])}"
        trace.note(Kind.WOULD_WAIT, text, subscription=name, **_named(consumer))
    elif consumer is not None:
        trace.note(Kind.WOULD_BE_DELIVERED, _behind(subscription).lstrip(", "), subscription=name, **_named(consumer))
    else:
        text = f"one of {len(subscription.consumers)} consumers{_behind(subscription)}"
        trace.note(Kind.WOULD_BE_DELIVERED, text, subscription=name)


def _behind(subscription: Subscription) -> str:
    backlog = subscription.backlog_entries
    return f", behind {backlog} entries that are not acknowledged" if backlog else ""


def _named(consumer: Receiver | None) -> dict[str, str]:
    if consumer is None:
        return {}
    told = consumer.described()
    return {"consumer": str(told["consumer"]), "address": str(told["address"])}
