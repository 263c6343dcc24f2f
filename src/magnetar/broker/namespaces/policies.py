"""Namespace policies: Pulsar's JSON document, and the values that result from it for a topic.

The document is kept as it came, unknown fields included; a missing field means the broker's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces.bundles import boundaries_text

Document = dict[str, Any]

DESTINATION_STORAGE = "destination_storage"
MESSAGE_AGE = "message_age"
PRODUCER_REQUEST_HOLD = "producer_request_hold"
PRODUCER_EXCEPTION = "producer_exception"
CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"
UNDEFINED = "UNDEFINED"
BACKLOG_POLICIES = (PRODUCER_REQUEST_HOLD, PRODUCER_EXCEPTION, CONSUMER_BACKLOG_EVICTION)


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """`limit_bytes` and `limit_time_s` are -1 when that side is not limited."""

    limit_bytes: int = -1
    limit_time_s: int = -1
    policy: str = PRODUCER_REQUEST_HOLD


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """What holds for the topics of one namespace. 0 means unlimited for every `max_*`."""

    retention_time_minutes: int
    retention_size_mb: int
    message_ttl_s: int
    size_quota: BacklogQuota
    age_quota: BacklogQuota
    deduplication: bool
    max_producers_per_topic: int
    max_consumers_per_topic: int
    max_consumers_per_subscription: int
    max_subscriptions_per_topic: int
    max_unacked_messages_per_consumer: int
    max_unacked_messages_per_subscription: int
    encryption_required: bool
    delayed_delivery: bool
    delayed_delivery_tick_ms: int
    auto_topic_creation: bool
    auto_topic_creation_partitioned: bool
    default_num_partitions: int
    auto_subscription_creation: bool
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    schema_compatibility_strategy: str
    schema_validation_enforced: bool
    allow_auto_update_schema: bool
    compaction_threshold_bytes: int
    """Bytes since the last compaction that start the next one; 0 for never."""


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


def effective(config: BrokerConfig, document: Mapping[str, Any]) -> EffectivePolicies:
    """Broker defaults, overridden by the namespace's document."""
    retention = document.get("retention_policies") or {}
    persistence = document.get("persistence") or {}
    delayed = document.get("delayed_delivery_policies") or {}
    auto_topic = document.get("autoTopicCreationOverride") or {}
    auto_subscription = document.get("autoSubscriptionCreationOverride") or {}
    return EffectivePolicies(
        retention_time_minutes=_value(retention, "retentionTimeInMinutes", config.retention_time_minutes),
        retention_size_mb=_value(retention, "retentionSizeInMB", config.retention_size_mb),
        message_ttl_s=_value(document, "message_ttl_in_seconds", config.message_ttl_s),
        size_quota=_quota(config, document, DESTINATION_STORAGE),
        age_quota=_quota(config, document, MESSAGE_AGE),
        deduplication=_value(document, "deduplicationEnabled", config.deduplication_enabled),
        max_producers_per_topic=_value(document, "max_producers_per_topic", config.max_producers_per_topic),
        max_consumers_per_topic=_value(document, "max_consumers_per_topic", config.max_consumers_per_topic),
        max_consumers_per_subscription=_value(
            document, "max_consumers_per_subscription", config.max_consumers_per_subscription
        ),
        max_subscriptions_per_topic=_value(document, "max_subscriptions_per_topic", config.max_subscriptions_per_topic),
        max_unacked_messages_per_consumer=_value(
            document, "max_unacked_messages_per_consumer", config.max_unacked_messages_per_consumer
        ),
        max_unacked_messages_per_subscription=_value(
            document, "max_unacked_messages_per_subscription", config.max_unacked_messages_per_subscription
        ),
        encryption_required=bool(document.get("encryption_required")),
        delayed_delivery=_value(delayed, "active", config.delayed_delivery_enabled),
        delayed_delivery_tick_ms=_value(delayed, "tickTime", config.delayed_delivery_tick_ms),
        auto_topic_creation=_value(auto_topic, "allowAutoTopicCreation", config.allow_auto_topic_creation),
        auto_topic_creation_partitioned=(
            auto_topic["topicType"] == "partitioned"
            if auto_topic.get("topicType")
            else config.auto_topic_creation_partitioned
        ),
        default_num_partitions=_value(auto_topic, "defaultNumPartitions", config.default_num_partitions),
        auto_subscription_creation=_value(
            auto_subscription, "allowAutoSubscriptionCreation", config.allow_auto_subscription_creation
        ),
        ensemble_size=_value(persistence, "bookkeeperEnsemble", config.managed_ledger.ensemble_size),
        write_quorum=_value(persistence, "bookkeeperWriteQuorum", config.managed_ledger.write_quorum),
        ack_quorum=_value(persistence, "bookkeeperAckQuorum", config.managed_ledger.ack_quorum),
        schema_compatibility_strategy=_strategy(config, document),
        schema_validation_enforced=(
            config.schema_validation_enforced or bool(document.get("schema_validation_enforced"))
        ),
        allow_auto_update_schema=_value(document, "is_allow_auto_update_schema", config.allow_auto_update_schema),
        compaction_threshold_bytes=_value(document, "compaction_threshold", config.compaction_threshold_bytes),
    )


def _value(document: Mapping[str, Any], key: str, default: Any) -> Any:
    value = document.get(key)
    return default if value is None else value


def _strategy(config: BrokerConfig, document: Mapping[str, Any]) -> str:
    """UNDEFINED is Pulsar's word for "not set"."""
    strategy = str(_value(document, "schema_compatibility_strategy", UNDEFINED))
    return config.schema_compatibility_strategy if strategy == UNDEFINED else strategy


def _quota(config: BrokerConfig, document: Mapping[str, Any], kind: str) -> BacklogQuota:
    stored = (document.get("backlog_quota_map") or {}).get(kind)
    if stored is None:
        if kind == DESTINATION_STORAGE:
            return BacklogQuota(limit_bytes=config.backlog_quota_limit_bytes, policy=config.backlog_quota_policy)
        return BacklogQuota(limit_time_s=config.backlog_quota_limit_time_s, policy=config.backlog_quota_policy)
    limit_bytes = stored.get("limitSize", stored.get("limit", -1))  # `limit` is the field's name before Pulsar 2.8
    return BacklogQuota(
        limit_bytes=int(limit_bytes),
        limit_time_s=int(stored.get("limitTime", -1)),
        policy=str(stored.get("policy") or config.backlog_quota_policy),
    )
