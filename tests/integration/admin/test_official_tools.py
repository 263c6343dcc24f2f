"""Requests as pulsar-admin 4.0 and the Go client send them, and answers in the only form that these read."""

from __future__ import annotations

import http.client
import itertools
import json
import time
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest

from tests.integration.admin.conftest import Api
from tests.support.messages import send_all

NEW_NAMESPACE = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": [],
    "allowed_clusters": [],
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""The body of `pulsar-admin namespaces create`."""


@pytest.fixture
def path(namespace: str) -> str:
    return f"persistent/{namespace}/t"


@pytest.fixture
def name(namespace: str) -> str:
    return f"persistent://{namespace}/t"


def pulsar_headers(api: Api, path: str) -> tuple[dict[str, str], bytes]:
    """The headers with their names as they were sent, which no client of higher level shows, and the body."""
    where = urlsplit(api.base)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    connection.request("GET", f"/admin/v2/{path}")
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    found = {key: value for key, value in answer.getheaders() if key.lower().startswith("x-pulsar")}
    body = answer.read()
    connection.close()
    return found, body


def test_a_namespace_is_created_by_pulsar_admin(api: Api, namespace: str) -> None:
    """Its document has an empty list of clusters, which stands for none chosen."""
    created = f"{namespace}-created"
    api.put(f"namespaces/{created}", NEW_NAMESPACE)
    document = api.get(f"namespaces/{created}")
    assert document["replication_clusters"] == api.get(f"namespaces/{namespace}")["replication_clusters"]
    api.put(f"persistent/{created}/t")
    assert api.get(f"namespaces/{created}/topics") == [f"persistent://{created}/t"]
    copied = f"{namespace}-copied"
    api.put(f"namespaces/{copied}", document)
    assert api.get(f"namespaces/{copied}") == document
    api.post(f"namespaces/{created}/replication", [], status=412)


def test_a_shown_message_has_pulsars_headers(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    client.subscribe(name, "s").close()
    producer = client.create_producer(name, producer_name="p", initial_sequence_id=41)
    sent = producer.send(b"x", properties={"a": "1", "ü": "2"}, partition_key="k", event_timestamp=1000)
    headers, body = pulsar_headers(api, f"{path}/subscription/s/position/1")
    assert body == b"x"
    assert headers.pop("X-Pulsar-publish-time").endswith("Z")
    assert json.loads(headers.pop("X-Pulsar-PROPERTY")) == {"a": "1", "ü": "2"}
    assert headers.pop("X-Pulsar-event-time").startswith("1970-01-01T00:00:01")
    assert headers["X-Pulsar-Message-ID"] == f"{sent.ledger_id()}:{sent.entry_id()}"
    assert headers["X-Pulsar-producer-name"] == "p"
    assert headers["X-Pulsar-sequence-id"] == "42"
    assert headers["X-Pulsar-partition-key"] == "k"
    assert "X-Pulsar-num-batch-message" not in headers
    assert "X-Pulsar-Is-Encrypted" not in headers


@pytest.mark.parametrize("codec", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_a_shown_message_is_not_compressed(api: Api, client: pulsar.Client, path: str, name: str, codec: str) -> None:
    """pulsar-admin prints the body as it comes."""
    client.subscribe(name, "s").close()
    compression = getattr(pulsar.CompressionType, codec)
    producer = client.create_producer(name, compression_type=compression, batching_enabled=False)
    producer.send(b"abc" * 1000)
    headers, body = pulsar_headers(api, f"{path}/subscription/s/position/1")
    assert body == b"abc" * 1000
    assert headers["X-Pulsar-compression"] == codec.upper()
    assert headers["X-Pulsar-uncompressed-size"] == "3000"
    assert pulsar_headers(api, f"{path}/examinemessage?initialPosition=earliest&messagePosition=1")[1] == body


def test_a_shown_batch_says_how_large_it_is(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    client.subscribe(name, "s").close()
    producer = client.create_producer(
        name,
        batching_enabled=True,
        batching_max_publish_delay_ms=200,
        compression_type=pulsar.CompressionType.LZ4,
    )
    send_all(producer, [b"one" * 100, b"two" * 100])
    headers, body = pulsar_headers(api, f"{path}/subscription/s/position/1")
    assert headers["X-Pulsar-num-batch-message"] == "2"
    assert 0 < int(headers["X-Pulsar-batch-size"]) < len(body)
    assert b"one" * 100 in body


def test_a_deleted_schema_answers_its_version_alone(api: Api, namespace: str) -> None:
    path = f"schemas/{namespace}/t/schema"
    payload = {"type": "STRING", "schema": "", "properties": {}}
    assert api.call("POST", path, payload).json() == {"version": {"version": 0}}
    assert api.call("DELETE", path).json() == {"version": 1}


def test_partition_counts_in_strings(api: Api, path: str) -> None:
    """Pulsar's JSON parser takes a number in quotes, and some tools rely on it."""
    api.put(f"{path}/partitions", "3")
    assert api.get(f"{path}/partitions")["partitions"] == 3
    api.post(f"{path}/partitions", "4")
    assert api.get(f"{path}/partitions")["partitions"] == 4
    for bad in ("", "x", "1.0", "1e3", "9" * 30):
        api.post(f"{path}/partitions", bad, status=400)


