"""Policies of namespaces and topics: each one an attribute with `get`, `set` and `remove`.

admin.namespace_policies.retention.set("public/default", Retention(retention_time_in_minutes=60, retention_size_in_mb=-1))
admin.topic_policies.max_producers.get("orders", applied=True)
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from magnetar.admin.client.noun import ADMIN, NAMESPACE, TOPIC, Call, Noun, as_kind, namespace_names, topic_names
from magnetar.admin.documents.policies import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    Persistence,
    PublishRate,
    Retention,
    SubscribeRate,
)
from magnetar.admin.documents.scalable import AutoScalePolicy

T = TypeVar("T")


class NamespacePolicy(Noun, Generic[T]):
    """One policy of namespaces; `leaf` is the last part of its path."""

    def __init__(self, call: Call, leaf: str, kind: Any, *, setter: str = "POST") -> None:
        super().__init__(call)
        self._template = f"{ADMIN}{NAMESPACE}/{leaf}"
        self._kind = kind
        self._setter = setter

    def get(self, namespace: str) -> T | None:
        """None while it is not set: then the broker's holds."""
        answer = self._call("GET", self._template, namespace_names(namespace))
        found: T | None = as_kind(answer.json(), self._kind)
        return found

    def set(self, namespace: str, value: T) -> None:
        """In effect when it returns."""
        self._call(self._setter, self._template, namespace_names(namespace), None, msgspec.to_builtins(value))

    def remove(self, namespace: str) -> None:
        self._call("DELETE", self._template, namespace_names(namespace))


class TopicPolicy(Noun, Generic[T]):
    """One policy of topics. `is_global`: the value for all clusters, which the cluster's own overrides."""

    def __init__(self, call: Call, leaf: str, kind: Any, *, setter: str = "POST", in_query: bool = False) -> None:
        super().__init__(call)
        self._template = f"{ADMIN}{TOPIC}/{leaf}"
        self._leaf = leaf
        self._kind = kind
        self._setter = setter
        self._in_query = in_query

    def get(self, topic: str, *, applied: bool = False, is_global: bool = False) -> T | None:
        """None while it is not set; `applied`: what holds, be it the namespace's or the broker's."""
        query = {"applied": applied or None, "isGlobal": is_global or None}
        answer = self._call("GET", self._template, topic_names(topic), query)
        found: T | None = as_kind(answer.json(), self._kind)
        return found

    def set(self, topic: str, value: T, *, is_global: bool = False) -> None:
        """In effect when it returns."""
        query: dict[str, object] = {"isGlobal": is_global or None}
        body = msgspec.to_builtins(value)
        if self._in_query:
            query, body = {**query, self._leaf: body}, None
        self._call(self._setter, self._template, topic_names(topic), query, body)

    def remove(self, topic: str, *, is_global: bool = False) -> None:
        self._call("DELETE", self._template, topic_names(topic), {"isGlobal": is_global or None})


class NamespacePolicies:
    """What holds for a namespace's topics unless they have their own."""

    def __init__(self, call: Call) -> None:
        self.message_ttl = NamespacePolicy[int](call, "messageTTL", int)
        self.subscription_auth_mode = NamespacePolicy[str](call, "subscriptionAuthMode", str)
        self.retention = NamespacePolicy[Retention](call, "retention", Retention)
        self.persistence = NamespacePolicy[Persistence](call, "persistence", Persistence)
        self.deduplication = NamespacePolicy[bool](call, "deduplication", bool)
        self.deduplication_snapshot_interval = NamespacePolicy[int](call, "deduplicationSnapshotInterval", int)
        self.max_producers = NamespacePolicy[int](call, "maxProducersPerTopic", int)
        self.max_consumers = NamespacePolicy[int](call, "maxConsumersPerTopic", int)
        self.max_consumers_per_subscription = NamespacePolicy[int](call, "maxConsumersPerSubscription", int)
        self.max_subscriptions = NamespacePolicy[int](call, "maxSubscriptionsPerTopic", int)
        self.max_topics = NamespacePolicy[int](call, "maxTopicsPerNamespace", int)
        self.max_unacked_per_consumer = NamespacePolicy[int](call, "maxUnackedMessagesPerConsumer", int)
        self.max_unacked_per_subscription = NamespacePolicy[int](call, "maxUnackedMessagesPerSubscription", int)
        self.dispatch_rate = NamespacePolicy[DispatchRate](call, "dispatchRate", DispatchRate)
        self.subscription_dispatch_rate = NamespacePolicy[DispatchRate](call, "subscriptionDispatchRate", DispatchRate)
        self.replicator_dispatch_rate = NamespacePolicy[DispatchRate](call, "replicatorDispatchRate", DispatchRate)
        self.publish_rate = NamespacePolicy[PublishRate](call, "publishRate", PublishRate)
        self.subscribe_rate = NamespacePolicy[SubscribeRate](call, "subscribeRate", SubscribeRate)
        self.delayed_delivery = NamespacePolicy[DelayedDelivery](call, "delayedDelivery", DelayedDelivery)
        self.compaction_threshold = NamespacePolicy[int](call, "compactionThreshold", int, setter="PUT")
        self.inactive_topic = NamespacePolicy[InactiveTopics](call, "inactiveTopicPolicies", InactiveTopics)
        self.scalable_auto_scale = NamespacePolicy[AutoScalePolicy](
            call, "scalableTopicAutoScalePolicy", AutoScalePolicy
        )
        self.auto_topic_creation = NamespacePolicy[AutoTopicCreation](call, "autoTopicCreation", AutoTopicCreation)
        self.auto_subscription_creation = NamespacePolicy[AutoSubscriptionCreation](
            call, "autoSubscriptionCreation", AutoSubscriptionCreation
        )
        self.subscription_expiration = NamespacePolicy[int](call, "subscriptionExpirationTime", int)
        self.encryption_required = NamespacePolicy[bool](call, "encryptionRequired", bool)
        self.schema_compatibility = NamespacePolicy[str](call, "schemaCompatibilityStrategy", str, setter="PUT")
        self.schema_validation = NamespacePolicy[bool](call, "schemaValidationEnforced", bool)
        self.auto_update_schema = NamespacePolicy[bool](call, "isAllowAutoUpdateSchema", bool)
        self.subscription_types = NamespacePolicy[list[str]](call, "subscriptionTypesEnabled", list[str])
        self.replication = NamespacePolicy[list[str]](call, "replication", list[str])
        self.offload = NamespacePolicy[dict[str, Any]](call, "offloadPolicies", dict[str, Any])
        self.offload_threshold = NamespacePolicy[int](call, "offloadThreshold", int, setter="PUT")
        self.offload_threshold_seconds = NamespacePolicy[int](call, "offloadThresholdInSeconds", int, setter="PUT")
        self.offload_deletion_lag = NamespacePolicy[int](call, "offloadDeletionLagMs", int, setter="PUT")


