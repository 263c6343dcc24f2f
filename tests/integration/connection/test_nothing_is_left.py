"""A connection that is gone, and a topic that left memory, leave nothing behind that only a collection of garbage would find: those of old
objects come seldom, and hold every message up for as long as they take."""

from __future__ import annotations

import gc
import weakref
from asyncio import BaseTransport
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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


KINDS = (
    PersistentTopic,
    Publishers,
    SubscriptionSet,
    Subscription,
    ConsumerDispatch,
    Pump,
    ManagedLedger,
    AppendPipeline,
    ManagedCursor,
)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    "kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]
)
def test_a_topic_that_left_is_freed_without_a_collection(tmp_path: Path, kind: pulsar.ConsumerType) -> None:
    """Unloaded, as it is when nobody uses it, and deleted; with a subscription, after a message was published and consumed."""
    with InProcessServer(tmp_path / "data") as server:
        before = parts()
        client = pulsar.Client(server.service_url)
        for name in ("unloaded", "deleted"):
            consumer = client.subscribe(name, "s", kind)
            producer = client.create_producer(name)
            producer.send(b"x", partition_key="k")
            consumer.acknowledge(consumer.receive(20_000))
            producer.close()
            consumer.close()
        assert all(parts()[each] > before[each] for each in KINDS)
        topics = server.broker.topics
        server.run(topics.unload(TopicName.parse("persistent://public/default/unloaded")))
        server.run(topics.delete(TopicName.parse("persistent://public/default/deleted"), force=True))
        wait_until(lambda: parts() == before, what=f"the end of the parts of both topics (before: {before})")
        client.close()


def parts() -> dict[type[object], int]:
    """How many of each kind are in memory, also of those that nobody refers to any more but each other."""
    found = Counter(map(type, gc.get_objects()))
    return {kind: found[kind] for kind in KINDS}
