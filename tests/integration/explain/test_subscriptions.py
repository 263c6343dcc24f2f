"""Each cause for which a subscription stands still, staged with the official client where it can be, is the one that is named."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
import requests
from click.testing import CliRunner

from magnetar.cli.main import cli
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandSubscribe
from tests.integration.admin.conftest import Api
from tests.integration.explain.conftest import Explainer
from tests.integration.transactions.test_messages import begin, path_of, publish
from tests.support.messages import send_all, take
from tests.support.raw_client import message
from tests.support.raw_transactions import RawTransactions
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

QUEUE = 10
BODIES = [b"%d" % number for number in range(50)]


def send_keys(client: pulsar.Client, topic: str, count: int = 100, keys: int = 20) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(count):
        producer.send(b"x", partition_key=f"key-{number % keys}")
    producer.close()


def acknowledging(consumer: pulsar.Consumer, received: pulsar.Message) -> None:
    consumer.acknowledge(received)


def key_shared(client: pulsar.Client, topic: str, name: str, **options: Any) -> pulsar.Consumer:
    options.setdefault("receiver_queue_size", QUEUE)
    return client.subscribe(topic, "sub", pulsar.ConsumerType.KeyShared, consumer_name=name, **options)


def test_everything_is_consumed(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    send_all(client.create_producer(topic), BODIES)
    take(consumer, len(BODIES))
    reason = explain.finds(topic, "caught-up", None)
    assert ":" in reason["facts"]["message"]
    consumer.close()
    explain.finds(topic, "caught-up", None)


def test_nobody_is_connected(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub").close()
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    reason = explain.finds(topic, "no-consumers", False)
    assert reason["facts"] == {"backlog": 50}
    assert reason["since"].startswith("20")


@pytest.mark.parametrize(
    "kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover, pulsar.ConsumerType.Shared]
)
def test_an_application_that_does_not_receive(
    explain: Explainer, client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    client.subscribe(topic, "sub", kind, consumer_name="lazy", receiver_queue_size=QUEUE)
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    reason = explain.finds(topic, "no-permits", False)
    assert reason["facts"]["consumer"] == "lazy"
    assert "127.0.0.1" in reason["facts"]["address"]
    assert "lazy" in reason["text"]


def test_one_of_two_does_not_receive(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    """The other one goes on: nothing stands still."""
    kind = pulsar.ConsumerType.Shared
    client.subscribe(topic, "sub", kind, consumer_name="lazy", receiver_queue_size=QUEUE)
    worker = client.subscribe(topic, "sub", kind, consumer_name="worker", receiver_queue_size=1000)
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    take(worker, len(BODIES) - QUEUE)

    def only_the_lazy_one() -> bool:
        reasons = explain.subscription(topic)["reasons"]
        return [each["facts"].get("holders") for each in reasons] == [{"lazy": QUEUE}]

    wait_until(only_the_lazy_one)
    document = explain.subscription(topic)
    assert document["reasons"][0]["code"] == "not-acknowledged"
    assert document["moving"] is True  # the last acknowledgement is young


def test_a_consumer_that_holds_too_much(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server(maxUnackedMessagesPerConsumer=5)
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, consumer_name="holder")
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    take(consumer, 5, ack=False)
    reason = Explainer(server.http_url).finds(topic, "unacked-limit-consumer", False)
    assert reason["facts"]["unacked"] == reason["facts"]["limit"] == 5
    assert reason["facts"]["resumesAt"] == 2


def test_a_subscription_that_holds_too_much(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server(maxUnackedMessagesPerSubscription=10)
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, consumer_name="holder_one")
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    take(consumer, 10, ack=False)
    reason = Explainer(server.http_url).finds(topic, "unacked-limit-subscription", False)
    assert reason["facts"]["holders"] == {"holder_one": 10}  # in its own spelling
    assert "holder_one (10)" in reason["text"]


def test_a_frozen_consumer_and_its_keys(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    key_shared(client, topic, "frozen")
    key_shared(client, topic, "quick", message_listener=acknowledging)
    send_keys(client, topic)
    reason = explain.finds(topic, "consumer-frozen", False)
    facts = reason["facts"]
    assert facts["consumer"] == "frozen"
    assert facts["cause"] == "no-permits"
    assert facts["waiting"] > 0
    assert facts["keys"]
    assert set(facts["keys"]) <= {f"key-{number}" for number in range(20)}
    codes = [each["code"] for each in explain.subscription(topic)["reasons"]]
    assert codes == ["consumer-frozen", "no-permits"]


def test_hashes_that_drain(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    """The first consumer holds entries of keys that the second one owns now."""
    first = key_shared(client, topic, "former", receiver_queue_size=1000)
    send_keys(client, topic)
    take(first, 100, ack=False)
    key_shared(client, topic, "new", message_listener=acknowledging)
    send_keys(client, topic)
    reason = explain.finds(topic, "slot-draining", False)
    facts = reason["facts"]
    assert (facts["holder"], facts["owner"]) == ("former", "new")
    assert facts["held"] == facts["waiting"] > 0
    assert facts["keys"]
    assert "acknowledge" in reason["change"]


def test_a_range_that_nobody_covers(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, [(0, 30000)])
    key_shared(client, topic, "half", key_shared_policy=policy, message_listener=acknowledging)
    send_keys(client, topic)
    reason = explain.finds(topic, "range-uncovered", False)
    assert reason["facts"]["ranges"] == ["30001-65535"]
    assert reason["facts"]["waiting"] > 0
    assert reason["facts"]["keys"]


def test_a_dispatch_rate(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    limit = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 60}
    api.post(f"{path_of(topic)}/subscriptionDispatchRate", limit)
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    take(consumer, 1)
    reason = explain.finds(topic, "dispatch-rate", True)
    assert (reason["facts"]["messages"], reason["facts"]["periodS"]) == (1, 60)
    assert reason["facts"]["delayS"] > 10


def test_delayed_messages(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    for _ in range(3):
        producer.send(b"later", deliver_at=4_000_000_000_000)
    reason = explain.finds(topic, "delayed", False)
    assert reason["facts"] == {"messages": 3, "until": "2096-10-02T07:06:40.000Z"}


def test_an_open_transaction(explain: Explainer, server: ServerProcess, topic: str) -> None:
    with RawTransactions(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub")
        txn = begin(raw, topic)
        raw.publish_in(txn, b"inside", sequence_id=1)
        publish(raw, b"behind", 2)
        reason = explain.finds(topic, "transaction-open", False)
        assert reason["facts"]["transaction"] == f"({txn[0]},{txn[1]})"
        assert reason["facts"]["waiting"] == 2
        raw.abort(txn)


def test_acknowledgements_of_an_open_transaction(explain: Explainer, server: ServerProcess, topic: str) -> None:
    with RawTransactions(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", CommandSubscribe.Shared)
        publish(raw, b"one", 1)
        command, _ = raw.message()
        txn = raw.begin()
        raw.add_subscription(txn, topic, "sub")
        raw.ack_in(txn, command.message.message_id)
        codes = [each["code"] for each in explain.subscription(topic)["reasons"]]
        assert "acknowledged-in-transaction" in codes
        raw.abort(txn)


def test_everything_is_delivered_and_nothing_acknowledged(
    explain: Explainer, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub", consumer_name="holder")
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    take(consumer, len(BODIES), ack=False)
    reason = explain.finds(topic, "not-acknowledged", False)
    assert reason["facts"] == {"unacked": 50, "holders": {"holder": 50}}


def test_expired_messages(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub").close()
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    api.post(f"{path_of(topic)}/subscription/sub/expireMessages/0")
    document = explain.subscription(topic)
    assert document["moving"] is None
    expired = next(each for each in document["reasons"] if each["code"] == "expired")
    assert expired["facts"]["entries"] == 50
    assert expired["facts"]["rule"] == "request of an administrator"


def test_a_message_that_comes_back_again_and_again(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=10)
    client.create_producer(topic).send(b"poison", partition_key="bad")
    for _ in range(4):
        consumer.negative_acknowledge(consumer.receive(30_000))
    consumer.receive(30_000)
    reason = next(each for each in explain.subscription(topic)["reasons"] if each["code"] == "redelivered-often")
    assert reason["facts"]["times"] >= 3
    assert reason["facts"]["keys"] == ["bad"]


def test_a_client_that_does_not_read_its_socket(explain: Explainer, server: ServerProcess, topic: str) -> None:
    with RawTransactions(server.port) as producer, RawTransactions(server.port) as deaf:
        producer.producer(topic)
        deaf.subscribe(topic, "sub", permits=100_000)
        for number in range(200):
            producer.publish(message(b"x" * 100_000, sequence_id=number), sequence_id=number)
            producer.receipt()
        explain.finds(topic, "socket-full", False)


def test_a_non_persistent_topic_drops(explain: Explainer, client: pulsar.Client) -> None:
    topic = "non-persistent://public/default/drops"
    client.subscribe(topic, "sub", consumer_name="lazy", receiver_queue_size=QUEUE)
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    document = explain.subscription(topic)
    assert document["moving"] is False
    assert [each["code"] for each in document["reasons"]] == ["no-permits", "drops-without-permits"]
    assert document["reasons"][1]["facts"]["dropped"] > 0


def test_partitions_are_joined(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    api.put(f"{path_of(topic)}/partitions", 3)
    client.subscribe(topic, "sub").close()
    client.create_producer(f"{topic}-partition-1").send(b"one")
    document = explain.subscription(topic)
    assert document["moving"] is False
    assert document["reasons"][0]["code"] == "no-consumers"
    assert document["reasons"][0]["facts"]["topic"] == f"{topic}-partition-1"
    assert len(document["details"]["partitions"]) == 3
    assert "1 of 3 partitions" in document["verdict"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("?topic=", 400),
        ("?subscription=sub", 400),
        ("?topic=persistent://public/default/nothing-here&subscription=sub", 404),
        ("?topic=x://y", 412),
        ("?topic=persistent://nobody/here/x&subscription=sub", 404),
    ],
)
def test_what_cannot_be_explained(server: ServerProcess, query: str, status: int) -> None:
    answer = requests.get(f"{server.http_url}/admin/v2/explain/subscription{query}", timeout=60)
    assert answer.status_code == status, answer.text
    assert answer.json()["reason"]


def test_without_a_subscription(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic)
    answer = requests.get(f"{server.http_url}/admin/v2/explain/subscription?topic={topic}", timeout=60)
    assert answer.status_code == 400
    answer = requests.get(f"{server.http_url}/admin/v2/explain/subscription?topic={topic}&subscription=no", timeout=60)
    assert answer.status_code == 404


def test_a_key_that_is_most_of_the_traffic(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    key_shared(client, topic, "c1")
    key_shared(client, topic, "c2", message_listener=acknowledging)
    name = next(
        f"hot-{number}"
        for number in range(100)
        if explain.ask("key", topic=topic, key=f"hot-{number}", subscription="sub")["details"]["subscriptions"][0][
            "consumer"
        ]
        == "c1"
    )
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(60):
        producer.send(b"x", partition_key=name)
    producer.close()

    def skew() -> dict[str, Any] | None:
        reasons = explain.subscription(topic)["reasons"]
        return next((reason for reason in reasons if reason["code"] == "key-skewed"), None)

    reason = wait_until(skew)
    assert reason["facts"]["percent"] == 100
    assert reason["facts"]["keys"] == [name]
    assert reason["facts"]["consumer"] == "c1"


def test_a_retry_topic_that_goes_round(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    """As clients publish what is to be retried: the official Python client leaves that to the application."""
    retry = f"{topic}-sub-RETRY"
    client.subscribe(retry, "sub").close()
    client.create_producer(retry).send(b"x", properties={"RECONSUMETIMES": "7", "REAL_TOPIC": topic})
    reason = next(each for each in explain.subscription(retry)["reasons"] if each["code"] == "retried-often")
    assert reason["facts"]["times"] == 7
    assert reason["facts"]["origin"] == topic


def test_a_message_ttl(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server(ttlDurationDefaultInSeconds=1, messageExpiryCheckIntervalInMinutes=0.01)
    client, explain = connect(server.service_url), Explainer(server.http_url)
    client.subscribe(topic, "sub").close()
    client.create_producer(topic).send(b"x")

    def expired() -> dict[str, Any] | None:
        reasons = explain.subscription(topic)["reasons"]
        return next((reason for reason in reasons if reason["code"] == "expired"), None)

    assert wait_until(expired, timeout_s=60)["facts"]["rule"] == "message TTL"
    assert "messages expired topic=" in server.log()


def test_the_log_and_the_metrics_say_the_same(
    explain: Explainer, server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    """One line when it stands still, one when it goes on; the metric has the code meanwhile."""
    consumer = client.subscribe(topic, "sub", consumer_name="lazy", receiver_queue_size=QUEUE)
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    explain.finds(topic, "no-permits", False)

    def metric() -> list[str]:
        lines = requests.get(f"{server.http_url}/metrics", timeout=60).text.splitlines()
        return [line for line in lines if line.startswith("magnetar_subscription_blocked{") and f'"{topic}"' in line]

    (line,) = metric()
    assert 'reason="no-permits"' in line
    assert line.endswith(" 1.0")

    def logged(words: str) -> list[str]:
        return [line for line in server.log().splitlines() if words in line and f"topic={topic} " in line]

    wait_until(lambda: logged("subscription stands still"), timeout_s=60)
    assert all("reason=no-permits" in line for line in logged("subscription stands still"))
    take(consumer, len(BODIES))
    wait_until(lambda: logged("subscription goes on"), timeout_s=60)
    assert len(logged("subscription stands still")) == len(logged("subscription goes on")) == 1
    assert metric() == []


def test_stats_show_the_cause(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub", consumer_name="lazy", receiver_queue_size=QUEUE)
    send_all(client.create_producer(topic, batching_enabled=False), BODIES)
    explain.finds(topic, "no-permits", False)
    shown = CliRunner().invoke(cli, ["topics", "stats", topic, "--table", "--admin-url", explain.http_url]).output
    rows = [line.split("\t") for line in shown.splitlines()]
    subscription = next(row for row in rows if row[0] == "sub")
    assert subscription[-1] == "no-permits"
    consumer = next(row for row in rows if row[:2] == ["sub", "lazy"])
    assert consumer[3] == "0"