def test_automatic_topics_are_switched_off_by_the_go_client(api: Api, namespace: str) -> None:
    api.post(f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False, "topicType": ""})
    assert api.get(f"namespaces/{namespace}/autoTopicCreation")["allowAutoTopicCreation"] is False


def test_properties_of_a_partitioned_topic(api: Api, path: str) -> None:
    api.put(f"{path}/partitions", {"partitions": 2, "properties": {"a": "1"}})
    api.put(f"{path}/properties", {"b": "2"})
    assert api.get(f"{path}/properties") == {"a": "1", "b": "2"}
    api.delete(f"{path}/properties?key=a")
    assert api.get(f"{path}/properties") == {"b": "2"}
    assert api.get(f"{path}/partitions") == {"partitions": 2, "deleted": False, "properties": {"b": "2"}}


def test_a_backlog_is_analyzed_by_post(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    client.subscribe(name, "s").close()
    producer = client.create_producer(name)
    ids = [producer.send(b"x") for _ in range(3)]
    url = f"{path}/subscription/s/analyzeBacklog"
    assert api.call("POST", url).json()["messages"] == 3
    second = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id(), "partitionIndex": -1}
    assert api.call("POST", url, second).json()["messages"] == 2


def test_unknown_routes_below_a_namespace(api: Api, namespace: str) -> None:
    """They are told as what they are, not as a bundle that cannot be read."""
    for method in ("GET", "POST", "PUT", "DELETE"):
        reason = api.reason(method, f"namespaces/{namespace}/noSuchPolicy", status=404)
        assert f"no route {method} /admin/v2/namespaces/{namespace}/noSuchPolicy" in reason
    api.delete(f"namespaces/{namespace}/0x00000000_0x40000000", status=204)


def test_a_role_and_a_subscription_with_the_name_of_a_route(api: Api, namespace: str) -> None:
    api.post(f"namespaces/{namespace}/permissions/subscription", ["consume"])
    assert api.get(f"namespaces/{namespace}/permissions") == {"subscription": ["consume"]}
    api.delete(f"namespaces/{namespace}/permissions/subscription")
    assert api.get(f"namespaces/{namespace}/permissions") == {}
    path = f"persistent/{namespace}/t/subscription/subscription"
    api.put(f"persistent/{namespace}/t")
    api.put(path)
    assert api.get(f"persistent/{namespace}/t/subscriptions") == ["subscription"]
    api.delete(path)
    assert api.get(f"persistent/{namespace}/t/subscriptions") == []


def stats_of(api: Api, path: str, query: str = "") -> Any:
    return api.get(f"{path}/stats{query}")


