"""Batches, compression and chunks: the server stores what it gets and counts messages, it never unpacks."""

from __future__ import annotations

import hashlib
import random

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.messages import position, receive_all, send_all, take
from tests.support.raw_client import RawConnection, batch, message, split
from tests.support.types import Connect, StartServer

CODECS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]
WIRE_CODECS = {codec: number for number, codec in enumerate(CODECS)}


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_every_codec_arrives_and_is_stored_compressed(
    server: ServerProcess, client: pulsar.Client, topic: str, codec: pulsar.CompressionType, batched: bool
) -> None:
    consumer = client.subscribe(topic, "official")
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "raw")
        payload = b"compressible " * 500
        producer = client.create_producer(topic, compression_type=codec, batching_enabled=batched)
        send_all(producer, [payload] * 3)
        assert receive_all(consumer, 3) == [payload] * 3
        metadata, stored = split(raw.message()[1])
    assert metadata.compression == WIRE_CODECS[codec]
    assert metadata.HasField("num_messages_in_batch") == batched
    if codec is not pulsar.CompressionType.NONE:
        assert len(stored) < len(payload) / 2
        assert metadata.uncompressed_size >= len(payload)


@pytest.mark.parametrize("codec", range(5))
def test_compressed_bytes_are_never_touched(server: ServerProcess, topic: str, codec: int) -> None:
    """The payload is noise: a server that unpacked it would fail, one that packed it again would change it."""
    noise = random.Random(codec).randbytes(2000)
    sent = message(noise, compression=codec, uncompressed_size=10**4, num_messages_in_batch=5)
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub")
        raw.producer(topic)
        raw.publish(sent, num_messages=5, highest_sequence_id=4)
        receipt = raw.receipt().send_receipt
        assert (receipt.sequence_id, receipt.highest_sequence_id) == (0, 4)
        assert raw.message()[1] == sent


def test_a_batch_is_one_entry_with_an_index_for_each_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=10_000
    )
    ids = send_all(producer, [b"%d" % index for index in range(10)])
    assert [position(message_id)[1:] for message_id in ids] == [
        (entry, index) for entry in (0, 1) for index in range(5)
    ]
    received = take(consumer, 10)
    assert [entry.data() for entry in received] == [b"%d" % index for index in range(10)]
    assert [position(entry.message_id()) for entry in received] == [position(message_id) for message_id in ids]


def test_a_batch_of_one_is_still_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic, batching_enabled=True).send(b"alone", properties={"k": "v"})
    received = consumer.receive(30_000)
    assert (received.data(), received.properties(), position(received.message_id())[1:]) == (
        b"alone",
        {"k": "v"},
        (0, 0),
    )


def test_key_based_batches_carry_their_key_on_the_entry(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    """Key_Shared needs one key per entry: the client then batches by key."""
    with RawConnection(server.port) as raw:
        raw.subscribe(topic, "sub")
        producer = client.create_producer(
            topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=50
        )
        for index in range(12):
            producer.send_async(b"%d" % index, None, partition_key=f"key-{index % 3}")
        producer.flush()
        found = {}
        for _ in range(3):
            metadata, _ = split(raw.message()[1])
            found[metadata.partition_key] = metadata.num_messages_in_batch
    assert found == {"key-0": 4, "key-1": 4, "key-2": 4}


@pytest.mark.parametrize("count", [0, -1])
def test_an_impossible_batch_is_refused(server: ServerProcess, topic: str, count: int) -> None:
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.publish(message(b"x", num_messages_in_batch=count))
        assert raw.receipt().send_error.error == 9  # ChecksumError: the one that lets a producer go on


def test_chunks_of_a_large_message(start_server: StartServer, connect: Connect, topic: str) -> None:
    """10 MiB through a server that takes 1024000 bytes at once; small messages in between are not disturbed."""
    client = connect(start_server(maxMessageSize=1024000).service_url)
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    chunked = client.create_producer(topic, chunking_enabled=True)
    plain = client.create_producer(topic)
    large = random.Random(1).randbytes(10 * 1024 * 1024)
    sent: list[pulsar.Result] = []
    chunked.send_async(large, lambda result, _: sent.append(result))
    plain.send(b"in between")
    chunked.flush()
    assert sent == [pulsar.Result.Ok]
    received = {hashlib.sha256(payload).digest() for payload in receive_all(consumer, 2, timeout_ms=20_000)}
    assert received == {hashlib.sha256(payload).digest() for payload in (large, b"in between")}


def test_an_acknowledged_chunked_message_is_gone_as_a_whole(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    """Every chunk is an entry of its own and must be acknowledged with the message."""
    server = start_server(maxMessageSize=10240)
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, chunking_enabled=True)
    large = random.Random(2).randbytes(100_000)
    last = producer.send(large)
    assert last.entry_id() >= 9
    assert receive_all(consumer, 1, timeout_ms=10_000) == [large]
    producer.send(b"next")
    consumer.close()
    consumer = client.subscribe(topic, "sub")
    assert receive_all(consumer, 1) == [b"next"]


def test_permits_of_batches_are_counted_in_messages(server: ServerProcess, topic: str) -> None:
    """Permits may be overdrawn by the rest of one batch, and then nothing comes until they are positive again."""
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", permits=6)
        for _ in range(4):
            raw.publish(message(batch([b"x"] * 5), num_messages_in_batch=5), num_messages=5, highest_sequence_id=4)
        assert [raw.message()[0].message.message_id.entryId for _ in range(2)] == [0, 1]
        assert raw.silent(9, for_s=0.2)
        raw.flow(4)  # 6 - 10 + 4 = 0
        assert raw.silent(9, for_s=0.2)
        raw.flow(1)
        assert raw.message()[0].message.message_id.entryId == 2
        assert raw.silent(9, for_s=0.2)
