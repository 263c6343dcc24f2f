"""Topics and partitioned topics over the admin API, with the official client on the other side."""

from __future__ import annotations

import re
from collections.abc import Callable

import pulsar
import pytest

from tests.integration.admin.conftest import Api
from tests.support.messages import receive_all, send_all
from tests.support.waiting import wait_until


def test_create_list_and_delete(api: Api, namespace: str) -> None:
    base = f"persistent/{namespace}"
    api.put(f"{base}/bare")
    api.call("PUT", f"{base}/with-null", status=204, data=b"null", headers={"Content-Type": "application/json"})
    api.put(f"{base}/with-properties", {"owner": "me"})
    api.put(f"{base}/bare", status=409)
    assert api.get(base) == [f"persistent://{namespace}/{name}" for name in ("bare", "with-null", "with-properties")]
    assert api.get(f"{base}/with-properties/properties") == {"owner": "me"}
    api.delete(f"{base}/bare")
    api.delete(f"{base}/bare", status=404)
    api.put(f"{base}/bad", {"owner": 1}, status=400)
    api.put("persistent/public/nowhere/topic", status=404)


def test_properties_are_added_and_removed(api: Api, client: pulsar.Client, namespace: str) -> None:
    url = f"persistent/{namespace}/described/properties"
    client.create_producer(f"persistent://{namespace}/described", access_mode=pulsar.ProducerAccessMode.Exclusive)
    assert api.get(url) == {}
    api.put(url, {"a": "1", "b": "2"})
    api.put(url, {"b": "3"})
    api.delete(f"{url}?key=a")
    api.put(f"persistent/{namespace}/described/unload")
    assert api.get(url) == {"b": "3"}
    api.put(url, {"topicEpoch": "nonsense"}, status=412)
    api.put(f"persistent/{namespace}/other", {"topicEpoch": "nonsense"}, status=412)
    assert api.get(f"persistent/{namespace}/described/stats")["topicEpoch"] == 1


def test_names_are_decoded_once_and_checked(api: Api, client: pulsar.Client, namespace: str) -> None:
    producer = client.create_producer(f"persistent://{namespace}/with space+plus?q#ü%2F")
    producer.send(b"x")
    assert api.get(f"persistent/{namespace}") == [f"persistent://{namespace}/with space+plus?q#ü%2F"]
    encoded = "with%20space%2Bplus%3Fq%23%C3%BC%252F"
    assert api.get(f"persistent/{namespace}/{encoded}/stats")["msgInCounter"] == 1
    producer.close()
    api.put(f"persistent/{namespace}/a%2Fb", status=412)
    api.put(f"persistent/{namespace}/nul%00", status=412)
    api.put(f"persistent/{namespace}/bad%ff", status=400)


def test_slashes_are_collapsed(api: Api) -> None:
    assert api.call("GET", f"{api.base}//admin/v2//tenants/").json() == api.get("tenants")


def test_deletion_of_a_topic_in_use_takes_force(api: Api, client: pulsar.Client, namespace: str) -> None:
    topic = f"persistent/{namespace}/used"
    producer = client.create_producer(f"persistent://{namespace}/used")
    assert "active producers" in api.reason("DELETE", topic, status=412)
    producer.close()
    client.subscribe(f"persistent://{namespace}/used", "left-behind").close()
    api.delete(topic)
    consumer = client.subscribe(f"persistent://{namespace}/used", "s")
    api.delete(topic, status=412)
    api.delete(f"{topic}?force=true")
    consumer.close()


@pytest.mark.parametrize("body", [3, {"partitions": 3, "properties": {"a": "b"}}], ids=["number", "object"])
def test_partitioned_topics(api: Api, client: pulsar.Client, namespace: str, body: object) -> None:
    topic = f"persistent/{namespace}/split"
    api.put(f"{topic}/partitions", body)
    api.put(f"{topic}/partitions", body, status=409)
    api.put(topic, status=409)
    found = api.get(f"{topic}/partitions")
    assert found["partitions"] == 3
    assert found.get("properties", {}) == ({"a": "b"} if isinstance(body, dict) else {})
    assert api.get(f"persistent/{namespace}/partitioned") == [f"persistent://{namespace}/split"]
    assert len(api.get(f"persistent/{namespace}")) == 3
    assert client.get_topic_partitions(f"persistent://{namespace}/split") == [
        f"persistent://{namespace}/split-partition-{index}" for index in range(3)
    ]
    api.delete(topic, status=405)
    api.delete(f"{topic}/partitions")
    api.get(f"{topic}/partitions", status=404)
    assert api.get(f"persistent/{namespace}") == []


