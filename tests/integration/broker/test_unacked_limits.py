"""Limits on unacknowledged messages: a consumer or subscription that holds too many gets none until it has acknowledged."""

from __future__ import annotations

import pulsar
import pytest

from tests.support.messages import drain, nothing_arrives, receive_all, send_all, shares_of, take
from tests.support.raw_client import RawConnection
from tests.support.types import Connect, StartServer

SHARING = [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]


@pytest.mark.parametrize("kind", SHARING, ids=lambda kind: kind.name)
def test_a_consumer_is_blocked_and_unblocked(
    start_server: StartServer, connect: Connect, topic: str, kind: pulsar.ConsumerType
) -> None:
    server = start_server(maxUnackedMessagesPerConsumer=20)
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub", kind)
    send_all(client.create_producer(topic), [b"%d" % index for index in range(100)])
    held = drain(consumer, at_least=20, ack=False)
    assert 20 <= len(held) < 40
    for received in held[:5]:
        consumer.acknowledge(received)
    assert nothing_arrives(consumer)  # half must be acknowledged first
    for received in held[5:]:
        consumer.acknowledge(received)
    assert len(receive_all(consumer, 100 - len(held))) == 100 - len(held)


def test_others_go_on_while_one_is_blocked(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(maxUnackedMessagesPerConsumer=10).service_url)
    holder = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    worker = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    send_all(client.create_producer(topic), [b"%d" % index for index in range(200)])
    held = drain(holder, at_least=10, ack=False)
    done = drain(worker, at_least=200 - len(held))
    assert len(held) + len(done) == 200
    assert 10 <= len(held) <= 30
    holder.close()
    assert len(drain(worker, at_least=len(held))) == len(held)


@pytest.mark.parametrize("kind", SHARING, ids=lambda kind: kind.name)
def test_a_subscription_is_blocked_as_a_whole(
    start_server: StartServer, connect: Connect, topic: str, kind: pulsar.ConsumerType
) -> None:
    client = connect(start_server(maxUnackedMessagesPerSubscription=30).service_url)
    consumers = [client.subscribe(topic, "sub", kind) for _ in range(3)]
    send_all(client.create_producer(topic), [b"%d" % index for index in range(200)])
    shares = shares_of(consumers, 30, ack=False)
    held = [(consumer, received) for consumer, share in zip(consumers, shares, strict=True) for received in share]
    assert 30 <= len(held) < 150
    for consumer, received in held:
        consumer.acknowledge(received)
    rest = 200 - len(held)
    while rest:
        got = sum(map(len, shares_of(consumers, 1)))
        assert got, f"{rest} messages never came"
        rest -= got


def test_the_limit_shows_in_the_stats(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server(maxUnackedMessagesPerConsumer=5)
    send_all(connect(server.service_url).create_producer(topic), [b"x"] * 20)
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub")
        ids = [raw.message()[0].message.message_id for _ in range(5)]
        assert raw.consumer_stats().consumerStatsResponse.blockedConsumerOnUnackedMsgs
        raw.ack(*ids)
        assert not raw.consumer_stats().consumerStatsResponse.blockedConsumerOnUnackedMsgs or raw.message()


def test_exclusive_consumers_have_no_such_limit(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(maxUnackedMessagesPerConsumer=5, maxUnackedMessagesPerSubscription=5).service_url)
    consumer = client.subscribe(topic, "sub")
    send_all(client.create_producer(topic), [b"x"] * 50)
    assert len(take(consumer, 50, ack=False)) == 50
