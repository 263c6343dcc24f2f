"""The place of each policy: its key in the topic's document, its key in the namespace's, and the broker's default.

The topic's value wins over the namespace's, that over the broker's; null counts as not set. Bodies are Pulsar's JSON, the same at
both levels, so that the one function `merged` is behind what holds (`policies.effective`) and what `?applied=true` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.broker.config import BrokerConfig

NOT_SET = (None, "UNDEFINED")
"""The second is what Pulsar's documents say about a schema compatibility strategy that is not set."""

Default = Callable[[BrokerConfig], Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """An empty key: the policy does not exist at that level. `by_cluster`: the namespace keeps a value for each cluster."""

    topic: str = ""
    namespace: str = ""
    default: Default = lambda config: None
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
        value = namespace_value(layer, documents.namespace, documents.config.cluster)
    return layer.default(documents.config) if value in NOT_SET else value


def _dispatch_rate(messages: int, size_bytes: int) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size_bytes,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }


def _retention(config: BrokerConfig) -> dict[str, Any]:
    return {"retentionTimeInMinutes": config.retention_time_minutes, "retentionSizeInMB": config.retention_size_mb}


def _persistence(config: BrokerConfig) -> dict[str, Any]:
    ledger = config.managed_ledger
    return {
        "bookkeeperEnsemble": ledger.ensemble_size,
        "bookkeeperWriteQuorum": ledger.write_quorum,
        "bookkeeperAckQuorum": ledger.ack_quorum,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }


def _inactive(config: BrokerConfig) -> dict[str, Any]:
    return {
        "inactiveTopicDeleteMode": config.inactive_topic_mode,
        "maxInactiveDurationSeconds": config.inactive_topic_max_s,
        "deleteWhileInactive": config.delete_inactive_topics,
    }


LAYERS: dict[str, Layer] = {
    "message_ttl": Layer("messageTTLInSeconds", "message_ttl_in_seconds", lambda c: c.message_ttl_s),
    "retention": Layer("retentionPolicies", "retention_policies", _retention),
    "persistence": Layer("persistence", "persistence", _persistence),
    "deduplication": Layer("deduplicationEnabled", "deduplicationEnabled", lambda c: c.deduplication_enabled),
    "deduplication_snapshot_interval": Layer(
        "deduplicationSnapshotIntervalSeconds",
        "deduplicationSnapshotIntervalSeconds",
        lambda c: c.deduplication_snapshot_interval_s,
    ),
    "max_producers": Layer("maxProducerPerTopic", "max_producers_per_topic", lambda c: c.max_producers_per_topic),
    "max_consumers": Layer("maxConsumerPerTopic", "max_consumers_per_topic", lambda c: c.max_consumers_per_topic),
    "max_consumers_per_subscription": Layer(
        "maxConsumersPerSubscription", "max_consumers_per_subscription", lambda c: c.max_consumers_per_subscription
    ),
    "max_subscriptions": Layer(
        "maxSubscriptionsPerTopic", "max_subscriptions_per_topic", lambda c: c.max_subscriptions_per_topic
    ),
    "max_topics": Layer("", "max_topics_per_namespace", lambda c: c.max_topics_per_namespace),
    "max_message_size": Layer("maxMessageSize", "", lambda c: 0),
    "max_unacked_per_consumer": Layer(
        "maxUnackedMessagesOnConsumer",
        "max_unacked_messages_per_consumer",
        lambda c: c.max_unacked_messages_per_consumer,
    ),
    "max_unacked_per_subscription": Layer(
        "maxUnackedMessagesOnSubscription",
        "max_unacked_messages_per_subscription",
        lambda c: c.max_unacked_messages_per_subscription,
    ),
    "dispatch_rate": Layer(
        "dispatchRate",
        "topicDispatchRate",
        lambda c: _dispatch_rate(c.dispatch_rate_per_topic_messages, c.dispatch_rate_per_topic_bytes),
        by_cluster=True,
    ),
    "subscription_dispatch_rate": Layer(
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        lambda c: _dispatch_rate(c.dispatch_rate_per_subscription_messages, c.dispatch_rate_per_subscription_bytes),
        by_cluster=True,
    ),
    "replicator_dispatch_rate": Layer(
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        lambda c: _dispatch_rate(c.replication.dispatch_rate_messages, c.replication.dispatch_rate_bytes),
        by_cluster=True,
    ),
    "publish_rate": Layer(
        "publishRate",
        "publishMaxMessageRate",
        lambda c: {
            "publishThrottlingRateInMsg": c.publish_rate_per_topic_messages,
            "publishThrottlingRateInByte": c.publish_rate_per_topic_bytes,
        },
        by_cluster=True,
    ),
    "subscribe_rate": Layer(
        "subscribeRate",
        "clusterSubscribeRate",
        lambda c: {
            "subscribeThrottlingRatePerConsumer": c.subscribe_rate_per_consumer,
            "ratePeriodInSecond": c.subscribe_rate_period_s,
        },
        by_cluster=True,
    ),
    "delayed_delivery": Layer(
        "delayedDelivery",
        "delayed_delivery_policies",
        lambda c: {"active": c.delayed_delivery_enabled, "tickTime": c.delayed_delivery_tick_ms},
    ),
    "compaction_threshold": Layer(
        "compactionThreshold", "compaction_threshold", lambda c: c.compaction_threshold_bytes
    ),
    "inactive_topic": Layer("inactiveTopicPolicies", "inactive_topic_policies", _inactive),
    "auto_topic_creation": Layer("", "autoTopicCreationOverride"),
    "auto_subscription_creation": Layer(
        "autoSubscriptionCreationOverride",
        "autoSubscriptionCreationOverride",
        lambda c: {"allowAutoSubscriptionCreation": c.allow_auto_subscription_creation},
    ),
    "subscription_expiration": Layer(
        "", "subscription_expiration_time_minutes"
    ),  # the broker's may be a part of a minute
    "encryption_required": Layer("", "encryption_required", lambda c: False),
    "replication": Layer("replicationClusters", "replication_clusters", lambda c: [c.cluster]),
    "offload": Layer("offloadPolicies", "offload_policies"),
    "offload_threshold": Layer("", "offload_threshold"),
    "offload_threshold_seconds": Layer("", "offload_threshold_in_seconds"),
    "offload_deletion_lag": Layer("", "offload_deletion_lag_ms"),
    "subscription_auth_mode": Layer("", "subscription_auth_mode"),
    "schema_compatibility": Layer(
        "schemaCompatibilityStrategy", "schema_compatibility_strategy", lambda c: c.schema_compatibility_strategy
    ),
    "schema_validation": Layer(
        "schemaValidationEnforced", "schema_validation_enforced", lambda c: c.schema_validation_enforced
    ),
    "auto_update_schema": Layer("", "is_allow_auto_update_schema", lambda c: c.allow_auto_update_schema),
}
"""Policies by the names that `policies` and the admin rows use. The keys are those of Pulsar's documents."""
