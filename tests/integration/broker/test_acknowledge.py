"""Acknowledge: single, cumulative, by batch index, with receipt; what is acknowledged stays so over a crash."""

from __future__ import annotations

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.durable import acknowledge_durably
from tests.support.messages import nothing_arrives, position, receive_all, send_all, take
from tests.support.raw_client import BaseCommand, MessageIdData, RawConnection, batch, message, split
from tests.support.types import Connect, StartServer

EXCLUSIVE, SHARED, KEY_SHARED = 0, 1, 3
ALL_TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]


def payloads(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_single_acknowledgements_leave_holes(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "sub", kind)
    send_all(client.create_producer(topic), payloads(10))
    received = take(consumer, 10, ack=False)
    for index in (0, 1, 4, 5, 9):
        consumer.acknowledge(received[index])
    consumer.close()
    assert receive_all(client.subscribe(topic, "sub", kind), 5) == [b"2", b"3", b"6", b"7", b"8"]


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover], ids=lambda k: k.name)
def test_cumulative_acknowledgements(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "sub", kind)
    send_all(client.create_producer(topic), payloads(10))
    received = take(consumer, 10, ack=False)
    consumer.acknowledge_cumulative(received[6])
    consumer.acknowledge_cumulative(received[2])  # back in time: changes nothing
    consumer.close()
    assert receive_all(client.subscribe(topic, "sub", kind), 3) == [b"7", b"8", b"9"]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_cumulative_acknowledgement_is_refused_where_consumers_share(
    server: ServerProcess, topic: str, kind: int
) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", kind)
        raw.publish(message(b"x"))
        answer = raw.ack(raw.message()[0].message.message_id, cumulative=True)
        assert answer is not None
        assert answer.ackResponse.error == 22  # NotAllowedError
        raw.close_consumer()
        raw.subscribe(topic, "sub", kind)
        assert split(raw.message()[1])[1] == b"x"


def test_holes_and_receipts_survive_a_crash(start_server: StartServer, connect: Connect, topic: str) -> None:
    """A receipt means durable: kill -9 right behind it undoes nothing."""
    server = start_server()
    connect(server.service_url).subscribe(topic, "sub").close()
    send_all(connect(server.service_url).create_producer(topic), payloads(200))
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", EXCLUSIVE)
        ids = [raw.message()[0].message.message_id for _ in range(200)]
        answer = raw.ack(*ids[::2])
        assert answer is not None
        assert not answer.ackResponse.HasField("error")
        server.restart()
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", EXCLUSIVE)
        assert [int(split(raw.message()[1])[1]) for _ in range(100)] == list(range(1, 200, 2))
        raw.ack(ids[150], cumulative=True)
        server.restart()
    consumer = connect(server.service_url).subscribe(topic, "sub")
    assert receive_all(consumer, 25) == [b"%d" % index for index in range(151, 200, 2)]


def test_batch_indexes(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", batch_index_ack_enabled=True)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=10_000
    )
    send_all(producer, payloads(20))
    received = take(consumer, 20, ack=False)
    for index in (0, 3, 9, 11):
        consumer.acknowledge(received[index])
    consumer.close()
    consumer = client.subscribe(topic, "sub", batch_index_ack_enabled=True)
    rest = [index for index in range(20) if index not in (0, 3, 9, 11)]
    received = take(consumer, len(rest), ack=False)
    assert [int(entry.data()) for entry in received] == rest
    consumer.acknowledge_cumulative(received[rest.index(14)])
    consumer.close()
    consumer = client.subscribe(topic, "sub", batch_index_ack_enabled=True)
    assert [int(payload) for payload in receive_all(consumer, 5)] == [15, 16, 17, 18, 19]
    consumer.close()
    assert nothing_arrives(client.subscribe(topic, "sub"))


