"""Namespace policies that are one value in the document: a row each (facts 3.2 and 3.6).

A row says where the value lies in the policies document, how it is checked, and what a GET shows while it is not set (None: 204
without a body, as Pulsar).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.admin.errors import BadRequestError
from magnetar.base.limits import PARTITIONS_MAX
from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.policies import BACKLOG_POLICIES, DESTINATION_STORAGE, MESSAGE_AGE, Document
from magnetar.broker.schemas.compatibility import Strategy

Check = Callable[[str, Any], Any]
"""(name, value from outside) -> value to store. Raises BadRequestError or PreconditionFailedError."""

QUORUM_MAX = 64
"""Larger ensembles are refused: no cluster has them, and a topic could never write."""

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """`path` is the last part of the URL, `key` the document's. `setter` is the method that sets it.

    `unset` is what a GET shows while nothing is set, or a function of the broker's configuration that says it.
    """

    path: str
    key: str
    check: Check
    setter: str = "POST"
    unset: Any = None


def whole(minimum: int = 0, maximum: int = _INT_MAX) -> Check:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadRequestError(f"{name} must be a whole number")
        if not minimum <= value <= maximum:
            limit = f"{minimum} or more" if value < minimum else f"{maximum} or less"
            raise PreconditionFailedError(f"{name} must be {limit}")
        return value

    return check


def truth(name: str, value: Any) -> Any:
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false")
    return value


def one_of(*choices: str) -> Check:
    def check(name: str, value: Any) -> Any:
        if value not in choices:
            raise BadRequestError(f"{name} must be one of {', '.join(choices)}")
        return value

    return check


def record(name: str, value: Any, fields: Mapping[str, Check], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """A JSON object; known fields are checked, unknown ones kept."""
    if not isinstance(value, dict) or any(key not in value for key in required):
        raise BadRequestError(f"{name} must be an object with {', '.join(required or fields)}")
    return {
        key: fields[key](f"{name}.{key}", item) if key in fields and item is not None else item
        for key, item in value.items()
    }


def _retention(name: str, value: Any) -> Any:
    """Pulsar: -1 is for ever, and a 0 beside anything but a 0 would mean two things at once."""
    found = record(
        name,
        value,
        {"retentionTimeInMinutes": whole(-1), "retentionSizeInMB": whole(-1, _LONG_MAX)},
        ("retentionTimeInMinutes", "retentionSizeInMB"),
    )
    minutes, megabytes = found["retentionTimeInMinutes"], found["retentionSizeInMB"]
    if minutes is None or megabytes is None or (minutes == 0) != (megabytes == 0):
        raise PreconditionFailedError(
            "Invalid retention policy: both size and time must be 0, or neither may be (-1 stands for no limit)"
        )
    return found


def _persistence(name: str, value: Any) -> Any:
    fields = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    found = record(name, value, dict.fromkeys(fields, whole(1, QUORUM_MAX)), fields)
    ensemble, write, ack = (found[field] for field in fields)
    if None in (ensemble, write, ack) or not ensemble >= write >= ack:
        raise PreconditionFailedError("Bookkeeper Ensemble >= WriteQuorum >= AckQuorum must hold")
    return found


def _delayed(name: str, value: Any) -> Any:
    fields = {"active": truth, "tickTime": whole(1, _LONG_MAX), "maxDelayInMillis": whole(0, _LONG_MAX)}
    return record(name, value, fields, ("active",))


def _auto_topic(name: str, value: Any) -> Any:
    fields = {
        "allowAutoTopicCreation": truth,
        "topicType": one_of("partitioned", "non-partitioned"),
        "defaultNumPartitions": whole(1, PARTITIONS_MAX),
    }
    found = record(name, value, fields, ("allowAutoTopicCreation",))
    if found.get("topicType") == "non-partitioned" and found.get("defaultNumPartitions") is not None:
        raise PreconditionFailedError(
            "Invalid configuration for autoTopicCreationOverride. "
            "numPartitions is not allowed to be set when the type is non-partitioned."
        )
    if found.get("topicType") == "partitioned" and found.get("defaultNumPartitions") is None:
        raise PreconditionFailedError(
            "Invalid configuration for autoTopicCreationOverride. "
            "defaultNumPartitions is required when the type is partitioned."
        )
    return found


def _auto_subscription(name: str, value: Any) -> Any:
    return record(name, value, {"allowAutoSubscriptionCreation": truth}, ("allowAutoSubscriptionCreation",))


def _clusters(name: str, value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise BadRequestError(f"{name} must be a list of cluster names")
    if not value:
        raise PreconditionFailedError("ClusterIds should not be null or empty")
    return sorted(set(value))


def _auto_update(config: BrokerConfig) -> bool:
    return config.allow_auto_update_schema


POLICY_ROWS = (
    PolicyRow("messageTTL", "message_ttl_in_seconds", whole()),
    PolicyRow("retention", "retention_policies", _retention),
    PolicyRow("subscriptionAuthMode", "subscription_auth_mode", one_of("None", "Prefix"), unset="None"),
    PolicyRow("persistence", "persistence", _persistence),
    PolicyRow("deduplication", "deduplicationEnabled", truth),
    PolicyRow("maxProducersPerTopic", "max_producers_per_topic", whole()),
    PolicyRow("maxConsumersPerTopic", "max_consumers_per_topic", whole()),
    PolicyRow("maxConsumersPerSubscription", "max_consumers_per_subscription", whole()),
    PolicyRow("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", whole()),
    PolicyRow("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer", whole()),
    PolicyRow("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription", whole()),
    PolicyRow("compactionThreshold", "compaction_threshold", whole(0, _LONG_MAX), "PUT"),
    PolicyRow("autoTopicCreation", "autoTopicCreationOverride", _auto_topic),
    PolicyRow("autoSubscriptionCreation", "autoSubscriptionCreationOverride", _auto_subscription),
    PolicyRow("delayedDelivery", "delayed_delivery_policies", _delayed),
    PolicyRow("encryptionRequired", "encryption_required", truth, unset=False),
    PolicyRow(
        "schemaCompatibilityStrategy", "schema_compatibility_strategy", one_of(*Strategy), "PUT", unset="UNDEFINED"
    ),
    PolicyRow("schemaValidationEnforced", "schema_validation_enforced", truth, unset=False),
    PolicyRow("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", truth, unset=_auto_update),
    PolicyRow("replication", "replication_clusters", _clusters, unset=[]),
)
"""All but `replication` take effect on loaded topics at once; `encryptionRequired` and what concerns schemas when a client comes."""


def backlog_quota(value: Any, kind: str) -> dict[str, Any]:
    """A quota as it is stored. `limit`, also as a text, is the size limit's name before Pulsar 2.8."""
    if kind not in (DESTINATION_STORAGE, MESSAGE_AGE):
        raise BadRequestError(f"backlogQuotaType must be {DESTINATION_STORAGE} or {MESSAGE_AGE}")
    if not isinstance(value, dict):
        raise BadRequestError('expected {"policy": "...", "limitSize": n, "limitTime": n}')
    size = _limit("limitSize", value.get("limitSize", value.get("limit")))
    time = _limit("limitTime", value.get("limitTime"))
    policy = one_of(*BACKLOG_POLICIES)("policy", value.get("policy"))
    return {"limit": size, "limitSize": size, "limitTime": time, "policy": policy}


def _limit(name: str, value: Any) -> int:
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal() and len(value) <= 20:
        value = int(value)
    return int(whole(-1, _LONG_MAX)(name, -1 if value is None else value))


def check_document(document: Document) -> None:
    """A whole policies document from outside: what the broker reads must be well-formed. Values are normalised in place."""
    for row in POLICY_ROWS:
        if document.get(row.key) is not None:
            document[row.key] = row.check(row.path, document[row.key])
    quotas = document.get("backlog_quota_map")
    if quotas is not None:
        if not isinstance(quotas, dict):
            raise BadRequestError("backlog_quota_map must be an object")
        document["backlog_quota_map"] = {kind: backlog_quota(quota, kind) for kind, quota in quotas.items()}
    auth = document.get("auth_policies")
    if auth is not None:
        document["auth_policies"] = record("auth_policies", auth, dict.fromkeys(_AUTH_MAPS, _object))


_AUTH_MAPS = ("namespace_auth", "destination_auth", "subscription_auth_roles")


def _object(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise BadRequestError(f"{name} must be an object")
    return value
