"""Shared: messages spread over consumers, priority levels, permits and receiver queues."""

from __future__ import annotations

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.messages import drain, nothing_arrives, receive_all, send_all, shares_of
from tests.support.raw_client import BaseCommand, RawConnection, message, split
from tests.support.waiting import wait_until

Shared = pulsar.ConsumerType.Shared


def publish(raw: RawConnection, count: int) -> None:
    """`count` stored messages `0`, `1`, ... of producer 1."""
    for index in range(count):
        raw.publish(message(b"%d" % index, sequence_id=index), sequence_id=index)
    for _ in range(count):
        assert raw.receipt().type == BaseCommand.SEND_RECEIPT


def test_every_message_goes_to_one_consumer_and_all_get_some(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "sub", Shared, receiver_queue_size=100) for _ in range(4)]
    producer = client.create_producer(topic)
    send_all(producer, [b"%d" % index for index in range(400)])
    shares = [[entry.data() for entry in share] for share in shares_of(consumers, 400)]
    assert sorted(payload for share in shares for payload in share) == sorted(b"%d" % index for index in range(400))
    assert all(len(share) >= 50 for share in shares)
    for share in shares:
        assert share == sorted(share, key=int)


def test_what_a_dead_consumer_held_goes_to_the_others(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    survivor = client.subscribe(topic, "sub", Shared)
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", permits=1000)
        send_all(client.create_producer(topic), [b"%d" % index for index in range(100)])
        held = split(raw.message()[1])[1]
        mine = [entry.data() for entry in drain(survivor)]
        assert held not in mine
    rest = [entry.data() for entry in drain(survivor, at_least=100 - len(mine))]
    assert held in rest
    assert sorted(mine + rest) == sorted(b"%d" % index for index in range(100))


def test_lower_priority_levels_get_messages_only_when_the_higher_ones_have_no_permits(
    server: ServerProcess, topic: str
) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", consumer_id=1, priority_level=0, permits=3)
        raw.subscribe(topic, "sub", consumer_id=2, priority_level=1, permits=2)
        raw.subscribe(topic, "sub", consumer_id=3, priority_level=2, permits=1000)
        publish(raw, 8)
        owners = [raw.message()[0].message.consumer_id for _ in range(8)]
        assert sorted(owners) == [1, 1, 1, 2, 2, 3, 3, 3]
        raw.flow(1, consumer_id=1)
        publish(raw, 1)
        assert raw.message()[0].message.consumer_id == 1


def test_no_more_messages_than_permits(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", permits=3)
        publish(raw, 10)
        for _ in range(3):
            raw.message()
        assert raw.silent(BaseCommand.MESSAGE, for_s=0.2)
        raw.flow(2)
        assert [split(raw.message()[1])[1] for _ in range(2)] == [b"3", b"4"]
        assert raw.silent(BaseCommand.MESSAGE, for_s=0.2)


@pytest.mark.parametrize("permits", [2**32 - 1, 2**31 - 1], ids=["u32", "i32"])
def test_absurd_permits_saturate(server: ServerProcess, topic: str, permits: int) -> None:
    """Repeated huge FLOWs neither overflow into silence nor break the connection."""
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", permits=0)
        for _ in range(5):
            raw.flow(permits)
        publish(raw, 20)
        assert [split(raw.message()[1])[1] for _ in range(20)] == [b"%d" % index for index in range(20)]


@pytest.mark.parametrize("kind", [Shared, pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.KeyShared])
def test_zero_queue_consumers_hold_nothing_back(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    """With a queue of 0 the client asks for one message per receive: what it has not asked for stays with the others."""
    consumer = client.subscribe(topic, "sub", kind, receiver_queue_size=0)
    producer = client.create_producer(topic)
    send_all(producer, [b"%d" % index for index in range(5)])
    received = [consumer.receive() for _ in range(5)]
    assert [entry.data() for entry in received] == [b"%d" % index for index in range(5)]
    for entry in received:
        consumer.acknowledge(entry)
    consumer.close()
    assert nothing_arrives(client.subscribe(topic, "sub", kind))


def test_a_zero_queue_consumer_leaves_the_backlog_to_others(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub", Shared, receiver_queue_size=0)
    greedy = client.subscribe(topic, "sub", Shared)
    send_all(client.create_producer(topic), [b"%d" % index for index in range(50)])
    assert receive_all(greedy, 50) == [b"%d" % index for index in range(50)]


@pytest.mark.parametrize("size", [1, 2, 10])
def test_receiver_queue_sizes_bound_what_a_consumer_holds(client: pulsar.Client, topic: str, size: int) -> None:
    """A consumer that does not receive is sent its queue size and no more; the rest goes to the other one."""
    idle = client.subscribe(topic, "sub", Shared, receiver_queue_size=size)
    busy = client.subscribe(topic, "sub", Shared)
    send_all(client.create_producer(topic), [b"%d" % index for index in range(100)])
    assert len(drain(busy, at_least=100 - size)) == 100 - size
    assert len(drain(idle, at_least=size)) == size


def test_a_slow_consumer_does_not_hold_up_others_on_its_connection(client: pulsar.Client, topic: str) -> None:
    """Both consumers share one connection; one of them never receives."""
    slow = client.subscribe(f"{topic}-slow", "sub", receiver_queue_size=5)
    quick = client.subscribe(f"{topic}-quick", "sub", receiver_queue_size=5)
    big = b"x" * 100_000
    send_all(client.create_producer(f"{topic}-slow"), [big] * 50)
    send_all(client.create_producer(f"{topic}-quick"), [big] * 50)
    assert len(receive_all(quick, 50)) == 50
    assert len(receive_all(slow, 50)) == 50


def test_a_subscription_without_consumers_collects(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub", Shared).close()
    send_all(client.create_producer(topic), [b"%d" % index for index in range(250)])
    assert receive_all(client.subscribe(topic, "sub", Shared), 250) == [b"%d" % index for index in range(250)]


def test_listeners_get_messages_quickly(client: pulsar.Client, topic: str) -> None:
    seen: list[bytes] = []

    def listen(consumer: pulsar.Consumer, received: pulsar.Message) -> None:
        seen.append(received.data())
        consumer.acknowledge(received)

    consumer = client.subscribe(topic, "sub", Shared, message_listener=listen)
    producer = client.create_producer(topic)
    for index in range(3):
        producer.send(b"%d" % index)
    wait_until(lambda: seen == [b"0", b"1", b"2"])
    consumer.close()


def test_batch_receive(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, 1000)
    consumer = client.subscribe(topic, "sub", Shared, batch_receive_policy=policy)
    send_all(client.create_producer(topic), [b"%d" % index for index in range(25)])
    seen = []
    for size in (10, 10, 5):
        messages = list(consumer.batch_receive())
        assert len(messages) == size
        seen += [entry.data() for entry in messages]
        for entry in messages:
            consumer.acknowledge(entry)
    assert seen == [b"%d" % index for index in range(25)]
