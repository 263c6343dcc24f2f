"""Exclusive and Failover: one active consumer, who it is, and how consumers learn of it (ACTIVE_CONSUMER_CHANGE)."""

from __future__ import annotations

import pulsar
import pytest

from magnetar.broker.dispatch.single_active import ring_distance
from magnetar.testing.server import ServerProcess
from tests.support.messages import drain, ends_at_once, nothing_arrives, receive_all, send_all, take
from tests.support.raw_client import BaseCommand, RawConnection, message, split
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

Type = pulsar.ConsumerType
FAILOVER = 2


def first_and_second(topic: str) -> list[str]:
    """Names of two consumers; the ring prefers the first one for this topic."""
    return sorted(("a", "b"), key=lambda name: ring_distance(name, topic))


def active(raw: RawConnection) -> tuple[int, bool]:
    change = raw.expect(BaseCommand.ACTIVE_CONSUMER_CHANGE)[0].active_consumer_change
    return change.consumer_id, change.is_active


def test_a_second_exclusive_consumer_is_refused_at_once(
    server: ServerProcess, client: pulsar.Client, connect: Connect, topic: str
) -> None:
    first = client.subscribe(topic, "sub")
    for other in (client, connect(server.service_url)):
        with ends_at_once(pulsar.ConsumerBusy):
            other.subscribe(topic, "sub")
    client.create_producer(topic).send(b"mine")
    assert receive_all(first, 1) == [b"mine"]


