"""Produce: single and keyed messages, receipts in order, metadata untouched, many producers on one connection."""

from __future__ import annotations

from datetime import timedelta

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.messages import position, receive_all, send_all, take
from tests.support.raw_client import BaseCommand, RawConnection, message, split
from tests.support.types import Connect, StartServer


def test_receipts_come_in_send_order(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, max_pending_messages=5000)
    order: list[int] = []
    for index in range(2000):
        producer.send_async(b"%d" % index, lambda result, _, index=index: order.append(index))
    producer.flush()
    assert order == list(range(2000))
    assert receive_all(consumer, 2000) == [b"%d" % index for index in range(2000)]


def test_raw_receipts_echo_sequence_ids_and_count_entries_from_zero(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as connection:
        connection.producer(topic)
        for sequence_id in (7, 8, 100):
            connection.publish(message(b"x", sequence_id=sequence_id), sequence_id=sequence_id)
        receipts = [connection.receipt().send_receipt for _ in range(3)]
    assert [receipt.sequence_id for receipt in receipts] == [7, 8, 100]
    assert [receipt.message_id.entryId for receipt in receipts] == [0, 1, 2]


def test_everything_a_message_carries_arrives(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, producer_name="named")
    producer.send(
        b"\x00\xff payload",
        properties={"a": "1", "empty": "", "umlaut": "ü"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=1357034400000,
        sequence_id=41,
    )
    received = consumer.receive(30_000)
    assert received.data() == b"\x00\xff payload"
    assert received.properties() == {"a": "1", "empty": "", "umlaut": "ü"}
    assert received.partition_key() == "key"
    assert received.ordering_key() == "order"
    assert received.event_timestamp() == 1357034400000
    assert received.producer_name() == "named"
    assert received.topic_name() == topic
    assert received.redelivery_count() == 0
    assert producer.last_sequence_id() == 41


@pytest.mark.parametrize("size_bytes", [0, 1, 1023, 128 * 1024, 5 * 1024 * 1024 - 1024])
def test_any_size_up_to_the_limit(client: pulsar.Client, topic: str, size_bytes: int) -> None:
    consumer = client.subscribe(topic, "sub")
    payload = bytes(range(256)) * (size_bytes // 256 + 1)
    client.create_producer(topic).send(payload[:size_bytes])
    assert receive_all(consumer, 1) == [payload[:size_bytes]]


def test_a_message_above_the_limit_is_refused_by_the_client_that_was_told(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (5 * 1024 * 1024 + 1))
    assert producer.send(b"small").entry_id() == 0


def test_stored_bytes_are_those_that_were_sent(server: ServerProcess, topic: str) -> None:
    """Whatever the metadata claims about compression, encryption or batches: the server looks at none of it."""
    odd = message(
        b"\x00not zstd at all", compression=3, uncompressed_size=123456, encryption_algo="none", sequence_id=3
    )
    with RawConnection(server.port) as connection:
        connection.subscribe(topic, "sub")
        connection.producer(topic)
        connection.publish(odd, sequence_id=3)
        connection.receipt()
        assert connection.message()[1] == odd


def test_a_message_without_checksum_is_taken_and_passed_on_as_it_is(server: ServerProcess, topic: str) -> None:
    """Clients from before the checksum send neither magic nor CRC32C."""
    old = message(b"old client")[6:]
    with RawConnection(server.port) as connection:
        connection.subscribe(topic, "sub")
        connection.producer(topic)
        connection.publish(old)
        assert connection.receipt().type == BaseCommand.SEND_RECEIPT
        assert connection.message()[1] == old


def test_a_damaged_message_is_refused_and_the_connection_goes_on(server: ServerProcess, topic: str) -> None:
    good = message(b"good")
    with RawConnection(server.port) as connection:
        connection.subscribe(topic, "sub")
        connection.producer(topic)
        connection.publish(good[:-1] + b"X", sequence_id=1)
        answer = connection.receipt()
        assert answer.type == BaseCommand.SEND_ERROR
        assert answer.send_error.sequence_id == 1
        assert answer.send_error.error == 9  # ChecksumError
        connection.publish(good, sequence_id=2)
        assert connection.receipt().send_receipt.message_id.entryId == 0
        assert split(connection.message()[1])[1] == b"good"


DAMAGED = {"empty": b"", "byte": b"\0", "magic only": b"\x0e\x01", "cut": message(b"x")[:9], "noise": b"\xff" * 40}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_no_message_at_all_hurts_nobody_else(
    server: ServerProcess, client: pulsar.Client, topic: str, damaged: bytes
) -> None:
    """Such bytes may be refused or stored, but consumers of the topic go on and the server serves others."""
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    with RawConnection(server.port) as connection:
        connection.producer(topic, producer_name="hostile")
        connection.publish(damaged)
        connection.expect(BaseCommand.SEND_ERROR, BaseCommand.SEND_RECEIPT, BaseCommand.ERROR)
    producer.send(b"after")
    assert receive_all(consumer, 1) == [b"after"]


def test_several_producers_and_consumers_share_one_connection(client: pulsar.Client, topic: str) -> None:
    """One client has one connection: twenty topics with two producers and two subscriptions each go over it."""
    topics = [f"{topic}-{index}" for index in range(20)]
    consumers = {(name, sub): client.subscribe(name, sub) for name in topics for sub in ("one", "two")}
    producers = [client.create_producer(name) for name in topics for _ in range(2)]
    for number, producer in enumerate(producers):
        send_all(producer, [b"%d-%d" % (number, index) for index in range(10)])
    for number, name in enumerate(topics):
        expected = {b"%d-%d" % (2 * number + part, index) for part in range(2) for index in range(10)}
        for sub in ("one", "two"):
            assert set(receive_all(consumers[name, sub], 20)) == expected


def test_order_of_each_producer_is_kept_among_many(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producers = [client.create_producer(topic) for _ in range(4)]
    for index in range(100):
        for number, producer in enumerate(producers):
            producer.send_async(b"%d:%d" % (number, index), None)
    for producer in producers:
        producer.flush()
    seen: dict[bytes, list[int]] = {}
    for payload in receive_all(consumer, 400):
        number, _, index = payload.partition(b":")
        seen.setdefault(number, []).append(int(index))
    assert seen == {b"%d" % number: list(range(100)) for number in range(4)}


def test_generated_producer_names_are_unique_and_survive_in_messages(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producers = [client.create_producer(topic) for _ in range(3)]
    names = [producer.producer_name() for producer in producers]
    assert len(set(names)) == 3
    for producer in producers:
        producer.send(b"x")
    assert [received.producer_name() for received in take(consumer, 3)] == names


def test_what_was_acknowledged_is_there_after_a_crash(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server()
    client = connect(server.service_url)
    client.subscribe(topic, "sub").close()
    ids = send_all(client.create_producer(topic), [b"%d" % index for index in range(500)])
    server.restart()
    consumer = connect(server.service_url).subscribe(topic, "sub")
    received = take(consumer, 500)
    assert [entry.data() for entry in received] == [b"%d" % index for index in range(500)]
    assert [position(entry.message_id()) for entry in received] == [position(message_id) for message_id in ids]


def test_event_time_and_delay_do_not_disturb_an_exclusive_subscription(client: pulsar.Client, topic: str) -> None:
    """Only Shared and Key_Shared hold messages back."""
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"later", deliver_after=timedelta(hours=1))
    assert receive_all(consumer, 1) == [b"later"]
