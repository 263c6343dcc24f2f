"""JSON of replicated subscriptions."""

from __future__ import annotations

from magnetar.admin.documents import Document


class ReplicatedCluster(Document):
    """Another cluster of the topic. `missing`: the next snapshot waits for it."""

    cluster: str
    connected: bool
    excluded: bool
    missing: bool


class ReplicatedSubscriptionState(Document):
    """Positions are `ledger:entry`. `told_position`: where the last snapshot lies that other clusters follow; null, as
    `would_repeat_messages` then is: none was passed since the topic was loaded. `reason`: why others are not as far."""

    subscription: str
    mark_delete_position: str
    told_position: str | None
    next_snapshot_position: str | None
    would_repeat_messages: int | None
    reason: str


class ReplicatedSubscriptionsStatus(Document):
    """Of one topic, or one partition. Times in ms since 1970; null before the first snapshot since the topic was loaded."""

    topic: str
    cluster: str
    enabled: bool
    snapshot_frequency_millis: int
    clusters: list[ReplicatedCluster]
    pending_snapshot: str | None
    last_snapshot_position: str | None
    last_snapshot_timestamp: int | None
    last_snapshot_age_millis: int | None
    subscriptions: list[ReplicatedSubscriptionState]