def test_backlogs_have_size_age_and_limits(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    for subscription in ("slow", "fast"):
        client.subscribe(name, subscription).close()
    producer = client.create_producer(name, batching_enabled=False)
    begun_ms = time.time() * 1000 - 1
    ids = [producer.send(b"x" * 1000) for _ in range(4)]
    published_ms = time.time() * 1000
    api.post(f"{path}/subscription/fast/skip/3")
    before = stats_of(api, path)
    slow, fast = before["subscriptions"]["slow"], before["subscriptions"]["fast"]
    assert slow["backlogSize"] == before["backlogSize"] == before["storageSize"] > 4000
    assert fast["backlogSize"] * 4 == slow["backlogSize"]
    assert (before["backlogQuotaLimitSize"], before["backlogQuotaLimitTime"]) == (-1, -1)
    quota = {"limitSize": 10**6, "limitTime": -1, "policy": "producer_exception"}
    api.post(f"namespaces/{'/'.join(path.split('/')[1:3])}/backlogQuota?backlogQuotaType=destination_storage", quota)
    time.sleep(max(0.0, published_ms / 1000 + 2.1 - time.time()))
    after = stats_of(api, path, "?getEarliestTimeInBacklog=true")
    assert after["backlogQuotaLimitSize"] == 10**6
    assert 2 <= after["oldestBacklogMessageAgeSeconds"] <= time.time() - begun_ms / 1000
    assert after["oldestBacklogMessageSubscriptionName"] == "slow"
    earliest = {each: row["earliestMsgPublishTimeInBacklog"] for each, row in after["subscriptions"].items()}
    assert after["earliestMsgPublishTimeInBacklogs"] == earliest["slow"] <= earliest["fast"] <= published_ms
    assert earliest["slow"] >= begun_ms
    for subscription in ("slow", "fast"):
        api.post(f"{path}/subscription/{subscription}/skip_all")
    empty = stats_of(api, path, "?getEarliestTimeInBacklog=true")
    assert [row["backlogSize"] for row in empty["subscriptions"].values()] == [0, 0]
    assert (empty["oldestBacklogMessageAgeSeconds"], empty["earliestMsgPublishTimeInBacklogs"]) == (-1, 0)
    assert ids[3].entry_id() == 3


# ---- What the comparison with pulsar-admin against Apache Pulsar (make compat-all ARGS=pulsar-admin) has found


def test_numbers_that_the_java_tool_needs(api: Api, namespace: str) -> None:
    """It reads an answer without a body as null, which is no number."""
    assert api.get(f"namespaces/{namespace}/maxTopicsPerNamespace") == 0
    assert api.get(f"namespaces/{namespace}")["is_allow_auto_update_schema"] is True


def test_a_quota_stays_below_what_retention_keeps(api: Api, namespace: str, path: str) -> None:
    quota = {"limitSize": 200 << 20, "limitTime": -1, "policy": "producer_exception"}
    kept = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}
    for base, remove in ((f"namespaces/{namespace}", True), (path, False)):
        if base == path:
            api.put(path)
        api.post(f"{base}/backlogQuota", quota)
        assert "retention quota" in api.reason("POST", f"{base}/retention", kept, status=412)
        api.delete(f"{base}/backlogQuota")
        api.post(f"{base}/retention", kept)
        assert "retention quota" in api.reason("POST", f"{base}/backlogQuota", quota, status=412)
        api.post(f"{base}/backlogQuota", {**quota, "limitSize": -1})
        if remove:
            api.delete(f"{base}/backlogQuota")
            api.delete(f"{base}/retention")


def test_topics_of_a_bundle(api: Api, namespace: str) -> None:
    api.put(f"persistent/{namespace}/p/partitions", 8)
    bundles = api.get(f"namespaces/{namespace}/bundles")["boundaries"]
    found = [
        topic
        for low, high in itertools.pairwise(bundles)
        for topic in api.get(f"persistent/{namespace}?bundle={low}_{high}")
    ]
    assert sorted(found) == sorted(api.get(f"persistent/{namespace}"))
    assert len(found) == 8
    assert api.reason("GET", f"persistent/{namespace}?bundle=0x00000000_0x00000001", status=412)


def test_stats_name_no_consumer_where_there_is_none(api: Api, path: str, client: pulsar.Client, name: str) -> None:
    api.put(path)
    api.put(f"{path}/subscription/s", {"ledgerId": -1, "entryId": -1, "properties": {"k": "v"}})
    row = stats_of(api, path)["subscriptions"]["s"]
    assert row["subscriptionProperties"] == {"k": "v"}
    assert not {"activeConsumerName", "keySharedMode"} & row.keys()
    assert api.get(f"{path}/internalStats")["cursors"]["s"]["active"] is False
    api.put(f"{path}/subscription/s/properties", {})
    assert stats_of(api, path)["subscriptions"]["s"]["subscriptionProperties"] == {}
    asked = stats_of(api, path, "?subscriptionBacklogSize=false&getEarliestTimeInBacklog=true")["subscriptions"]["s"]
    assert (asked["backlogSize"], asked["earliestMsgPublishTimeInBacklog"]) == (-1, -1)
    consumer = client.subscribe(name, "s", pulsar.ConsumerType.Failover, consumer_name="c")
    assert stats_of(api, path)["subscriptions"]["s"]["activeConsumerName"] == "c"
    assert api.get(f"{path}/internalStats")["cursors"]["s"]["active"] is True
    consumer.close()


def test_what_is_not_there_is_nothing_and_no_error(api: Api, namespace: str, path: str) -> None:
    api.put(path)
    assert api.call("GET", f"schemas/{namespace}/t/metadata", status=204).text == ""
    assert api.call("GET", f"namespaces/{namespace}/property/none", status=204).text == ""
    assert api.get(f"{path}/partitions") == {"partitions": 0, "deleted": False}
    quotas = api.get(f"{path}/backlogQuotaMap?applied=true")
    assert {kind: quota["limitSize"] for kind, quota in quotas.items()} == {
        "destination_storage": -1,
        "message_age": -1,
    }
