"""Delayed delivery: not before its time, soon after it, also when the server was killed in between."""

from __future__ import annotations

import time
from datetime import timedelta

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.messages import drain, nothing_arrives, receive_all, send_all, take
from tests.support.raw_client import MessageIdData, RawConnection, message, now_ms, split
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

SHARING = [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]
Shared = pulsar.ConsumerType.Shared
DELAY_S = 0.6
TOLERANCE_S = 10.0
"""The broker's tick is one second by default; the rest is the machine."""


@pytest.mark.parametrize("kind", SHARING, ids=lambda kind: kind.name)
@pytest.mark.parametrize("how", ["at", "after"])
def test_not_before_its_time_and_soon_after(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType, how: str
) -> None:
    """Again where the machine had so much else to do that both were due when they were sent."""
    consumer = client.subscribe(topic, "sub", kind)
    producer = client.create_producer(topic)
    for left in reversed(range(5)):
        due_s = time.time() + DELAY_S
        if how == "at":
            producer.send(b"late", deliver_at=int(due_s * 1000))
        else:
            producer.send(b"late", deliver_after=timedelta(seconds=DELAY_S))
        producer.send(b"now")
        sent_s = time.time()
        received = receive_all(consumer, 2)
        late_s = time.time() - due_s
        assert late_s >= -0.05
        if sent_s < due_s:
            assert received == [b"now", b"late"]
            if late_s <= TOLERANCE_S:
                break
        assert left, f"sent {due_s - sent_s:.2f} s before it was due, received {late_s:.2f} s after it"


def test_the_past_is_now(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", Shared)
    producer = client.create_producer(topic)
    for deliver_at in (1, now_ms() - 1, now_ms()):
        producer.send(b"x", deliver_at=deliver_at)
        assert receive_all(consumer, 1) == [b"x"]


def test_messages_become_due_in_the_order_of_their_times(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", Shared)
    producer = client.create_producer(topic)
    base = now_ms() + 1500  # by then all of them are sent
    for offset in (900, 0, 600, 300):
        producer.send(b"%d" % offset, deliver_at=base + offset)
    assert receive_all(consumer, 4) == [b"0", b"300", b"600", b"900"]


def test_waiting_messages_neither_cost_permits_nor_hold_others_up(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", permits=5)
        for index in range(1000):
            raw.publish(message(b"late", sequence_id=index, deliver_at_time=now_ms() + 3_600_000), sequence_id=index)
        for index in range(5):
            raw.publish(message(b"%d" % index, sequence_id=1000 + index), sequence_id=1000 + index)
        assert [split(raw.message()[1])[1] for _ in range(5)] == [b"%d" % index for index in range(5)]


def test_a_delayed_message_is_acknowledged_and_gone(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", Shared)
    client.create_producer(topic).send(b"late", deliver_after=timedelta(milliseconds=300))
    assert receive_all(consumer, 1) == [b"late"]
    consumer.close()
    assert nothing_arrives(client.subscribe(topic, "sub", Shared))


def test_delays_survive_a_crash_and_nothing_comes_twice(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    """Pulsar#20638: after a restart delayed messages that were consumed came again in bulk."""
    server = start_server()
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub", Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 5000
    send_all(producer, [b"late-%d" % index for index in range(100)], deliver_at=due_ms)
    send_all(producer, [b"early-%d" % index for index in range(100)], deliver_at=now_ms() + 200)
    send_all(producer, [b"now-%d" % index for index in range(100)])
    seen = take(consumer, 200)
    assert {entry.data().split(b"-")[0] for entry in seen} == {b"now", b"early"}
    consumer.close()
    client.close()
    with RawConnection(server.port) as raw:  # a receipt of the same cursor: the acknowledgements before it are durable
        raw.subscribe(topic, "sub")
        raw.ack(seen_id(seen[0]))
    server.restart()
    consumer = connect(server.service_url).subscribe(topic, "sub", Shared)
    if now_ms() < due_ms - 300:
        assert nothing_arrives(consumer)
    received = take(consumer, 100, timeout_ms=60_000)
    assert now_ms() >= due_ms
    assert sorted(entry.data() for entry in received) == sorted(b"late-%d" % index for index in range(100))
    assert not drain(consumer)


def test_the_tick_is_a_setting(start_server: StartServer, connect: Connect, topic: str) -> None:
    """The quickest of a few counts: what else the machine does only ever adds to a delay."""
    client = connect(start_server(delayedDeliveryTickTimeMillis=20).service_url)
    consumer, producer = client.subscribe(topic, "sub", Shared), client.create_producer(topic)
    for left in reversed(range(10)):
        due_ms = now_ms() + 300
        producer.send(b"late", deliver_at=due_ms)
        assert receive_all(consumer, 1) == [b"late"]
        late_ms = now_ms() - due_ms
        assert late_ms >= 0
        if late_ms < 300:
            break
        assert left, f"{late_ms} ms late"


def test_switched_off_nothing_is_held_back(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(delayedDeliveryEnabled="false").service_url)
    consumer = client.subscribe(topic, "sub", Shared)
    client.create_producer(topic).send(b"late", deliver_after=timedelta(hours=1))
    assert receive_all(consumer, 1) == [b"late"]


def test_consumers_that_come_later_wait_too(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "sub", Shared)
    producer = client.create_producer(topic)
    due_s = time.time() + 1.0
    producer.send(b"late", deliver_at=int(due_s * 1000))
    first.close()
    second = client.subscribe(topic, "sub", Shared)
    third = client.subscribe(topic, "sub", Shared)
    found = wait_until(lambda: drain(second, quiet_ms=50) + drain(third, quiet_ms=50), 60)
    assert [entry.data() for entry in found] == [b"late"]
    assert time.time() >= due_s - 0.05


def seen_id(received: pulsar.Message) -> MessageIdData:
    message_id = received.message_id()
    return MessageIdData(ledgerId=message_id.ledger_id(), entryId=message_id.entry_id())
