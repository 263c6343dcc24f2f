"""Deduplication by producer name and sequence id: each sequence id is stored once, whatever is repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import ServerError
from tests.support.messages import nothing_arrives, receive_all
from tests.support.raw_client import NO_POSITION, BaseCommand, RawConnection, batch, message, split
from tests.support.types import Connect, StartServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a snapshot of the watermarks every five entries."""
    settings = {"brokerDeduplicationEnabled": "true", "brokerDeduplicationEntriesInterval": 5, "maxMessageSize": 10240}
    process = ServerProcess(tmp_path_factory.mktemp("dedup") / "data", settings).start()
    yield process
    process.close()


def test_a_repeated_sequence_id_is_receipted_and_not_stored(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, producer_name="p", initial_sequence_id=-1)
    assert producer.last_sequence_id() == -1
    first = producer.send(b"first", sequence_id=1)
    assert (first.entry_id(), producer.last_sequence_id()) == (0, 1)
    producer.send(b"first again", sequence_id=1)
    producer.send(b"older", sequence_id=0)
    assert producer.send(b"second", sequence_id=2).entry_id() == 1
    assert receive_all(consumer, 2) == [b"first", b"second"]
    assert nothing_arrives(consumer)


def test_duplicates_have_receipts_without_a_position_in_send_order(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic, producer_name="p", user_provided_producer_name=True)
        for sequence_id in (5, 5, 4, 6):
            raw.publish(message(b"x", sequence_id=sequence_id, producer_name="p"), sequence_id=sequence_id)
        receipts = [raw.receipt().send_receipt for _ in range(4)]
    assert [receipt.sequence_id for receipt in receipts] == [5, 5, 4, 6]
    positions = [receipt.message_id.entryId for receipt in receipts]
    assert positions == [0, NO_POSITION, NO_POSITION, 1]


def test_nobody_speaks_for_another_producer(server: ServerProcess, topic: str) -> None:
    """After a crash sequence ids are learnt from the messages: a false name with a huge one would make the victim's messages repeats."""
    with RawConnection(server.port) as raw:
        raw.producer(topic, producer_name="attacker", user_provided_producer_name=True)
        raw.publish(message(b"x", sequence_id=2**62, producer_name="victim"), sequence_id=0)
        assert raw.receipt().send_error.error == ServerError.NotAllowedError
        raw.publish(message(b"x", producer_name="attacker"), sequence_id=0)
        assert raw.receipt().type == BaseCommand.SEND_RECEIPT
    server.restart()
    with RawConnection(server.port) as raw:
        raw.producer(topic, producer_name="victim", user_provided_producer_name=True)
        raw.publish(message(b"x", producer_name="victim"), sequence_id=0)
        assert raw.receipt().send_receipt.message_id.entryId != NO_POSITION


def test_producers_are_told_their_last_sequence_id(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="p")
    for sequence_id in (3, 9):
        producer.send(b"x", sequence_id=sequence_id)
    producer.close()
    again = client.create_producer(topic, producer_name="p")
    assert again.last_sequence_id() == 9
    assert client.create_producer(topic, producer_name="other").last_sequence_id() == -1


@pytest.mark.parametrize("count", [3, 5, 12], ids=lambda count: f"{count}-entries")
def test_watermarks_survive_a_crash(server: ServerProcess, connect: Connect, topic: str, count: int) -> None:
    """Before the first snapshot, exactly at one (every five entries), and between two."""
    client = connect(server.service_url)
    client.subscribe(topic, "sub").close()
    producer = client.create_producer(topic, producer_name="p")
    for sequence_id in range(count):
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    producer.close()  # it would come back to the restarted server by itself, and its name would be taken
    for _ in range(2):  # the second crash comes after a recovery that stored nothing new
        server.restart()
        client = connect(server.service_url)
        producer = client.create_producer(topic, producer_name="p")
        assert producer.last_sequence_id() == count - 1
        producer.send(b"again", sequence_id=count - 1)
        producer.close()
    producer = client.create_producer(topic, producer_name="p")
    producer.send(b"new", sequence_id=count)
    consumer = client.subscribe(topic, "sub")
    assert receive_all(consumer, count + 1) == [b"%d" % index for index in range(count)] + [b"new"]
    assert nothing_arrives(consumer)


