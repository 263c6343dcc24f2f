"""Why a topic takes no messages, or not from everybody; and why one of its producers does not get on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from magnetar.base.clock import Clock
from magnetar.broker.errors import (
    AuthenticationError,
    AuthorizationError,
    ConsumerBusyError,
    IncompatibleSchemaError,
    ProducerBusyError,
    ProducerFencedError,
)
from magnetar.broker.explain.answer import Explanation, iso_or_none, place
from magnetar.broker.explain.sentences import in_order, text_of, verdict
from magnetar.broker.explain.subscription import standing_of
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.reasons import Code, Reason, Standing, because
from magnetar.broker.refused_clients import RecentRefusals, Refused
from magnetar.broker.replicators.replicator import Replicator
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.registry import AnyTopic
from magnetar.managed_ledger.append_pipeline import State

SUBSCRIPTIONS_MAX: Final = 20
"""Subscriptions that stand still and have a reason of their own in the answer for their topic."""

LOOKED_AT_MAX: Final = 1000
"""Subscriptions of a topic that one answer looks at."""

DETAILED_MAX: Final = 100
"""Producers and subscriptions that an answer has details of."""

CLOSED_TO_ALL: Final = frozenset({Code.TERMINATED, Code.QUOTA_EXCEEDED, Code.STORAGE_REFUSES, Code.FENCED})
"""Then nobody can publish."""

REFUSALS: Final = {
    IncompatibleSchemaError.slug: Code.SCHEMA_INCOMPATIBLE,
    AuthorizationError.slug: Code.NOT_PERMITTED,
    AuthenticationError.slug: Code.NOT_PERMITTED,
    ConsumerBusyError.slug: Code.SUBSCRIPTION_BUSY,
    ProducerBusyError.slug: Code.EXCLUSIVE_ACCESS,
    ProducerFencedError.slug: Code.EXCLUSIVE_ACCESS,
    NotOwnedError.slug: Code.NOT_OWNED,
}
"""What an error that a client was told says. Others are `client-refused`: the state of the topic says more."""


def refusals(found: Iterable[Refused]) -> list[Reason]:
    """Clients that were refused of late, each with the code of its error."""
    return [
        Reason(
            REFUSALS.get(refused.error, Code.CLIENT_REFUSED),
            {
                "who": refused.who,
                "name": refused.name or "without a name",
                "subscription": refused.subscription,
                "address": refused.address,
                "error": refused.error,
                "problem": refused.problem,
                "times": refused.times,
            },
            refused.first_ms,
        )
        for refused in found
    ]


# ---- What the state of the topic says


def closed_by(topic: AnyTopic, storage_problem: str | None) -> list[Reason]:
    """Why nobody can publish, or not as fast as somebody wants to."""
    reasons: list[Reason] = []
    publishers = topic.publishers
    if isinstance(topic, PersistentTopic):
        ledger = topic.ledger
        if topic.terminated:
            reasons.append(because(Code.TERMINATED, message=place(ledger.last_confirmed)))
        if ledger.state is State.FENCED:
            reasons.append(because(Code.FENCED))
        if publishers.refusal is not None:
            reasons.append(_quota(topic))
        if storage_problem is not None:
            reasons.append(because(Code.STORAGE_REFUSES, problem=storage_problem.rstrip(". ")))
    if publishers.gate is not None:
        reasons += publishers.gate.standing()
    exclusive = publishers.producers.exclusive
    if exclusive is not None:
        waiting = [producer.name for producer in publishers.producers.waiting]
        since_ms = exclusive.connected_since_ms
        address = exclusive.channel.address
        reasons.append(
            because(Code.EXCLUSIVE_PRODUCER, since_ms, holder=exclusive.name, address=address, waiting=waiting)
        )
    return reasons


def _quota(topic: PersistentTopic) -> Reason:
    slowest = topic.subscriptions.slowest
    size, age = topic.policies.size_quota, topic.policies.age_quota
    return because(
        Code.QUOTA_EXCEEDED,
        topic.upkeep.refused_since_ms,
        subscription=slowest.name if slowest is not None else "nobody",
        backlog_bytes=topic.backlog_bytes,
        limit_bytes=max(0, size.limit_bytes),
        limit_time_s=max(0, age.limit_time_s),
        policy=size.policy if size.limit_bytes >= 0 else age.policy,
    )


def _standings(topic: PersistentTopic, clock: Clock) -> list[tuple[Subscription, Standing]]:
    """Of the first LOOKED_AT_MAX subscriptions."""
    some = topic.subscriptions.all[:LOOKED_AT_MAX]
    return [(subscription, standing_of(topic, subscription, clock)) for subscription in some]


def _standing_still(standings: Sequence[tuple[Subscription, Standing]]) -> list[Reason]:
    """One reason for each subscription that stands still, with its first cause."""
    found = [(subscription, reasons[0]) for subscription, (moving, reasons) in standings if moving is False and reasons]
    return [
        because(
            Code.SUBSCRIPTION_STANDS_STILL,
            first.since_ms,
            subscription=subscription.name,
            backlog=subscription.backlog_entries,
            cause=str(first.code),
            problem=text_of(first).rstrip("."),
        )
        for subscription, first in found[:SUBSCRIPTIONS_MAX]
    ]


def _replicators(topic: PersistentTopic) -> list[Reason]:
    return [
        because(
            Code.REPLICATOR_DISCONNECTED,
            _waiting_since_ms(replicator),
            cluster=replicator.remote,
            backlog=replicator.backlog_entries,
            problem=replicator.problem.rstrip(". ") or "it is being connected",
        )
        for replicator in topic.replicators.all
        if not replicator.connected
    ]


def _waiting_since_ms(replicator: Replicator) -> int:
    """Since when its oldest message waits, 0 if none does."""
    return replicator.waiting_since_ms or 0


# ---- The answers


def explain_topic(topic: AnyTopic, refused: RecentRefusals, storage_problem: str | None, clock: Clock) -> Explanation:
    """`storage_problem`: why nothing can be stored at all."""
    name = str(topic.name)
    reasons = closed_by(topic, storage_problem)
    moving = not any(reason.code in CLOSED_TO_ALL for reason in reasons)
    reasons += refusals(refused.of(name, clock.now_ms()))
    details: dict[str, Any] = {"producers": len(topic.publishers.producers)}
    if isinstance(topic, PersistentTopic):
        standings = _standings(topic, clock)
        reasons += [*_standing_still(standings), *_replicators(topic)]
        details |= _details(topic, standings)
    reasons = in_order(reasons)
    return Explanation(
        {"kind": "topic", "topic": name}, verdict(f"Topic {name}", moving, reasons), moving, reasons, details
    )


def not_loaded(name: str, refused: Sequence[Refused], since_ms: int) -> Explanation:
    """A topic that is stored, and that no client uses."""
    reasons = in_order([*refusals(refused), because(Code.TOPIC_NOT_LOADED, since_ms)])
    return Explanation({"kind": "topic", "topic": name}, verdict(f"Topic {name}", None, reasons), None, reasons)


def not_there(name: str, refused: Sequence[Refused]) -> Explanation:
    """A topic that does not exist, and that clients have asked for of late."""
    reasons = in_order(refusals(refused))
    return Explanation({"kind": "topic", "topic": name}, verdict(f"Topic {name}", False, reasons), False, reasons)


def _details(topic: PersistentTopic, standings: Sequence[tuple[Subscription, Standing]]) -> dict[str, Any]:
    subscriptions = [
        {
            "subscription": subscription.name,
            "moving": moving,
            "cause": str(reasons[0].code) if reasons else None,
            "backlog": subscription.backlog_entries,
            "consumers": len(subscription.consumers),
        }
        for subscription, (moving, reasons) in standings[:DETAILED_MAX]
    ]
    return {
        "subscriptions_count": len(topic.subscriptions.all),
        "backlog_bytes": topic.backlog_bytes,
        "stored_bytes": topic.ledger.size_bytes,
        "last_confirmed": topic.ledger.last_confirmed,
        "last_published": iso_or_none(topic.ledger.last_add_time_ms),
        "subscriptions": subscriptions,
    }


def explain_producer(
    topic: AnyTopic, name: str, refused: RecentRefusals, storage_problem: str | None, clock: Clock
) -> Explanation:
    """`name`: of a producer; empty for any that would come."""
    reasons = closed_by(topic, storage_problem)
    told = [each for each in refused.of(str(topic.name), clock.now_ms()) if each.who != "consumer"]
    reasons += refusals(each for each in told if not name or each.name in (name, ""))
    found = _of_name(topic, name)
    if name and found is None:
        reasons.append(because(Code.NOT_CONNECTED, producer=name))
    if found is not None:
        reasons = [reason for reason in [*reasons, *_held_up(topic, found)] if not _is_about(reason, found)]
    reasons = in_order(reasons)
    moving: bool | None = not any(reason.code in CLOSED_TO_ALL or reason.code in ENDS_ONE for reason in reasons)
    subject = {"kind": "producer", "topic": str(topic.name), "producer": name}
    about = f"Producer {name}" if name else f"A producer of {topic.name}"
    details = _producer(found) if found is not None else {}
    return Explanation(subject, verdict(about, moving, reasons), moving, reasons, details)


ENDS_ONE: Final = frozenset({Code.NOT_CONNECTED, Code.WAITS_FOR_EXCLUSIVE})
"""Then one producer does not get on, and others may."""


def _of_name(topic: AnyTopic, name: str) -> Producer | None:
    producers = topic.publishers.producers
    everybody: Sequence[Producer] = [*producers.all, *producers.waiting, *producers.remote]
    return next((producer for producer in everybody if producer.name == name), None)


def _is_about(reason: Reason, producer: Producer) -> bool:
    """True for what holds up the others only."""
    return reason.code is Code.EXCLUSIVE_PRODUCER and reason.facts["holder"] == producer.name


def _held_up(topic: AnyTopic, producer: Producer) -> list[Reason]:
    reasons: list[Reason] = []
    if producer in topic.publishers.producers.waiting:
        exclusive = topic.publishers.producers.exclusive
        holder = exclusive.name if exclusive is not None else "other producers"
        reasons.append(
            because(Code.WAITS_FOR_EXCLUSIVE, producer.connected_since_ms, producer=producer.name, holder=holder)
        )
    if producer.pending:
        reasons.append(because(Code.RECEIPTS_OUTSTANDING, producer=producer.name, entries=len(producer.pending)))
    return reasons


def _producer(producer: Producer) -> dict[str, Any]:
    return {
        "address": producer.channel.address,
        "connected_since": iso_or_none(producer.connected_since_ms),
        "access_mode": producer.access_mode.name,
        "messages_in": producer.messages_in,
        "messages_per_s": producer.rates.messages_per_s,
        "receipts_outstanding": len(producer.pending),
    }
