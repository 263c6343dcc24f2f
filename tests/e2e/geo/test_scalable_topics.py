"""A scalable topic in two clusters whose layouts differ: everything arrives once, and the messages of each key in their order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator

import pytest

from magnetar.admin.client import AdminClient
from magnetar.client.scalable import Client
from magnetar.client.scalable.errors import ReceiveTimeoutError
from tests.support.geo import NAMESPACE, Region, regions
from tests.support.waiting import wait_until

TOPIC = f"topic://{NAMESPACE}/shared"
KEYS = [f"key-{number}" for number in range(16)]

Rows = dict[str, list[int]]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Region]]:
    settings = {"scalableTopicAutoScaleEnabled": "false", "scalableTopicAutoScaleIntervalSeconds": "0.2"}
    with regions(tmp_path_factory.mktemp("two"), "west", "east", settings=settings) as found:
        yield found


async def send(region: Region, topic: str, numbers: range, keys: list[str], pause_s: float = 0.0) -> None:
    """Each number under each key; many keys share a batch."""
    async with Client(region.server.service_url) as client:
        producer = await client.producer(topic)
        for number in numbers:
            await asyncio.gather(*(producer.send(b"%d" % number, key=key) for key in keys))
            await asyncio.sleep(pause_s)
        await producer.close()


async def read(region: Region, topic: str, subscription: str, count: int) -> Rows:
    """By key, in the order in which they come."""
    found: Rows = defaultdict(list)
    async with Client(region.server.service_url) as client:
        consumer = await client.stream_consumer(topic, subscription, earliest=True)
        for _ in range(count):
            message = await consumer.receive(timeout_s=30)
            found[message.key or ""].append(int(message.value or b""))
            await consumer.acknowledge_cumulative(message)
        try:
            more = await consumer.receive(timeout_s=0.5)
        except ReceiveTimeoutError:
            more = None
        assert more is None, more
        await consumer.close()
    return found


def active(region: Region, topic: str) -> list[int]:
    with AdminClient(region.server.http_url) as admin:
        segments = admin.scalable_topics.metadata(topic).segments.values()
    found = [each for each in segments if each.state == "ACTIVE"]
    return [each.segment_id for each in sorted(found, key=lambda each: each.hash_range.start)]


def split(region: Region, topic: str, place: int) -> None:
    with AdminClient(region.server.http_url) as admin:
        admin.scalable_topics.split(topic, active(region, topic)[place])


def merge(region: Region, topic: str) -> None:
    with AdminClient(region.server.http_url) as admin:
        admin.scalable_topics.merge(topic, *active(region, topic)[:2])


def test_layouts_that_differ_and_change(two: list[Region]) -> None:
    west, east = two
    with AdminClient(west.server.http_url) as admin:
        admin.scalable_topics.create(TOPIC, 2)
        admin.scalable_topics.create_subscription(TOPIC, "w", "STREAM")
    wait_until(lambda: TOPIC in listed(east), what="the topic is made there, as its cluster makes topics")
    split(east, TOPIC, 0)
    split(east, TOPIC, 0)
    with AdminClient(east.server.http_url) as admin:
        admin.scalable_topics.create_subscription(TOPIC, "s", "STREAM")

    async def run() -> None:
        sending = asyncio.create_task(send(west, TOPIC, range(60), KEYS, 0.02))
        for change in (
            lambda: split(west, TOPIC, 0),
            lambda: split(east, TOPIC, 1),
            lambda: merge(east, TOPIC),
            lambda: merge(west, TOPIC),
            lambda: split(east, TOPIC, 0),
        ):
            await asyncio.sleep(0.15)
            await asyncio.to_thread(change)
        await sending

    asyncio.run(run())
    found = asyncio.run(read(east, TOPIC, "s", 60 * len(KEYS)))
    assert found == {key: list(range(60)) for key in KEYS}
    assert len(active(west, TOPIC)) == 2
    assert len(active(east, TOPIC)) == 4

    asyncio.run(send(east, TOPIC, range(60, 65), KEYS))
    with_both = asyncio.run(read(west, TOPIC, "w", 65 * len(KEYS)))
    assert {key: sorted(numbers) for key, numbers in with_both.items()} == {key: list(range(65)) for key in KEYS}
    assert asyncio.run(read(east, TOPIC, "s", 5 * len(KEYS))) == {key: list(range(60, 65)) for key in KEYS}


def test_a_sealed_segment_stays_until_the_other_cluster_has_it(two: list[Region]) -> None:
    """And what is sent again after a crash of the receiving cluster is stored once."""
    west, east = two
    topic, witness = f"topic://{NAMESPACE}/held", "topic://public/default/witness"
    with AdminClient(west.server.http_url) as admin:
        admin.scalable_topics.create(topic)
        wait_until(lambda: topic in listed(east), what="the topic is made there")
        with AdminClient(east.server.http_url) as there:
            there.scalable_topics.create_subscription(topic, "s", "STREAM")
        asyncio.run(send(west, topic, range(20), KEYS))
        east.server.kill()
        asyncio.run(send(west, topic, range(20, 30), KEYS))
        admin.scalable_topics.split(topic, 0)
        asyncio.run(send(west, topic, range(30, 40), KEYS))
        admin.scalable_topics.create(witness)
        admin.scalable_topics.split(witness, 0)
        wait_until(lambda: "0" not in admin.scalable_topics.metadata(witness).segments, what="sealed segments go")
        assert "0" in admin.scalable_topics.metadata(topic).segments
        east.server.start()
        west.know(east)
        found = asyncio.run(read(east, topic, "s", 40 * len(KEYS)))
        assert found == {key: list(range(40)) for key in KEYS}
        wait_until(lambda: "0" not in admin.scalable_topics.metadata(topic).segments, 30, "the sealed segment goes")


def listed(region: Region) -> list[str]:
    with AdminClient(region.server.http_url) as admin:
        return admin.scalable_topics.list(NAMESPACE)
