"""Policies as types, by the names of their rows. Null in a field means: not set. Sizes in bytes unless the name says otherwise."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from magnetar.admin.documents.cluster import Document
from magnetar.admin.documents.scalable import AutoScalePolicy

Int = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Limit = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
LongLimit = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
LongNatural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
LongPositive = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Quorum = Annotated[int, Meta(ge=1, le=64)]

Strategy = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]


class Retention(Document):
    """Time and size for which acknowledged messages are kept; -1: no limit."""

    retention_time_in_minutes: Limit
    retention_size_in_mb: LongLimit = field(name="retentionSizeInMB")


class Persistence(Document):
    """Bookies of a ledger, copies of an entry, copies before the receipt; writes of a subscription's progress a second."""

    bookkeeper_ensemble: Quorum
    bookkeeper_write_quorum: Quorum
    bookkeeper_ack_quorum: Quorum
    managed_ledger_max_mark_delete_rate: float = 0.0


class DispatchRate(Document):
    """Limit of dispatch to consumers in a period; -1: none."""

    dispatch_throttling_rate_in_msg: Limit | None = -1
    dispatch_throttling_rate_in_byte: LongLimit | None = -1
    relative_to_publish_rate: bool | None = False
    rate_period_in_second: Positive | None = 1


class PublishRate(Document):
    """Limit of what producers may send per second; -1: none."""

    publish_throttling_rate_in_msg: Limit | None = -1
    publish_throttling_rate_in_byte: LongLimit | None = -1


class SubscribeRate(Document):
    """Number of times that one consumer may subscribe in a period; -1: no limit."""

    subscribe_throttling_rate_per_consumer: Limit | None = -1
    rate_period_in_second: Positive | None = 30


class DelayedDelivery(Document):
    """True if messages are held back until their delivery time; `tickTime` in ms."""

    active: bool
    tick_time: LongPositive | None = 1000
    max_delay_in_millis: LongNatural | None = 0


class InactiveTopics(Document):
    """When topics that nobody uses are deleted."""

    inactive_topic_delete_mode: Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
    max_inactive_duration_seconds: Positive
    delete_while_inactive: bool


class AutoTopicCreation(Document):
    """Automatic creation of topics by clients, and the kind of topic."""

    allow_auto_topic_creation: bool
    topic_type: Literal["partitioned", "non-partitioned"] | None = None
    default_num_partitions: Positive | None = None


class AutoSubscriptionCreation(Document):
    """Automatic creation of subscriptions by consumers."""

    allow_auto_subscription_creation: bool


class BacklogQuota(Document, kw_only=True):
    """What subscriptions may leave unconsumed, in bytes and seconds (-1: any), and what happens beyond."""

    limit_size: LongLimit | None = -1
    limit_time: LongLimit | None = -1
    policy: Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]


class AuthPolicies(Struct, kw_only=True):
    """Who may do what: actions by role; the same by topic; roles by subscription."""

    namespace_auth: dict[str, list[str]] = {}
    destination_auth: dict[str, dict[str, list[str]]] = {}
    subscription_auth_roles: dict[str, list[str]] = {}


class NewBundles(Document):
    """Into how many parts the hash range is cut at first."""

    num_bundles: Annotated[int, Meta(ge=0, le=4096)]


class NewPolicies(Struct, kw_only=True):
    """A namespace's document at its creation; any other key of Pulsar's Policies is taken as well."""

    auth_policies: AuthPolicies | None = None
    replication_clusters: list[str] | None = None
    bundles: NewBundles | None = None
    encryption_required: bool | None = None
    max_producers_per_topic: Natural | None = None
    max_consumers_per_topic: Natural | None = None
    message_ttl_in_seconds: Natural | None = None
    retention_policies: Retention | None = None


class StoredBundles(Document):
    """The parts of the hash range that hold now."""

    boundaries: list[str]
    num_bundles: int


class StoredPolicies(Struct, kw_only=True):
    """What is kept for a namespace; keys of single policies are beside these."""

    bundles: StoredBundles
    auth_policies: dict[str, Any] = {}
    replication_clusters: list[str] = []
    properties: dict[str, str] | None = None


POLICY_TYPES: dict[str, Any] = {
    "message_ttl": Natural,
    "subscription_auth_mode": Literal["None", "Prefix"],
    "retention": Retention,
    "persistence": Persistence,
    "deduplication": bool,
    "deduplication_snapshot_interval": Natural,
    "max_producers": Natural,
    "max_consumers": Natural,
    "max_consumers_per_subscription": Natural,
    "max_subscriptions": Natural,
    "max_topics": Natural,
    "max_message_size": Natural,
    "max_unacked_per_consumer": Natural,
    "max_unacked_per_subscription": Natural,
    "dispatch_rate": DispatchRate,
    "subscription_dispatch_rate": DispatchRate,
    "replicator_dispatch_rate": DispatchRate,
    "publish_rate": PublishRate,
    "subscribe_rate": SubscribeRate,
    "delayed_delivery": DelayedDelivery,
    "compaction_threshold": LongNatural,
    "inactive_topic": InactiveTopics,
    "scalable_auto_scale": AutoScalePolicy,
    "auto_topic_creation": AutoTopicCreation,
    "auto_subscription_creation": AutoSubscriptionCreation,
    "subscription_expiration": Natural,
    "encryption_required": bool,
    "subscription_types": list[Literal["Exclusive", "Shared", "Failover", "Key_Shared"]],
    "schema_compatibility": Strategy,
    "schema_validation": bool,
    "auto_update_schema": bool,
    "replication": list[str],
    "offload": dict[str, Any],
    "offload_threshold": LongLimit,
    "offload_threshold_seconds": LongLimit,
    "offload_deletion_lag": LongLimit,
}
"""By the names of `policy_rows`; backlog quotas are a map of `BacklogQuota` by type."""
