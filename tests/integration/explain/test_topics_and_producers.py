"""Why a topic takes no messages, and why a producer or consumer is refused: each cause is staged with the official client."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
import requests
from pulsar.schema import AvroSchema, Integer, Record, String

from magnetar.base.ports import free_ports
from tests.integration.admin.conftest import Api
from tests.integration.explain.conftest import Explainer
from tests.integration.transactions.test_messages import path_of
from tests.support.messages import send_all
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until


class Order(Record):  # type: ignore[misc]  # the client has no types
    number = Integer()


class Other(Record):  # type: ignore[misc]  # the client has no types
    number = String(required=True)


def named(explain: Explainer, kind: str, code: str, **query: str) -> dict[str, Any]:
    """The reason with that code, as soon as it is there."""

    def found() -> dict[str, Any] | None:
        reasons = explain.ask(kind, **query)["reasons"]
        return next((reason for reason in reasons if reason["code"] == code), None)

    return wait_until(found, what=f"{code} in {explain.ask(kind, **query)}")


def refused(work: Any) -> bool:
    try:
        work()
    except pulsar.PulsarException:
        return True
    return False


def test_a_topic_that_is_well(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic)
    document = explain.ask("topic", topic=topic)
    assert (document["moving"], document["reasons"]) == (True, [])
    assert document["details"]["producers"] == 1
    assert explain.command("topic", topic).startswith(f"Topic {topic} is moving.")


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_a_backlog_quota(start_server: StartServer, connect: Connect, topic: str, policy: str) -> None:
    server = start_server(
        backlogQuotaDefaultRetentionPolicy=policy,
        backlogQuotaDefaultLimitBytes=10_000,
        backlogQuotaCheckIntervalInSeconds=0.2,
    )
    explain, client = Explainer(server.http_url), connect(server.service_url)
    client.subscribe(topic, "slow").close()
    producer = client.create_producer(topic)
    producer.send(b"x" * 20_000)
    reason = named(explain, "topic", "quota-exceeded", topic=topic)
    assert reason["facts"]["subscription"] == "slow"
    assert reason["facts"]["backlogBytes"] > reason["facts"]["limitBytes"] == 10_000
    assert reason["facts"]["policy"] == policy
    assert reason["since"]
    document = explain.ask("topic", topic=topic)
    assert document["moving"] is False
    assert document["reasons"][0]["code"] == "quota-exceeded"
    shown = explain.command("producer", "--topic", topic)
    assert "stands still: the backlog quota is exceeded" in shown
    assert "no-consumers" in explain.command("topic", topic, as_json=True)  # which is why there is a backlog


def test_a_terminated_topic(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"last")
    api.post(f"{path_of(topic)}/terminate", status=200)
    for kind in ("topic", "producer"):
        document = explain.ask(kind, topic=topic)
        assert document["moving"] is False
        assert document["reasons"][0]["code"] == "terminated"


def test_an_unloaded_topic(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    """Nothing is loaded for the answer."""
    producer = client.create_producer(topic)
    producer.send(b"one")
    producer.close()
    api.put(f"{path_of(topic)}/unload")
    for _ in range(2):
        document = explain.ask("topic", topic=topic)
        assert document["moving"] is None
        assert [reason["code"] for reason in document["reasons"]] == ["topic-not-loaded"]
        assert document["reasons"][0]["since"]


def test_a_subscription_of_an_unloaded_topic(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub").close()
    producer = client.create_producer(topic)
    producer.send(b"one")
    producer.close()
    api.put(f"{path_of(topic)}/unload")
    codes = [reason["code"] for reason in explain.subscription(topic)["reasons"]]
    assert codes == ["topic-not-loaded", "no-consumers"]


def test_a_producer_with_another_schema(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(Order))
    assert refused(lambda: client.create_producer(topic, producer_name="wrong", schema=AvroSchema(Other)))
    reason = named(explain, "producer", "schema-incompatible", topic=topic, producer="wrong")
    assert reason["facts"]["who"] == "producer"
    document = explain.ask("producer", topic=topic, producer="wrong")
    assert [each["code"] for each in document["reasons"]] == ["schema-incompatible", "not-connected"]
    assert document["moving"] is False


def test_a_consumer_with_another_schema(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub", schema=AvroSchema(Order)).close()
    client.create_producer(topic, schema=AvroSchema(Order)).send(Order(number=1))
    assert refused(lambda: client.subscribe(topic, "sub", consumer_name="wrong", schema=AvroSchema(Other)))
    reason = explain.finds(topic, "schema-incompatible", False)
    assert reason["facts"]["name"] == "wrong"
    assert reason["facts"]["subscription"] == "sub"
    assert reason["since"]


def test_exclusive_access(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    exclusive = pulsar.ProducerAccessMode.Exclusive
    client.create_producer(topic, producer_name="first", access_mode=exclusive)
    assert refused(lambda: client.create_producer(topic, producer_name="second"))
    document = explain.ask("producer", topic=topic, producer="second")
    assert [each["code"] for each in document["reasons"]] == [
        "exclusive-access",
        "exclusive-producer",
        "not-connected",
    ]
    assert document["reasons"][1]["facts"]["holder"] == "first"
    assert explain.ask("producer", topic=topic, producer="first")["reasons"] == []


def test_a_second_consumer(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub", consumer_name="first")
    assert refused(lambda: client.subscribe(topic, "sub", consumer_name="second"))
    reason = named(explain, "subscription", "subscription-busy", topic=topic, subscription="sub")
    assert reason["facts"]["name"] == "second"


def test_a_publish_rate(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False, producer_name="held")
    api.post(f"{path_of(topic)}/publishRate", {"publishThrottlingRateInMsg": 1})
    for number in range(60):
        producer.send_async(b"%d" % number, None)
    reason = named(explain, "producer", "publish-rate", topic=topic, producer="held")
    assert reason["facts"]["producers"] == 1
    api.delete(f"{path_of(topic)}/publishRate")


def test_a_replicator_that_cannot_connect(explain: Explainer, api: Api, client: pulsar.Client) -> None:
    (port,) = free_ports(1)
    api.put(
        "clusters/far", {"serviceUrl": f"http://127.0.0.1:{port}", "brokerServiceUrl": f"pulsar://127.0.0.1:{port}"}
    )
    api.put("tenants/geo", {"allowedClusters": ["standalone", "far"]})
    api.put("namespaces/geo/ns", {"replication_clusters": ["standalone", "far"]})
    topic = "persistent://geo/ns/t"
    send_all(client.create_producer(topic, batching_enabled=False), [b"x"] * 3)
    reason = named(explain, "topic", "replicator-disconnected", topic=topic)
    wait_until(lambda: explain.ask("topic", topic=topic)["reasons"][0]["facts"]["problem"] != "it is being connected")
    assert reason["facts"]["cluster"] == "far"
    assert named(explain, "topic", "replicator-disconnected", topic=topic)["facts"]["backlog"] == 3
    assert "replicator-disconnected" in explain.command("topic", topic)


def test_partitions(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    api.put(f"{path_of(topic)}/partitions", 2)
    client.create_producer(topic).send(b"x")
    assert explain.ask("topic", topic=topic)["moving"] is True
    assert explain.ask("producer", topic=topic)["moving"] is True


def test_a_topic_that_does_not_exist(explain: Explainer, topic: str) -> None:
    for kind in ("topic", "producer"):
        answer = requests.get(f"{explain.http_url}/admin/v2/explain/{kind}?topic={topic}", timeout=60)
        assert answer.status_code == 404, answer.text


def test_a_topic_that_clients_may_not_create(start_server: StartServer, connect: Connect, topic: str) -> None:
    """It is not there, and the explanation is what the clients were told."""
    server = start_server(allowAutoTopicCreation=False)
    assert refused(lambda: connect(server.service_url).create_producer(topic, producer_name="p"))
    document = Explainer(server.http_url).ask("topic", topic=topic)
    assert document["moving"] is False
    assert document["reasons"][0]["code"] == "client-refused"
    assert "not created automatically" in document["reasons"][0]["text"]
