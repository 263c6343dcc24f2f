"""Replicated subscriptions of scalable topics between real clusters whose layouts differ: the place follows the consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from magnetar.admin.client import AdminClient
from magnetar.admin.client.errors import NotFoundError
from magnetar.cli.main import cli
from magnetar.client.scalable import Client
from tests.e2e.geo.scalable_failover_runs import SETTINGS, Run, backlog, run
from tests.e2e.geo.test_scalable_topics import KEYS, listed, send, split
from tests.support.geo import NAMESPACE, Region, regions
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Region]]:
    with regions(tmp_path_factory.mktemp("two"), "west", "east", settings=SETTINGS) as found:
        yield found


async def consume(region: Region, topic: str, count: int) -> list[bytes]:
    """So many messages, each acknowledged; then it closes."""
    found = []
    async with Client(region.server.service_url) as client:
        consumer = await client.queue_consumer(topic, "s", earliest=True, replicated=True)
        for _ in range(count):
            message = await consumer.receive(timeout_s=30)
            found.append(message.value or b"")
            await consumer.acknowledge(message)
        await consumer.close()
    return found


async def consume_as_before(region: Region, topic: str, count: int) -> None:
    """Without asking for a place that follows."""
    async with Client(region.server.service_url) as client:
        consumer = await client.queue_consumer(topic, "s")
        for _ in range(count):
            await consumer.acknowledge(await consumer.receive(timeout_s=30))
        await consumer.close()


def test_one_segment_each(two: list[Region]) -> None:
    west, east = two
    topic = f"topic://{NAMESPACE}/one"
    with AdminClient(west.server.http_url) as admin:
        admin.scalable_topics.create(topic)
        wait_until(lambda: topic in listed(east), what="the topic is made there")
        asyncio.run(send(west, topic, range(10), KEYS[:4]))
        asyncio.run(consume(west, topic, 40))
        wait_until(lambda: backlog(east, topic) == 0, what="the subscription has followed")

        def told() -> bool:
            (status,) = admin.scalable_topics.replication_status(topic)
            (own,) = status.subscriptions
            return own.subscription == "s" and own.would_repeat_messages == 0 and not own.reason

        wait_until(told, what="the status says so")
        check_explained(west, topic)
        assert admin.scalable_topics.replicated(topic, "s") == {topic: True}
    asyncio.run(send(west, topic, range(10, 12), KEYS[:4]))
    wait_until(lambda: backlog(east, topic) > 0, what="the next messages have arrived")
    assert sorted(asyncio.run(consume(east, topic, 8))) == sorted(b"%d" % each for each in (10, 11) for _ in range(4))
    wait_until(lambda: backlog(west, topic) == 0, what="and it follows back")
    for region in two:
        with AdminClient(region.server.http_url) as admin:
            admin.scalable_topics.set_replicated(topic, "s", False)
            (status,) = admin.scalable_topics.replication_status(topic)
            assert not status.subscriptions
            assert [each.cluster for each in status.clusters] == [each.name for each in two if each is not region]
    asyncio.run(send(west, topic, range(12, 13), KEYS[:4]))
    asyncio.run(consume_as_before(west, topic, 4))
    wait_until(lambda: backlog(east, topic) > 0, what="the messages are there, unacknowledged")


def check_explained(west: Region, topic: str) -> None:
    """The topic and each of its segments say the same: the place follows, by which round, and to where."""
    with AdminClient(west.server.http_url) as admin:
        segment = topic.replace("topic:", "segment:") + "/0000-ffff-0"
        for name in (topic, segment):
            found = admin.explain.cursor(name, "s")
            assert found.moving
            (reason,) = found.reasons
            assert (reason.code, reason.facts["clusters"]) == ("segments-follow", ["east"])
            assert reason.since == found.details["lastSnapshot"]
            assert list(found.details["elsewhere"]) == ["east"]
            assert found.details["elsewhere"]["east"].startswith("0@"), "a place in a segment there"
        admin.scalable_topics.create_subscription(topic, "own", "QUEUE")
        assert [each.code for each in admin.explain.cursor(segment, "own").reasons] == ["not-replicated"]
        with pytest.raises(NotFoundError):
            admin.explain.cursor(segment, "nobody")
        admin.scalable_topics.delete_subscription(topic, "own")
    words = ["explain", "cursor", "s", "--topic", topic, "--admin-url", west.server.http_url]
    said = CliRunner().invoke(cli, words, catch_exceptions=False).output
    assert "segments-follow" in said
    assert "east: 0@" in said


def test_what_a_cluster_asks_is_looked_at_first(two: list[Region]) -> None:
    west, _ = two
    name = f"{NAMESPACE}/asked"
    with AdminClient(west.server.http_url) as admin:
        admin.scalable_topics.create(f"topic://{name}", 2)
        path = f"scalable/{name}/clusters"
        told = west.admin("POST", f"{path}/east/places")
        assert [each[2] for each in told["places"]] == [0, 1]
        assert west.admin("POST", f"{path}/east/places", told["places"])["places"] == told["places"]
        for stranger in ("nowhere", "west"):
            west.admin("POST", f"{path}/{stranger}/places", expected=(405,))
            west.admin("POST", f"{path}/{stranger}/subscriptions/s?type=QUEUE", told["places"], expected=(405,))
        not_places: list[object] = [{}, [[0, 1]], [[5, 1, 0, 0, 0]], [[0, 1, 0, 0, "x"]]]
        for wrong in not_places:
            west.admin("POST", f"{path}/east/places", wrong, expected=(400,))
            west.admin("POST", f"{path}/east/subscriptions/s?type=QUEUE", wrong, expected=(400,))
        west.admin("POST", f"{path}/east/subscriptions/s?type=CHECKPOINT", told["places"], expected=(400,))
        assert admin.scalable_topics.stats(f"topic://{name}").subscriptions == {}
        far = [[*each[:3], 2**63 - 1, 2**63 - 1] for each in told["places"]]
        west.admin("POST", f"{path}/east/subscriptions/s?type=QUEUE", far)
        assert backlog(west, f"topic://{name}") == 0
        west.admin("POST", f"namespaces/{NAMESPACE}/maxSubscriptionsPerTopic", 1)
        try:
            west.admin("POST", f"{path}/east/subscriptions/one-more?type=QUEUE", told["places"], expected=(405,))
        finally:
            west.admin("DELETE", f"namespaces/{NAMESPACE}/maxSubscriptionsPerTopic")
        assert list(admin.scalable_topics.stats(f"topic://{name}").subscriptions) == ["s"]
        asyncio.run(send(west, f"topic://{name}", range(1), KEYS))
        assert backlog(west, f"topic://{name}") == 2, "it goes as far as the segments do, not beyond"


def test_three_clusters_follow_each_other(mesh_of_three: list[Region]) -> None:
    """Messages of all of them; every other one has its own layout, and hears of what was acknowledged in one of them."""
    a, b, c = mesh_of_three
    topic = f"topic://{NAMESPACE}/of-three"
    with AdminClient(a.server.http_url) as admin:
        admin.scalable_topics.create(topic, 2)
    for region in (b, c):
        wait_until(lambda region=region: topic in listed(region), what=f"the topic is made in {region.name}")
    split(b, topic, 0)
    for number, region in enumerate(mesh_of_three):
        asyncio.run(send(region, topic, range(10 * number, 10 * number + 10), KEYS[:4]))
    first = asyncio.run(consume(a, topic, 120))
    for region in (b, c):
        wait_until(lambda region=region: backlog(region, topic) == 0, what=f"{region.name} follows")
    split(c, topic, 0)
    asyncio.run(send(b, topic, range(30, 35), KEYS[:4]))
    second = asyncio.run(consume(c, topic, 20))
    assert sorted({int(each) for each in first}) == list(range(30))
    assert sorted({int(each) for each in second}) == list(range(30, 35))
    for region in (a, b):
        wait_until(lambda region=region: backlog(region, topic) == 0, what=f"{region.name} follows")


def test_random_failovers_while_segments_split_and_merge(two: list[Region]) -> None:
    """Three of the thirty of the long test, in which the whole of it is done once."""
    outcome = asyncio.run(Run(1, two, stream=False).play(3))
    assert len(outcome.repeated) == 3


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_thirty_random_failovers_skip_nothing_and_repeat_within_the_bound(tmp_path: Path) -> None:
    assert [len(each.repeated) for each in run(tmp_path, 30, 7)] == [15, 15]
