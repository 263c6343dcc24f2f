"""Clients that send and do not read, ask and do not read, subscribe and do not read: memory stays bounded, others are served."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import requests

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.headers import payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.messages import patient
from tests.support.process import MIB, peak_resident_bytes, reset_peak, resident_bytes
from tests.support.raw import ClosedByServer, RawClient, send_frame

SMALL_BUFFER_BYTES = 4096
LATENCY_MAX_MS = 5000
"""For the others' slowest round trip: generous, since flood, server and measurement share two cores with whatever else runs."""


@pytest.fixture(scope="module")
def frugal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose caches are small: what it uses beyond them is what a hostile client made it use."""
    settings = {
        "managedLedgerCacheSizeMB": 1,
        "dbStorage_writeCacheMaxSizeMb": 4,
        "maxMessagePublishBufferSizeInMB": 32,
    }
    process = ServerProcess(tmp_path_factory.mktemp("frugal") / "data", settings).start()
    yield process
    process.close()


@contextmanager
def bounded(server: ServerProcess, growth_bytes: int, what: str) -> Iterator[None]:
    """Peak memory of the server inside the block, and the slowest round trip of another client meanwhile."""
    latencies: list[float] = []
    failures: list[BaseException] = []
    over = threading.Event()
    worker = threading.Thread(target=_round_trips, args=(server.port, what, over, latencies, failures), daemon=True)
    worker.start()
    while len(latencies) < 20 and worker.is_alive():
        time.sleep(0.01)
    reset_peak(server.pid)
    before = resident_bytes(server.pid)
    latencies.clear()
    yield
    enough = time.monotonic() + 60
    while len(latencies) < 12 and time.monotonic() < enough:
        time.sleep(0.01)
    grown = peak_resident_bytes(server.pid) - before
    over.set()
    worker.join(10)
    assert failures == []
    slowest = max(latencies)
    print(f"\n{what}: peak +{grown / MIB:.0f} MiB, {len(latencies)} round trips, slowest {slowest * 1000:.0f} ms")
    assert grown < growth_bytes, f"{grown / MIB:.1f} MiB"
    assert len(latencies) > 10
    assert slowest < patient(LATENCY_MAX_MS) / 1000
    assert "Traceback" not in server.log(), server.log()[-4000:]


def _round_trips(
    port: int, what: str, over: threading.Event, latencies: list[float], failures: list[BaseException]
) -> None:
    try:
        with RawClient(port) as client:
            client.connect()
            topic = f"others-{what.replace(' ', '-')}"
            client.producer(topic)
            client.subscribe(topic)
            while not over.wait(0.005):
                started = time.monotonic()
                client.flow(1)
                client.send_bytes(send_frame(b"x"))
                client.until(BaseCommand.MESSAGE, 60)
                latencies.append(time.monotonic() - started)
    except BaseException as error:
        failures.append(error)


def silent_client(port: int) -> RawClient:
    client = RawClient(port, receive_buffer_bytes=SMALL_BUFFER_BYTES)
    client.connect()
    return client


def test_a_producer_that_floods_and_never_reads_receipts(frugal: ServerProcess, topic: str) -> None:
    """150 MB of single messages; the receipts go nowhere."""
    with silent_client(frugal.port) as client, bounded(frugal, 100 * MIB, "flood of sends"):
        client.producer(topic)
        burst = b"".join(send_frame(bytes(1024), number) for number in range(1000))
        for _ in range(150):
            client.send_bytes(burst, 30)


def test_a_flood_of_large_messages(frugal: ServerProcess, topic: str) -> None:
    """400 MB in messages of 4 MB from four connections: what waits for the disk is bounded over all of them."""
    with bounded(frugal, 200 * MIB, "flood of large sends"):
        clients = [silent_client(frugal.port) for _ in range(4)]
        frame = send_frame(bytes(4 * MIB))
        for client in clients:
            client.producer(topic)

        def flood(client: RawClient) -> None:
            for _ in range(25):
                client.send_bytes(frame, 30)
            for _ in range(25):
                assert client.receive(30)[0].type == BaseCommand.SEND_RECEIPT

        threads = [threading.Thread(target=flood, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        for client in clients:
            client.close()


def test_consumers_that_never_read(frugal: ServerProcess, topic: str) -> None:
    """80 MB of backlog, ten consumers with all the permits there are, and none reads its socket."""
    with RawClient(frugal.port) as producer:
        producer.connect()
        producer.producer(topic)
        for number in range(80):
            assert producer.publish(bytes(MIB), number).type == BaseCommand.SEND_RECEIPT
    clients = []
    with bounded(frugal, 120 * MIB, "consumers that never read"):
        for number in range(10):
            client = silent_client(frugal.port)
            clients.append(client)
            assert client.subscribe(topic, f"never-{number}").type == BaseCommand.SUCCESS
            for _ in range(3):
                client.flow(2**31 - 1)
        with RawClient(frugal.port) as reader:
            reader.connect()
            assert reader.subscribe(topic, "reads").type == BaseCommand.SUCCESS
            reader.flow(1000)
            for _ in range(80):
                assert len(payload_of(reader.message(20)[1])) == MIB
    for client in clients:
        client.close()


def test_one_consumer_of_a_subscription_never_reads(frugal: ServerProcess, topic: str) -> None:
    """What fits its connection is its part; everything else goes to the one that reads."""
    with silent_client(frugal.port) as stuck, RawClient(frugal.port) as reads:
        assert stuck.subscribe(topic, "shared").type == BaseCommand.SUCCESS
        stuck.flow(2**31 - 1)
        reads.connect()
        reads.subscribe(topic, "shared")
        reads.flow(2**31 - 1)
        reads.producer(topic)
        got = set[int]()
        with bounded(frugal, 80 * MIB, "one of two never reads"):
            for number in range(60):
                reads.send_bytes(send_frame(bytes(MIB), number))
                while (command := reads.receive()[0]).type == BaseCommand.MESSAGE:
                    got.add(command.message.message_id.entryId)
                assert command.type == BaseCommand.SEND_RECEIPT
        assert len(got) > 30
        stuck.close()
        while len(got) < 60:  # its part comes back once it is gone
            got.add(reads.message(20)[0].message.message_id.entryId)


def test_slow_is_not_stuck(frugal: ServerProcess, topic: str) -> None:
    """A consumer that reads slowly gets everything, in order, at its own pace."""
    with RawClient(frugal.port, receive_buffer_bytes=SMALL_BUFFER_BYTES) as client:
        client.connect()
        client.producer(topic)
        for number in range(40):
            client.publish(number.to_bytes(2, "big") + bytes(300_000), number)
        client.subscribe(topic, kind="Exclusive")
        client.flow(1000)
        numbers = []
        for _ in range(40):
            numbers.append(int.from_bytes(payload_of(client.message(20)[1])[:2], "big"))
            time.sleep(0.005)
        assert numbers == list(range(40))


@pytest.mark.parametrize("what", ["lookups", "pings", "partition lookups", "topic lists"])
def test_a_client_that_asks_and_never_reads(frugal: ServerProcess, what: str) -> None:
    """It is cut off in the end, or not read from any more; until then its answers have a bound."""
    question = {
        "lookups": BaseCommand(type=BaseCommand.LOOKUP, lookupTopic={"topic": "asked", "request_id": 1}),
        "pings": BaseCommand(type=BaseCommand.PING, ping={}),
        "partition lookups": BaseCommand(
            type=BaseCommand.PARTITIONED_METADATA, partitionMetadata={"topic": "asked", "request_id": 1}
        ),
        "topic lists": BaseCommand(
            type=BaseCommand.GET_TOPICS_OF_NAMESPACE,
            getTopicsOfNamespace={"request_id": 1, "namespace": "public/default"},
        ),
    }[what]
    burst = encode_frame(question.SerializeToString()) * 2000
    with silent_client(frugal.port) as client, bounded(frugal, 150 * MIB, f"{what} without reading"):
        deadline = time.monotonic() + 4
        try:
            while time.monotonic() < deadline and client.send_some(burst, 0.5) == len(burst):
                pass
        except ClosedByServer:
            pass


@pytest.fixture(scope="module")
def crowded(frugal: ServerProcess) -> str:
    """A namespace whose list of topics takes 300 kB."""
    namespace = "crowded/ns"
    calls: list[tuple[str, object]] = [
        ("tenants/crowded", {"adminRoles": [], "allowedClusters": ["standalone"]}),
        (f"namespaces/{namespace}", None),
        *((f"persistent/{namespace}/a-topic-of-many-{number}/partitions", 1000) for number in range(5)),
    ]
    for path, body in calls:
        requests.put(f"{frugal.http_url}/admin/v2/{path}", json=body, timeout=30).raise_for_status()
    return namespace


def list_request(namespace: str) -> bytes:
    request = {"request_id": 1, "namespace": namespace}
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=request)
    return encode_frame(command.SerializeToString())


def test_large_answers_that_nobody_reads_are_not_made(frugal: ServerProcess, crowded: str) -> None:
    """40,000 times 300 kB."""
    burst = list_request(crowded) * 1000
    with silent_client(frugal.port) as client, bounded(frugal, 50 * MIB, "lists without reading"):
        for _ in range(40):
            if client.send_some(burst, 0.2) < len(burst):
                break  # it is not read any more
        time.sleep(2)
        assert (
            client.receive(60)[0].type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
        )  # who reads after all is served


def test_large_answers_to_many_connections_that_nobody_reads(frugal: ServerProcess, crowded: str) -> None:
    """Each of 200 connections stays below what one may hold; all together do not hold 200 times as much."""
    burst = list_request(crowded) * 20
    with ExitStack() as stack, bounded(frugal, 110 * MIB, "lists to many connections"):
        clients = [stack.enter_context(silent_client(frugal.port)) for _ in range(200)]
        for client in clients:
            client.send_some(burst, 1)
        time.sleep(3)


def test_who_reads_gets_every_answer(frugal: ServerProcess, crowded: str) -> None:
    """More is asked at once than one connection may have unread; a slow reader gets all of it."""
    with RawClient(frugal.port, receive_buffer_bytes=SMALL_BUFFER_BYTES) as client:
        client.connect()
        client.send_bytes(list_request(crowded) * 30)
        for _ in range(30):
            answer = client.until(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, 60).getTopicsOfNamespaceResponse
            assert len(answer.topics) == 5000
            time.sleep(0.01)


def test_answers_to_a_vanished_client_go_nowhere(frugal: ServerProcess) -> None:
    """Asked, and gone before the answer: nothing is left of it."""
    question = BaseCommand(type=BaseCommand.LOOKUP, lookupTopic={"topic": "asked", "request_id": 1})
    burst = encode_frame(question.SerializeToString()) * 500
    with bounded(frugal, 80 * MIB, "vanishing clients"):
        for number in range(50):
            with RawClient(frugal.port) as client:
                client.connect()
                client.send_bytes(burst)
                client.send(
                    BaseCommand(
                        type=BaseCommand.PRODUCER, producer={"topic": "v", "producer_id": number, "request_id": 1}
                    )
                )
