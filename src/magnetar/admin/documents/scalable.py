"""Documents about scalable topics, as types: fields of Pulsar's admin API."""

from __future__ import annotations

from typing import Any, Literal

from magnetar.admin.documents.cluster import Document


class HashRange(Document):
    """Inclusive 16-bit hashes."""

    start: int
    end: int


class SegmentInfo(Document):
    """A segment in the record of its topic. `sealedAtEpoch` and `sealedAtMs` are -1 while it is active."""

    segment_id: int
    hash_range: HashRange
    state: Literal["ACTIVE", "SEALED"]
    parent_ids: list[int] = []
    child_ids: list[int] = []
    created_at_epoch: int = 0
    sealed_at_epoch: int = -1
    created_at_ms: int = 0
    sealed_at_ms: int = -1
    legacy_topic_name: str | None = None
    entry_bucket_splits: list[int] = []


class ScalableTopicMetadata(Document):
    """`segments` by id. `pendingChange`: a split, merge or migration that has begun and not ended."""

    epoch: int
    next_segment_id: int
    segments: dict[str, SegmentInfo]
    properties: dict[str, str] = {}
    auto_scale_policy: dict[str, Any] | None = None
    pending_change: dict[str, Any] | None = None


class SegmentState(Document):
    """`name`: of the topic that holds the segment's messages."""

    name: str
    state: Literal["ACTIVE", "SEALED"]


class ScalableSubscriptionStats(Document):
    """Stream and checkpoint consumers that the controller knows; those of a queue are connected to the segments only."""

    consumer_count: int = 0


class ScalableTopicStats(Document):
    """`segments` by id, `subscriptions` by name."""

    epoch: int
    total_segments: int
    active_segments: int
    sealed_segments: int
    segments: dict[str, SegmentState] = {}
    subscriptions: dict[str, ScalableSubscriptionStats] = {}


class AutoScalePolicy(Document):
    """What a topic says instead of its namespace, or a namespace instead of the broker's settings; null, or left out, is what the level
    below says. Rates are per second."""

    enabled: bool | None = None
    max_segments: int | None = None
    min_segments: int | None = None
    max_dag_depth: int | None = None
    split_cooldown_seconds: int | None = None
    merge_cooldown_seconds: int | None = None
    merge_window_seconds: int | None = None
    split_msg_rate_in_threshold: float | None = None
    split_bytes_rate_in_threshold: float | None = None
    split_msg_rate_out_threshold: float | None = None
    split_bytes_rate_out_threshold: float | None = None
    merge_msg_rate_in_threshold: float | None = None
    merge_bytes_rate_in_threshold: float | None = None
    merge_msg_rate_out_threshold: float | None = None
    merge_bytes_rate_out_threshold: float | None = None


class ScaleDecision(Document):
    """`segmentIds`: one to split, two to merge, or none. `blocked`: Pulsar's word for what stands in the way of a wanted change."""

    segment_ids: list[int]
    reason: str
    blocked: str = ""
    withheld: dict[str, dict[str, list[int]]] = {}
    """By stream subscription and segment: the ancestors in which not everything is acknowledged."""
    policy: dict[str, Any] = {}
    """What holds, by the fields of `AutoScalePolicy`."""
    policy_sources: dict[str, str] = {}
    """The level that says so for each field: `topic`, `namespace` or `broker`."""


class SegmentStats(Document):
    """Rates per second; `backlog`: entries by subscription; `storageSize` in bytes; `classicClients`: producers and consumers that do not
    follow the topic's layout."""

    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    producers: int = 0
    consumers: int = 0
    classic_clients: int = 0
    storage_size: int = 0
    backlog: dict[str, int] = {}


class ClusterPlaces(Document):
    """`places`: first and last hash, segment, ledger and entry of each; `arrived`: whether the other cluster has everything before them."""

    places: list[list[int]]
    arrived: bool


class SegmentPlaces(Document):
    """Ledger and entry before which everything counts. `readable`: the end, or before what waits for a transaction; `sent`: by cluster;
    `subscriptions`: by name, `end` where nothing is left."""

    end: list[int]
    readable: list[int]
    sent: dict[str, list[int]] = {}
    subscriptions: dict[str, list[int]] = {}
