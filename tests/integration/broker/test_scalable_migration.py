"""Classic topics that become scalable ones in place: what official clients wrote before is read after, by those who follow segments."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.admin.client import AdminClient
from magnetar.admin.client.errors import AdminClientError, ConflictError, NotFoundError, PreconditionFailedError
from magnetar.client.scalable import Client
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.support.raw_scalable import ScalableClient, segments_of
from tests.support.scalable import publish
from tests.support.scalable_faults import MIGRATION_STEPS, environment
from tests.support.waiting import wait_until

KEYS = [f"key-{number}" for number in range(6)]
Rows = dict[str, list[int]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"scalableTopicAutoScaleIntervalSeconds": "0.2", "scalableTopicAutoScaleEnabled": "false"}
    process = ServerProcess(tmp_path_factory.mktemp("server") / "data", settings).start()
    yield process
    process.close()


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[AdminClient]:
    with AdminClient(server.http_url) as client:
        yield client


@pytest.fixture
def official(server: ServerProcess) -> Iterator[pulsar.Client]:
    client = pulsar.Client(
        server.service_url, operation_timeout_seconds=10, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield client
    client.close()


def write(official: pulsar.Client, topic: str, numbers: range) -> None:
    """Each number under each key, with a schema."""
    producer = official.create_producer(topic, schema=pulsar.schema.StringSchema())
    for number in numbers:
        for key in KEYS:
            producer.send_async(str(number), lambda result, identifier: None, partition_key=key)
    producer.flush()
    producer.close()


async def read_stream(service_url: str, topic: str, subscription: str, count: int) -> Rows:
    found: Rows = defaultdict(list)
    async with Client(service_url) as client:
        consumer = await client.stream_consumer(topic, subscription, earliest=True)
        for _ in range(count):
            message = await consumer.receive(timeout_s=20)
            found[message.key or ""].append(int(message.value or b""))
            await consumer.acknowledge_cumulative(message)
        await consumer.close()
    return found


async def read_queue(service_url: str, topic: str, subscription: str, count: int) -> Rows:
    found: Rows = defaultdict(list)
    async with Client(service_url) as client:
        consumer = await client.queue_consumer(topic, subscription, earliest=True)
        for _ in range(count):
            message = await consumer.receive(timeout_s=20)
            found[message.key or ""].append(int(message.value or b""))
            await consumer.acknowledge(message)
        await consumer.close()
    return found


def test_what_official_clients_wrote_before_is_read_after(
    server: ServerProcess, admin: AdminClient, official: pulsar.Client
) -> None:
    admin.topics.create_partitioned("moves", 3)
    consumers = {
        name: official.subscribe("moves", name, initial_position=pulsar.InitialPosition.Earliest) for name in ("s", "q")
    }
    write(official, "moves", range(5))
    with pytest.raises(ConflictError, match="classic clients"):
        admin.scalable_topics.migrate("moves")
    for _ in range(len(KEYS) * 2):
        consumers["s"].acknowledge(consumers["s"].receive(10_000))
    read_before = len(KEYS) * 2
    for consumer in consumers.values():
        consumer.close()
    admin.scalable_topics.migrate("moves")

    found = admin.scalable_topics.metadata("moves")
    old = [found.segments[str(number)] for number in range(3)]
    assert [each.legacy_topic_name for each in old] == [
        f"persistent://public/default/moves-partition-{n}" for n in range(3)
    ]
    assert {(each.state, each.hash_range.start, each.hash_range.end) for each in old} == {("SEALED", 0, 0xFFFF)}
    assert all(each.parent_ids == [0, 1, 2] for number, each in found.segments.items() if int(number) > 2)
    assert "persistent://public/default/moves" not in admin.topics.list_partitioned("public/default")
    with pytest.raises(ConflictError, match="already"):
        admin.scalable_topics.migrate("moves")

    publish(server.service_url, "topic://public/default/moves", range(5, 9), KEYS)
    total = len(KEYS) * 9
    queued = asyncio.run(read_queue(server.service_url, "topic://public/default/moves", "q", total))
    assert {key: sorted(numbers) for key, numbers in queued.items()} == {key: list(range(9)) for key in KEYS}
    streamed = asyncio.run(read_stream(server.service_url, "topic://public/default/moves", "s", total - read_before))
    assert all(numbers == sorted(numbers) and numbers[-4:] == [5, 6, 7, 8] for numbers in streamed.values()), streamed

    wait_until(lambda: not {"0", "1", "2"} & set(admin.scalable_topics.metadata("moves").segments))
    wait_until(lambda: not [each for each in admin.topics.list("public/default") if "moves-partition" in each])
    assert admin.schemas.get("moves").type == "STRING"  # it is the scalable topic's by now


def test_classic_clients_are_told_what_became_of_their_topic(
    server: ServerProcess, admin: AdminClient, official: pulsar.Client
) -> None:
    consumer = official.subscribe("plain", "s", initial_position=pulsar.InitialPosition.Earliest)
    write(official, "plain", range(3))
    producer = official.create_producer("plain", schema=pulsar.schema.StringSchema(), send_timeout_millis=3000)
    admin.scalable_topics.migrate("plain", force=True)
    with pytest.raises(pulsar.PulsarException):
        producer.send("late")
    with pytest.raises(pulsar.TopicTerminated):
        official.create_producer("plain")
    with pytest.raises(pulsar.NotAllowedError):
        official.subscribe("plain", "other")
    with ScalableClient(server.port) as client:
        client.connect()
        answers = [client.producer("plain"), client.subscribe("plain", "s")]
        for answer, code in zip(answers, (ServerError.TopicTerminatedError, ServerError.NotAllowedError), strict=True):
            assert answer.type == BaseCommand.ERROR
            assert answer.error.error == code
            assert "it has become the scalable topic topic://public/default/plain" in answer.error.message
    consumer.close()
    found = asyncio.run(read_stream(server.service_url, "topic://public/default/plain", "s", len(KEYS) * 3))
    assert found == {key: [0, 1, 2] for key in KEYS}


def test_clients_of_scalable_topics_go_on_while_their_topic_is_migrated(
    server: ServerProcess, admin: AdminClient
) -> None:
    admin.topics.create_partitioned("alive", 2)
    topic = "topic://public/default/alive"

    async def run() -> Rows:
        found: Rows = defaultdict(list)
        async with Client(server.service_url) as client:
            consumer = await client.queue_consumer(topic, "q", earliest=True)
            producer = await client.producer(topic)
            for number in range(10):
                if number == 5:
                    await asyncio.to_thread(admin.scalable_topics.migrate, topic)
                await asyncio.gather(*(producer.send(b"%d" % number, key=key) for key in KEYS))
            for _ in range(10 * len(KEYS)):
                message = await consumer.receive(timeout_s=20)
                found[message.key or ""].append(int(message.value or b""))
                await consumer.acknowledge(message)
        return found

    assert {key: sorted(numbers) for key, numbers in asyncio.run(run()).items()} == {
        key: list(range(10)) for key in KEYS
    }
    with ScalableClient(server.port) as client:
        client.connect()
        states = [state for _, _, state in segments_of(client.layout(topic)).values()]
    assert states.count("ACTIVE") == 2


def test_what_cannot_be_migrated(admin: AdminClient) -> None:
    with pytest.raises(NotFoundError):
        admin.scalable_topics.migrate("nothing-here")
    admin.topics.create_partitioned("parts", 2)
    with pytest.raises(PreconditionFailedError, match="whole topic"):
        admin.scalable_topics.migrate("parts-partition-0")
    admin.scalable_topics.create("is-one")
    with pytest.raises(ConflictError):
        admin.scalable_topics.migrate("is-one")


ALL = tuple(range(1, MIGRATION_STEPS + 1))


@pytest.mark.parametrize("steps", [(1, 5), pytest.param(ALL, marks=pytest.mark.long)])
def test_a_migration_that_is_cut_off_at_any_step_is_ended(tmp_path: Path, steps: tuple[int, ...]) -> None:
    """One data directory; each start has the crash of the one before behind it, and the next one ahead."""
    server = ServerProcess(tmp_path / "data")
    try:
        for before, step in zip((0, *steps), (*steps, 0), strict=True):
            server.environment = environment(tmp_path / "faults", step)
            server.start()
            if before:
                check_ended(server, f"cut-{before}")
            if step:
                cut_off(server, f"cut-{step}")
    finally:
        server.close()


def cut_off(server: ServerProcess, name: str) -> None:
    with AdminClient(server.http_url, timeout_s=10) as admin:
        admin.topics.create_partitioned(name, 2)
        client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client.subscribe(name, "s").close()
        write(client, name, range(2))
        client.close()
        with pytest.raises(AdminClientError):
            admin.scalable_topics.migrate(name)
    server.wait()


def check_ended(server: ServerProcess, name: str) -> None:
    topic = f"topic://public/default/{name}"
    publish(server.service_url, topic, range(2, 4), KEYS)
    found = asyncio.run(read_stream(server.service_url, topic, "s", len(KEYS) * 4))
    assert found == {key: [0, 1, 2, 3] for key in KEYS}
    with AdminClient(server.http_url) as admin:
        metadata = admin.scalable_topics.metadata(topic)
        assert metadata.pending_change is None
        assert sorted(each.state for each in metadata.segments.values()) == ["ACTIVE"] * 2 + ["SEALED"] * 2
        assert f"persistent://public/default/{name}" not in admin.topics.list_partitioned("public/default")
