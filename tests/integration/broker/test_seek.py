"""Seek by id and by time, on all kinds of subscriptions, with what was acknowledged before."""

from __future__ import annotations

import time

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.messages import nothing_arrives, receive_all, send_all, subscribe_next, take
from tests.support.raw_client import BaseCommand, MessageIdData, RawConnection, message, now_ms, split
from tests.support.types import Connect, StartServer

TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]


def payloads(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_back_and_forth_by_id(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    """Behind the id, as the client counts without `start_message_id_inclusive`."""
    consumer = client.subscribe(topic, "sub", kind)
    ids = send_all(client.create_producer(topic), payloads(10))
    assert receive_all(consumer, 10) == payloads(10)
    consumer.seek(ids[3])
    assert receive_all(consumer, 6) == payloads(10)[4:]
    consumer.seek(ids[7])
    assert receive_all(consumer, 2) == payloads(10)[8:]
    consumer.seek(pulsar.MessageId.earliest)
    assert receive_all(consumer, 10) == payloads(10)
    consumer.seek(pulsar.MessageId.latest)
    assert nothing_arrives(consumer)


def test_inclusive(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", start_message_id_inclusive=True)
    ids = send_all(client.create_producer(topic), payloads(10))
    consumer.seek(ids[3])
    assert receive_all(consumer, 7) == payloads(10)[3:]


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("target", [0, 2, 4, 5, 9])
def test_inside_batches(client: pulsar.Client, topic: str, target: int, inclusive: bool) -> None:
    consumer = client.subscribe(topic, "sub", start_message_id_inclusive=inclusive)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=10_000
    )
    ids = send_all(producer, payloads(10))
    take(consumer, 10)
    consumer.seek(ids[target])
    expected = payloads(10)[target if inclusive else target + 1 :]
    assert receive_all(consumer, len(expected)) == expected
    assert nothing_arrives(consumer)


@pytest.mark.parametrize("target", [0, 1, 5, 9])
def test_by_time_the_first_message_published_then_or_later(server: ServerProcess, topic: str, target: int) -> None:
    """Publish times are the producers'; the search takes the first entry at or after the time."""
    times = [1_000_000 + 100 * index for index in range(10)]
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub")
        for index, publish_time in enumerate(times):
            raw.publish(message(b"%d" % index, sequence_id=index, publish_time=publish_time), sequence_id=index)
        ids = [raw.message()[0].message.message_id for _ in times]
        raw.ack(*ids)
        for moment in (times[target], times[target] - 99):
            seek(raw, publish_time=moment)
            raw.subscribe(topic, "sub", permits=1)
            assert split(raw.message()[1])[1] == b"%d" % target


@pytest.mark.parametrize(("moment", "expected"), [(0, [b"0", b"1"]), (2**62, [])], ids=["before all", "after all"])
def test_by_time_beyond_the_ends(client: pulsar.Client, topic: str, moment: int, expected: list[bytes]) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send_all(producer, payloads(2))
    take(consumer, 2)
    consumer.seek(moment)
    assert receive_all(consumer, len(expected)) == expected
    producer.send(b"new")
    assert receive_all(consumer, 1) == [b"new"]


def test_by_time_with_the_official_client(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send_all(producer, payloads(3))
    time.sleep(0.005)  # publish times have a resolution of 1 ms
    middle = now_ms()
    send_all(producer, payloads(5)[3:])
    take(consumer, 5)
    consumer.seek(middle)
    assert receive_all(consumer, 2) == [b"3", b"4"]


def test_acknowledgements_behind_the_target_are_forgotten_and_so_are_holes(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    ids = send_all(client.create_producer(topic), payloads(10))
    received = take(consumer, 10, ack=False)
    for index in (2, 5, 8):
        consumer.acknowledge(received[index])
    consumer.seek(ids[3])
    assert receive_all(consumer, 6) == payloads(10)[4:]


def test_a_seek_is_durable(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server()
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub", start_message_id_inclusive=True)
    ids = send_all(client.create_producer(topic), payloads(10))
    take(consumer, 10)
    consumer.seek(ids[4])
    server.restart()
    consumer.close()
    assert receive_all(subscribe_next(connect(server.service_url), topic, "sub"), 6) == payloads(10)[4:]


def test_consumers_are_closed_before_the_answer(server: ServerProcess, topic: str) -> None:
    """The order that Go's client is written against."""
    with RawConnection(server.port) as raw, RawConnection(server.port) as other:
        raw.subscribe(topic, "sub", consumer_id=1)
        other.subscribe(topic, "sub", consumer_id=7)
        seek(raw, position=(0, 0), wait=False)
        kinds = [raw.receive()[0].type for _ in range(2)]
        assert kinds == [BaseCommand.CLOSE_CONSUMER, BaseCommand.SUCCESS]
        assert other.expect(BaseCommand.CLOSE_CONSUMER)[0].close_consumer.consumer_id == 7


@pytest.mark.parametrize("position", [(10**9, 0), (2**63 - 1, 2**63 - 1), (2**64 - 1, 2**64 - 1), (0, 10**6)], ids=str)
def test_foreign_ids_are_answered_at_once_and_lose_nothing_new(
    server: ServerProcess, topic: str, position: tuple[int, int]
) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub")
        raw.publish(message(b"old"))
        raw.message()
        seek(raw, position=position)
        raw.subscribe(topic, "sub")
        raw.publish(message(b"new", sequence_id=1), sequence_id=1)
        seen = []
        while b"new" not in seen:
            seen.append(split(raw.message()[1])[1])


def test_unknown_consumers_are_refused(server: ServerProcess) -> None:
    with RawConnection(server.port) as raw:
        seek(raw, position=(0, 0), wait=False)
        assert raw.expect(BaseCommand.ERROR)[0].error.error == 1  # MetadataError


def seek(
    raw: RawConnection,
    *,
    position: tuple[int, int] | None = None,
    publish_time: int | None = None,
    consumer_id: int = 1,
    wait: bool = True,
) -> None:
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id = consumer_id
    command.seek.request_id = raw.next_request_id()
    if position is not None:
        command.seek.message_id.CopyFrom(MessageIdData(ledgerId=position[0], entryId=position[1]))
    if publish_time is not None:
        command.seek.message_publish_time = publish_time
    raw.send(command)
    if wait:
        raw.expect(BaseCommand.SUCCESS)
