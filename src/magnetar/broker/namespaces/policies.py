"""Policies: Pulsar's JSON documents of a namespace and of a topic, and the values that result from them.

Documents are kept as they came, unknown fields included; a missing field means the level below (`policy_layers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.broker.config import BrokerConfig, ReplicatedSubscriptionsConfig, replicated_subscriptions_config
from magnetar.broker.namespaces.policy_layers import Documents, merged
from magnetar.broker.namespaces.records import boundaries_text
from magnetar.broker.rate_limits import UNLIMITED, RateLimit, SubscribeRate

DESTINATION_STORAGE = "destination_storage"
MESSAGE_AGE = "message_age"
PRODUCER_REQUEST_HOLD = "producer_request_hold"
PRODUCER_EXCEPTION = "producer_exception"
CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"
DELETE_WHEN_NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP = "delete_when_subscriptions_caught_up"

ENABLED: Final = "enableReplicatedSubscriptions"
INTERVAL: Final = "replicatedSubscriptionsSnapshotFrequencyMillis"
TIMEOUT: Final = "replicatedSubscriptionsSnapshotTimeoutSeconds"
CACHED: Final = "replicatedSubscriptionsSnapshotMaxCachedPerSubscription"
PARTIAL: Final = "replicatedSubscriptionsPartialSnapshotsAfterSeconds"


Document = dict[str, Any]

SUBSCRIPTIONS: Final = "subscriptionPolicies"
"""In a topic's document: what single subscriptions have of their own."""

RESOURCE_GROUP: Final = "resource_group_name"

DELETE_MODES = (DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP)
BACKLOG_POLICIES = (PRODUCER_REQUEST_HOLD, PRODUCER_EXCEPTION, CONSUMER_BACKLOG_EVICTION)


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """`limit_bytes` and `limit_time_s` are -1 when that side is not limited."""

    limit_bytes: int = -1
    limit_time_s: int = -1
    policy: str = PRODUCER_REQUEST_HOLD


