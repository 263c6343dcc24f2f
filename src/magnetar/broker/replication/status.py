"""Status of a topic's replicated subscriptions for operators: age of the last snapshot, missing clusters, repeats after a failover."""

from __future__ import annotations

from typing import NamedTuple

from magnetar.broker.replication.replicated_subscriptions import ReplicatedSubscriptions
from magnetar.broker.replication.subscription_side import SubscriptionSide
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position


class ClusterStatus(NamedTuple):
    cluster: str
    connected: bool
    excluded: bool
    missing: bool
    """The next snapshot waits for it."""


class SubscriptionStatus(NamedTuple):
    """`told`: the place of the last snapshot that other clusters follow, None: of none since the topic was loaded.
    `would_repeat`: entries that were consumed here and would be given again elsewhere; None: unknown for the same reason."""

    name: str
    mark_delete: Position
    told: Position | None
    next_snapshot: Position | None
    would_repeat: int | None
    reason: str
    """The reason why the other clusters' cursors lag behind this one; empty when they do not."""


class TopicStatus(NamedTuple):
    """Times in ms since 1970. `snapshot_at`: where the last snapshot lies."""

    cluster: str
    enabled: bool
    interval_ms: int
    clusters: list[ClusterStatus]
    pending: str | None
    snapshot_at: Position | None
    snapshot_ms: int
    age_ms: int | None
    subscriptions: list[SubscriptionStatus]


def status_of(topic: ReplicatedSubscriptions, ledger: ManagedLedger, now_ms: int) -> TopicStatus:
    builder, links, last = topic.builder, topic.links(), topic.last_snapshot
    missing = builder.waits_for if builder is not None else ()
    excluded = builder.excluded if builder is not None else ()
    clusters = [
        ClusterStatus(name, connected, name in excluded, name in missing) for name, connected in sorted(links.items())
    ]
    return TopicStatus(
        cluster=topic.cluster,
        enabled=topic.config.enabled,
        interval_ms=topic.config.interval_ms,
        clusters=clusters,
        pending=builder.pending_id if builder is not None else None,
        snapshot_at=last[0] if last is not None else None,
        snapshot_ms=last[1] if last is not None else 0,
        age_ms=now_ms - last[1] if last is not None else None,
        subscriptions=[_subscription(side, ledger, clusters) for _, side in sorted(topic.sides.items())],
    )


def _subscription(side: SubscriptionSide, ledger: ManagedLedger, clusters: list[ClusterStatus]) -> SubscriptionStatus:
    mark_delete = side.subscription.cursor.mark_delete_position
    told = Position(*side.told) if side.told > EARLIEST else None
    would_repeat = None
    if told is not None:
        behind = ledger.index.entries_between(told, mark_delete) - ledger.hidden.between(told, mark_delete)
        would_repeat = max(0, behind) + side.acks.untold
    following = side.next_snapshot
    next_snapshot = Position(*following.local_message_id) if following is not None else None
    reason = _reason(told, next_snapshot, would_repeat, clusters)
    return SubscriptionStatus(side.subscription.name, mark_delete, told, next_snapshot, would_repeat, reason)


def _reason(
    told: Position | None, following: Position | None, would_repeat: int | None, clusters: list[ClusterStatus]
) -> str:
    away = [each.cluster for each in clusters if each.missing and not each.connected]
    silent = [each.cluster for each in clusters if each.missing and each.connected]
    if not clusters:
        return "the topic is in no other cluster"
    if would_repeat == 0:
        return ""
    if away:
        return f"no snapshot is taken: {_and(away)} not connected"
    if following is not None:
        return f"the next snapshot lies at {following.ledger_id}:{following.entry_id}, which is not consumed yet"
    if silent:
        return f"a snapshot is under way and waits for {', '.join(silent)}"
    return "no snapshot was passed since the topic was loaded" if told is None else "the next snapshot is due"


def _and(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names)} are"
