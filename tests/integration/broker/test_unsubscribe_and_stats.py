"""Unsubscribe, and what consumers may ask about themselves."""

from __future__ import annotations

import pulsar

from magnetar.testing.server import ServerProcess
from tests.support.messages import nothing_arrives, receive_all, send_all, take
from tests.support.raw_client import BaseCommand, RawConnection, message
from tests.support.types import Connect, StartServer

EXCLUSIVE, SHARED = 0, 1


def unsubscribe(raw: RawConnection, consumer_id: int = 1, *, force: bool = False) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.consumer_id = consumer_id
    command.unsubscribe.request_id = raw.next_request_id()
    command.unsubscribe.force = force
    raw.send(command)
    return raw.expect(BaseCommand.SUCCESS, BaseCommand.ERROR)[0]


def test_unsubscribing_forgets_the_position(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send_all(producer, [b"a", b"b"])
    take(consumer, 1)
    consumer.unsubscribe()
    consumer = client.subscribe(topic, "sub")
    assert nothing_arrives(consumer)
    producer.send(b"c")
    assert receive_all(consumer, 1) == [b"c"]


def test_an_unsubscribed_subscription_stays_gone_after_a_crash(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    server = start_server()
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub")
    client.subscribe(topic, "kept").close()
    client.create_producer(topic).send(b"x")
    consumer.unsubscribe()
    server.restart()
    client = connect(server.service_url)
    assert nothing_arrives(client.subscribe(topic, "sub"))
    assert receive_all(client.subscribe(topic, "kept"), 1) == [b"x"]


def test_not_while_others_consume_unless_forced(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", SHARED, consumer_id=1)
        raw.subscribe(topic, "sub", SHARED, consumer_id=2)
        assert unsubscribe(raw, 1).type == BaseCommand.ERROR
        raw.producer(topic)
        for index in range(2):
            raw.publish(message(b"still there", sequence_id=index), sequence_id=index)
            raw.message()
        assert unsubscribe(raw, 1, force=True).type == BaseCommand.SUCCESS
        raw.subscribe(topic, "sub", EXCLUSIVE, consumer_id=3)


def test_unknown_consumers_cannot_unsubscribe(server: ServerProcess) -> None:
    with RawConnection(server.port) as raw:
        assert unsubscribe(raw, 99).error.error == 1  # MetadataError


def test_consumer_stats(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", SHARED, consumer_name="me", permits=10)
        raw.producer(topic)
        for index in range(4):
            raw.publish(message(b"x", sequence_id=index), sequence_id=index)
        ids = [raw.message()[0].message.message_id for _ in range(4)]
        raw.ack(ids[0])
        stats = raw.consumer_stats().consumerStatsResponse
        assert stats.consumerName == "me"
        assert stats.type == "Shared"
        assert (stats.availablePermits, stats.unackedMessages, stats.msgBacklog) == (6, 3, 3)
        assert not stats.blockedConsumerOnUnackedMsgs
        assert stats.address.startswith("/127.0.0.1:")
        assert stats.connectedSince


def test_consumer_stats_of_nobody(server: ServerProcess) -> None:
    with RawConnection(server.port) as raw:
        assert raw.consumer_stats(5).consumerStatsResponse.error_code == 13  # ConsumerNotFound
