"""Topics that nobody uses leave memory, and no client can tell: what keeps a topic there, what comes back with it, and clients that come in
the middle of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.broker import upkeep
from magnetar.broker.naming import TopicName
from magnetar.broker.schemas.admission import SchemaAdmission
from magnetar.broker.topics import registry
from tests.support.in_process import InProcessServer
from tests.support.waiting import wait_until

RECEIVE_MS = 20_000


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RELEASED_AFTER_S", 0.0)
    monkeypatch.setattr(upkeep, "RELEASE_INTERVAL_S", 0.01)


def loaded(server: InProcessServer) -> set[str]:
    return {topic.name.local_name for topic in server.broker.topics.loaded}


def consume(client: pulsar.Client, topic: str, subscription: str, count: int) -> list[bytes]:
    consumer = client.subscribe(topic, subscription, initial_position=pulsar.InitialPosition.Earliest)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    return [message.data() for message in messages]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcessServer]:
    settings = {"topics_kept_in_memory": 1, "broker_deduplication_enabled": True, "retention_check_interval_s": 1}
    with InProcessServer(tmp_path / "data", **settings) as server:
        yield server


@pytest.fixture
def client(server: InProcessServer) -> Iterator[pulsar.Client]:
    client = pulsar.Client(server.service_url)
    yield client
    client.close()


def test_what_is_released_and_what_is_not(server: InProcessServer, client: pulsar.Client) -> None:
    """One topic for each thing that keeps it in memory, and one that nothing keeps; that one comes back as it was."""
    connected = client.create_producer("connected")
    consumer = client.subscribe("subscribed", "s")
    client.subscribe("behind", "s").close()
    behind = client.create_producer("behind")
    behind.send(b"x")
    behind.close()
    client.subscribe("idle", "s").close()
    idle = client.create_producer("idle", "namesake")
    idle.send(b"first", sequence_id=7)
    idle.close()
    assert consume(client, "idle", "s", 1) == [b"first"]

    wait_until(
        lambda: loaded(server) == {"connected", "subscribed", "behind"}, what="the release of `idle`", timeout_s=120
    )
    connected.send(b"still")
    again = client.create_producer("idle", "namesake")
    assert again.last_sequence_id() == 7
    again.send(b"repeated", sequence_id=7)
    again.send(b"second", sequence_id=8)
    again.close()
    assert consume(client, "idle", "s", 1) == [b"second"]
    name = TopicName.parse("persistent://public/default/idle")
    wait_until(lambda: server.broker.topics.get_loaded(name) is None, what="another release of `idle`", timeout_s=120)
    consumer.close()


def use_topics(service_url: str, number: int) -> None:
    """A connection for a producer and one for a consumer each time; each message comes once and in order."""
    chance, expected = random.Random(number), dict[str, list[bytes]]()
    client = pulsar.Client(service_url)
    try:
        for turn in range(25):
            topic = f"topic-{number}-{chance.randrange(3)}"
            client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest).close()
            producer = client.create_producer(topic)
            data = [b"%d %d" % (turn, part) for part in range(chance.randrange(1, 4))]
            for each in data:
                producer.send(each)
            producer.close()
            expected.setdefault(topic, []).extend(data)
            if chance.random() < 0.6:
                wanted = expected.pop(topic)
                assert consume(client, topic, "s", len(wanted)) == wanted
    finally:
        client.close()


def test_clients_that_come_while_topics_are_released(tmp_path: Path) -> None:
    """Three of them, while every topic without a backlog is released as soon as nobody is connected."""
    forever = {"default_retention_minutes": -1, "default_retention_size_mb": -1}
    with (
        InProcessServer(tmp_path / "data", topics_kept_in_memory=1, **forever) as server,
        ThreadPoolExecutor(3) as threads,
    ):
        for used in [threads.submit(use_topics, server.service_url, number) for number in range(3)]:
            used.result()
        topics = server.broker.topics
        wait_until(
            lambda: len(topics.loaded) < 9 or any(topics.unloaded_ms(topic.name) for topic in topics.loaded),
            what="a topic that was released, and perhaps loaded again",
        )


def test_a_topic_that_leaves_between_a_client_s_question_and_its_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is told to look it up again, which it does by itself, and is served by the topic that is loaded then."""
    with InProcessServer(tmp_path / "data") as server:
        left: list[str] = []

        async def leave(what: str) -> None:
            if what not in left:
                left.append(what)
                await server.broker.topics.unload(TopicName.parse("persistent://public/default/t"))

        of_producer, of_consumer = SchemaAdmission.producer, SchemaAdmission.consumer

        async def producer(self: SchemaAdmission, *of: Any) -> Any:
            await leave("producer")
            return await of_producer(self, *of)

        async def consumer(self: SchemaAdmission, *of: Any) -> Any:
            await leave("consumer")
            return await of_consumer(self, *of)

        monkeypatch.setattr(SchemaAdmission, "producer", producer)
        monkeypatch.setattr(SchemaAdmission, "consumer", consumer)
        client = pulsar.Client(server.service_url)
        reading = client.subscribe("t", "s")
        client.create_producer("t").send(b"x")
        assert reading.receive(RECEIVE_MS).data() == b"x"
        assert left == ["consumer", "producer"]
        client.close()
