"""Namespaces and their policies, as Pulsar's tools set and read them."""

from __future__ import annotations

from collections.abc import Callable

import pulsar
import pytest

from tests.integration.admin.conftest import Api
from tests.support.messages import ends_at_once
from tests.support.waiting import wait_until


def test_create_show_and_delete(api: Api) -> None:
    api.put("namespaces/public/made?bundles=7", {"max_producers_per_topic": 3, "replication_clusters": ["standalone"]})
    document = api.get("namespaces/public/made")
    assert document["max_producers_per_topic"] == 3
    assert document["bundles"]["numBundles"] == 7
    bundles = api.get("namespaces/public/made/bundles")
    assert bundles["numBundles"] == 7
    assert bundles["boundaries"][0] == "0x00000000"
    assert bundles["boundaries"][-1] == "0xffffffff"
    assert "public/made" in api.get("namespaces/public")
    assert api.reason("PUT", "namespaces/public/made", status=409) == "Namespace already exists"
    api.delete("namespaces/public/made")
    assert api.reason("GET", "namespaces/public/made", status=404) == "Namespace does not exist"
    assert api.reason("DELETE", "namespaces/public/made", status=404) == "Namespace does not exist"


def test_what_is_missing_says_so(api: Api) -> None:
    assert api.reason("GET", "namespaces/nobody", status=404) == "Tenant not found"
    assert api.reason("PUT", "namespaces/nobody/ns", status=404) == "Tenant does not exist"
    for path in ("topics", "bundles", "retention", "permissions", "backlogQuotaMap"):
        assert api.reason("GET", f"namespaces/public/nothing/{path}", status=404) == "Namespace does not exist"
    assert api.reason("POST", "namespaces/public/nothing/messageTTL", 5, status=404) == "Namespace does not exist"
    api.put("namespaces/public/no%20name", status=412)
    api.put("namespaces/public/ns?bundles=99999999", status=412)


def test_deletion_of_a_namespace_in_use_takes_force(api: Api, namespace: str) -> None:
    api.put(f"persistent/{namespace}/plain")
    api.put(f"persistent/{namespace}/split/partitions", 2)
    assert api.reason("DELETE", f"namespaces/{namespace}", status=409) == "Cannot delete non empty namespace"
    api.delete(f"namespaces/{namespace}?force=true")
    api.get(f"namespaces/{namespace}", status=404)
    api.put(f"namespaces/{namespace}")
    assert api.get(f"persistent/{namespace}") == api.get(f"persistent/{namespace}/partitioned") == []


POLICIES: list[tuple[str, str, object]] = [
    ("messageTTL", "message_ttl_in_seconds", 60),
    ("retention", "retention_policies", {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}),
    (
        "persistence",
        "persistence",
        {
            "bookkeeperEnsemble": 1,
            "bookkeeperWriteQuorum": 1,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 2.0,
        },
    ),
    ("deduplication", "deduplicationEnabled", True),
    ("maxProducersPerTopic", "max_producers_per_topic", 1),
    ("maxConsumersPerTopic", "max_consumers_per_topic", 2),
    ("maxConsumersPerSubscription", "max_consumers_per_subscription", 3),
    ("maxSubscriptionsPerTopic", "max_subscriptions_per_topic", 4),
    ("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer", 5),
    ("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription", 6),
    ("autoTopicCreation", "autoTopicCreationOverride", {"allowAutoTopicCreation": False}),
    ("autoSubscriptionCreation", "autoSubscriptionCreationOverride", {"allowAutoSubscriptionCreation": False}),
    ("delayedDelivery", "delayed_delivery_policies", {"active": True, "tickTime": 500}),
]


@pytest.mark.parametrize(("path", "key", "value"), POLICIES, ids=[row[0] for row in POLICIES])
def test_a_policy_is_unset_set_and_removed(api: Api, namespace: str, path: str, key: str, value: object) -> None:
    url = f"namespaces/{namespace}/{path}"
    assert api.get(url, status=204) is None
    api.post(url, value)
    assert api.get(url) == value
    assert api.get(f"namespaces/{namespace}")[key] == value
    api.delete(url)
    assert api.get(url, status=204) is None


