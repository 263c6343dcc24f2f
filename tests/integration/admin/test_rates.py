"""Publish, dispatch and subscribe rates, measured with the official client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.integration.admin.conftest import Api
from tests.support.messages import receive_all, send_all
from tests.support.raw_client import RawConnection, message
from tests.support.waiting import wait_until

SLACK_S = 2.4
"""Above what a rate takes: scheduling of a busy machine. At half the rate each of these would take longer still."""

UNLIMITED_S = 20.0
"""Nothing here takes as long without a rate, and with the rate all of it takes longer."""


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def seconds(work: Callable[[], object]) -> float:
    started_s = time.monotonic()
    work()
    return time.monotonic() - started_s


def takes(least_s: float, most_s: float, work: Callable[[], object]) -> None:
    """From its first message on: what waits for a rate does so while others are published. Of a few attempts one has to be quick enough,
    as what else the machine does only ever adds to it; none may be too quick."""
    for left in reversed(range(4)):
        took_s = seconds(work)
        assert took_s >= least_s
        if took_s <= most_s:
            break
        assert left, f"{took_s:.1f} s are more than {most_s:.1f}"


def dispatch(messages: int = -1, size_bytes: int = -1) -> dict[str, Any]:
    return {"dispatchThrottlingRateInMsg": messages, "dispatchThrottlingRateInByte": size_bytes}


@pytest.mark.parametrize("rate", [{"publishThrottlingRateInMsg": 50}, {"publishThrottlingRateInByte": 50_000}])
def test_publishing_above_the_rate_waits_and_loses_nothing(
    api: Api, client: pulsar.Client, topic: str, rate: dict[str, int]
) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "all")
    api.post(f"{path_of(topic)}/publishRate", rate)
    payloads = [b"%03d" % number + b"x" * 900 for number in range(150)]

    def publish() -> None:
        send_all(producer, payloads)
        assert receive_all(consumer, 150) == payloads

    takes(1.7, 2.0 + SLACK_S, publish)  # the first second's worth goes at once


def test_a_batch_counts_as_its_messages(api: Api, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=25, batching_max_publish_delay_ms=50
    )
    api.post(f"{path_of(topic)}/publishRate", {"publishThrottlingRateInMsg": 50})
    takes(1.4, 2.0 + SLACK_S, lambda: send_all(producer, [b"x"] * 150))


def test_a_publisher_that_is_held_back_goes_on_when_the_rate_is_lifted(
    api: Api, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    api.post(f"{path_of(topic)}/publishRate", {"publishThrottlingRateInMsg": 1})
    stored: list[pulsar.Result] = []
    for _ in range(100):
        producer.send_async(b"x", lambda result, _: stored.append(result))
    wait_until(lambda: stored, what="the first receipt")
    assert len(stored) < 10
    api.delete(f"{path_of(topic)}/publishRate")
    wait_until(lambda: len(stored) == 100, timeout_s=UNLIMITED_S, what="the others")
    assert set(stored) == {pulsar.Result.Ok}


def test_the_namespaces_rate_gives_way_to_the_topics(api: Api, client: pulsar.Client, namespace: str) -> None:
    topic = f"persistent://{namespace}/t"
    producer = client.create_producer(topic)
    api.post(f"namespaces/{namespace}/publishRate", {"publishThrottlingRateInMsg": 20})
    assert seconds(lambda: send_all(producer, [b"x"] * 50)) >= 1.3
    api.post(f"{path_of(topic)}/publishRate", {"publishThrottlingRateInMsg": 10_000})
    assert seconds(lambda: send_all(producer, [b"x"] * 500)) < UNLIMITED_S


def test_a_paused_connection_outlives_the_keep_alive(start_server: Callable[..., ServerProcess]) -> None:
    """The client's PONGs are not read while the rate holds it back: the server may not take that for death."""
    server = start_server(keepAliveIntervalSeconds=0.8)
    api = Api(server)
    topic = "persistent://public/default/held"
    api.put(path_of(topic))
    api.post(f"{path_of(topic)}/publishRate", {"publishThrottlingRateInMsg": 1})
    with RawConnection(server.port) as client:
        client.producer(topic)
        for sequence_id in range(5):
            client.publish(message(b"x", sequence_id=sequence_id), sequence_id=sequence_id)
        receipts = [client.receipt().send_receipt.sequence_id for _ in range(5)]
    assert receipts == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]
)
def test_dispatch_rate_of_a_subscription(
    api: Api, client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "slow", kind)
    other = client.subscribe(topic, "slow-too", kind)
    payloads = [b"%03d" % number for number in range(150)]
    api.post(f"{path_of(topic)}/subscriptionDispatchRate", dispatch(50))
    producer = client.create_producer(topic)

    def both_get_all() -> None:
        send_all(producer, payloads)
        for each in (consumer, other):
            receive_all(each, 150)

    takes(1.7, 2.0 + SLACK_S, both_get_all)  # each subscription has the rate for itself


