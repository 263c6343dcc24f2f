"""The place of each policy: its key in the topic's document, its key in the namespace's, and the broker's default.

The topic's value wins over the namespace's, that over the broker's; null counts as not set. Bodies are Pulsar's JSON, the same at
both levels, so that the one function `merged` is behind what holds (`policies.effective`) and what `?applied=true` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.broker.config import BrokerConfig
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.security import names_of

NOT_SET: tuple[Any, ...] = (None, "UNDEFINED", [])
"""The latter two are what Pulsar's documents say of a schema compatibility strategy and of lists that are not set."""

Default = Callable[[BrokerSettings], Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """An empty key: the policy does not exist at that level. `by_cluster`: the namespace keeps a value for each cluster."""

    topic: str = ""
    namespace: str = ""
    default: Default = lambda settings: None
    by_cluster: bool = False


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents stored for one topic; `topic` is empty for the namespace as a whole."""

    config: BrokerConfig
    namespace: Mapping[str, Any]
    topic: Mapping[str, Any]


def namespace_value(layer: Layer, document: Mapping[str, Any], cluster: str) -> Any:
    """The namespace's own value, None while it is not set."""
    value = document.get(layer.namespace) if layer.namespace else None
    return (value or {}).get(cluster) if layer.by_cluster else value


def merged(name: str, documents: Documents) -> Any:
    """The value that holds: the topic's, else the namespace's, else the broker's (None where the broker has none)."""
    layer = LAYERS[name]
    value = documents.topic.get(layer.topic) if layer.topic else None
    if value in NOT_SET:
        value = namespace_value(layer, documents.namespace, documents.config.settings.cluster_name)
    return layer.default(documents.config.settings) if value in NOT_SET else value


def _dispatch_rate(messages: int, size_bytes: int) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size_bytes,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }


def _retention(settings: BrokerSettings) -> dict[str, Any]:
    return {
        "retentionTimeInMinutes": settings.default_retention_minutes,
        "retentionSizeInMB": settings.default_retention_size_mb,
    }


def _persistence(settings: BrokerSettings) -> dict[str, Any]:
    return {
        "bookkeeperEnsemble": settings.managed_ledger_ensemble_size,
        "bookkeeperWriteQuorum": settings.managed_ledger_write_quorum,
        "bookkeeperAckQuorum": settings.managed_ledger_ack_quorum,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }


def _expiration_minutes(settings: BrokerSettings) -> float:
    """The broker's may be a part of a minute; a policy is a whole number."""
    minutes = settings.subscription_expiration_minutes
    return int(minutes) if minutes == int(minutes) else minutes


def _inactive(settings: BrokerSettings) -> dict[str, Any]:
    return {
        "inactiveTopicDeleteMode": settings.broker_delete_inactive_topics_mode,
        "maxInactiveDurationSeconds": settings.broker_delete_inactive_topics_max_inactive_duration_s,
        "deleteWhileInactive": settings.broker_delete_inactive_topics_enabled,
    }


