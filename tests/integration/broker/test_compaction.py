"""Compaction through the official client: what readers, table views and consumers get, before and after ledgers are gone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import ServerError
from tests.support.compaction import (
    admin,
    compact,
    drop_consumed,
    hold,
    path_of,
    read_compacted,
    refused,
    status,
    table_of,
    table_view,
)
from tests.support.messages import drain, ends_at_once, position, receive_all, take
from tests.support.raw_client import RawConnection
from tests.support.waiting import wait_until

CODECS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Ledgers of five entries; topics keep what was not compacted, and nothing else."""
    settings = {"managedLedgerMaxEntriesPerLedger": 5, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    process = ServerProcess(tmp_path_factory.mktemp("server") / "data", settings).start()
    hold(process)
    yield process
    process.close()


def publish(
    client: pulsar.Client, topic: str, messages: list[tuple[str | None, bytes]], **options: object
) -> dict[str, bytes]:
    """Send them in order; the table they stand for."""
    producer = client.create_producer(topic, **options)
    table: dict[str, bytes] = {}
    for key, value in messages:
        producer.send_async(value, lambda *_: None, **({} if key is None else {"partition_key": key}))
        if key is None:
            continue
        if value:
            table[key] = value
        else:
            table.pop(key, None)
    producer.flush()
    producer.close()
    return table


def some_messages(seed: int, count: int = 120, prefix: str = "") -> list[tuple[str | None, bytes]]:
    """Keys that repeat, deletions, messages without a key."""
    rng = random.Random(seed)
    messages: list[tuple[str | None, bytes]] = []
    for number in range(count):
        key = None if rng.random() < 0.1 else f"{prefix}{rng.randrange(20)}"
        messages.append((key, b"" if rng.random() < 0.2 else b"value-%d " % number * rng.randrange(1, 9)))
    return messages


BATCHED = {"batching_enabled": True, "batching_max_messages": 7, "batching_max_publish_delay_ms": 500}
PLAIN = {"batching_enabled": False}


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("batching", [BATCHED, PLAIN], ids=["batched", "plain"])
def test_what_is_left_is_the_newest_of_each_key(
    server: ServerProcess, client: pulsar.Client, topic: str, codec: pulsar.CompressionType, batching: dict[str, object]
) -> None:
    table = publish(client, topic, some_messages(1), compression_type=codec, **batching)
    before = {position(m.message_id()): m.data() for m in read_compacted(client, topic)}
    compact(server, topic)
    left = read_compacted(client, topic)
    assert {m.partition_key(): m.data() for m in left} == table
    assert len(left) == len(table)
    assert all(before[position(m.message_id())] == m.data() for m in left), "message ids stay what they were"
    assert [position(m.message_id()) for m in left] == sorted(position(m.message_id()) for m in left)
    assert table_view(client, topic) == table
    drop_consumed(server, topic)
    assert table_of(read_compacted(client, topic)) == table


def test_many_compactions_of_mixed_messages(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    """Batched and plain, every codec, published between compactions and trims; a table view follows it all."""
    publish(client, topic, [("first", b"value")])
    view = client.create_table_view(topic)
    table = {"first": b"value"}
    for number in range(8):
        messages = some_messages(number, 60)
        for key, value in messages:
            if key is not None and value:
                table[key] = value
            elif key is not None:
                table.pop(key, None)
        codec = CODECS[number % 5]
        # The client cannot unpack an empty message that it packed with zlib by itself.
        batching = BATCHED if number % 2 or codec == pulsar.CompressionType.ZLib else PLAIN
        publish(client, topic, messages, compression_type=codec, **batching)
        if number % 3 != 2:
            compact(server, topic)
        if number % 2:
            drop_consumed(server, topic)
        assert table_view(client, topic) == table

    def followed() -> bool:
        found: dict[str, bytes] = {}
        view.for_each(found.__setitem__)
        return found == table

    wait_until(followed, 60, "the table view's last update")
    view.close()


def test_trimmed_ledgers_are_read_from_the_compacted_one(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    """Pulsar#11287: earliest is not the oldest entry that the topic still holds."""
    publish(client, topic, [(f"k{number}", b"v%d" % number) for number in range(30)], **PLAIN)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True, receiver_queue_size=1)
    first = reader.read_next(30_000)
    compact(server, topic)
    ledgers = drop_consumed(server, topic)
    assert first.message_id().ledger_id() not in ledgers
    assert len(read_compacted(client, topic)) == 30
    assert [reader.read_next(30_000).data() for _ in range(29)] == [b"v%d" % number for number in range(1, 30)]
    assert not reader.has_message_available()
    publish(client, topic, [("k3", b"new")])
    assert reader.read_next(30_000).data() == b"new"
    assert len(read_compacted(client, topic)) == 31
    reader.close()
    plain = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [message.data() for message in drain(plain_consumer(plain), at_least=1, ack=False)][-1] == b"new"
    plain.close()


def plain_consumer(reader: pulsar.Reader) -> object:
    """A reader with the name that `drain` calls."""

    class Receiver:
        receive = staticmethod(reader.read_next)

    return Receiver


def test_a_reader_in_the_middle_of_a_compacted_ledger_goes_on_in_the_next_one(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [(f"k{number}", b"old") for number in range(40)], **PLAIN)
    compact(server, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True, receiver_queue_size=1)
    table = {message.partition_key(): message.data() for message in [reader.read_next(30_000) for _ in range(5)]}
    publish(client, topic, [(f"k{number}", b"new") for number in range(20, 60)], **PLAIN)
    compact(server, topic)
    drop_consumed(server, topic)
    while reader.has_message_available():
        message = reader.read_next(30_000)
        table[message.partition_key()] = message.data()
    reader.close()
    assert table == {f"k{number}": b"old" if number < 20 else b"new" for number in range(60)}


def test_seeking_into_what_was_compacted_and_trimmed(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, [(f"k{number % 10}", b"v%d" % number) for number in range(40)], **PLAIN)
    compact(server, topic)
    drop_consumed(server, topic)
    left = read_compacted(client, topic)
    assert [message.data() for message in left] == [b"v%d" % number for number in range(30, 40)]
    publish(client, topic, [("tail", b"tail")])
    reader = client.create_reader(topic, pulsar.MessageId.latest, is_read_compacted=True)

    def rest() -> list[bytes]:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(30_000).data())
        return found

    reader.seek(pulsar.MessageId.earliest)
    assert rest() == [message.data() for message in left] + [b"tail"]
    reader.seek(left[4].message_id())
    assert rest()[-6:] == [message.data() for message in left[5:]] + [b"tail"]
    reader.seek(left[7].publish_timestamp())
    assert rest()[-3:] == [left[8].data(), left[9].data(), b"tail"]
    reader.seek(left[0].publish_timestamp() - 1000)
    assert rest() == [message.data() for message in left] + [b"tail"]
    reader.seek(left[9].publish_timestamp() + 1_000_000)
    assert rest() == []
    reader.close()
    started = client.create_reader(topic, left[4].message_id(), is_read_compacted=True)
    assert started.read_next(30_000).data() == left[5].data()
    started.close()


def test_nothing_is_available_when_everything_was_deleted(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [("a", b"1"), ("b", b"2"), ("a", b""), (None, b"keyless"), ("b", b"")], **PLAIN)
    assert len(read_compacted(client, topic)) == 5
    compact(server, topic)
    assert read_compacted(client, topic) == []
    assert table_view(client, topic) == {}
    drop_consumed(server, topic)
    assert read_compacted(client, topic) == []
    publish(client, topic, [("c", b"3")])
    assert [message.data() for message in read_compacted(client, topic)] == [b"3"]


@pytest.mark.parametrize("batching", [BATCHED, PLAIN], ids=["batched", "plain"])
def test_the_last_message_is_the_last_one_left(
    server: ServerProcess, client: pulsar.Client, topic: str, batching: dict[str, object]
) -> None:
    """Everything behind it was compacted away: a reader that stands on it has nothing available."""
    publish(client, topic, [("a", b"1"), ("b", b"2"), ("c", b"3"), ("c", b"")], **batching)
    compact(server, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert [reader.read_next(30_000).data() for _ in range(2)] == [b"1", b"2"]
    assert not reader.has_message_available()
    reader.close()


def test_consumers_that_acknowledge_one_by_one_pass_the_gaps(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, is_read_compacted=True)
    consumer.close()
    table = publish(client, topic, [(f"k{number % 10}", b"v%d" % number) for number in range(48)], **PLAIN)
    compact(server, topic)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, is_read_compacted=True)
    messages = take(consumer, 10)
    assert {message.partition_key(): message.data() for message in messages} == table
    wait_until(
        lambda: admin(server, "GET", f"{path_of(topic)}/stats")["subscriptions"]["s"]["msgBacklog"] == 0,
        what="the end of the backlog",
    )
    consumer.close()
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, is_read_compacted=True)
    publish(client, topic, [("after", b"after")])
    assert receive_all(consumer, 1) == [b"after"]
    consumer.close()