@dataclass(frozen=True, slots=True)
class InactivePolicy:
    """Deletion of topics that nobody uses. `mode` says which subscriptions keep one: any, or those with a backlog."""

    delete: bool = False
    mode: str = DELETE_WHEN_NO_SUBSCRIPTIONS
    max_inactive_s: int = 60


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Namespaces that share rates, at each broker."""

    name: str
    publish_rate: RateLimit = UNLIMITED
    dispatch_rate: RateLimit = UNLIMITED


NO_GROUP: Final = ResourceGroup("")


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """The policies in effect for one topic, or for the topics of a namespace without policies of their own. A `max_*` of 0 is unlimited."""

    retention_time_minutes: int
    retention_size_mb: int
    message_ttl_s: int
    size_quota: BacklogQuota
    age_quota: BacklogQuota
    deduplication: bool
    deduplication_snapshot_interval_s: int
    max_producers_per_topic: int
    max_consumers_per_topic: int
    max_consumers_per_subscription: int
    max_subscriptions_per_topic: int
    max_topics_per_namespace: int
    max_message_size_bytes: int
    max_unacked_messages_per_consumer: int
    max_unacked_messages_per_subscription: int
    publish_rate: RateLimit
    dispatch_rate: RateLimit
    subscription_dispatch_rate: RateLimit
    replicator_dispatch_rate: RateLimit
    replication_clusters: tuple[str, ...]
    """Among them this one, as a rule."""
    subscribe_rate: SubscribeRate
    encryption_required: bool
    subscription_types: frozenset[str]
    """Names of the types that consumers may have."""
    delayed_delivery: bool
    delayed_delivery_tick_ms: int
    compaction_threshold_bytes: int
    inactive: InactivePolicy
    subscription_expiration_s: float
    auto_topic_creation: bool
    auto_topic_creation_partitioned: bool
    default_num_partitions: int
    auto_subscription_creation: bool
    replicated_subscriptions: ReplicatedSubscriptionsConfig
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    schema_compatibility_strategy: str
    schema_validation_enforced: bool
    allow_auto_update_schema: bool
    subscription_rates: Mapping[str, RateLimit]
    """Of single subscriptions, by name."""
    mark_delete_rate: float
    """Times a second that a subscription's progress may be written; 0: the managed ledger's own interval."""
    resource_group: ResourceGroup = NO_GROUP


def new_document(cluster: str, num_bundles: int) -> Document:
    """The document of a namespace created without any policies."""
    return {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": [cluster],
        "bundles": {"boundaries": boundaries_text(num_bundles), "numBundles": num_bundles},
        "backlog_quota_map": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "schema_compatibility_strategy": "UNDEFINED",
        "offload_threshold": -1,
        "subscription_types_enabled": [],
        "properties": {},
    }


def effective(
    config: BrokerConfig, namespace: Mapping[str, Any], topic: Mapping[str, Any] | None = None
) -> EffectivePolicies:
    """Broker defaults, overridden by the namespace's document, overridden by the topic's."""
    documents = Documents(config, namespace, topic or {})

    def value(name: str) -> Any:
        return merged(name, documents)

    retention, persistence, delayed = value("retention"), value("persistence"), value("delayed_delivery")
    auto_topic, expiration = value("auto_topic_creation") or {}, value("subscription_expiration")
    ledger = config.managed_ledger
    return EffectivePolicies(
        retention_time_minutes=_field(retention, "retentionTimeInMinutes", config.settings.default_retention_minutes),
        retention_size_mb=_field(retention, "retentionSizeInMB", config.settings.default_retention_size_mb),
        message_ttl_s=value("message_ttl"),
        size_quota=_quota(documents, DESTINATION_STORAGE),
        age_quota=_quota(documents, MESSAGE_AGE),
        deduplication=value("deduplication"),
        deduplication_snapshot_interval_s=value("deduplication_snapshot_interval"),
        max_producers_per_topic=value("max_producers"),
        max_consumers_per_topic=value("max_consumers"),
        max_consumers_per_subscription=value("max_consumers_per_subscription"),
        max_subscriptions_per_topic=value("max_subscriptions"),
        max_topics_per_namespace=value("max_topics"),
        max_message_size_bytes=value("max_message_size"),
        max_unacked_messages_per_consumer=value("max_unacked_per_consumer"),
        max_unacked_messages_per_subscription=value("max_unacked_per_subscription"),
        publish_rate=_publish_rate(value("publish_rate")),
        dispatch_rate=_dispatch_rate(value("dispatch_rate")),
        subscription_dispatch_rate=_dispatch_rate(value("subscription_dispatch_rate")),
        subscription_rates=_subscription_rates(documents.topic),
        replicator_dispatch_rate=_dispatch_rate(value("replicator_dispatch_rate")),
        replication_clusters=tuple(value("replication")),
        subscribe_rate=_subscribe_rate(value("subscribe_rate"), config),
        encryption_required=bool(value("encryption_required")) or config.settings.encryption_require_on_producer,
        subscription_types=frozenset(value("subscription_types")),
        delayed_delivery=_field(delayed, "active", config.settings.delayed_delivery_enabled),
        delayed_delivery_tick_ms=_field(delayed, "tickTime", config.settings.delayed_delivery_tick_ms),
        compaction_threshold_bytes=value("compaction_threshold"),
        inactive=_inactive(value("inactive_topic"), config),
        subscription_expiration_s=60
        * (config.settings.subscription_expiration_minutes if expiration is None else expiration),
        auto_topic_creation=_field(auto_topic, "allowAutoTopicCreation", config.settings.allow_auto_topic_creation),
        auto_topic_creation_partitioned=(
            auto_topic["topicType"] == "partitioned"
            if auto_topic.get("topicType")
            else config.settings.allow_auto_topic_creation_type == "partitioned"
        ),
        default_num_partitions=_field(auto_topic, "defaultNumPartitions", config.settings.default_num_partitions),
        auto_subscription_creation=_field(
            value("auto_subscription_creation"),
            "allowAutoSubscriptionCreation",
            config.settings.allow_auto_subscription_creation,
        ),
        replicated_subscriptions=replicated_subscriptions_of(
            replicated_subscriptions_config(config.settings), namespace
        ),
        ensemble_size=_field(persistence, "bookkeeperEnsemble", ledger.ensemble_size),
        write_quorum=_field(persistence, "bookkeeperWriteQuorum", ledger.write_quorum),
        ack_quorum=_field(persistence, "bookkeeperAckQuorum", ledger.ack_quorum),
        mark_delete_rate=_field(persistence, "managedLedgerMaxMarkDeleteRate", 0.0),
        schema_compatibility_strategy=value("schema_compatibility"),
        schema_validation_enforced=config.settings.is_schema_validation_enforced or value("schema_validation"),
        allow_auto_update_schema=value("auto_update_schema"),
    )


def _field(body: Mapping[str, Any], key: str, default: Any) -> Any:
    value = body.get(key)
    return default if value is None else value


def _publish_rate(body: Mapping[str, Any]) -> RateLimit:
    return RateLimit(
        _field(body, "publishThrottlingRateInMsg", 0), _field(body, "publishThrottlingRateInByte", 0), period_s=1
    )


def _subscription_rates(topic: Mapping[str, Any]) -> dict[str, RateLimit]:
    own = {name: (each or {}).get("dispatchRate") for name, each in (topic.get(SUBSCRIPTIONS) or {}).items()}
    return {name: _dispatch_rate(rate) for name, rate in own.items() if rate}


def resource_group(name: str, document: Mapping[str, Any]) -> ResourceGroup:
    """Of a stored document; what it does not limit is None or -1 there."""

    def rate(side: str) -> RateLimit:
        return RateLimit(int(document.get(f"{side}RateInMsgs") or 0), int(document.get(f"{side}RateInBytes") or 0))

    return ResourceGroup(name, rate("publish"), rate("dispatch"))


def _dispatch_rate(body: Mapping[str, Any]) -> RateLimit:
    return RateLimit(
        messages=_field(body, "dispatchThrottlingRateInMsg", 0),
        size_bytes=_field(body, "dispatchThrottlingRateInByte", 0),
        period_s=max(1, _field(body, "ratePeriodInSecond", 1)),
        relative_to_publish_rate=_field(body, "relativeToPublishRate", False),
    )


def _subscribe_rate(body: Mapping[str, Any], config: BrokerConfig) -> SubscribeRate:
    return SubscribeRate(
        _field(body, "subscribeThrottlingRatePerConsumer", config.settings.subscribe_throttling_rate_per_consumer),
        max(1, _field(body, "ratePeriodInSecond", config.settings.subscribe_rate_period_per_consumer_s)),
    )


def _inactive(body: Mapping[str, Any], config: BrokerConfig) -> InactivePolicy:
    return InactivePolicy(
        _field(body, "deleteWhileInactive", config.settings.broker_delete_inactive_topics_enabled),
        _field(body, "inactiveTopicDeleteMode", config.settings.broker_delete_inactive_topics_mode),
        _field(
            body, "maxInactiveDurationSeconds", config.settings.broker_delete_inactive_topics_max_inactive_duration_s
        ),
    )


def merged_quotas(documents: Documents) -> dict[str, Any]:
    """Quotas by type: each type is the topic's, else the namespace's, else the broker's. Types that nobody limits are left out."""
    config = documents.config
    quotas: dict[str, Any] = {}
    if config.settings.backlog_quota_default_limit_bytes >= 0:
        quotas[DESTINATION_STORAGE] = {
            "limitSize": config.settings.backlog_quota_default_limit_bytes,
            "limitTime": -1,
            "policy": config.settings.backlog_quota_default_policy,
        }
    if config.settings.backlog_quota_default_limit_s > 0:
        quotas[MESSAGE_AGE] = {
            "limitSize": -1,
            "limitTime": config.settings.backlog_quota_default_limit_s,
            "policy": config.settings.backlog_quota_default_policy,
        }
    for document, key in ((documents.namespace, "backlog_quota_map"), (documents.topic, "backLogQuotaMap")):
        quotas |= {kind: quota for kind, quota in (document.get(key) or {}).items() if quota is not None}
    return quotas


