"""Non-persistent topics: delivered to who is there, stored nowhere, dropped rather than queued without bound."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.messages import ends_at_once, nothing_arrives, receive_all, send_all, shares_of
from tests.support.raw_client import BaseCommand, RawConnection, message

TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]


@pytest.fixture
def topic(topic: str) -> str:
    return topic.replace("persistent://", "non-persistent://")


def payloads(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_in_order_to_a_consumer_that_is_there(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "sub", kind)
    send_all(client.create_producer(topic), payloads(200), partition_key="k")
    assert receive_all(consumer, 200) == payloads(200)


def test_nothing_is_kept(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"nobody there")
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    assert nothing_arrives(consumer)
    producer.send(b"now")
    assert receive_all(consumer, 1) == [b"now"]
    consumer.close()
    producer.send(b"nobody there again")
    assert nothing_arrives(client.subscribe(topic, "sub"))


def test_every_subscription_gets_its_copy(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, name) for name in ("one", "two")]
    send_all(client.create_producer(topic), payloads(20))
    for consumer in consumers:
        assert receive_all(consumer, 20) == payloads(20)


def test_a_full_consumer_misses_what_it_cannot_take(server: ServerProcess, topic: str) -> None:
    """The producer has its receipts all the same, and the consumer goes on with what is published later."""
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", 0, permits=5)
        for index in range(20):
            raw.publish(message(b"%d" % index, sequence_id=index), sequence_id=index)
            assert raw.receipt().type == BaseCommand.SEND_RECEIPT
        assert [raw.message()[1][-1:] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert raw.silent(BaseCommand.MESSAGE, for_s=0.1)
        raw.flow(5)
        raw.publish(message(b"later", sequence_id=20), sequence_id=20)
        assert raw.message()[1].endswith(b"later")


def test_shared_consumers_share(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "sub", pulsar.ConsumerType.Shared) for _ in range(2)]
    send_all(client.create_producer(topic), payloads(100))
    shares = [[entry.data() for entry in share] for share in shares_of(consumers, 100)]
    assert sorted(shares[0] + shares[1]) == sorted(payloads(100))
    assert min(map(len, shares)) >= 20


def test_a_second_exclusive_consumer_is_refused(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub")
    with ends_at_once(pulsar.ConsumerBusy):
        client.subscribe(topic, "sub")


def test_access_modes(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with ends_at_once(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)


def test_seek_and_unsubscribe_end_at_once(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    with ends_at_once():
        consumer.seek(pulsar.MessageId.earliest)
    consumer.unsubscribe()


def test_no_data_reaches_the_disk(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    secret = b"never-to-be-stored-7f3a"
    send_all(client.create_producer(topic), [secret] * 50)
    assert receive_all(consumer, 50) == [secret] * 50
    files = [path for path in Path(server.data_dir).rglob("*") if path.is_file()]
    assert files
    assert not any(secret in path.read_bytes() for path in files)