LAYERS: dict[str, Layer] = {
    "message_ttl": Layer("messageTTLInSeconds", "message_ttl_in_seconds", lambda settings: settings.ttl_default_s),
    "retention": Layer("retentionPolicies", "retention_policies", _retention),
    "persistence": Layer("persistence", "persistence", _persistence),
    "deduplication": Layer(
        "deduplicationEnabled", "deduplicationEnabled", lambda settings: settings.broker_deduplication_enabled
    ),
    "deduplication_snapshot_interval": Layer(
        "deduplicationSnapshotIntervalSeconds",
        "deduplicationSnapshotIntervalSeconds",
        lambda settings: settings.broker_deduplication_snapshot_interval_s,
    ),
    "max_producers": Layer(
        "maxProducerPerTopic", "max_producers_per_topic", lambda settings: settings.max_producers_per_topic
    ),
    "max_consumers": Layer(
        "maxConsumerPerTopic", "max_consumers_per_topic", lambda settings: settings.max_consumers_per_topic
    ),
    "max_consumers_per_subscription": Layer(
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        lambda settings: settings.max_consumers_per_subscription,
    ),
    "max_subscriptions": Layer(
        "maxSubscriptionsPerTopic", "max_subscriptions_per_topic", lambda settings: settings.max_subscriptions_per_topic
    ),
    "max_topics": Layer("", "max_topics_per_namespace", lambda settings: settings.max_topics_per_namespace),
    "max_message_size": Layer("maxMessageSize", "", lambda settings: 0),
    "max_unacked_per_consumer": Layer(
        "maxUnackedMessagesOnConsumer",
        "max_unacked_messages_per_consumer",
        lambda settings: settings.max_unacked_messages_per_consumer,
    ),
    "max_unacked_per_subscription": Layer(
        "maxUnackedMessagesOnSubscription",
        "max_unacked_messages_per_subscription",
        lambda settings: settings.max_unacked_messages_per_subscription,
    ),
    "dispatch_rate": Layer(
        "dispatchRate",
        "topicDispatchRate",
        lambda settings: _dispatch_rate(
            settings.dispatch_throttling_rate_per_topic_messages, settings.dispatch_throttling_rate_per_topic_bytes
        ),
        by_cluster=True,
    ),
    "subscription_dispatch_rate": Layer(
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        lambda settings: _dispatch_rate(
            settings.dispatch_throttling_rate_per_subscription_messages,
            settings.dispatch_throttling_rate_per_subscription_bytes,
        ),
        by_cluster=True,
    ),
    "replicator_dispatch_rate": Layer(
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        lambda settings: _dispatch_rate(
            settings.dispatch_throttling_rate_per_replicator_in_msg,
            settings.dispatch_throttling_rate_per_replicator_in_byte,
        ),
        by_cluster=True,
    ),
    "publish_rate": Layer(
        "publishRate",
        "publishMaxMessageRate",
        lambda settings: {
            "publishThrottlingRateInMsg": settings.max_publish_rate_per_topic_messages,
            "publishThrottlingRateInByte": settings.max_publish_rate_per_topic_bytes,
        },
        by_cluster=True,
    ),
    "subscribe_rate": Layer(
        "subscribeRate",
        "clusterSubscribeRate",
        lambda settings: {
            "subscribeThrottlingRatePerConsumer": settings.subscribe_throttling_rate_per_consumer,
            "ratePeriodInSecond": settings.subscribe_rate_period_per_consumer_s,
        },
        by_cluster=True,
    ),
    "delayed_delivery": Layer(
        "delayedDelivery",
        "delayed_delivery_policies",
        lambda settings: {"active": settings.delayed_delivery_enabled, "tickTime": settings.delayed_delivery_tick_ms},
    ),
    "compaction_threshold": Layer(
        "compactionThreshold", "compaction_threshold", lambda settings: settings.compaction_threshold_bytes
    ),
    "inactive_topic": Layer("inactiveTopicPolicies", "inactive_topic_policies", _inactive),
    "auto_topic_creation": Layer("", "autoTopicCreationOverride"),
    "auto_subscription_creation": Layer(
        "autoSubscriptionCreationOverride",
        "autoSubscriptionCreationOverride",
        lambda settings: {"allowAutoSubscriptionCreation": settings.allow_auto_subscription_creation},
    ),
    "subscription_expiration": Layer(
        "subscriptionExpirationTimeMinutes", "subscription_expiration_time_minutes", _expiration_minutes
    ),
    "encryption_required": Layer("", "encryption_required", lambda settings: settings.encryption_require_on_producer),
    "subscription_types": Layer(
        "subscriptionTypesEnabled",
        "subscription_types_enabled",
        lambda settings: sorted(names_of(settings.subscription_types_enabled)),
    ),
    "replication": Layer("replicationClusters", "replication_clusters", lambda settings: [settings.cluster_name]),
    "offload": Layer("offloadPolicies", "offload_policies"),
    "offload_threshold": Layer("", "offload_threshold"),
    "offload_threshold_seconds": Layer("", "offload_threshold_in_seconds"),
    "offload_deletion_lag": Layer("", "offload_deletion_lag_ms"),
    "subscription_auth_mode": Layer("", "subscription_auth_mode"),
    "schema_compatibility": Layer(
        "schemaCompatibilityStrategy",
        "schema_compatibility_strategy",
        lambda settings: settings.schema_compatibility_strategy,
    ),
    "schema_validation": Layer(
        "schemaValidationEnforced",
        "schema_validation_enforced",
        lambda settings: settings.is_schema_validation_enforced,
    ),
    "scalable_auto_scale": Layer("", "scalableTopicAutoScalePolicy"),
    "auto_update_schema": Layer(
        "", "is_allow_auto_update_schema", lambda settings: settings.is_allow_auto_update_schema_enabled
    ),
}
"""Policies by the names that `policies` and the admin rows use. The keys are those of Pulsar's documents."""