def test_consumers_of_rewritten_batches(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    """Removed messages come as empty ones without a key, as on Pulsar: the client needs them to acknowledge the batch."""
    client.subscribe(topic, "s", is_read_compacted=True).close()
    table = publish(client, topic, [(f"k{number % 10}", b"v%d" % number) for number in range(45)], **BATCHED)
    compact(server, topic)
    consumer = client.subscribe(topic, "s", is_read_compacted=True)
    messages = drain(consumer, at_least=10)
    assert {message.partition_key(): message.data() for message in messages if message.data()} == table
    assert all(not message.partition_key() for message in messages if not message.data())
    wait_until(
        lambda: admin(server, "GET", f"{path_of(topic)}/stats")["subscriptions"]["s"]["msgBacklog"] == 0,
        what="the end of the backlog",
    )
    consumer.close()


def test_unacknowledged_messages_come_again(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, [(f"k{number % 6}", b"v%d" % number) for number in range(18)], **PLAIN)
    compact(server, topic)
    drop_consumed(server, topic)
    earliest = pulsar.InitialPosition.Earliest
    consumer = client.subscribe(topic, "s", initial_position=earliest, is_read_compacted=True)
    expected = [b"v%d" % number for number in range(12, 18)]
    assert receive_all(consumer, 6, ack=False) == expected
    consumer.redeliver_unacknowledged_messages()
    assert receive_all(consumer, 6, ack=False) == expected
    consumer.close()
    consumer = client.subscribe(topic, "s", initial_position=earliest, is_read_compacted=True)
    assert receive_all(consumer, 6, ack=False) == expected
    consumer.close()


def test_new_subscriptions_at_the_end_get_nothing_old(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, [(f"k{number}", b"v") for number in range(10)], **PLAIN)
    compact(server, topic)
    drop_consumed(server, topic)
    consumer = client.subscribe(topic, "s", is_read_compacted=True)
    assert drain(consumer) == []
    publish(client, topic, [("after", b"after")])
    assert receive_all(consumer, 1) == [b"after"]
    consumer.close()


def test_who_may_read_compacted(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    """The official client refuses it for shared subscriptions by itself; a failover subscription reads one way at a time."""
    first = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, is_read_compacted=True)
    with ends_at_once():
        client.subscribe(topic, "s", pulsar.ConsumerType.Failover)
    second = client.subscribe(topic, "s", pulsar.ConsumerType.Failover, is_read_compacted=True)
    second.close()  # which of the two is active follows from their generated names
    publish(client, topic, [("k", b"v")])
    assert receive_all(first, 1) == [b"v"]
    first.close()
    client.subscribe(topic, "s", pulsar.ConsumerType.Failover).close()
    with ends_at_once():
        client.subscribe(topic, "__compaction")
    with RawConnection(server.port) as connection:
        answer = connection.subscribe(topic, "shared", read_compacted=True)
        assert answer.error.error == ServerError.NotAllowedError


def test_chunked_messages_stay_or_go_as_a_whole(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    large = random.Random(1).randbytes(12 * 1024 * 1024)
    producer.send(large, partition_key="a")
    producer.send(b"small", partition_key="b")
    producer.send(large[::-1], partition_key="b")
    producer.send(large[1:], partition_key="c")
    producer.send(b"", partition_key="c")
    producer.close()
    compact(server, topic)
    drop_consumed(server, topic)
    left = read_compacted(client, topic)
    assert [
        (message.partition_key(), message.data() == value)
        for message, value in zip(left, (large, large[::-1]), strict=True)
    ] == [
        ("a", True),
        ("b", True),
    ]


def test_encrypted_batches_stay_whole(server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    """Their keys are sealed: what follows them can only add."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, pkcs = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    (tmp_path / "private").write_bytes(private.private_bytes(pem, pkcs, serialization.NoEncryption()))
    public = private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public").write_bytes(public)
    reader = pulsar.CryptoKeyReader(str(tmp_path / "public"), str(tmp_path / "private"))
    sealed = {"encryption_key": "key", "crypto_key_reader": reader}
    publish(client, topic, [("a", b"plain"), ("b", b"plain")], **PLAIN)
    publish(client, topic, [("a", b"sealed"), ("c", b"sealed"), ("a", b"sealed again")], **BATCHED, **sealed)
    publish(client, topic, [("c", b""), ("d", b"plain")], **PLAIN)
    compact(server, topic)
    compacted = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True, crypto_key_reader=reader)
    messages = []
    while compacted.has_message_available():
        messages.append(compacted.read_next(30_000))
    assert table_of(messages) == {"a": b"sealed again", "b": b"plain", "d": b"plain"}
    compacted.close()


def test_statuses_and_stats(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, [("k", b"1"), ("k", b"2"), ("l", b"3")], **PLAIN)
    assert status(server, topic) == "NOT_RUN"
    compact(server, topic)
    compacted = admin(server, "GET", f"{path_of(topic)}/stats")["compaction"]
    assert compacted["lastCompactionRemovedEventCount"] == 1
    assert compacted["lastCompactionSucceedTimestamp"] > 0
    stored = admin(server, "GET", f"{path_of(topic)}/internalStats")
    assert stored["compactedLedger"]["entries"] == 2
    assert stored["cursors"]["__compaction"]["properties"] == {
        "CompactedTopicLedger": stored["compactedLedger"]["ledgerId"]
    }
    assert admin(server, "GET", f"{path_of(topic)}/subscriptions") == []
    compact(server, topic)  # nothing new: the same ledger stays
    assert admin(server, "GET", f"{path_of(topic)}/internalStats")["compactedLedger"] == stored["compactedLedger"]
    missing = path_of(topic) + "-missing"
    assert refused(server, "PUT", f"{missing}/compaction") == 404
    assert refused(server, "GET", f"{missing}/compaction") == 404
    assert refused(server, "PUT", f"{path_of(topic).replace('persistent', 'non-persistent')}/compaction") in (404, 405)


def test_partitioned_topics(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    admin(server, "PUT", f"{path_of(topic)}/partitions", 3)
    table = publish(client, topic, some_messages(3), **PLAIN)
    compact(server, topic)
    left = [message for part in range(3) for message in read_compacted(client, f"{topic}-partition-{part}")]
    assert len(left) == len(table)
    assert {message.partition_key(): message.data() for message in left} == table


def test_the_end_of_compaction_and_truncation(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, [(f"k{number}", b"v") for number in range(12)], **PLAIN)
    compact(server, topic)
    assert refused(server, "DELETE", f"{path_of(topic)}/subscription/__compaction") == 405
    admin(server, "DELETE", f"{path_of(topic)}/compaction")
    assert admin(server, "GET", f"{path_of(topic)}/internalStats")["compactedLedger"]["ledgerId"] == -1
    assert "__compaction" not in admin(server, "GET", f"{path_of(topic)}/internalStats")["cursors"]
    admin(server, "DELETE", f"{path_of(topic)}/compaction")
    hold(server)
    wait_until(lambda: "__compaction" in admin(server, "GET", f"{path_of(topic)}/internalStats")["cursors"])
    publish(client, topic, [(f"k{number}", b"new") for number in range(12)], **PLAIN)
    compact(server, topic)
    assert len(read_compacted(client, topic)) == 12
    admin(server, "DELETE", f"{path_of(topic)}/truncate")
    assert read_compacted(client, topic) == []


def test_a_deleted_topic_takes_its_compacted_ledger_along(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [("k", b"v")])
    compact(server, topic)
    admin(server, "DELETE", path_of(topic))
    publish(client, topic, [("other", b"v")])
    assert list(table_view(client, topic)) == ["other"]


def test_the_threshold_starts_a_compaction(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client], topic: str
) -> None:
    server = start_server(brokerServiceCompactionMonitorIntervalInSeconds=0.1)
    admin(server, "PUT", "namespaces/public/default/compactionThreshold", 10_000)
    assert admin(server, "GET", "namespaces/public/default/compactionThreshold") == 10_000
    client = connect(server.service_url)
    publish(client, topic, [("k", b"x" * 500) for _ in range(10)], **PLAIN)
    assert status(server, topic) == "NOT_RUN"
    publish(client, topic, [("k", b"x" * 500) for _ in range(15)], **PLAIN)
    wait_until(lambda: status(server, topic) == "SUCCESS", what="a compaction by threshold")
    assert len(read_compacted(client, topic)) <= 15
    assert refused(server, "PUT", "namespaces/public/default/compactionThreshold", -1) == 412


def test_the_brokers_threshold_and_keyless_messages(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client], topic: str
) -> None:
    server = start_server(
        brokerServiceCompactionMonitorIntervalInSeconds=0.1,
        brokerServiceCompactionThresholdInBytes=1000,
        topicCompactionRetainNullKey="true",
    )
    client = connect(server.service_url)
    publish(client, topic, [(None, b"keyless"), ("k", b"x" * 1000), ("k", b"y" * 1000)], **PLAIN)
    wait_until(lambda: status(server, topic) == "SUCCESS", what="a compaction by threshold")
    compact(server, topic)
    assert [message.data()[:7] for message in read_compacted(client, topic)] == [b"keyless", b"yyyyyyy"]
