"""Replicated subscriptions of scalable topics between real clusters whose layouts differ: the place follows the consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from magnetar.admin.client import AdminClient
from magnetar.client.scalable import Client
from tests.e2e.geo.test_scalable_topics import KEYS, listed, send
from tests.support.geo import NAMESPACE, Region, regions
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Region]]:
    settings = {
        "scalableTopicAutoScaleEnabled": "false",
        "replicatedSubscriptionsSnapshotFrequencyMillis": 100,
    }
    with regions(tmp_path_factory.mktemp("two"), "west", "east", settings=settings) as found:
        yield found


def backlog(region: Region, topic: str, subscription: str) -> int | None:
    """Entries of all segments that it has not acknowledged; None if some segment does not have it."""
    with AdminClient(region.server.http_url) as admin:
        found = [
            admin.scalable_topics.segment_stats(topic, int(each)).backlog.get(subscription)
            for each in admin.scalable_topics.metadata(topic).segments
        ]
    return None if None in found else sum(each for each in found if each is not None)


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


def test_one_segment_each(two: list[Region]) -> None:
    west, east = two
    topic = f"topic://{NAMESPACE}/one"
    with AdminClient(west.server.http_url) as admin:
        admin.scalable_topics.create(topic)
        wait_until(lambda: topic in listed(east), what="the topic is made there")
        asyncio.run(send(west, topic, range(10), KEYS[:4]))
        asyncio.run(consume(west, topic, 40))
        wait_until(lambda: backlog(east, topic, "s") == 0, what="the subscription has followed")
    asyncio.run(send(west, topic, range(10, 12), KEYS[:4]))
    wait_until(lambda: backlog(east, topic, "s") != 0, what="the next messages have arrived")
    assert sorted(asyncio.run(consume(east, topic, 8))) == sorted(b"%d" % each for each in (10, 11) for _ in range(4))
    wait_until(lambda: backlog(west, topic, "s") == 0, what="and it follows back")