def test_the_vendor_media_type_of_partitioned_topics(api: Api, namespace: str) -> None:
    kind = "application/vnd.partitioned-topic-metadata+json"
    url = f"persistent/{namespace}/vendor/partitions"
    body = b'{"properties":{"k":"v"},"partitions":2}'
    api.call("PUT", url, status=204, data=body, headers={"Content-Type": kind})
    assert api.get(url)["partitions"] == 2


@pytest.mark.parametrize(("body", "status"), [(0, 412), (-1, 412), (10**9, 412), ("x", 400), (True, 400), ({}, 400)])
def test_bad_partition_counts(api: Api, namespace: str, body: object, status: int) -> None:
    api.put(f"persistent/{namespace}/bad/partitions", body, status=status)
    api.get(f"persistent/{namespace}/bad/partitions", status=404)


def test_more_partitions_keep_subscriptions(api: Api, client: pulsar.Client, namespace: str) -> None:
    topic, name = f"persistent/{namespace}/grows", f"persistent://{namespace}/grows"
    api.put(f"{topic}/partitions", 1)
    client.subscribe(name, "s").close()
    api.post(f"{topic}/partitions", 3)
    api.post(f"{topic}/partitions", 2, status=422)
    api.post(f"{topic}/partitions", 3, status=204)
    producer = client.create_producer(name, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    send_all(producer, [b"%d" % index for index in range(30)])
    stats = api.get(f"{topic}/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] > 0
    assert sum(part["msgInCounter"] for part in stats["partitions"].values()) == 30
    consumer = client.subscribe(name, "s")
    assert len(receive_all(consumer, 30)) == 30


def test_a_partition_count_may_be_asked_of_any_topic(api: Api, namespace: str) -> None:
    api.put(f"persistent/{namespace}/plain")
    assert api.get(f"persistent/{namespace}/plain/partitions")["partitions"] == 0
    assert api.get(f"persistent/{namespace}/new/partitions?checkAllowAutoCreation=true")["partitions"] == 0
    api.get(f"persistent/{namespace}/new/partitions", status=404)
    api.get("persistent/public/nowhere/new/partitions", status=404)


def test_missed_partitions_come_back(api: Api, namespace: str) -> None:
    topic = f"persistent/{namespace}/holes"
    api.put(f"{topic}/partitions", 3)
    api.delete(f"{topic}-partition-1")
    api.post(f"{topic}/createMissedPartitions")
    assert len(api.get(f"persistent/{namespace}")) == 3
    api.post(f"persistent/{namespace}/none/createMissedPartitions", status=404)


def test_stats_have_what_clients_read(api: Api, client: pulsar.Client, namespace: str) -> None:
    name, path = f"persistent://{namespace}/seen", f"persistent/{namespace}/seen"
    consumer = client.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name="c")
    producer = client.create_producer(name, producer_name="p", properties={"k": "v"})
    assert api.get(f"{path}/stats")["lastPublishTimestamp"] == 0
    for _ in range(5):
        producer.send(b"0123456789")
    receive_all(consumer, 2)
    wait_until(lambda: api.get(f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 3)
    stats = api.get(f"{path}/stats?getPreciseBacklog=true")
    assert stats["msgInCounter"] == 5
    assert stats["bytesInCounter"] > 50
    assert stats["topicCreationTimeStamp"] > 0
    assert stats["lastPublishTimestamp"] > 0
    assert stats["replication"] == {}
    assert stats["publishers"][0]["producerName"] == "p"
    assert stats["publishers"][0]["metadata"] == {"k": "v"}
    subscription = stats["subscriptions"]["s"]
    assert (subscription["type"], subscription["isDurable"], subscription["unackedMessages"]) == ("Shared", True, 3)
    assert subscription["consumers"][0]["consumerName"] == "c"
    assert subscription["consumers"][0]["lastConsumedFlowTimestamp"] > 0
    bare = api.get(f"{path}/stats?excludePublishers=true&excludeConsumers=true")
    assert (bare["publishers"], bare["subscriptions"]["s"]["consumers"]) == ([], [])
    producer.close()
    consumer.close()


def test_partitioned_stats_add_up(api: Api, client: pulsar.Client, namespace: str) -> None:
    name, path = f"persistent://{namespace}/sum", f"persistent/{namespace}/sum"
    api.put(f"{path}/partitions", 2)
    consumer = client.subscribe(name, "s")
    producer = client.create_producer(name)
    send_all(producer, [b"x"] * 10, partition_key="k")
    stats = api.get(f"{path}/partitioned-stats?perPartition=false")
    assert (stats["msgInCounter"], stats["subscriptions"]["s"]["msgBacklog"]) == (10, 10)
    assert stats["metadata"]["partitions"] == 2
    assert stats["partitions"] == {}
    parts = api.get(f"{path}/partitioned-stats")["partitions"]
    assert sorted(part["msgInCounter"] for part in parts.values()) == [0, 10]
    assert api.reason("GET", f"{path}/stats", status=404).endswith("name one of its partitions")
    inside = api.get(f"{path}/partitioned-internalStats")["partitions"]
    assert sorted(part["numberOfEntries"] for part in inside.values())[0] == 0
    for kind in ("stats", "internalStats"):
        api.get(f"persistent/{namespace}/none/partitioned-{kind}", status=404)
    consumer.close()
    producer.close()


def test_internal_stats_show_ledgers_and_cursors(api: Api, client: pulsar.Client, namespace: str) -> None:
    name, path = f"persistent://{namespace}/inside", f"persistent/{namespace}/inside"
    consumer = client.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(name)
    ids = [producer.send(b"x") for _ in range(4)]
    messages = [consumer.receive(30_000) for _ in range(4)]
    consumer.acknowledge(messages[2])
    ledger = ids[0].ledger_id()

    def cursor() -> dict[str, object]:
        found: dict[str, object] = api.get(f"{path}/internalStats")["cursors"]["s"]
        return found

    wait_until(lambda: cursor()["individuallyDeletedMessages"] == f"[({ledger}:1..{ledger}:2]]")
    assert cursor()["markDeletePosition"] == f"{ledger}:-1"
    stats = api.get(f"{path}/internalStats")
    assert stats["numberOfEntries"] == 4
    assert stats["lastConfirmedEntry"] == f"{ledger}:3"
    assert stats["state"] == "LedgerOpened"
    assert [held["ledgerId"] for held in stats["ledgers"]] == [ledger]
    behind = {"ledgerId": ledger, "entryId": 1}
    half = api.call("PUT", f"{path}/backlogSize", behind).json()
    assert half * 2 == api.call("PUT", f"{path}/backlogSize").json() == stats["totalSize"]
    by_bundle = api.get("broker-stats/topics")[namespace]
    assert any(name in domains.get("persistent", {}) for domains in by_bundle.values())
    consumer.close()


def test_unload_disconnects_and_clients_come_back(api: Api, client: pulsar.Client, namespace: str) -> None:
    name, path = f"persistent://{namespace}/moved", f"persistent/{namespace}/moved"
    consumer = client.subscribe(name, "s")
    producer = client.create_producer(name)
    producer.send(b"before")
    api.put(f"{path}/unload")
    producer.send(b"after")
    assert receive_all(consumer, 2) == [b"before", b"after"]
    api.put(f"persistent/{namespace}/none/unload", status=404)
    api.put(f"persistent/{namespace}/split/partitions", 2)
    api.put(f"persistent/{namespace}/split/unload")


def test_terminate_answers_the_last_message(api: Api, client: pulsar.Client, namespace: str) -> None:
    name, path = f"persistent://{namespace}/ended", f"persistent/{namespace}/ended"
    producer = client.create_producer(name)
    last = [producer.send(b"x") for _ in range(3)][-1]
    expected = {"ledgerId": last.ledger_id(), "entryId": 2, "partitionIndex": -1}
    assert api.call("POST", f"{path}/terminate").json() == expected
    assert api.get(f"{path}/lastMessageId") == expected
    api.put(f"persistent/{namespace}/split/partitions", 2)
    api.post(f"persistent/{namespace}/split/terminate", status=405)
    api.post(f"persistent/{namespace}/none/terminate", status=404)


def test_truncate_and_trim(api: Api, client: pulsar.Client, namespace: str) -> None:
    name, path = f"persistent://{namespace}/cut", f"persistent/{namespace}/cut"
    client.subscribe(name, "s").close()
    producer = client.create_producer(name)
    send_all(producer, [b"x" * 1000] * 20)
    api.post(f"{path}/trim")
    assert api.get(f"{path}/internalStats")["numberOfEntries"] == 20
    api.delete(f"{path}/truncate")
    assert api.get(f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 0
    wait_until(lambda: api.get(f"{path}/internalStats")["numberOfEntries"] == 0, what="the trim after the rollover")


def test_non_persistent_topics(api: Api, client: pulsar.Client, namespace: str) -> None:
    name, path = f"non-persistent://{namespace}/fleeting", f"non-persistent/{namespace}/fleeting"
    consumer = client.subscribe(name, "s")
    producer = client.create_producer(name)
    producer.send(b"x")
    assert consumer.receive(30_000).data() == b"x"
    assert api.get(f"{path}/stats")["subscriptions"]["s"]["msgOutCounter"] == 1
    assert api.get(f"{path}/subscriptions") == ["s"]
    assert api.get(f"{path}/internalStats")["entriesAddedCounter"] == 1
    for method, what in (("POST", "terminate"), ("GET", "lastMessageId"), ("POST", "subscription/s/skip_all")):
        api.call(method, f"{path}/{what}", status=405)
    consumer.close()
    producer.close()
    api.put(f"non-persistent/{namespace}/split/partitions", 2)
    assert api.get(f"non-persistent/{namespace}/partitioned") == [f"non-persistent://{namespace}/split"]
    assert api.get(f"non-persistent/{namespace}/split/partitioned-stats")["metadata"]["partitions"] == 2
    api.delete(f"non-persistent/{namespace}/split/partitions")


def test_http_lookup_serves_plain_and_partitioned_topics(
    api: Api, connect: Callable[..., pulsar.Client], namespace: str
) -> None:
    client = connect(api.base)
    api.put(f"persistent/{namespace}/split/partitions", 3)
    for topic in (f"persistent://{namespace}/plain", f"persistent://{namespace}/split"):
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        send_all(producer, [b"%d" % index for index in range(20)])
        assert sorted(receive_all(consumer, 20)) == sorted(b"%d" % index for index in range(20))
    assert len(client.get_topic_partitions(f"persistent://{namespace}/split")) == 3


def test_http_lookup_finds_topics_by_pattern(api: Api, connect: Callable[..., pulsar.Client], namespace: str) -> None:
    client = connect(api.base)
    for index in range(2):
        client.create_producer(f"persistent://{namespace}/many-{index}").send(b"%d" % index)
    consumer = client.subscribe(
        re.compile(f"persistent://{namespace}/many-.*"), "s", initial_position=pulsar.InitialPosition.Earliest
    )
    assert sorted(receive_all(consumer, 2)) == [b"0", b"1"]


def test_the_lookup_document_is_complete(api: Api, namespace: str) -> None:
    url = f"{api.base}/lookup/v2/topic/persistent/{namespace}/any"
    found = api.call("GET", f"{url}?authoritative=false").json()
    assert set(found) == {"brokerUrl", "brokerUrlTls", "brokerUrlSsl", "httpUrl", "httpUrlTls", "nativeUrl"}
    assert found["brokerUrl"] == found["nativeUrl"]
    assert found["brokerUrl"].startswith("pulsar://")
    assert found["httpUrl"] == api.base
    low, high = api.call("GET", f"{url}/bundle").text.split("_")
    assert 0 <= int(low, 16) < int(high, 16) <= 0xFFFFFFFF
    api.call("GET", f"{api.base}/lookup/v2/topic/persistent/public/nowhere/any", status=404)
    assert "listener" in api.reason("GET", f"{url}?listenerName=wrong", status=405)
