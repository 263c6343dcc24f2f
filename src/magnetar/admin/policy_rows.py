"""Policies that are one value in a document: a row each, for the namespace's level, the topic's, or both.

A row says how the value is checked and under which paths it is served; where it is stored and what wins is in `broker.namespaces.
policy_layers`. Routes, the check of whole documents, the commands and the table in docs/reference/policies.md come from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magnetar.admin import policy_checks as checks
from magnetar.admin.errors import BadRequestError
from magnetar.admin.policy_checks import Check, backlog_quota, truth, whole
from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.policies import Document
from magnetar.broker.namespaces.policy_layers import LAYERS, Layer
from magnetar.broker.schemas.compatibility import Strategy

LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """`name` is the layer's. `namespace` and `topic` are the last parts of the URLs, empty where the policy does not exist."""

    name: str
    check: Check
    namespace: str = ""
    topic: str = ""
    namespace_setter: str = "POST"
    topic_setter: str = "POST"
    unset: Any = None
    """What a GET shows of a namespace that has not set it, or a function of the broker's configuration that says it.

    None: 204 without a body, as Pulsar."""
    topic_unset: Any = None
    """What a GET shows of a topic that has not set it, where it is not nothing."""
    query: bool = False
    """At the topic's level the value is a query parameter of the path's name, not the body."""
    broker_max: Callable[[BrokerConfig], int] | None = None
    effect: str = "at once"
    """When a change takes hold of loaded topics, for the documentation."""

    @property
    def layer(self) -> Layer:
        return LAYERS[self.name]


STORED = "stored only"
WITH_CLIENTS = "when a client comes"


def _auto_update(config: BrokerConfig) -> bool:
    return config.settings.is_allow_auto_update_schema_enabled


POLICY_ROWS = (
    PolicyRow(
        "message_ttl",
        whole(text="Invalid value for message TTL"),
        namespace="messageTTL",
        topic="messageTTL",
        query=True,
    ),
    PolicyRow(
        "subscription_auth_mode",
        checks.one_of("None", "Prefix"),
        namespace="subscriptionAuthMode",
        unset="None",
        effect=WITH_CLIENTS,
    ),
    PolicyRow("retention", checks.retention, namespace="retention", topic="retention"),
    PolicyRow(
        "persistence", checks.persistence, namespace="persistence", topic="persistence", effect="with the next ledger"
    ),
    PolicyRow("deduplication", truth, namespace="deduplication", topic="deduplicationEnabled"),
    PolicyRow(
        "deduplication_snapshot_interval",
        whole(),
        namespace="deduplicationSnapshotInterval",
        topic="deduplicationSnapshotInterval",
    ),
    PolicyRow("max_producers", whole(), namespace="maxProducersPerTopic", topic="maxProducers"),
    PolicyRow("max_consumers", whole(), namespace="maxConsumersPerTopic", topic="maxConsumers"),
    PolicyRow(
        "max_consumers_per_subscription",
        whole(),
        namespace="maxConsumersPerSubscription",
        topic="maxConsumersPerSubscription",
    ),
    PolicyRow("max_subscriptions", whole(), namespace="maxSubscriptionsPerTopic", topic="maxSubscriptionsPerTopic"),
    PolicyRow("max_topics", whole(), namespace="maxTopicsPerNamespace", unset=0),
    PolicyRow(
        "max_message_size",
        whole(
            text="topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level"
        ),
        topic="maxMessageSize",
        broker_max=lambda config: config.settings.max_message_size,
    ),
    PolicyRow(
        "max_unacked_per_consumer",
        whole(),
        namespace="maxUnackedMessagesPerConsumer",
        topic="maxUnackedMessagesOnConsumer",
    ),
    PolicyRow(
        "max_unacked_per_subscription",
        whole(),
        namespace="maxUnackedMessagesPerSubscription",
        topic="maxUnackedMessagesOnSubscription",
    ),
    PolicyRow("dispatch_rate", checks.dispatch_rate, namespace="dispatchRate", topic="dispatchRate"),
    PolicyRow(
        "subscription_dispatch_rate",
        checks.dispatch_rate,
        namespace="subscriptionDispatchRate",
        topic="subscriptionDispatchRate",
    ),
    PolicyRow(
        "replicator_dispatch_rate",
        checks.dispatch_rate,
        namespace="replicatorDispatchRate",
        topic="replicatorDispatchRate",
    ),
    PolicyRow("publish_rate", checks.publish_rate, namespace="publishRate", topic="publishRate"),
    PolicyRow("subscribe_rate", checks.subscribe_rate, namespace="subscribeRate", topic="subscribeRate"),
    PolicyRow("delayed_delivery", checks.delayed, namespace="delayedDelivery", topic="delayedDelivery"),
    PolicyRow(
        "compaction_threshold",
        whole(0, LONG_MAX),
        namespace="compactionThreshold",
        topic="compactionThreshold",
        namespace_setter="PUT",
    ),
    PolicyRow(
        "inactive_topic", checks.inactive_topic, namespace="inactiveTopicPolicies", topic="inactiveTopicPolicies"
    ),
    PolicyRow("scalable_auto_scale", checks.auto_scale, namespace="scalableTopicAutoScalePolicy"),
    PolicyRow("auto_topic_creation", checks.auto_topic, namespace="autoTopicCreation"),
    PolicyRow(
        "auto_subscription_creation",
        checks.auto_subscription,
        namespace="autoSubscriptionCreation",
        topic="autoSubscriptionCreation",
    ),
    PolicyRow(
        "subscription_expiration",
        whole(text="Invalid value for subscription expiration time"),
        namespace="subscriptionExpirationTime",
        topic="subscriptionExpirationTime",
        query=True,
    ),
    PolicyRow("encryption_required", truth, namespace="encryptionRequired", unset=False),
    PolicyRow(
        "subscription_types",
        checks.some_of("Exclusive", "Shared", "Failover", "Key_Shared"),
        namespace="subscriptionTypesEnabled",
        topic="subscriptionTypesEnabled",
        unset=[],
        topic_unset=[],
        effect=WITH_CLIENTS,
    ),
    PolicyRow(
        "schema_compatibility",
        checks.one_of(*Strategy),
        namespace="schemaCompatibilityStrategy",
        topic="schemaCompatibilityStrategy",
        namespace_setter="PUT",
        topic_setter="PUT",
        unset="UNDEFINED",
        effect=WITH_CLIENTS,
    ),
    PolicyRow(
        "schema_validation",
        truth,
        namespace="schemaValidationEnforced",
        topic="schemaValidationEnforced",
        unset=False,
        effect=WITH_CLIENTS,
    ),
    PolicyRow(
        "auto_update_schema", truth, namespace="isAllowAutoUpdateSchema", unset=_auto_update, effect=WITH_CLIENTS
    ),
    PolicyRow("replication", checks.clusters, namespace="replication", topic="replication", unset=[]),
    PolicyRow("offload", checks.any_object, namespace="offloadPolicies", topic="offloadPolicies", effect=STORED),
    PolicyRow(
        "offload_threshold",
        whole(-1, LONG_MAX),
        namespace="offloadThreshold",
        namespace_setter="PUT",
        unset=-1,
        effect=STORED,
    ),
    PolicyRow(
        "offload_threshold_seconds",
        whole(-1, LONG_MAX, "Invalid value for offloadThresholdInSecond"),
        namespace="offloadThresholdInSeconds",
        namespace_setter="PUT",
        unset=-1,
        effect=STORED,
    ),
    PolicyRow(
        "offload_deletion_lag",
        whole(-1, LONG_MAX),
        namespace="offloadDeletionLagMs",
        namespace_setter="PUT",
        effect=STORED,
    ),
)
"""Backlog quotas are not here: they are a map with a type for each entry (`routes/namespace_policies`, `routes/topic_policies`)."""


