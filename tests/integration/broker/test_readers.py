"""Readers: non-durable subscriptions that start anywhere, inside batches too, and know whether more is there."""

from __future__ import annotations

import pulsar
import pytest

from magnetar.hashing.murmur3 import KEY_SHARED_SLOTS, key_slot
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import KeySharedMeta, KeySharedMode, MessageIdData, ServerError
from tests.support.messages import position, send_all
from tests.support.raw_client import BaseCommand, RawConnection, split
from tests.support.types import Connect, StartServer

EARLIEST, LATEST = pulsar.MessageId.earliest, pulsar.MessageId.latest


def payloads(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


def read_all(reader: pulsar.Reader) -> list[bytes]:
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data())
    return found


def test_from_the_earliest(client: pulsar.Client, topic: str) -> None:
    send_all(client.create_producer(topic), payloads(10))
    assert read_all(client.create_reader(topic, EARLIEST)) == payloads(10)
    assert read_all(client.create_reader(topic, EARLIEST)) == payloads(10)  # reading consumes nothing


def test_from_the_latest(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    reader = client.create_reader(topic, LATEST)
    assert not reader.has_message_available()
    producer.send(b"after")
    assert reader.has_message_available()
    assert reader.read_next(30_000).data() == b"after"


def test_from_the_latest_inclusive(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, payloads(3))
    reader = client.create_reader(topic, LATEST, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert read_all(reader) == [b"2"]


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("start", [0, 4, 9])
def test_from_an_id(client: pulsar.Client, topic: str, start: int, inclusive: bool) -> None:
    ids = send_all(client.create_producer(topic), payloads(10))
    reader = client.create_reader(topic, ids[start], start_message_id_inclusive=inclusive)
    assert read_all(reader) == payloads(10)[start if inclusive else start + 1 :]


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("start", [0, 3, 4, 5, 14])
def test_from_an_id_inside_a_batch(client: pulsar.Client, topic: str, start: int, inclusive: bool) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=10_000
    )
    ids = send_all(producer, payloads(15))
    assert position(ids[start])[1:] == divmod(start, 5)
    reader = client.create_reader(topic, ids[start], start_message_id_inclusive=inclusive)
    assert read_all(reader) == payloads(15)[start if inclusive else start + 1 :]


def test_from_a_stored_id_after_a_crash(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server()
    client = connect(server.service_url)
    client.subscribe(topic, "keeps").close()
    ids = send_all(client.create_producer(topic), payloads(10))
    stored = ids[6].serialize()
    server.restart()
    reader = connect(server.service_url).create_reader(topic, pulsar.MessageId.deserialize(stored))
    assert read_all(reader) == [b"7", b"8", b"9"]


def test_a_reader_goes_on_by_itself_after_a_crash(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server()
    client = connect(server.service_url, operation_timeout_seconds=20)
    client.subscribe(topic, "keeps").close()
    producer = client.create_producer(topic)
    send_all(producer, payloads(4))
    reader = client.create_reader(topic, EARLIEST)
    assert [reader.read_next(30_000).data() for _ in range(4)] == payloads(4)
    server.restart()
    producer.send(b"4")
    assert reader.read_next(30_000).data() == b"4"


def test_has_message_available_on_an_empty_topic(client: pulsar.Client, topic: str) -> None:
    for start in (EARLIEST, LATEST):
        for inclusive in (False, True):
            reader = client.create_reader(topic, start, start_message_id_inclusive=inclusive)
            assert not reader.has_message_available()
            reader.close()
    reader = client.create_reader(topic, EARLIEST)
    client.create_producer(topic).send(b"x")
    assert reader.has_message_available()
    assert reader.read_next(30_000).data() == b"x"
    assert not reader.has_message_available()


def test_a_reader_leaves_nothing_behind(client: pulsar.Client, topic: str) -> None:
    """Its subscription is gone: another reader with the same name starts anew."""
    ids = send_all(client.create_producer(topic), payloads(3))
    for _ in range(2):
        reader = client.create_reader(topic, ids[0], reader_name="r")
        assert read_all(reader) == [b"1", b"2"]
        reader.close()


def test_readers_of_partitioned_topics(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(allowAutoTopicCreationType="partitioned", defaultNumPartitions=3).service_url)
    producer = client.create_producer(topic)
    send_all(producer, payloads(30))
    reader = client.create_reader(topic, EARLIEST)
    assert sorted(read_all(reader)) == sorted(payloads(30))


def test_table_views(client: pulsar.Client, topic: str) -> None:
    """Non-durable, from the earliest, the last value of each key."""
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number, partition_key=f"k{number % 4}")
    view = client.create_table_view(topic)
    assert {key: view.get(key) for key in ("k0", "k1", "k2", "k3")} == {
        "k0": b"16",
        "k1": b"17",
        "k2": b"18",
        "k3": b"19",
    }
    assert len(view) == 4
    view.close()


@pytest.mark.parametrize("count", [0, 1, 7])
def test_the_last_message_id(server: ServerProcess, client: pulsar.Client, topic: str, count: int) -> None:
    consumer = client.subscribe(topic, "sub")
    ids = send_all(client.create_producer(topic), payloads(count))
    last = consumer.get_last_message_id()
    if ids:
        assert position(last) == position(ids[-1])
    else:
        assert (last.ledger_id(), last.entry_id()) == (-1, -1)


def test_the_last_message_id_of_a_batch_names_its_last_message(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=10_000
    )
    send_all(producer, payloads(10))
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub")
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        command.getLastMessageId.consumer_id = 1
        command.getLastMessageId.request_id = raw.next_request_id()
        raw.send(command)
        answer = raw.expect(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)[0].getLastMessageIdResponse
        assert (answer.last_message_id.entryId, answer.last_message_id.batch_index) == (1, 4)
        assert answer.HasField("consumer_mark_delete_position")


def reader_of(raw: RawConnection, topic: str, *ranges: tuple[int, int], kind: int = 0) -> BaseCommand:
    """A reader as the Java client makes one with `keyHashRange`, which the Python client has not."""
    meta = KeySharedMeta(keySharedMode=KeySharedMode.STICKY)
    for start, end in ranges:
        meta.hashRanges.add(start=start, end=end)
    request = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request.subscribe.topic = topic
    request.subscribe.subscription = "reader"
    request.subscribe.subType = kind  # type: ignore[assignment]  # the stubs want the enum's own type
    request.subscribe.consumer_id = 1
    request.subscribe.request_id = raw.next_request_id()
    request.subscribe.durable = False
    request.subscribe.start_message_id.CopyFrom(MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1))
    request.subscribe.keySharedMeta.CopyFrom(meta)
    raw.send(request)
    return raw.expect(BaseCommand.SUCCESS, BaseCommand.ERROR)[0]


def test_a_reader_of_hash_ranges_gets_their_keys_alone(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    """Two readers share a topic by keys. What is not theirs costs no permits, also when permits are few."""
    keys = [f"key{number}" for number in range(100)]
    producer = client.create_producer(topic)
    for key in keys:
        producer.send(key.encode(), partition_key=key)
    middle = KEY_SHARED_SLOTS // 2
    seen = []
    for ranges in ([(0, middle - 1)], [(middle, middle + 9), (middle + 10, KEY_SHARED_SLOTS - 1)]):
        with RawConnection(server.port) as raw:
            assert reader_of(raw, topic, *ranges).type == BaseCommand.SUCCESS
            expected = [key for key in keys if any(low <= key_slot(key.encode()) <= high for low, high in ranges)]
            assert 20 < len(expected) < 80
            for key in expected:
                raw.flow(1)
                assert split(raw.message()[1])[1] == key.encode()
            raw.flow(1000)
            producer.send(b"last", partition_key=expected[0])
            assert split(raw.message()[1])[1] == b"last"
            seen += expected
    assert sorted(seen) == sorted(keys)


@pytest.mark.parametrize("ranges", [[(5, 4)], [(0, 65536)], [(0, 10), (10, 20)]], ids=str)
def test_ranges_that_are_none_are_refused(server: ServerProcess, topic: str, ranges: list[tuple[int, int]]) -> None:
    with RawConnection(server.port) as raw:
        assert reader_of(raw, topic, *ranges).error.error == ServerError.ConsumerAssignError
        assert reader_of(raw, topic, (0, 10)).type == BaseCommand.SUCCESS


def test_failover_takes_no_notice_of_hash_ranges(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    """As in Pulsar: each of its consumers is to be able to take over everything."""
    send_all(client.create_producer(topic), payloads(10))
    with RawConnection(server.port) as raw:
        assert reader_of(raw, topic, (0, 0), kind=2).type == BaseCommand.SUCCESS
        raw.flow(10)
        assert [split(raw.message()[1])[1] for _ in range(10)] == payloads(10)