def test_policies_with_values_of_their_own_while_unset(api: Api, namespace: str) -> None:
    base = f"namespaces/{namespace}"
    assert api.get(f"{base}/encryptionRequired") is False
    assert api.get(f"{base}/replication") == ["standalone"]
    assert api.get(f"{base}/schemaCompatibilityStrategy") == "UNDEFINED"
    api.put(f"{base}/schemaCompatibilityStrategy", "FORWARD")
    assert api.get(f"{base}/schemaCompatibilityStrategy") == "FORWARD"
    assert api.get(base)["schema_compatibility_strategy"] == "FORWARD"


@pytest.mark.parametrize(
    ("path", "value", "status"),
    [
        ("messageTTL", -1, 412),
        ("messageTTL", "sixty", 400),
        ("messageTTL", True, 400),
        ("retention", {"retentionTimeInMinutes": 10}, 400),
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, 412),
        (
            "persistence",
            {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1},
            400,
        ),
        ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned"}, 412),
        ("autoTopicCreation", [], 400),
        ("backlogQuota", {"policy": "explode", "limitSize": 1}, 400),
        ("backlogQuota", {"policy": "producer_exception", "limitSize": "many"}, 400),
        ("permissions/role", ["fly"], 400),
    ],
)
def test_bad_policies_are_refused(api: Api, namespace: str, path: str, value: object, status: int) -> None:
    before = api.get(f"namespaces/{namespace}")
    assert api.reason("POST", f"namespaces/{namespace}/{path}", value, status=status)
    assert api.get(f"namespaces/{namespace}") == before


PARTITIONS_REFUSED = "Invalid configuration for autoTopicCreationOverride. the detail is [defaultNumPartitions] "


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"topicType": "partitioned"}, "cannot be null when the type is partitioned."),
        ({"topicType": "partitioned", "defaultNumPartitions": -1}, "cannot be less than 1 for partition type."),
        (
            {"topicType": "non-partitioned", "defaultNumPartitions": 3},
            "is not allowed to be set when the type is non-partition.",
        ),
    ],
)
def test_partitions_that_do_not_fit_are_refused_in_words_that_tools_compare(
    api: Api, namespace: str, value: dict[str, object], reason: str
) -> None:
    policy = {"allowAutoTopicCreation": True, **value}
    told = api.reason("POST", f"namespaces/{namespace}/autoTopicCreation", policy, status=412)
    assert told == PARTITIONS_REFUSED + reason


def test_a_document_with_a_bad_policy_creates_nothing(api: Api) -> None:
    for document in ({"message_ttl_in_seconds": "x"}, {"backlog_quota_map": 3}, {"bundles": {"numBundles": "x"}}):
        api.put("namespaces/public/broken", document, status=400)
    api.get("namespaces/public/broken", status=404)


def test_backlog_quotas(api: Api, namespace: str) -> None:
    base = f"namespaces/{namespace}"
    assert api.get(f"{base}/backlogQuotaMap") == {}
    api.post(f"{base}/backlogQuota", {"policy": "producer_exception", "limit": "4096"})
    api.post(f"{base}/backlogQuota?backlogQuotaType=message_age", {"policy": "producer_request_hold", "limitTime": 9})
    quotas = api.get(f"{base}/backlogQuotaMap")
    assert quotas["destination_storage"]["limitSize"] == 4096
    assert quotas["message_age"] == {"limit": -1, "limitSize": -1, "limitTime": 9, "policy": "producer_request_hold"}
    api.delete(f"{base}/backlogQuota")
    assert list(api.get(f"{base}/backlogQuotaMap")) == ["message_age"]
    api.post(f"{base}/backlogQuota?backlogQuotaType=moon", {"policy": "producer_exception"}, status=400)


