"""A connection that is gone, and a topic that left memory, leave nothing behind that only a collection of garbage would find: those of old
objects come seldom, and hold every message up for as long as they take."""

from __future__ import annotations

import gc
import weakref
from asyncio import BaseTransport
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.broker.connection.session import Session
from magnetar.broker.dispatch.pump import Pump
from magnetar.broker.naming import TopicName
from magnetar.broker.subscriptions.consumer_dispatch import ConsumerDispatch
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.publishers import Publishers
from magnetar.broker.topics.subscription_set import SubscriptionSet
from magnetar.managed_ledger.append_pipeline import AppendPipeline
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.ledger import ManagedLedger
from tests.support.in_process import InProcessServer
from tests.support.waiting import wait_until


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_a_connection_that_is_gone_is_freed_without_a_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Session]] = []
    connect = Session.connection_made

    def connection_made(session: Session, transport: BaseTransport) -> None:
        made.append(weakref.ref(session))
        connect(session, transport)

    monkeypatch.setattr(Session, "connection_made", connection_made)
    with InProcessServer(tmp_path / "data") as server:
        for _ in range(3):
            client = pulsar.Client(server.service_url)
            consumer = client.subscribe("t", "s")
            producer = client.create_producer("t")
            producer.send(b"x")
            consumer.acknowledge(consumer.receive(10_000))
            client.close()
        assert len(made) >= 3
        wait_until(lambda: all(session() is None for session in made))


PARTS: dict[type[Any], Callable[[Any], str]] = {
    PersistentTopic: lambda topic: str(topic.name),
    Publishers: lambda publishers: publishers._topic_name,
    SubscriptionSet: lambda subscriptions: subscriptions._topic_name,
    Subscription: lambda subscription: subscription.topic_name,
    ConsumerDispatch: lambda dispatch: dispatch._topic_name,
    Pump: lambda pump: pump._label,
    ManagedLedger: lambda ledger: ledger.name,
    AppendPipeline: lambda pipeline: pipeline._context.name,
    ManagedCursor: lambda cursor: cursor._context.name,
}
"""What a topic consists of, with how to see whose part it is."""


@pytest.mark.usefixtures("uncollected")
def test_a_topic_that_left_is_freed_without_a_collection(tmp_path: Path) -> None:
    """Unloaded, as it is when nobody uses it, and deleted; with a subscription of each kind, after a message was published and consumed."""
    kinds = (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared)
    with InProcessServer(tmp_path / "data") as server:
        client = pulsar.Client(server.service_url)
        for name in ("left-unloaded", "left-deleted"):
            consumers = [client.subscribe(name, f"s{number}", kind) for number, kind in enumerate(kinds)]
            producer = client.create_producer(name)
            producer.send(b"x", partition_key="k")
            for consumer in consumers:
                consumer.acknowledge(consumer.receive())
                consumer.close()
            producer.close()
        assert parts() == set(PARTS)
        topics = server.broker.topics
        server.run(topics.unload(TopicName.parse("persistent://public/default/left-unloaded")))
        server.run(topics.delete(TopicName.parse("persistent://public/default/left-deleted"), force=True))
        wait_until(lambda: not parts(), what="the end of all parts of both topics")
        client.close()


def parts() -> set[type[Any]]:
    """Of which kinds there are any in memory, also such that nobody refers to any more but they themselves."""
    return {type(each) for each in gc.get_objects() if type(each) in PARTS and "/left-" in PARTS[type(each)](each)}
