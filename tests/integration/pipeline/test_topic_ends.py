"""Where topics end, as a driver that waits for them learns it; no Spark in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.admin.client import AdminClient
from magnetar.pipeline.connect.broker import Topics, id_position
from magnetar.pipeline.connect.errors import DataLossError, TopicReplacedError
from magnetar.pipeline.connect.offsets import EARLIEST, Position, from_document
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.connect.raw.topic_end import TopicEnd
from magnetar.pipeline.connect.reading.columns import schema_for
from magnetar.pipeline.connect.reading.range_reader import read_entries
from magnetar.pipeline.views.source.tail import Tail
from magnetar.testing.server import ServerProcess
from tests.support.topics import produce

FOREVER_S = 60.0


@pytest.fixture
def tail(server: ServerProcess, topic: str) -> Iterator[Tail]:
    options = read_options({"service.url": server.service_url, "topic": topic})
    found = Tail({"s": (options, schema_for(["value"]))})
    yield found
    found.close()


def test_an_end_is_behind_the_last_message(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    end = TopicEnd(read_options({"service.url": server.service_url, "topic": topic}).connection, topic)
    assert end.ask() is None
    produce(client, topic, [b"1", b"2"])
    first = end.ask()
    assert first is not None
    produce(client, topic, [b"3"])
    second = end.ask()
    assert second is not None
    assert second > first
    assert second.ledger == first.ledger
    end.close()
    assert end.ask() == second, "over a new connection"
    end.close()


def test_a_message_that_comes_around_an_answer_ends_one_wait_only(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    end = TopicEnd(read_options({"service.url": server.service_url, "topic": topic}).connection, topic)
    end.ask()
    end.arm()
    produce(client, topic, [b"1"])
    while not end.waits_in_memory:
        end.ask()
    end.arm()
    end.ask()
    assert not end.waits_in_memory
    end.close()


def test_waiting_ends_with_a_message_whatever_was_told_before(tail: Tail, client: pulsar.Client, topic: str) -> None:
    at: dict[str, Any] = {"s": {topic: Position(-1, -1).document()}}
    assert tail.ends(at) == {}
    for round_number in range(4):
        sender = threading.Timer(0.05, produce, (client, topic, [b"1"] * (round_number + 1)))
        sender.start()
        while not tail.ends(at):
            tail.wait(at, FOREVER_S)
        sender.join()
        while found := tail.ends(at):  # all of them, some of which may have come a moment later
            (part,) = tail.ranges("s", at["s"], found["s"])
            assert tail.entries("s", [part])
            at |= found
    assert from_document(at["s"])[topic] > Position(-1, -1)


def test_waiting_ends_when_somebody_wakes_it(tail: Tail, client: pulsar.Client, topic: str) -> None:
    produce(client, topic, [b"1"])
    at = tail.ends({"s": {topic: Position(-1, -1).document()}})
    waker = threading.Timer(0.05, tail.wake)
    waker.start()
    tail.wait(at, FOREVER_S)
    waker.join()
    assert tail.ends(at) == {}


def test_a_server_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    topic = "persistent://public/default/back"
    options = read_options(
        {"service.url": server.service_url, "topic": topic, "pulsar.client.operationTimeoutMs": "2000"}
    )
    client = pulsar.Client(server.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    tail = Tail({"s": (options, schema_for(["value"]))})
    try:
        produce(client, topic, [b"1"])
        at = tail.ends({"s": {topic: Position(-1, -1).document()}})
        server.kill()
        assert tail.ends(at) == {}
        assert tail.is_silent
        tail.wait(at, FOREVER_S)  # not that long while nobody can tell
        server.start()
        while tail.is_silent:
            tail.wait(at, FOREVER_S)
            tail.ends(at)
        produce(client, topic, [b"2"])
        assert tail.ends(at)
    finally:
        tail.close()
        client.close()
        server.close()


def test_a_topic_that_ends_before_what_was_read_is_another_one(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    produce(client, topic, [b"1", b"2"])
    options = read_options({"service.url": server.service_url, "topic": topic, "heldBySubscription": "p"})
    for keeps_ends in (True, False):
        topics = Topics(options, keeps_ends=keeps_ends)
        end = topics.end(topic)
        topics.check_replaced({topic: end}, {topic: end})
        topics.check_replaced({topic: end}, {topic: EARLIEST})
        for ahead in (Position(end.ledger, end.entry + 1), Position(end.ledger + 1, 0)):
            with pytest.raises(TopicReplacedError, match=r"deleted and made again.*failOnDataLoss=false"):
                topics.check_replaced({topic: ahead}, {topic: end})
        topics.close()
    ahead_of_it: dict[str, Any] = {"s": {topic: Position(end.ledger + 1, 0).document()}}
    tail = Tail({"s": (options, schema_for(["value"]))})
    with pytest.raises(TopicReplacedError):
        tail.ends(ahead_of_it)
    tail.close()


def test_what_was_not_read_of_a_topic_that_was_made_again_is_missed(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    """All of the new topic lies behind the position in the old one, so it is read from its start."""
    ids = produce(client, topic, [b"1", b"2", b"3"], batching_enabled=False)
    options = read_options({"service.url": server.service_url, "topic": topic, "heldBySubscription": "p"})
    tail, first = Tail({"s": (options, schema_for(["value"]))}), id_position(ids[0])
    begun = {"s": {topic: Position(first.ledger, 1).document()}}
    (end,) = tail.ends(begun).values()
    (part,) = tail.ranges("s", begun["s"], end)
    # what has the topic open would make it again when it comes back, so it is made again at once
    AdminClient(server.http_url).topics.delete(topic, force=True)
    produce(client, topic, [b"4"])
    with pytest.raises(DataLossError, match="not there any more"):
        list(read_entries(options, part))
    with pytest.raises(DataLossError, match="what lay between was deleted"):
        tail.ends(begun)
    (new,) = tail.ends({"s": end}).values()
    (part,) = tail.ranges("s", end, new)
    (entry,) = read_entries(options, part)
    assert len(entry.messages) == 1
    tail.close()
