"""Redelivery: nacks, acknowledgement timeouts, counts, dead letters and retries through the client."""

from __future__ import annotations

from datetime import timedelta

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.brokers import get
from tests.support.messages import (
    RECEIVE_TIMEOUT_MS,
    drain,
    nothing_arrives,
    patient,
    receive_all,
    send_all,
    take,
)
from tests.support.raw_client import BaseCommand, RawConnection, batch, message, split
from tests.support.waiting import wait_until

Shared = pulsar.ConsumerType.Shared
KeyShared = pulsar.ConsumerType.KeyShared
SHARED, FAILOVER = 1, 2


@pytest.mark.parametrize("kind", [Shared, KeyShared], ids=lambda kind: kind.name)
def test_nacked_messages_come_again_with_a_count(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "sub", kind, negative_ack_redelivery_delay_ms=50)
    send_all(client.create_producer(topic), [b"bad", b"good"], partition_key="k")
    bad, good = take(consumer, 2, ack=False)
    consumer.acknowledge(good)
    for count in range(1, 4):
        consumer.negative_acknowledge(bad)
        bad = consumer.receive(30_000)
        assert (bad.data(), bad.redelivery_count()) == (b"bad", count)
    consumer.acknowledge(bad)
    assert nothing_arrives(consumer)


def acknowledged(server: ServerProcess, topic: str, count: str, left: int) -> None:
    """Wait until acknowledgements, which the client keeps back for a while, are at the server: a message that is given back sooner would
    bring those that were acknowledged beside it. `count`: the subscription's figure that is `left` then."""
    url = f"{server.http_url}/admin/v2/{topic.replace('://', '/')}/stats"
    wait_until(lambda: get(url)["subscriptions"]["sub"][count] == left, what="the acknowledgements are at the server")