def test_permissions(api: Api, namespace: str) -> None:
    base = f"namespaces/{namespace}/permissions"
    assert api.get(base) == {}
    api.post(f"{base}/my-role", ["produce", "consume"])
    api.post(f"{base}/other%2Frole", ["consume"])
    assert api.get(base) == {"my-role": ["consume", "produce"], "other/role": ["consume"]}
    api.delete(f"{base}/my-role")
    assert list(api.get(base)) == ["other/role"]


def test_limits_hold_for_topics_that_are_loaded(api: Api, client: pulsar.Client, namespace: str) -> None:
    first = client.create_producer(f"persistent://{namespace}/limited")
    api.post(f"namespaces/{namespace}/maxProducersPerTopic", 1)

    def second_is_refused() -> bool:
        try:
            client.create_producer(f"persistent://{namespace}/limited").close()
        except pulsar.ProducerBusy:
            return True
        return False

    wait_until(second_is_refused)
    first.close()


def test_topics_are_not_created_where_that_is_forbidden(api: Api, client: pulsar.Client, namespace: str) -> None:
    api.post(f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False})
    with ends_at_once(pulsar.TopicNotFound):
        client.create_producer(f"persistent://{namespace}/new")
    api.put(f"persistent/{namespace}/new")
    client.create_producer(f"persistent://{namespace}/new").close()


def test_auto_creation_makes_partitioned_topics(api: Api, client: pulsar.Client, namespace: str) -> None:
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    api.post(f"namespaces/{namespace}/autoTopicCreation", override)
    client.create_producer(f"persistent://{namespace}/new").close()
    assert api.get(f"persistent/{namespace}/new/partitions")["partitions"] == 3


def test_unload_clear_backlog_and_unsubscribe(
    api: Api, connect: Callable[..., pulsar.Client], client: pulsar.Client, namespace: str
) -> None:
    topics = [f"persistent://{namespace}/t{index}" for index in range(3)]
    for topic in topics:
        client.subscribe(topic, "s").close()
        client.subscribe(topic, "kept").close()
        producer = client.create_producer(topic)
        producer.send(b"x")
        producer.close()
    base = f"namespaces/{namespace}"
    api.put(f"{base}/unload")

    def backlogs(name: str) -> list[int]:
        documents = [api.get(f"persistent/{namespace}/t{index}/stats") for index in range(3)]
        return [document["subscriptions"][name]["msgBacklog"] for document in documents]

    assert backlogs("s") == [1, 1, 1]
    api.post(f"{base}/clearBacklog/s")
    assert (backlogs("s"), backlogs("kept")) == ([0, 0, 0], [1, 1, 1])
    api.post(f"{base}/clearBacklog")
    assert backlogs("kept") == [0, 0, 0]
    consumer = client.subscribe(topics[0], "s")
    assert "connected" in api.reason("POST", f"{base}/unsubscribe/s", status=412)
    consumer.close()
    api.post(f"{base}/unsubscribe/s")
    for index in range(3):
        assert api.get(f"persistent/{namespace}/t{index}/subscriptions") == ["kept"]
    bundle = "0x00000000_0x40000000"
    api.put(f"{base}/{bundle}/unload")
    api.put(f"{base}/0x00000000_0x00000001/unload", status=412)


def test_topics_by_mode(api: Api, client: pulsar.Client, namespace: str) -> None:
    api.put(f"persistent/{namespace}/stored")
    api.put(f"persistent/{namespace}/__hidden")
    producer = client.create_producer(f"non-persistent://{namespace}/fleeting")
    stored, fleeting = f"persistent://{namespace}/stored", f"non-persistent://{namespace}/fleeting"
    base = f"namespaces/{namespace}/topics"
    assert api.get(base) == api.get(f"{base}?mode=PERSISTENT") == [stored]
    assert api.get(f"{base}?mode=NON_PERSISTENT") == [fleeting]
    assert api.get(f"{base}?mode=ALL") == [stored, fleeting]
    assert len(api.get(f"{base}?mode=ALL&includeSystemTopic=true")) == 3
    api.get(f"{base}?mode=SOME", status=400)
    assert api.get(f"non-persistent/{namespace}") == [fleeting]
    producer.close()
