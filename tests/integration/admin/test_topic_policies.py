"""Policies of single topics over REST: every triplet, what holds, what is refused, what survives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.admin.policy_rows import POLICY_ROWS
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api

RATE = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 2,
}
VALUES: dict[str, Any] = {
    "messageTTL": 60,
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
    "persistence": {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1},
    "deduplicationEnabled": True,
    "deduplicationSnapshotInterval": 30,
    "maxProducers": 1,
    "maxConsumers": 2,
    "maxConsumersPerSubscription": 3,
    "maxSubscriptionsPerTopic": 4,
    "maxMessageSize": 1000,
    "maxUnackedMessagesOnConsumer": 5,
    "maxUnackedMessagesOnSubscription": 6,
    "dispatchRate": RATE,
    "subscriptionDispatchRate": RATE,
    "replicatorDispatchRate": RATE,
    "publishRate": {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 1000},
    "subscribeRate": {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10},
    "delayedDelivery": {"active": False, "tickTime": 500},
    "compactionThreshold": 1024,
    "inactiveTopicPolicies": {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 3600,
        "deleteWhileInactive": True,
    },
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False},
    "schemaCompatibilityStrategy": "FORWARD",
    "schemaValidationEnforced": True,
    "replication": ["standalone"],
    "offloadPolicies": {"managedLedgerOffloadDriver": "filesystem"},
    "subscriptionExpirationTime": 90,
    "subscriptionTypesEnabled": ["Failover", "Shared"],
}
TOPIC_ROWS = [row for row in POLICY_ROWS if row.topic]


@pytest.fixture
def base(api: Api, namespace: str) -> str:
    """The path of a topic that exists, in a namespace of its own."""
    api.put(f"persistent/{namespace}/t")
    return f"persistent/{namespace}/t"


def set_policy(api: Api, base: str, path: str, value: Any, status: int = 204, query: str = "") -> None:
    row = next(row for row in TOPIC_ROWS if row.topic == path)
    if row.query:
        api.call(row.topic_setter, f"{base}/{path}?{path}={value}{query.replace('?', '&')}", status=status)
    else:
        api.call(row.topic_setter, f"{base}/{path}{query}", value, status)


def test_there_are_28_with_the_backlog_quota() -> None:
    assert len(TOPIC_ROWS) + 1 == 28
    assert set(VALUES) == {row.topic for row in TOPIC_ROWS}


@pytest.mark.parametrize("path", VALUES)
def test_a_policy_is_unset_set_applied_and_removed(api: Api, base: str, path: str) -> None:
    value, url = VALUES[path], f"{base}/{path}"
    unset = [] if path == "subscriptionTypesEnabled" else None  # an empty list, as Pulsar
    assert api.get(url, status=204 if unset is None else 200) == unset
    default = api.call("GET", f"{url}?applied=true", status=204 if path == "offloadPolicies" else 200)
    set_policy(api, base, path, value)
    assert api.get(url) == value
    assert api.get(f"{url}?applied=true") == value
    api.delete(url)
    assert api.get(url, status=204 if unset is None else 200) == unset
    assert api.call("GET", f"{url}?applied=true", status=default.status_code).content == default.content


@pytest.mark.parametrize(
    ("namespace_path", "topic_path", "lower", "upper"),
    [
        ("messageTTL", "messageTTL", 100, 50),
        ("maxProducersPerTopic", "maxProducers", 9, 0),
        ("maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", 9, 4),
        ("deduplication", "deduplicationEnabled", True, False),
        ("dispatchRate", "dispatchRate", RATE, RATE | {"dispatchThrottlingRateInMsg": 3}),
        (
            "publishRate",
            "publishRate",
            VALUES["publishRate"],
            {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1},
        ),
        ("retention", "retention", VALUES["retention"], {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
    ],
)
def test_what_holds_is_the_topics_then_the_namespaces_then_the_brokers(
    api: Api, base: str, namespace: str, namespace_path: str, topic_path: str, lower: Any, upper: Any
) -> None:
    url = f"{base}/{topic_path}?applied=true"
    default = api.get(url)
    api.post(f"namespaces/{namespace}/{namespace_path}", lower)
    assert api.get(url) == lower
    assert api.get(f"{base}/{topic_path}", status=204) is None
    set_policy(api, base, topic_path, upper)
    assert api.get(url) == upper
    api.delete(f"{base}/{topic_path}")
    assert api.get(url) == lower
    api.delete(f"namespaces/{namespace}/{namespace_path}")
    assert api.get(url) == default


def test_backlog_quotas(api: Api, base: str, namespace: str) -> None:
    assert api.get(f"{base}/backlogQuotaMap") == {}
    api.post(f"namespaces/{namespace}/backlogQuota", {"policy": "producer_exception", "limitSize": 5})
    api.post(f"{base}/backlogQuota?backlogQuotaType=message_age", {"policy": "producer_request_hold", "limitTime": 9})
    own = api.get(f"{base}/backlogQuotaMap")
    assert set(own) == {"message_age"}
    assert own["message_age"]["limitTime"] == 9
    assert set(api.get(f"{base}/backlogQuotaMap?applied=true")) == {"message_age", "destination_storage"}
    api.delete(f"{base}/backlogQuota?backlogQuotaType=message_age")
    assert api.get(f"{base}/backlogQuotaMap") == {}
    api.reason("POST", f"{base}/backlogQuota", {"policy": "explode"}, status=400)


def test_values_for_all_clusters_give_way_to_the_clusters_own(api: Api, base: str) -> None:
    set_policy(api, base, "maxProducers", 7, query="?isGlobal=true")
    assert api.get(f"{base}/maxProducers", status=204) is None
    assert api.get(f"{base}/maxProducers?isGlobal=true") == 7
    assert api.get(f"{base}/maxProducers?applied=true") == 7
    set_policy(api, base, "maxProducers", 3)
    assert api.get(f"{base}/maxProducers?applied=true") == 3
    api.delete(f"{base}/maxProducers")
    assert api.get(f"{base}/maxProducers?applied=true") == 7


def test_a_partitioned_topic_has_one_set_for_all_partitions(api: Api, namespace: str) -> None:
    api.put(f"persistent/{namespace}/split/partitions", 2)
    set_policy(api, f"persistent/{namespace}/split", "maxConsumers", 1)
    assert api.get(f"persistent/{namespace}/split/maxConsumers") == 1
    reason = api.reason("GET", f"persistent/{namespace}/split-partition-0/maxConsumers", status=405)
    assert reason == "Not allowed to set/get topic policy for a partition"


def test_what_does_not_exist(api: Api, namespace: str) -> None:
    assert "not found" in api.reason("GET", f"persistent/{namespace}/nothing/retention", status=404)
    assert "not found" in api.reason("POST", f"persistent/{namespace}/nothing/maxProducers", 1, status=404)
    assert api.reason("GET", "persistent/public/nowhere/t/retention", status=404) == "Namespace not found"


@pytest.mark.parametrize(
    ("path", "value", "status", "reason"),
    [
        ("messageTTL", -1, 412, "Invalid value for message TTL"),
        ("messageTTL", "soon", 404, "messageTTL must be a number of up to 2147483647, not 'soon'"),
        ("maxProducers", -1, 412, "maxProducers must be 0 or more"),
        ("maxProducers", "two", 400, "maxProducers must be a whole number"),
        (
            "maxMessageSize",
            10**9,
            412,
            "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level",
        ),
        ("compactionThreshold", -1, 412, "compactionThreshold must be 0 or more"),
        (
            "dispatchRate",
            {"dispatchThrottlingRateInMsg": "fast"},
            400,
            "dispatchRate.dispatchThrottlingRateInMsg must be a whole number",
        ),
        ("dispatchRate", {"ratePeriodInSecond": 0}, 412, "dispatchRate.ratePeriodInSecond must be 1 or more"),
        (
            "publishRate",
            5,
            400,
            "publishRate must be an object with publishThrottlingRateInMsg, publishThrottlingRateInByte",
        ),
    ],
)
def test_bad_values_are_refused(api: Api, base: str, path: str, value: Any, status: int, reason: str) -> None:
    row = next(row for row in TOPIC_ROWS if row.topic == path)
    url, body = (f"{base}/{path}?{path}={value}", None) if row.query else (f"{base}/{path}", value)
    assert api.reason(row.topic_setter, url, body, status=status) == reason
    assert api.get(f"{base}/{path}", status=204) is None


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("maxTopicsPerNamespace", -1, "maxTopicsPerNamespace must be 0 or more"),
        ("subscriptionExpirationTime", -1, "Invalid value for subscription expiration time"),
        ("offloadThresholdInSeconds", -2, "Invalid value for offloadThresholdInSecond"),
        ("messageTTL", -1, "Invalid value for message TTL"),
    ],
)
def test_texts_of_the_namespaces_refusals(api: Api, namespace: str, path: str, value: int, reason: str) -> None:
    row = next(row for row in POLICY_ROWS if row.namespace == path)
    assert api.reason(row.namespace_setter, f"namespaces/{namespace}/{path}", value, status=412) == reason


NAMESPACE_VALUES: list[tuple[str, str, Any]] = [
    ("dispatchRate", "topicDispatchRate", RATE),
    ("subscriptionDispatchRate", "subscriptionDispatchRate", RATE),
    ("replicatorDispatchRate", "replicatorDispatchRate", RATE),
    ("publishRate", "publishMaxMessageRate", VALUES["publishRate"]),
    ("subscribeRate", "clusterSubscribeRate", VALUES["subscribeRate"]),
    ("inactiveTopicPolicies", "inactive_topic_policies", VALUES["inactiveTopicPolicies"]),
    ("maxTopicsPerNamespace", "max_topics_per_namespace", 5),
    ("subscriptionExpirationTime", "subscription_expiration_time_minutes", 15),
    ("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds", 60),
    ("compactionThreshold", "compaction_threshold", 1024),
    ("offloadPolicies", "offload_policies", {"managedLedgerOffloadDriver": "filesystem"}),
    ("offloadDeletionLagMs", "offload_deletion_lag_ms", 1000),
    (
        "scalableTopicAutoScalePolicy",
        "scalableTopicAutoScalePolicy",
        {"maxSegments": 8, "splitMsgRateInThreshold": 20.5},
    ),
]


@pytest.mark.parametrize(("path", "key", "value"), NAMESPACE_VALUES, ids=[row[0] for row in NAMESPACE_VALUES])
def test_a_namespace_policy_is_unset_set_and_removed(api: Api, namespace: str, path: str, key: str, value: Any) -> None:
    row = next(row for row in POLICY_ROWS if row.namespace == path)
    url = f"namespaces/{namespace}/{path}"
    unset = 0 if path == "maxTopicsPerNamespace" else None  # a number, as Pulsar: the Java tool reads nothing else
    assert api.get(url, status=204 if unset is None else 200) == unset
    api.call(row.namespace_setter, url, value, 204)
    assert api.get(url) == value
    stored = api.get(f"namespaces/{namespace}")[key]
    assert stored == ({"standalone": value} if row.layer.by_cluster else value)
    api.delete(url)
    assert api.get(url, status=204 if unset is None else 200) == unset


def test_they_go_with_the_topic_and_the_namespace(api: Api, base: str, namespace: str) -> None:
    set_policy(api, base, "maxProducers", 2)
    api.delete(base)
    api.put(base)
    assert api.get(f"{base}/maxProducers", status=204) is None
    set_policy(api, base, "maxProducers", 2)
    api.delete(f"namespaces/{namespace}?force=true")
    api.put(f"namespaces/{namespace}")
    api.put(base)
    assert api.get(f"{base}/maxProducers", status=204) is None


def test_they_survive_a_crash(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    api = Api(server)
    base = "persistent/public/default/kept"
    api.put(base)
    for path, value in VALUES.items():
        set_policy(api, base, path, value)
    server.restart()
    again = Api(server)
    assert {path: again.get(f"{base}/{path}") for path in VALUES} == VALUES
