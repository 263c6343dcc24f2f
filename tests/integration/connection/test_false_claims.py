"""What a message claims of itself (messages in the batch, size unpacked, chunks) costs other people only what can be true."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.broker.connection.handlers import send
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandAck, CommandSubscribe, ServerError
from tests.support.in_process import InProcessServer
from tests.support.messages import receive_all
from tests.support.raw_client import RawConnection, batch, message
from tests.support.waiting import wait_until

NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)
U32_MAX = 2**32 - 1
I64_MAX = 2**63 - 1
KINDS = [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]

Connect = Callable[..., pulsar.Client]


def refused(server: ServerProcess, topic: str, data: bytes, **command: Any) -> bool:
    """Publish `data`. True if it is refused with the code after which a producer goes on, and the next message is stored."""
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.publish(data, **command)
        answer = raw.receipt()
        raw.publish(message(b"next"), sequence_id=I64_MAX)
        assert raw.receipt().type == BaseCommand.SEND_RECEIPT
    if answer.type == BaseCommand.SEND_RECEIPT:
        return False
    assert answer.send_error.error == ServerError.ChecksumError
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_count_stops_no_official_consumer(
    server: ServerProcess, connect: Connect, topic: str, kind: pulsar.ConsumerType
) -> None:
    """39 bytes of metadata and noise that claim 100,000 messages."""
    consumer = connect(server.service_url).subscribe(topic, "sub", kind, receiver_queue_size=1000)
    forged = message(b"x", compression=LZ4, uncompressed_size=U32_MAX, num_messages_in_batch=100_000)
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.publish(forged, num_messages=100_000)
        assert raw.receipt().type in (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)
        raw.publish(message(b"good"), sequence_id=1)
        assert raw.receipt().type == BaseCommand.SEND_RECEIPT
    assert consumer.receive(30_000).data() == b"good"


@pytest.fixture
def in_process(tmp_path: Path) -> Iterator[InProcessServer]:
    with InProcessServer(tmp_path / "data") as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "claims",
    [
        {"compression": ZLIB, "uncompressed_size": 10_000_000, "num_messages_in_batch": 100_000},
        {"compression": ZSTD, "uncompressed_size": 400_000, "num_messages_in_batch": 60_000},
    ],
    ids=["impossible", "possible"],
)
def test_stored_entries_with_such_claims_stop_no_official_consumer(
    in_process: InProcessServer,
    monkeypatch: pytest.MonkeyPatch,
    connect: Connect,
    topic: str,
    kind: pulsar.ConsumerType,
    claims: dict[str, int],
) -> None:
    """They were let in by a server that did not look, or could be true; the client cannot unpack them and gives one permit back."""
    consumer = connect(in_process.service_url).subscribe(topic, "sub", kind, receiver_queue_size=100)
    with RawConnection(in_process.port) as raw, monkeypatch.context() as patched:
        patched.setattr(send, "false_claim", lambda metadata, payload_bytes: "", raising=False)
        raw.producer(topic)
        for number in range(3):
            raw.publish(message(b"\xff" * 14, **claims), sequence_id=number)
            assert raw.receipt().type == BaseCommand.SEND_RECEIPT
        for number in range(3, 400):
            raw.publish(message(b"%d" % number), sequence_id=number)
        received = receive_all(consumer, 397)
    assert received == [b"%d" % number for number in range(3, 400)]


DAMAGED = message(b"not zlib", compression=ZLIB, uncompressed_size=600, num_messages_in_batch=10)
"""Costs its consumer ten permits; the client, which cannot unpack it, gives back one."""


def test_small_claims_do_not_use_up_a_consumers_permits(server: ServerProcess, connect: Connect, topic: str) -> None:
    consumer = connect(server.service_url).subscribe(topic, "sub", receiver_queue_size=20)
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        for number in range(50):
            raw.publish(DAMAGED, sequence_id=number)
            raw.publish(message(b"good"), sequence_id=number)
            assert consumer.receive(30_000).data() == b"good"


def test_small_claims_do_not_use_up_permits_where_nothing_is_stored(
    server: ServerProcess, connect: Connect, topic: str
) -> None:
    """A consumer without permits misses messages there, until it has some again."""
    name = topic.replace("persistent", "non-persistent", 1)
    consumer = connect(server.service_url).subscribe(name, "sub", receiver_queue_size=20)
    with RawConnection(server.port) as raw:
        raw.producer(name)
        for number in range(50):
            raw.publish(DAMAGED, sequence_id=number)
            raw.receipt()

        def received() -> bool:
            raw.publish(message(b"good"))
            raw.receipt()
            try:
                return bool(consumer.receive(100).data() == b"good")
            except pulsar.Timeout:
                return False

        for _ in range(50):
            wait_until(received, 60, "a message arrives")


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_reports_of_damage_grant_no_more_than_the_clients_queue(server: ServerProcess, topic: str, kind: str) -> None:
    """A client that gives back all permits of a batch it could not read, and says so again and again."""
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub", CommandSubscribe.SubType.Value(kind), permits=10)
        for number in range(40):
            raw.publish(message(batch([b"x"] * 5), num_messages_in_batch=5), sequence_id=number)
            raw.receipt()
        first = [raw.message()[0].message.message_id for _ in range(2)]
        for _ in range(20):
            ack = BaseCommand(type=BaseCommand.ACK)
            ack.ack.consumer_id = 1
            ack.ack.ack_type = CommandAck.Individual
            ack.ack.validation_error = CommandAck.DecompressionError
            ack.ack.message_id.add().CopyFrom(first[0])
            raw.send(ack)
        further = 0
        while not raw.silent(BaseCommand.MESSAGE, for_s=0.3):
            further += 1
            assert further <= 20
        assert raw.consumer_stats().consumerStatsResponse.availablePermits == 0


@pytest.mark.parametrize(
    ("payload", "claims"),
    [
        (b"x", {"num_messages_in_batch": 2}),
        (b"x" * 5_999, {"num_messages_in_batch": 1000}),
        (b"x", {"compression": LZ4, "uncompressed_size": U32_MAX}),
        (b"x" * 10, {"compression": LZ4, "uncompressed_size": 2561}),
        (b"x" * 10, {"compression": ZLIB, "uncompressed_size": 10_401}),
        (b"x" * 10, {"compression": ZSTD, "uncompressed_size": 400_001}),
        (b"x" * 10, {"compression": SNAPPY, "uncompressed_size": 321}),
        (b"x" * 10, {"compression": SNAPPY, "uncompressed_size": 300, "num_messages_in_batch": 51}),
        (b"x", {"num_chunks_from_msg": 2**31 - 1, "chunk_id": 0, "total_chunk_msg_size": 2**31 - 1}),
        (b"x", {"num_chunks_from_msg": 3, "chunk_id": 0, "total_chunk_msg_size": 2**31 - 1}),
        (b"x", {"num_chunks_from_msg": 3, "chunk_id": 0, "total_chunk_msg_size": -1}),
        (b"x" * 10, {"num_chunks_from_msg": 3, "chunk_id": 0, "total_chunk_msg_size": 9}),
        (b"x", {"num_chunks_from_msg": 3, "chunk_id": 3, "total_chunk_msg_size": 3}),
        (b"x", {"num_chunks_from_msg": 3, "chunk_id": -1, "total_chunk_msg_size": 3}),
        (b"x", {"partition_key": "k" * (1024 * 1024)}),
    ],
    ids=lambda value: (
        "-".join(f"{key}={str(each)[:12]}" for key, each in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_what_cannot_be_true_is_refused(
    server: ServerProcess, topic: str, payload: bytes, claims: dict[str, Any]
) -> None:
    if "num_chunks_from_msg" in claims:
        claims = {**claims, "uuid": "u"}
    assert refused(server, topic, message(payload, **claims))


@pytest.mark.parametrize("codec", [LZ4, ZLIB, ZSTD, SNAPPY])
def test_the_most_compressible_batch_of_an_official_client_passes(
    server: ServerProcess, connect: Connect, topic: str, codec: int
) -> None:
    kinds = pulsar.CompressionType
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic,
        compression_type=[None, kinds.LZ4, kinds.ZLib, kinds.ZSTD, kinds.SNAPPY][codec],
        batching_enabled=True,
        batching_max_messages=10_000,
        batching_max_publish_delay_ms=10_000,
        batching_max_allowed_size_in_bytes=10_000_000,
        max_pending_messages=20_000,
    )
    results: list[pulsar.Result] = []
    for size in (1, 2, 300):
        for _ in range(2_000):
            producer.send_async(bytes(size), lambda result, _: results.append(result))
        producer.flush()
    assert results == [pulsar.Result.Ok] * 6_000
    producer.send_async(bytes(4_000_000), lambda result, _: results.append(result))
    producer.flush()
    sizes = [len(consumer.receive(30_000).data()) for _ in range(6_001)]
    assert sizes == [1] * 2_000 + [2] * 2_000 + [300] * 2_000 + [4_000_000]


@pytest.mark.parametrize("claim", [2**31 - 1, 1])
def test_rates_are_charged_by_what_an_entry_holds(server: ServerProcess, topic: str, claim: int) -> None:
    """And not by what its command says: it would hold up all producers of the topic for years."""
    with RawConnection(server.port) as raw:
        raw.producer(topic)
        raw.publish(message(batch([b"x"] * 5), num_messages_in_batch=5), num_messages=claim)
        assert raw.receipt().type == BaseCommand.SEND_RECEIPT
    with urllib.request.urlopen(f"{server.http_url}/admin/v2/{topic.replace('://', '/')}/stats") as answer:
        assert json.load(answer)["msgInCounter"] == 5


class TestDeduplication:
    """Sequence ids are claims as well: they decide what counts as repeated, also after a restart."""

    @pytest.fixture
    def deduplicating(self, start_server: Callable[..., ServerProcess]) -> ServerProcess:
        return start_server(brokerDeduplicationEnabled=True)

    @pytest.mark.parametrize("sequence_id", [2**63, 2**64 - 1])
    def test_ids_that_no_client_can_count_are_refused(
        self, deduplicating: ServerProcess, topic: str, sequence_id: int
    ) -> None:
        with RawConnection(deduplicating.port) as raw:
            raw.producer(topic, producer_name="p", user_provided_producer_name=True)
            raw.publish(message(b"x", producer_name="p", sequence_id=sequence_id), sequence_id=sequence_id)
            assert raw.receipt().type == BaseCommand.SEND_ERROR
            raw.publish(message(b"x", producer_name="p", sequence_id=7), sequence_id=7)
            assert raw.receipt().type == BaseCommand.SEND_RECEIPT
        deduplicating.restart()
        with RawConnection(deduplicating.port) as raw:
            again = raw.producer(topic, producer_name="p", user_provided_producer_name=True)
            assert again.producer_success.last_sequence_id == 7
        assert "Traceback" not in deduplicating.log()

    @pytest.mark.parametrize(
        "metadata",
        [{"producer_name": "victim", "sequence_id": 2**62}, {"producer_name": "attacker", "sequence_id": 2**62}],
        ids=["name", "sequence"],
    )
    def test_a_message_raises_nobody_elses_watermark(
        self, deduplicating: ServerProcess, connect: Connect, topic: str, metadata: dict[str, Any]
    ) -> None:
        """The metadata says what the frame does not; it is what a restarted server reads."""
        with RawConnection(deduplicating.port) as raw:
            raw.producer(topic, producer_name="attacker", user_provided_producer_name=True)
            raw.publish(message(b"x", **metadata), sequence_id=0)
            raw.receipt()
        deduplicating.kill()
        deduplicating.start()
        client = connect(deduplicating.service_url)
        for name in ("victim", "attacker"):
            producer = client.create_producer(topic, producer_name=name)
            assert producer.last_sequence_id() < 2**62
            assert producer.send(b"mine", sequence_id=5).entry_id() >= 0