def test_dispatch_rate_of_a_topic_is_shared_by_its_subscriptions(api: Api, client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, f"sub-{number}") for number in range(2)]
    api.post(f"{path_of(topic)}/dispatchRate", dispatch(50))
    producer = client.create_producer(topic)

    def both_get_all() -> None:
        send_all(producer, [b"x"] * 75)
        for each in consumers:
            receive_all(each, 75)

    takes(1.7, 2.0 + SLACK_S, both_get_all)


def test_dispatch_rate_in_bytes_and_with_batches(api: Api, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "slow")
    api.post(f"{path_of(topic)}/subscriptionDispatchRate", dispatch(size_bytes=100_000))
    single = client.create_producer(topic)
    takes(1.7, 2.0 + SLACK_S, lambda: (send_all(single, [b"x" * 9900] * 30), receive_all(consumer, 30)))
    api.post(f"{path_of(topic)}/subscriptionDispatchRate", dispatch(50))
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=100
    )
    takes(1.4, 2.0 + SLACK_S, lambda: (send_all(producer, [b"x"] * 150), receive_all(consumer, 150)))


def test_a_reader_is_held_back_and_goes_on_when_the_rate_is_lifted(api: Api, client: pulsar.Client, topic: str) -> None:
    api.put(path_of(topic))
    api.post(f"{path_of(topic)}/dispatchRate", dispatch(1))
    send_all(client.create_producer(topic), [b"x"] * 100)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(30_000).data() == b"x"
    with pytest.raises(pulsar.Timeout):
        reader.read_next(300)
    api.delete(f"{path_of(topic)}/dispatchRate")
    assert seconds(lambda: [reader.read_next(30_000) for _ in range(99)]) < UNLIMITED_S


def test_redelivered_messages_count(api: Api, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "again", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=10)
    send_all(client.create_producer(topic), [b"x"] * 100)
    taken = [consumer.receive(30_000) for _ in range(100)]
    api.post(f"{path_of(topic)}/subscriptionDispatchRate", dispatch(40))

    def all_come_again() -> None:
        for received in taken:
            consumer.negative_acknowledge(received)
        taken[:] = [consumer.receive(30_000) for _ in range(100)]

    takes(1.2, 1.5 + SLACK_S, all_come_again)


def test_a_relative_rate_follows_the_publish_rate(api: Api, client: pulsar.Client, topic: str) -> None:
    """10 a second of its own, and what is published: far more than 10 while there is publishing."""
    consumer = client.subscribe(topic, "tail")
    api.post(f"{path_of(topic)}/subscriptionDispatchRate", dispatch(10) | {"relativeToPublishRate": True})
    producer = client.create_producer(topic)
    over = threading.Event()

    def publish() -> None:
        while not over.wait(0.05):
            for _ in range(10):
                producer.send_async(b"x", lambda result, message_id: None)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        wait_until(
            lambda: api.get(f"{path_of(topic)}/stats")["msgRateIn"] > 50, timeout_s=60, what="a sample of the rate"
        )
        receive_all(consumer, 20)
        assert seconds(lambda: receive_all(consumer, 200)) < 200 / 10 * 0.75
    finally:
        over.set()
        publishing.join()


def test_a_consumer_in_a_reconnect_loop_is_refused(
    api: Api, server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    api.put(path_of(topic))
    api.post(f"{path_of(topic)}/subscribeRate", {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 100})
    with RawConnection(server.port) as raw:
        for _ in range(2):
            assert raw.subscribe(topic, "loop", consumer_name="same").type == BaseCommand.SUCCESS
            raw.close_consumer()
        answer = raw.subscribe(topic, "loop", consumer_name="same")
        assert answer.error.error == ServerError.NotAllowedError
        assert answer.error.message.startswith("Subscribe limited by subscribe rate limit per consumer")
        assert raw.subscribe(topic, "loop", consumer_name="another", consumer_id=2).type == BaseCommand.SUCCESS
    for _ in range(2):
        client.subscribe(topic, "official", consumer_name="third").close()
    api.delete(f"{path_of(topic)}/subscribeRate")
    client.subscribe(topic, "official", consumer_name="third")
