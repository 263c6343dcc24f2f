"""Terminated topics through the official client: producers hear it at once, consumers get what is there, a restart changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, MessageIdData
from tests.support.compaction import admin, path_of, read_compacted
from tests.support.messages import NEGATIVE_CASE_S, ends_at_once, nothing_arrives, receive_all, send_all
from tests.support.raw_client import RawConnection


def terminate(server: ServerProcess, topic: str) -> tuple[int, int]:
    answer = admin(server, "POST", f"{path_of(topic)}/terminate")
    return answer["ledgerId"], answer["entryId"]


def test_producers_hear_it_at_once(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    last = send_all(producer, [b"1", b"2", b"3"])[-1]
    assert terminate(server, topic) == (last.ledger_id(), last.entry_id())
    with ends_at_once(pulsar.TopicTerminated, pulsar.AlreadyClosed, pulsar.ProducerNotInitialized):
        producer.send(b"too late")
    with ends_at_once(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert terminate(server, topic) == (last.ledger_id(), last.entry_id())


def test_producers_in_the_middle_of_sending_hear_it(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    """Every message is either stored and received, or reported; none hangs."""
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    results: list[pulsar.Result] = []
    for number in range(300):
        producer.send_async(b"%d" % number, lambda result, _: results.append(result))
    terminate(server, topic)
    deadline = time.monotonic() + NEGATIVE_CASE_S
    while len(results) < 300 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(results) == 300
    stored = results.count(pulsar.Result.Ok)
    assert set(results) <= {pulsar.Result.Ok, pulsar.Result.TopicTerminated}
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data())
    assert found == [b"%d" % number for number in range(len(found))]
    assert len(found) >= stored
    reader.close()


def test_consumers_and_readers_get_what_is_there(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, [b"1", b"2", b"3"])
    terminate(server, topic)
    assert receive_all(consumer, 3) == [b"1", b"2", b"3"]
    assert nothing_arrives(consumer)
    later = client.subscribe(topic, "later", initial_position=pulsar.InitialPosition.Earliest)
    assert receive_all(later, 3) == [b"1", b"2", b"3"]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(30_000).data() for _ in range(3)] == [b"1", b"2", b"3"]
    assert not reader.has_message_available()
    reader.seek(pulsar.MessageId.earliest)
    assert reader.has_message_available()
    reader.close()


def test_an_empty_topic(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    terminate(server, topic)
    assert not reader.has_message_available()
    reader.close()


@pytest.mark.parametrize("stop", ["kill", "stop"])
def test_a_restart_keeps_it(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client], topic: str, stop: str
) -> None:
    server = start_server()
    client = connect(server.service_url)
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number, partition_key=f"k{number % 2}")
    last = terminate(server, topic)
    client.close()
    getattr(server, stop)()
    server.start()
    client = connect(server.service_url)
    with ends_at_once(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert terminate(server, topic) == last
    consumer = client.subscribe(topic, "s")
    assert receive_all(consumer, 3) == [b"0", b"1", b"2"]
    admin(server, "PUT", f"{path_of(topic)}/compaction")
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    reader.close()
    assert read_compacted(client, topic)[-1].data() == b"2"


def test_clients_that_know_the_command_are_told_the_end(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    """Also those who subscribe after the end, and after the topic was loaded again."""
    producer = client.create_producer(topic, batching_enabled=False)
    message = producer.send(b"last")
    terminate(server, topic)
    for name in ("one", "two"):
        with RawConnection(server.port) as connection:
            assert connection.subscribe(topic, name).type == BaseCommand.SUCCESS
            connection.expect(BaseCommand.MESSAGE)
            assert connection.silent(BaseCommand.REACHED_END_OF_TOPIC, for_s=0.2)
            ack = BaseCommand(type=BaseCommand.ACK)
            ack.ack.consumer_id = 1
            ack.ack.ack_type = 0  # type: ignore[assignment]  # Individual
            ack.ack.message_id.append(MessageIdData(ledgerId=message.ledger_id(), entryId=message.entry_id()))
            connection.send(ack)
            connection.expect(BaseCommand.REACHED_END_OF_TOPIC)
        admin(server, "PUT", f"{path_of(topic)}/unload")