def checked(row: PolicyRow, path: str, value: Any, config: BrokerConfig) -> Any:
    """A value from outside as it is stored, None for null. Raises BadRequestError, PreconditionFailedError."""
    if value is None:
        return None
    value = row.check(path, value)
    if row.broker_max is not None and value > row.broker_max(config):
        raise PreconditionFailedError(
            f"topic-level {path} must be greater than or equal to 0 and must be smaller than that in the broker-level"
        )
    return value


def check_document(document: Document) -> None:
    """A whole policies document from outside: what the broker reads must be well-formed. Values are normalised in place.

    An empty list of clusters is not set: Pulsar's clients send one with every new namespace.
    """
    if document.get("replication_clusters") == []:
        del document["replication_clusters"]
    for row in POLICY_ROWS:
        key = row.layer.namespace
        if row.namespace and document.get(key) is not None:
            document[key] = _by_cluster(row, document[key]) if row.layer.by_cluster else row.check(key, document[key])
    quotas = document.get("backlog_quota_map")
    if quotas is not None:
        if not isinstance(quotas, dict):
            raise BadRequestError("backlog_quota_map must be an object")
        document["backlog_quota_map"] = {kind: backlog_quota(quota, kind) for kind, quota in quotas.items()}
    auth = document.get("auth_policies")
    if auth is not None:
        document["auth_policies"] = checks.record("auth_policies", auth, dict.fromkeys(_AUTH_MAPS, checks.any_object))


_AUTH_MAPS = ("namespace_auth", "destination_auth", "subscription_auth_roles")


def _by_cluster(row: PolicyRow, value: Any) -> Any:
    found = checks.any_object(row.layer.namespace, value)
    return {cluster: row.check(row.namespace, item) for cluster, item in found.items() if item is not None}