def test_a_batch_with_an_old_beginning_is_stored_for_its_new_end(server: ServerProcess, topic: str) -> None:
    """Pulsar#6273: dropping the whole batch would lose the messages that are new in it."""
    with RawConnection(server.port) as raw:
        raw.producer(topic, producer_name="p", user_provided_producer_name=True)
        pairs = [(0, 4), (0, 4), (3, 7), (2, 6)]
        for first, last in pairs:
            payloads = [b"%d" % index for index in range(first, last + 1)]
            data = message(
                batch(payloads),
                producer_name="p",
                sequence_id=first,
                highest_sequence_id=last,
                num_messages_in_batch=len(payloads),
            )
            raw.publish(data, sequence_id=first, highest_sequence_id=last, num_messages=len(payloads))
        stored = [raw.receipt().send_receipt.message_id.entryId != NO_POSITION for _ in pairs]
    assert stored == [True, False, True, False]


def test_all_chunks_of_a_message_are_stored_and_its_repetition_is_not(client: pulsar.Client, topic: str) -> None:
    """Chunks share one sequence id: only the last one may move the watermark."""
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, producer_name="p", chunking_enabled=True)
    large = random.Random(3).randbytes(60_000)
    producer.send(large, sequence_id=1)
    producer.send(large, sequence_id=1)
    producer.send(b"end", sequence_id=2)
    assert receive_all(consumer, 2, timeout_ms=10_000) == [large, b"end"]
    assert nothing_arrives(consumer)


def test_a_chunked_message_cut_off_by_a_crash_can_be_sent_again(
    server: ServerProcess, connect: Connect, topic: str
) -> None:
    """Two of three chunks are stored when the server dies: the message is not, and must not count as a duplicate."""
    connect(server.service_url).subscribe(topic, "sub").close()
    parts = [b"one-", b"two-", b"three"]

    def send(raw: RawConnection, chunk_ids: range) -> list[bool]:
        for chunk_id in chunk_ids:
            data = message(
                parts[chunk_id],
                sequence_id=0,
                producer_name="p",
                uuid="p-0",
                chunk_id=chunk_id,
                num_chunks_from_msg=3,
                total_chunk_msg_size=13,
            )
            raw.publish(data, sequence_id=0, is_chunk=True)
        return [raw.receipt().send_receipt.message_id.entryId != NO_POSITION for _ in chunk_ids]

    with RawConnection(server.port) as raw:
        raw.producer(topic, producer_name="p", user_provided_producer_name=True)
        assert send(raw, range(2)) == [True, True]
    server.restart()
    with RawConnection(server.port) as raw:
        success = raw.producer(topic, producer_name="p", user_provided_producer_name=True)
        assert success.producer_success.last_sequence_id in (-1, 2**64 - 1)
        assert send(raw, range(3)) == [True, True, True]
        assert send(raw, range(3)) == [False, False, False]
    with RawConnection(server.port) as raw:  # the C++ client cannot put a message together whose beginning came twice
        raw.subscribe(topic, "sub")
        assert [split(raw.message()[1])[0].chunk_id for _ in range(5)] == [0, 1, 0, 1, 2]
        assert raw.silent(BaseCommand.MESSAGE, for_s=0.2)


def test_without_deduplication_everything_is_stored(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server().service_url)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, producer_name="p")
    assert producer.last_sequence_id() == -1
    producer.send(b"a", sequence_id=1)
    producer.send(b"b", sequence_id=1)
    assert receive_all(consumer, 2) == [b"a", b"b"]


def test_a_client_that_lost_its_receipts_sends_again_without_duplicates(
    server: ServerProcess, connect: Connect, topic: str
) -> None:
    """kill -9 in the middle of a stream: the official client repeats what it has no receipt for."""
    client = connect(server.service_url, operation_timeout_seconds=30)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, producer_name="p", max_pending_messages=5000)
    results: list[pulsar.Result] = []
    for index in range(3000):
        producer.send_async(b"%d" % index, lambda result, _: results.append(result))
        if index in (1000, 2000):
            server.restart()
    producer.flush()
    assert results == [pulsar.Result.Ok] * 3000
    assert receive_all(consumer, 3000, timeout_ms=10_000) == [b"%d" % index for index in range(3000)]
    assert nothing_arrives(consumer)