class TopicPolicies:
    """They win over the namespace's. A partitioned topic has one set for all its partitions."""

    def __init__(self, call: Call) -> None:
        self.message_ttl = TopicPolicy[int](call, "messageTTL", int, in_query=True)
        self.retention = TopicPolicy[Retention](call, "retention", Retention)
        self.persistence = TopicPolicy[Persistence](call, "persistence", Persistence)
        self.deduplication = TopicPolicy[bool](call, "deduplicationEnabled", bool)
        self.deduplication_snapshot_interval = TopicPolicy[int](call, "deduplicationSnapshotInterval", int)
        self.max_producers = TopicPolicy[int](call, "maxProducers", int)
        self.max_consumers = TopicPolicy[int](call, "maxConsumers", int)
        self.max_consumers_per_subscription = TopicPolicy[int](call, "maxConsumersPerSubscription", int)
        self.max_subscriptions = TopicPolicy[int](call, "maxSubscriptionsPerTopic", int)
        self.max_message_size = TopicPolicy[int](call, "maxMessageSize", int)
        self.max_unacked_per_consumer = TopicPolicy[int](call, "maxUnackedMessagesOnConsumer", int)
        self.max_unacked_per_subscription = TopicPolicy[int](call, "maxUnackedMessagesOnSubscription", int)
        self.dispatch_rate = TopicPolicy[DispatchRate](call, "dispatchRate", DispatchRate)
        self.subscription_dispatch_rate = TopicPolicy[DispatchRate](call, "subscriptionDispatchRate", DispatchRate)
        self.replicator_dispatch_rate = TopicPolicy[DispatchRate](call, "replicatorDispatchRate", DispatchRate)
        self.publish_rate = TopicPolicy[PublishRate](call, "publishRate", PublishRate)
        self.subscribe_rate = TopicPolicy[SubscribeRate](call, "subscribeRate", SubscribeRate)
        self.delayed_delivery = TopicPolicy[DelayedDelivery](call, "delayedDelivery", DelayedDelivery)
        self.compaction_threshold = TopicPolicy[int](call, "compactionThreshold", int)
        self.inactive_topic = TopicPolicy[InactiveTopics](call, "inactiveTopicPolicies", InactiveTopics)
        self.auto_subscription_creation = TopicPolicy[AutoSubscriptionCreation](
            call, "autoSubscriptionCreation", AutoSubscriptionCreation
        )
        self.schema_compatibility = TopicPolicy[str](call, "schemaCompatibilityStrategy", str, setter="PUT")
        self.schema_validation = TopicPolicy[bool](call, "schemaValidationEnforced", bool)
        self.subscription_expiration = TopicPolicy[int](call, "subscriptionExpirationTime", int, in_query=True)
        self.subscription_types = TopicPolicy[list[str]](call, "subscriptionTypesEnabled", list[str])
        self.replication = TopicPolicy[list[str]](call, "replication", list[str])
        self.offload = TopicPolicy[dict[str, Any]](call, "offloadPolicies", dict[str, Any])
