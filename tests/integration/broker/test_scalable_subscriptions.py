"""Which subscriptions a scalable topic has: the policies are asked before one is written down, and a refusal leaves nothing behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from magnetar.admin.client import AdminClient
from magnetar.admin.client.errors import RefusedError
from magnetar.admin.documents.policies import AutoSubscriptionCreation
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.support.raw_scalable import ScalableClient

_numbers = itertools.count()


@pytest.fixture
def topic(admin: AdminClient) -> str:
    """A scalable topic of two segments in a namespace of its own."""
    namespace = f"public/subscriptions-{next(_numbers)}"
    admin.namespaces.create(namespace)
    admin.scalable_topics.create(f"topic://{namespace}/x", 2)
    return f"topic://{namespace}/x"


@pytest.fixture
def client(connected: Callable[[], ScalableClient]) -> ScalableClient:
    return connected()


def namespace_of(topic: str) -> str:
    return topic.removeprefix("topic://").rpartition("/")[0]


def segment(topic: str, descriptor: str) -> str:
    return f"segment://{topic.removeprefix('topic://')}/{descriptor}"


def found(admin: AdminClient, topic: str) -> tuple[set[str], set[str]]:
    """The subscriptions that are written down, and those that have a place in a segment."""
    stats = admin.scalable_topics.stats(topic)
    places = (admin.scalable_topics.segment_stats(topic, int(each)).backlog for each in stats.segments)
    return set(stats.subscriptions), set(itertools.chain.from_iterable(places))


def by_stream(client: ScalableClient, admin: AdminClient, topic: str, name: str) -> int:
    return int(client.consume(topic, f"consumer-of-{name}", next(_numbers), name).error)


def by_segment(client: ScalableClient, admin: AdminClient, topic: str, name: str) -> int:
    answer = client.subscribe(segment(topic, "8000-ffff-1"), name, next(_numbers), "Shared")
    return int(answer.error.error) if answer.type == BaseCommand.ERROR else 0


def by_admin(client: ScalableClient, admin: AdminClient, topic: str, name: str) -> int:
    try:
        admin.scalable_topics.create_subscription(topic, name)
    except RefusedError as error:
        return {405: ServerError.NotAllowedError}[error.status]
    return 0


WAYS = (by_stream, by_segment, by_admin)


def test_no_way_leads_beyond_the_most_subscriptions(client: ScalableClient, admin: AdminClient, topic: str) -> None:
    """The fourth one, what another cluster tells, is in tests/e2e/geo/test_scalable_failovers.py."""
    admin.namespace_policies.max_subscriptions.set(namespace_of(topic), 2)
    assert by_admin(client, admin, topic, "first") == 0
    group = client.consume(topic, "reader", 900, "group", "CHECKPOINT")
    assert not group.error, "a checkpoint group keeps its place itself, and does not count"
    reader = client.subscribe(segment(topic, "0000-7fff-0"), "reader-1", 901, "Exclusive", durable=False)
    assert reader.type == BaseCommand.SUCCESS, "nor does a reader"
    assert by_segment(client, admin, topic, "second") == 0
    for way in WAYS:
        assert way(client, admin, topic, f"refused-{way.__name__}") == ServerError.NotAllowedError, way
    assert found(admin, topic) == ({"first", "second", "group"}, {"first", "second"})
    for way in WAYS:
        assert way(client, admin, topic, "first") == 0, f"it is there: {way}"
    admin.scalable_topics.delete_subscription(topic, "second")
    assert by_stream(client, admin, topic, "third") == 0
    assert by_admin(client, admin, topic, "fourth") == ServerError.NotAllowedError
    assert found(admin, topic)[0] == {"first", "third", "group"}


def test_a_limit_that_comes_later_holds_up_no_split(client: ScalableClient, admin: AdminClient, topic: str) -> None:
    for name in ("a", "b"):
        assert by_admin(client, admin, topic, name) == 0
    admin.namespace_policies.max_subscriptions.set(namespace_of(topic), 1)
    admin.scalable_topics.split(topic, 0)
    for child in (2, 3):
        assert set(admin.scalable_topics.segment_stats(topic, child).backlog) == {"a", "b"}


def test_where_clients_make_no_subscriptions_nothing_is_written_down(
    client: ScalableClient, admin: AdminClient, topic: str
) -> None:
    never = AutoSubscriptionCreation(allow_auto_subscription_creation=False)
    admin.namespace_policies.auto_subscription_creation.set(namespace_of(topic), never)
    assert by_stream(client, admin, topic, "s") == ServerError.SubscriptionNotFound
    assert by_segment(client, admin, topic, "s") == ServerError.SubscriptionNotFound
    assert found(admin, topic) == (set(), set())
    for way in (by_admin, by_stream, by_segment):
        assert way(client, admin, topic, "s") == 0, way
    assert found(admin, topic) == ({"s"}, {"s"})


def test_a_subscribe_that_is_refused_leaves_no_subscription(
    client: ScalableClient, admin: AdminClient, topic: str
) -> None:
    admin.namespace_policies.subscription_types.set(namespace_of(topic), ["Shared"])
    name = segment(topic, "0000-7fff-0")
    for kind, fields in (("Exclusive", {}), ("Shared", {"read_compacted": True})):
        refused = client.subscribe(name, "s", 77, kind, **fields)
        assert refused.error.error == ServerError.NotAllowedError
    assert found(admin, topic) == (set(), set())


def test_a_name_that_consumers_of_all_kinds_use_outlives_a_crash(start_server: Callable[..., ServerProcess]) -> None:
    """Queue consumers have made the subscription; later it has stream consumers, or is the name of a checkpoint group. What they are is not
    the type of the subscription: a controller that takes over expects them as they were."""
    server = start_server()
    topics = {kind: f"topic://public/default/{kind.lower()}" for kind in ("STREAM", "CHECKPOINT")}
    with AdminClient(server.http_url) as admin:
        for kind, topic in topics.items():
            admin.scalable_topics.create(topic, 2)
            with ScalableClient(server.port) as client:
                client.connect()
                assert client.subscribe(segment(topic, "0000-7fff-0"), "s", kind="Shared").type == BaseCommand.SUCCESS
            with ScalableClient(server.port) as client:
                client.connect()
                assert not client.consume(topic, "a", 1, "s", kind).error
    server.restart()
    with AdminClient(server.http_url) as admin:
        for kind, topic in topics.items():
            with ScalableClient(server.port) as client:
                client.connect()
                back = client.consume(topic, "a", 1, "s", kind)
                assert not back.error, back.message
                assert [each.segment_id for each in back.assignment.segments] == [0, 1]
                other = client.consume(topic, "b", 2, "s", kind)
                assert not other.error, other.message
                admin.scalable_topics.split(topic, 0)
                for consumer_id in (1, 2):
                    client.leave(consumer_id)
            assert set(admin.scalable_topics.stats(topic).subscriptions) == {"s"}, "it was there before its consumers"
            assert admin.scalable_topics.segment_stats(topic, 2).backlog == {"s": 0}