def test_batch_indexes_on_the_wire_and_over_a_crash(start_server: StartServer, topic: str) -> None:
    """Bit set = not yet acknowledged; 70 messages take two words. Repeating an id, even within one ACK, changes nothing."""
    server = start_server()
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", SHARED)
        raw.producer(topic)
        data = message(batch(payloads(70)), num_messages_in_batch=70)
        raw.publish(data, num_messages=70, highest_sequence_id=69)
        message_id = raw.message()[0].message.message_id
        signed = -(2**63)
        raw.ack(message_id, ack_sets=[[-2, 0x3F]])
        raw.ack(message_id, message_id, ack_sets=[[-1, 0x1F], [-2, 0x3F]])
        raw.ack(message_id, ack_sets=[[signed | 0x7FFFFFFFFFFFFFF0, 0x3F]])
        server.restart()
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", SHARED)
        delivered = raw.message()[0].message
        assert [word % 2**64 for word in delivered.ack_set] == [2**64 - 16, 0x1F]
        for bit in range(4, 69):  # the C++ client names the entry once more for each message when a batch is complete
            words = [2**64 - 1, 0x1F]
            words[bit // 64] &= ~(1 << bit % 64)
            raw.ack(message_id, receipt=False, ack_sets=[[w - 2**64 if w >= 2**63 else w for w in words]])
        raw.ack(*[message_id] * 68)
        raw.close_consumer()
        raw.subscribe(topic, "sub", SHARED)
        assert raw.silent(BaseCommand.MESSAGE, for_s=0.2)


def test_a_partly_acknowledged_batch_costs_only_the_permits_of_the_rest(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", SHARED)
        raw.producer(topic)
        raw.publish(message(batch(payloads(4)), num_messages_in_batch=4), num_messages=4, highest_sequence_id=3)
        raw.ack(raw.message()[0].message.message_id, ack_sets=[[0b1010]])
        raw.close_consumer()
        raw.publish(message(b"next"), sequence_id=4)
        raw.subscribe(topic, "sub", SHARED, permits=3)
        assert list(raw.message()[0].message.ack_set) == [0b1010]
        assert split(raw.message()[1])[1] == b"next"  # 3 - 2 = 1 permit was left


def test_without_batch_index_acknowledgement_a_batch_counts_as_a_whole(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    client = connect(start_server(acknowledgmentAtBatchIndexLevelEnabled="false").service_url)
    consumer = client.subscribe(topic, "sub", batch_index_ack_enabled=True)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=4, batching_max_publish_delay_ms=10_000
    )
    send_all(producer, payloads(4))
    received = take(consumer, 4, ack=False)
    consumer.acknowledge(received[1])
    consumer.close()
    consumer = client.subscribe(topic, "sub", batch_index_ack_enabled=True)
    assert receive_all(consumer, 4) == payloads(4)
    consumer.close()
    assert nothing_arrives(client.subscribe(topic, "sub"))


def test_ids_that_were_never_delivered_move_nothing(server: ServerProcess, topic: str) -> None:
    """From the future, from a foreign ledger, before the beginning, single and cumulative: ignored, and answered."""
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub", EXCLUSIVE)
        raw.producer(topic)
        for index in range(3):
            raw.publish(message(b"%d" % index, sequence_id=index), sequence_id=index)
        ids = [raw.message()[0].message.message_id for _ in range(3)]
        ledger_id = ids[0].ledgerId
        strange = [
            (ledger_id, 3),
            (ledger_id, 10**6),
            (ledger_id + 10**6, 0),
            (2**64 - 1, 2**64 - 1),
            (2**63 - 1, 2**63 - 1),
            (0, 0),
            (ledger_id, 2**64 - 1),
        ]
        for ledger, entry in strange:
            for cumulative in (False, True):
                raw.ack(MessageIdData(ledgerId=ledger, entryId=entry), cumulative=cumulative)
        raw.publish(message(b"3", sequence_id=3), sequence_id=3)
        assert split(raw.message()[1])[1] == b"3"
        raw.close_consumer()
        raw.subscribe(topic, "sub", EXCLUSIVE)
        assert [split(raw.message()[1])[1] for _ in range(4)] == payloads(4)


def test_ten_thousand_holes_survive_a_crash(start_server: StartServer, connect: Connect, topic: str) -> None:
    """Pulsar drops holes above a limit without a word (Pulsar#25540)."""
    server = start_server()
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, max_pending_messages=30_000)
    send_all(producer, payloads(24_000))
    received = take(consumer, 24_000, ack=False)
    for entry in received[1::2]:
        consumer.acknowledge(entry)
    consumer.close()  # flushes the client's acknowledgements
    acknowledge_durably(server, topic, "sub", SHARED)
    server.restart()
    consumer = connect(server.service_url).subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    assert receive_all(consumer, 11_999) == [b"%d" % index for index in range(2, 24_000, 2)]
    assert nothing_arrives(consumer)


def test_two_subscriptions_acknowledge_for_themselves(client: pulsar.Client, topic: str) -> None:
    one, two = (client.subscribe(topic, name) for name in ("one", "two"))
    ids = send_all(client.create_producer(topic), payloads(5))
    assert receive_all(one, 5) == payloads(5)
    one.close()
    assert [position(entry.message_id()) for entry in take(two, 5)] == [position(message_id) for message_id in ids]
    assert nothing_arrives(client.subscribe(topic, "one"))
