"""Replicated subscriptions: which they are (Pulsar's routes), and what becomes of them (this server's own)."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.topics import (
    ReplicatedCluster,
    ReplicatedSubscriptionsStatus,
    ReplicatedSubscriptionState,
)
from magnetar.admin.operation import documented
from magnetar.admin.policy_checks import truth
from magnetar.admin.routing import both_domains
from magnetar.admin.topic_access import all_with_subscription, every_persistent
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.replication.status import status_of
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.managed_ledger.position import Position

_TOPIC = "/{topic}/replicatedSubscriptions"
_STATUS = "/{topic}/subscription/{subscription}/replicatedSubscriptionStatus"


@documented(answer=dict[str, bool], heavy=True)
async def get_replicated(call: Call) -> Response:
    """By topic, or by partition, whether the subscription is replicated."""
    topics = await all_with_subscription(call, call.subscription)
    return as_json({str(topic.name): topic.subscriptions.get(call.subscription).replicated for topic in topics})


@documented(body=bool, heavy=True)
async def set_replicated(call: Call) -> Response:
    """true or false: from now on the subscription's place follows it to the topic's other clusters, or does not."""
    replicated = truth("the body", await call.json())
    topics = await all_with_subscription(call, call.subscription)
    for topic in topics:
        topic.subscriptions.get(call.subscription)
    for topic in topics:
        await topic.subscriptions.set_replicated(call.subscription, replicated)
    return done()


@documented(answer=list[ReplicatedSubscriptionsStatus], heavy=True)
async def status(call: Call) -> Response:
    """Status of the topic or each partition: the last snapshot, missing clusters, what a failover would repeat now."""
    now_ms = call.broker.clock.now_ms()
    return as_json(msgspec.to_builtins([_status(topic, now_ms) for topic in await every_persistent(call)]))


@documented(heavy=True)
async def force_snapshot(call: Call) -> Response:
    """Begin a snapshot now. 412 while a cluster is away, or where no subscription is replicated."""
    for topic in await every_persistent(call):
        topic.replicated_subscriptions.force()
    return done()


@documented(heavy=True)
async def exclude(call: Call) -> Response:
    """Take snapshots without a cluster that is not connected, until it is back. What it has sent to some clusters only may be
    skipped after a failover. 412 while it is connected."""
    cluster = call.params["cluster"]
    for topic in await every_persistent(call):
        if not topic.replicated_subscriptions.exclude(cluster):
            raise PreconditionFailedError(
                f"{cluster[:80]} cannot be excluded from {topic.name}: it is connected, or no cluster of the topic, or no"
                " subscription is replicated"
            )
    return done()


def _status(topic: PersistentTopic, now_ms: int) -> ReplicatedSubscriptionsStatus:
    found = status_of(topic.replicated_subscriptions, topic.ledger, now_ms)
    return ReplicatedSubscriptionsStatus(
        topic=str(topic.name),
        cluster=found.cluster,
        enabled=found.enabled,
        snapshot_frequency_millis=found.interval_ms,
        clusters=[ReplicatedCluster(**each._asdict()) for each in found.clusters],
        pending_snapshot=found.pending,
        last_snapshot_position=_text(found.snapshot_at),
        last_snapshot_timestamp=found.snapshot_ms or None,
        last_snapshot_age_millis=found.age_ms,
        subscriptions=[
            ReplicatedSubscriptionState(
                subscription=each.name,
                mark_delete_position=f"{each.mark_delete.ledger_id}:{each.mark_delete.entry_id}",
                told_position=_text(each.told),
                next_snapshot_position=_text(each.next_snapshot),
                would_repeat_messages=each.would_repeat,
                reason=each.reason,
            )
            for each in found.subscriptions
        ],
    )


def _text(position: Position | None) -> str | None:
    return None if position is None else f"{position.ledger_id}:{position.entry_id}"


ROUTES = (
    *both_domains("GET", _STATUS, Access.CONSUME, get_replicated),
    *both_domains("POST", _STATUS, Access.CONSUME, set_replicated),
    *both_domains("GET", _TOPIC, Access.LOOKUP, status),
    *both_domains("POST", f"{_TOPIC}/snapshot", Access.TENANT, force_snapshot),
    *both_domains("POST", f"{_TOPIC}/excluded/{{cluster}}", Access.TENANT, exclude),
)