@pytest.mark.parametrize("newcomer", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
@pytest.mark.parametrize("present", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
def test_types_do_not_mix(
    client: pulsar.Client, topic: str, present: pulsar.ConsumerType, newcomer: pulsar.ConsumerType
) -> None:
    first = client.subscribe(topic, "sub", present)
    if present is newcomer and present is not Type.Exclusive:
        client.subscribe(topic, "sub", newcomer)
        return
    with ends_at_once(pulsar.ConsumerBusy):
        client.subscribe(topic, "sub", newcomer)
    first.close()
    client.subscribe(topic, "sub", newcomer)


def test_the_type_may_change_between_consumers_and_nothing_is_lost(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", Type.Exclusive)
    send_all(client.create_producer(topic), [b"%d" % index for index in range(8)])
    seen = []
    for kind in (Type.Exclusive, Type.Shared, Type.KeyShared, Type.Failover):
        consumer.close()
        consumer = client.subscribe(topic, "sub", kind)
        seen += receive_all(consumer, 2)
    assert seen == [b"%d" % index for index in range(8)]


def test_failover_hands_over_what_is_not_acknowledged_in_order(client: pulsar.Client, topic: str) -> None:
    first, second = (
        client.subscribe(topic, "sub", Type.Failover, consumer_name=name) for name in first_and_second(topic)
    )
    send_all(client.create_producer(topic), [b"%d" % index for index in range(10)])
    received = take(first, 7, ack=False)
    assert nothing_arrives(second)
    for entry in (0, 1, 2, 5):  # with a hole
        first.acknowledge(received[entry])
    first.close()
    assert receive_all(second, 6) == [b"3", b"4", b"6", b"7", b"8", b"9"]


def test_failover_survives_the_crash_of_the_active_client(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    first, second = first_and_second(topic)
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", FAILOVER, consumer_name=first)
        standby = client.subscribe(topic, "sub", Type.Failover, consumer_name=second)
        send_all(client.create_producer(topic), [b"x", b"y"])
        raw.ack(raw.message()[0].message.message_id)
        assert nothing_arrives(standby)
    assert receive_all(standby, 1) == [b"y"]


def test_consumers_are_told_who_is_active(server: ServerProcess, topic: str) -> None:
    first, second = first_and_second(topic)
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", FAILOVER, consumer_id=1, consumer_name=first)
        assert active(raw) == (1, True)
        raw.subscribe(topic, "sub", FAILOVER, consumer_id=2, consumer_name=second)
        assert active(raw) == (2, False)
        raw.close_consumer(1)
        assert active(raw) == (2, True)


def test_a_newcomer_that_the_ring_prefers_takes_over(server: ServerProcess, topic: str) -> None:
    """Both are told: the one that was active, and the newcomer."""
    first, second = first_and_second(topic)
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", FAILOVER, consumer_id=2, consumer_name=second)
        assert active(raw) == (2, True)
        raw.subscribe(topic, "sub", FAILOVER, consumer_id=1, consumer_name=first)
        assert sorted([active(raw), active(raw)]) == [(1, True), (2, False)]


def test_a_consumer_with_higher_priority_takes_over(server: ServerProcess, topic: str) -> None:
    """0 is the highest level. What the former one held goes to the new one, after a delay for acknowledgements."""
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", FAILOVER, consumer_id=1, consumer_name="a", priority_level=1)
        assert active(raw) == (1, True)
        raw.producer(topic)
        raw.publish(message(b"0"))
        assert raw.message()[0].message.consumer_id == 1
        raw.subscribe(topic, "sub", FAILOVER, consumer_id=2, consumer_name="b", priority_level=0)
        assert sorted([active(raw), active(raw)]) == [(1, False), (2, True)]
        command, data = raw.message()
        assert (command.message.consumer_id, split(data)[1]) == (2, b"0")
        raw.publish(message(b"1"), sequence_id=1)
        assert raw.message()[0].message.consumer_id == 2


def test_failover_spreads_partitions_over_consumers_of_equal_priority(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    """Three partitions over three consumers: one each; over two after one left, none without a consumer."""
    server = start_server(
        allowAutoTopicCreationType="partitioned", defaultNumPartitions=3, activeConsumerFailoverDelayTimeMillis=100
    )
    client = connect(server.service_url)
    consumers = [client.subscribe(topic, "sub", Type.Failover, consumer_name=f"c{index}") for index in range(3)]
    producer = client.create_producer(topic)
    send_all(producer, [b"%d" % index for index in range(30)])
    assert [len(receive_all(consumer, 10)) for consumer in consumers] == [10, 10, 10]
    consumers.pop(1).close()
    later = {b"%d" % index for index in range(30, 60)}
    send_all(producer, sorted(later))
    arrived: set[bytes] = set()

    def all_are_there() -> bool:
        """Others may come again: those of a partition that changed hands before its acknowledgements were sent."""
        for consumer in consumers:
            arrived.update(message.data() for message in drain(consumer, quiet_ms=100))
        return arrived >= later

    wait_until(all_are_there)


def test_cumulative_acknowledgement_on_failover(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "sub", Type.Failover, consumer_name="a")
    send_all(client.create_producer(topic), [b"%d" % index for index in range(10)])
    first.acknowledge_cumulative(take(first, 10, ack=False)[6])
    first.close()
    assert receive_all(client.subscribe(topic, "sub", Type.Failover), 3) == [b"7", b"8", b"9"]


@pytest.mark.parametrize("position", [pulsar.InitialPosition.Earliest, pulsar.InitialPosition.Latest])
def test_initial_position(client: pulsar.Client, topic: str, position: pulsar.InitialPosition) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    consumer = client.subscribe(topic, "sub", initial_position=position)
    producer.send(b"after")
    expected = [b"before", b"after"] if position is pulsar.InitialPosition.Earliest else [b"after"]
    assert receive_all(consumer, len(expected)) == expected
    assert nothing_arrives(consumer)
    consumer.close()
    producer.send(b"later")  # the position counts when the subscription is created, not when a consumer comes back
    assert receive_all(client.subscribe(topic, "sub", initial_position=position), 1) == [b"later"]


def test_more_consumers_than_allowed(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(maxConsumersPerSubscription=2).service_url)
    for _ in range(2):
        client.subscribe(topic, "sub", Type.Shared)
    with ends_at_once(pulsar.ConsumerBusy):
        client.subscribe(topic, "sub", Type.Shared)
    client.subscribe(topic, "other", Type.Shared)