def test_nacks_on_an_exclusive_subscription_repeat_everything_unacknowledged_once_in_order(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub", negative_ack_redelivery_delay_ms=50)
    send_all(client.create_producer(topic), [b"%d" % index for index in range(6)])
    received = take(consumer, 6, ack=False)
    consumer.acknowledge(received[0])
    consumer.acknowledge(received[3])
    acknowledged(server, topic, "msgBacklog", 4)
    for index in (1, 2, 4, 5):
        consumer.negative_acknowledge(received[index])
    assert receive_all(consumer, 4) == [b"1", b"2", b"4", b"5"]
    assert nothing_arrives(consumer)


def test_a_nacked_part_of_a_batch_comes_without_the_acknowledged_part(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub", Shared, negative_ack_redelivery_delay_ms=50, batch_index_ack_enabled=True)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=10_000
    )
    send_all(producer, [b"%d" % index for index in range(5)])
    received = take(consumer, 5, ack=False)
    for index in (0, 2, 4):
        consumer.acknowledge(received[index])
    acknowledged(server, topic, "unackedMessages", 2)
    for index in (1, 3):
        consumer.negative_acknowledge(received[index])
    assert sorted(entry.data() for entry in drain(consumer, at_least=2)) == [b"1", b"3"]


def test_the_acknowledgement_timeout_brings_messages_back(client: pulsar.Client, topic: str) -> None:
    """The official client takes no less than 10 s for it: the request it sends then is what matters here."""
    with pytest.raises(ValueError, match="10"):
        client.subscribe(topic, "sub", Shared, unacked_messages_timeout_ms=100)


@pytest.mark.long
def test_the_acknowledgement_timeout_of_the_official_client(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", Shared, unacked_messages_timeout_ms=10_000)
    send_all(client.create_producer(topic), [b"a", b"b"])
    consumer.acknowledge(take(consumer, 2, ack=False)[1])
    again = consumer.receive(25_000)
    assert (again.data(), again.redelivery_count()) == (b"a", 1)


def test_redelivery_of_everything_a_consumer_holds(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", Shared)
    send_all(client.create_producer(topic), [b"%d" % index for index in range(10)])
    received = take(consumer, 10, ack=False)
    consumer.acknowledge(received[4])
    acknowledged(server, topic, "unackedMessages", 9)
    consumer.redeliver_unacknowledged_messages()
    again = take(consumer, 9)
    assert [entry.data() for entry in again] == [b"%d" % index for index in range(10) if index != 4]
    assert {entry.redelivery_count() for entry in again} == {1}


def test_redelivery_requests_touch_only_what_the_consumer_holds(server: ServerProcess, topic: str) -> None:
    """Ids of another consumer's messages, and of acknowledged ones, are left alone."""
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", SHARED, consumer_id=1, permits=2)
        raw.subscribe(topic, "sub", SHARED, consumer_id=2, permits=2)
        for index in range(4):
            raw.publish(message(b"%d" % index, sequence_id=index), sequence_id=index)
        owned: dict[int, list[BaseCommand]] = {1: [], 2: []}
        for _ in range(4):
            command, _ = raw.message()
            owned[command.message.consumer_id].append(command)
        raw.flow(10, consumer_id=1)
        first, second = (command.message.message_id for command in owned[1])
        raw.ack(first)
        raw.redeliver(first, second, *(command.message.message_id for command in owned[2]), consumer_id=1)
        command, _ = raw.message()
        assert command.message.message_id.entryId == second.entryId
        assert command.message.redelivery_count == 1
        assert raw.silent(BaseCommand.MESSAGE, for_s=0.2)


def test_redelivered_batches_cost_permits_again(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", SHARED, permits=5)
        raw.publish(message(batch([b"x"] * 5), num_messages_in_batch=5), num_messages=5, highest_sequence_id=4)
        message_id = raw.message()[0].message.message_id
        raw.redeliver(message_id)
        assert raw.silent(BaseCommand.MESSAGE, for_s=0.2)
        raw.flow(1)
        assert raw.message()[0].message.redelivery_count == 1


def test_single_active_subscriptions_count_no_redeliveries(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", FAILOVER)
        raw.publish(message(b"x"))
        raw.message()
        raw.redeliver()
        command, data = raw.message()
        assert (command.message.redelivery_count, split(data)[1]) == (0, b"x")


@pytest.mark.parametrize("kind", [Shared, KeyShared], ids=lambda kind: kind.name)
def test_dead_letters(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    """After two redeliveries a message goes to the dead letter topic, where the initial subscription keeps it."""
    letters = f"{topic}-letters"
    policy = pulsar.ConsumerDeadLetterPolicy(2, letters, "keeper")
    consumer = client.subscribe(topic, "sub", kind, negative_ack_redelivery_delay_ms=20, dead_letter_policy=policy)
    send_all(client.create_producer(topic), [b"good", b"poison", b"fine"], partition_key="k")
    seen: dict[bytes, int] = {}
    while True:
        try:
            received = consumer.receive(RECEIVE_TIMEOUT_MS if sum(seen.values()) < 5 else patient(500))
        except pulsar.Timeout:
            break
        seen[received.data()] = seen.get(received.data(), 0) + 1
        if received.data() == b"poison":
            consumer.negative_acknowledge(received)
        else:
            consumer.acknowledge(received)
    assert seen == {b"good": 1, b"poison": 3, b"fine": 1}
    letter = take(client.subscribe(letters, "keeper"), 1)[0]
    assert letter.data() == b"poison"
    assert letter.properties()["REAL_TOPIC"] == topic
    consumer.close()
    assert nothing_arrives(client.subscribe(topic, "sub", kind))


def test_retries_through_a_retry_topic(client: pulsar.Client, topic: str) -> None:
    """What Java's and Go's reconsumeLater do: publish to the retry topic with a delay, then acknowledge the original."""
    retry_topic = f"{topic}-sub-RETRY"
    consumer = client.subscribe([topic, retry_topic], "sub", Shared)
    client.create_producer(topic).send(b"try me")
    retry = client.create_producer(retry_topic)
    for attempt in range(3):
        received = consumer.receive(30_000)
        assert received.properties().get("RECONSUMETIMES", "0") == str(attempt)
        retry.send(
            received.data(),
            properties={"RECONSUMETIMES": str(attempt + 1), "REAL_TOPIC": topic},
            deliver_after=timedelta(milliseconds=50),
        )
        consumer.acknowledge(received)
    last = consumer.receive(30_000)
    assert (last.data(), last.properties()["RECONSUMETIMES"]) == (b"try me", "3")
    assert last.topic_name() == retry_topic