def effective_quotas(documents: Documents) -> dict[str, Any]:
    """The same with the types that nobody limits, as Pulsar shows what holds."""
    none = {
        "limit": -1,
        "limitSize": -1,
        "limitTime": -1,
        "policy": documents.config.settings.backlog_quota_default_policy,
    }
    return {**{kind: none for kind in (DESTINATION_STORAGE, MESSAGE_AGE)}, **merged_quotas(documents)}


def _quota(documents: Documents, kind: str) -> BacklogQuota:
    stored = merged_quotas(documents).get(kind)
    if stored is None:
        return BacklogQuota(policy=documents.config.settings.backlog_quota_default_policy)
    limit_bytes = stored.get("limitSize", stored.get("limit", -1))  # `limit` is the field's name before Pulsar 2.8
    return BacklogQuota(
        limit_bytes=int(limit_bytes),
        limit_time_s=int(stored.get("limitTime", -1)),
        policy=str(stored.get("policy") or documents.config.settings.backlog_quota_default_policy),
    )


def replicated_subscriptions_of(
    config: ReplicatedSubscriptionsConfig, namespace: Mapping[str, Any]
) -> ReplicatedSubscriptionsConfig:
    """The settings of replicated subscriptions in a namespace with this document, whose properties have the names of the broker's settings.

    A property that is not a number, or too small, counts as not set.
    """
    properties = namespace.get("properties") or {}
    if not properties:
        return config
    partial_s = _number(properties, PARTIAL, 0, -1)
    return replace(
        config,
        enabled=config.enabled and str(properties.get(ENABLED, "true")).lower() != "false",
        interval_ms=_number(properties, INTERVAL, 10, config.interval_ms),
        timeout_ms=_number(properties, TIMEOUT, 1, 0) * 1000 or config.timeout_ms,
        snapshots_max=_number(properties, CACHED, 3, config.snapshots_max),
        partial_after_ms=config.partial_after_ms if partial_s < 0 else partial_s * 1000 or None,
    )


def _number(properties: Mapping[str, Any], name: str, minimum: int, default: int) -> int:
    try:
        value = int(properties[name])
    except (KeyError, TypeError, ValueError):
        return default
    return value if value >= minimum else default
