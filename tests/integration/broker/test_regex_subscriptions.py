"""Regex subscriptions: the namespace's topic list, topics created later, persistent and non-persistent ones."""

from __future__ import annotations

import re

import _pulsar
import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.messages import drain
from tests.support.raw_client import BaseCommand, RawConnection
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

ALL_TOPICS = 2


def topics_of(raw: RawConnection, namespace: str, mode: int = ALL_TOPICS, known_hash: str = "") -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
    request = command.getTopicsOfNamespace
    request.namespace = namespace
    request.mode = mode
    request.request_id = raw.next_request_id()
    if known_hash:
        request.topics_hash = known_hash
    raw.send(command)
    return raw.expect(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, BaseCommand.ERROR)[0]


def base_of(topic: str) -> str:
    return topic.rsplit("/", 1)[1]


def discover_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """pulsar-client 3.13 ignores its own parameter `pattern_auto_discovery_period`: set it one layer below."""
    configuration = _pulsar.ConsumerConfiguration

    def with_period() -> _pulsar.ConsumerConfiguration:
        made = configuration()
        made.pattern_auto_discovery_period(1)
        return made

    monkeypatch.setattr(_pulsar, "ConsumerConfiguration", with_period)


def test_topics_that_match_now_and_later(client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of a topic that is found later are not missed: its subscription begins at its first message."""
    early = [client.create_producer(f"{topic}-a{index}") for index in range(3)]
    other = client.create_producer(f"{topic}-b")
    discover_every_second(monkeypatch)
    consumer = client.subscribe(
        re.compile(f"public/default/{base_of(topic)}-a.*"), "sub", initial_position=pulsar.InitialPosition.Earliest
    )
    for index, producer in enumerate(early):
        producer.send(b"early-%d" % index)
    other.send(b"not mine")
    late = client.create_producer(f"{topic}-a-late")
    late.send(b"late")
    found: set[bytes] = set()

    def all_there() -> bool:
        found.update(entry.data() for entry in drain(consumer))
        return len(found) == 4

    wait_until(all_there, 60)
    assert found == {b"early-0", b"early-1", b"early-2", b"late"}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (pulsar.RegexSubscriptionMode.PersistentOnly, {b"stored"}),
        (pulsar.RegexSubscriptionMode.NonPersistentOnly, {b"passing"}),
        (pulsar.RegexSubscriptionMode.AllTopics, {b"stored", b"passing"}),
    ],
    ids=["persistent", "non-persistent", "all"],
)
def test_modes(client: pulsar.Client, topic: str, mode: pulsar.RegexSubscriptionMode, expected: set[bytes]) -> None:
    base = base_of(topic)
    stored = client.create_producer(f"persistent://public/default/{base}-p")
    passing = client.create_producer(f"non-persistent://public/default/{base}-n")
    consumer = client.subscribe(re.compile(f"public/default/{base}-.*"), "sub", regex_subscription_mode=mode)
    found: set[bytes] = set()

    def all_there() -> bool:
        stored.send(b"stored")
        passing.send(b"passing")
        found.update(entry.data() for entry in drain(consumer))
        return found >= expected

    wait_until(all_there, 60)
    assert found == expected


def test_partitions_are_listed_one_by_one(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server(allowAutoTopicCreationType="partitioned", defaultNumPartitions=3)
    client = connect(server.service_url)
    client.create_producer(topic).send(b"x")
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(3)]
    with RawConnection(server.port) as raw:
        listed = topics_of(raw, "public/default").getTopicsOfNamespaceResponse.topics
        assert sorted(listed) == [f"{topic}-partition-{index}" for index in range(3)]
    consumer = client.subscribe(re.compile(f"{topic}.*"), "sub", initial_position=pulsar.InitialPosition.Earliest)
    assert [entry.data() for entry in drain(consumer, at_least=1)] == [b"x"]


def test_the_list_has_a_hash_by_which_clients_see_that_nothing_changed(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic)
    with RawConnection(server.port) as raw:
        first = topics_of(raw, "public/default").getTopicsOfNamespaceResponse
        assert topic in first.topics
        assert first.changed
        same = topics_of(raw, "public/default", known_hash=first.topics_hash).getTopicsOfNamespaceResponse
        assert not same.changed
        assert not same.topics
        client.create_producer(f"{topic}-more")
        again = topics_of(raw, "public/default", known_hash=first.topics_hash).getTopicsOfNamespaceResponse
        assert again.changed
        assert set(again.topics) == {*first.topics, f"{topic}-more"}


def test_a_missing_namespace_has_no_topics(server: ServerProcess) -> None:
    with RawConnection(server.port) as raw:
        answer = topics_of(raw, "public/nowhere")
        assert list(answer.getTopicsOfNamespaceResponse.topics) == []


@pytest.mark.parametrize("name", ["", "public", "a/b/c", "../..", "public/def ault"])
def test_malformed_namespaces_are_refused(server: ServerProcess, name: str) -> None:
    with RawConnection(server.port) as raw:
        assert topics_of(raw, name).type == BaseCommand.ERROR


def test_system_topics_are_hidden(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    hidden = f"persistent://public/default/__{base_of(topic)}"
    with RawConnection(server.port) as raw:
        raw.producer(hidden)
        assert hidden not in topics_of(raw, "public/default").getTopicsOfNamespaceResponse.topics
