"""The settings of replicated subscriptions, part of a broker's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.base.settings import setting


@dataclass(frozen=True, kw_only=True)
class ReplicatedSubscriptionSettings:
    """Pulsar's keys, but for the last one. A namespace's properties of the same names win; docs/explanation/geo-replication.md."""

    enable_replicated_subscriptions: bool = setting(
        True,
        "enableReplicatedSubscriptions",
        "Keep replicated subscriptions at the same place in all clusters; false: they are local, whatever clients ask for.",
    )
    replicated_subscriptions_snapshot_frequency_ms: int = setting(
        1000,
        "replicatedSubscriptionsSnapshotFrequencyMillis",
        "How often a topic with replicated subscriptions takes a snapshot across clusters, if something was published.",
        unit="ms",
        minimum=10,
    )
    replicated_subscriptions_snapshot_timeout_s: int = setting(
        30,
        "replicatedSubscriptionsSnapshotTimeoutSeconds",
        "A snapshot that is not complete by then is dropped.",
        unit="s",
        minimum=1,
    )
    replicated_subscriptions_snapshot_max_cached_per_subscription: int = setting(
        30,
        "replicatedSubscriptionsSnapshotMaxCachedPerSubscription",
        "Snapshots a subscription has read and not yet passed; above it they are thinned out.",
        minimum=3,
    )
    replicated_subscriptions_partial_snapshots_after_s: int = setting(
        0,
        "replicatedSubscriptionsPartialSnapshotsAfterSeconds",
        "Take snapshots without a cluster that was away for so long; what it sent to some only may then be skipped. 0: never.",
        unit="s",
        minimum=0,
    )
