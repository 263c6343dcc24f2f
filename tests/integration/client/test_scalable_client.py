"""The asyncio client of scalable topics against a real server: routing, the three consumers, splits and merges, restarts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from magnetar.admin.client import AdminClient
from magnetar.base.errors import InvalidArgumentError
from magnetar.client.errors import RequestRefusedError
from magnetar.client.scalable import (
    EARLIEST,
    LATEST,
    Checkpoint,
    CheckpointConsumer,
    Client,
    Message,
    QueueConsumer,
    ReceiveTimeoutError,
    StreamConsumer,
)
from magnetar.testing.server import ServerProcess

KEYS = [f"key-{number}" for number in range(24)]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data").start()
    yield process
    process.close()


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(server.service_url) as client:
        yield client


@pytest.fixture
def topic(new_scalable_topic: Callable[[int], str]) -> str:
    """A scalable topic of two segments."""
    return new_scalable_topic(2)


async def publish(client: Client, topic: str, first: int, count: int, *, batching: bool = True) -> None:
    """`count` messages of each key, numbered by key, all at once."""
    producer = await client.producer(topic, batching=batching)
    await asyncio.gather(
        *(producer.send(str(number).encode(), key=key) for number in range(first, first + count) for key in KEYS)
    )
    await producer.close()


async def receive(consumer: QueueConsumer | StreamConsumer | CheckpointConsumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_s=60) for _ in range(count)]


def by_key(messages: list[Message]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for each in messages:
        assert each.key is not None
        assert each.value is not None
        found[each.key].append(int(each.value))
    return found


async def nothing_more(consumer: QueueConsumer | StreamConsumer | CheckpointConsumer) -> None:
    with pytest.raises(ReceiveTimeoutError):
        await consumer.receive(timeout_s=0.3)


async def test_a_queue_is_shared_and_acknowledged(client: Client, topic: str) -> None:
    first = await client.queue_consumer(topic, "q", earliest=True)
    second = await client.queue_consumer(topic, "q", earliest=True)
    await publish(client, topic, 0, 4)
    found: list[Message] = []

    async def read(consumer: QueueConsumer) -> None:
        async for message in consumer:
            await consumer.acknowledge(message)
            found.append(message)

    readers = [asyncio.create_task(read(each)) for each in (first, second)]
    async with asyncio.timeout(60):
        while len(found) < 4 * len(KEYS):
            await asyncio.sleep(0.01)
    await first.close()
    await second.close()
    await asyncio.gather(*readers)
    assert {key: sorted(values) for key, values in by_key(found).items()} == {key: [0, 1, 2, 3] for key in KEYS}
    again = await client.queue_consumer(topic, "q")
    await nothing_more(again)


async def test_what_was_not_received_of_a_batch_comes_after_a_redelivery(client: Client, topic: str) -> None:
    """One of its messages is acknowledged when the consumer no longer knows the batch: that stands for this message alone."""
    consumer = await client.queue_consumer(topic, "q", earliest=True)
    producer = await client.producer(topic)
    sent = await asyncio.gather(*(producer.send(str(number).encode(), key="k") for number in range(3)))
    assert [each.batch_index for each in sent] == [0, 1, 2]
    first, second = await receive(consumer, 2)
    consumer.negative_acknowledge(first, delay_s=0)
    for _ in range(2):
        await asyncio.sleep(0)  # it is asked for, and has not come
    await consumer.acknowledge(second)
    await consumer.close()
    again = await client.queue_consumer(topic, "q")
    assert {each.value for each in await receive(again, 3)} == {b"0", b"1", b"2"}


async def test_a_message_is_what_was_sent(client: Client, topic: str) -> None:
    consumer = await client.queue_consumer(topic, "q", earliest=True)
    producer = await client.producer(topic, name="p", compression="zstd", batching=False)
    identifier = await producer.send(b"v" * 500, key="k", properties={"a": "1"}, event_time_ms=7)
    message = await consumer.receive(60)
    assert (message.value, message.key, message.properties, message.event_time_ms) == (b"v" * 500, "k", {"a": "1"}, 7)
    assert (message.id, message.producer_name) == (identifier, f"p-seg-{identifier.segment_id}")
    await producer.send(None, key="k")
    assert (await consumer.receive(60)).value is None
    consumer.negative_acknowledge(message, delay_s=0)
    again = await consumer.receive(60)
    assert (again.id, again.redelivery_count) == (message.id, 1)


async def test_a_stream_keeps_the_order_of_keys_while_segments_split_and_merge(
    client: Client, topic: str, admin: AdminClient
) -> None:
    """Two consumers; messages flow during two splits and a merge; each key's numbers come in order, none is missing."""
    consumers = [await client.stream_consumer(topic, "s", name=f"c{number}", earliest=True) for number in range(2)]
    found: list[Message] = []

    async def read(consumer: StreamConsumer) -> None:
        async for message in consumer:
            found.append(message)
            await consumer.acknowledge_cumulative(message)

    readers = [asyncio.create_task(read(each)) for each in consumers]
    producer = await client.producer(topic)
    count = 20

    async def send(key: str) -> None:
        for number in range(count):
            await producer.send(str(number).encode(), key=key)
            await asyncio.sleep(0.02)

    sending = asyncio.gather(*map(send, KEYS))
    scalable = admin.scalable_topics
    await asyncio.to_thread(scalable.split, topic, 0)
    await asyncio.to_thread(scalable.split, topic, 1)
    active = [each for each in scalable.metadata(topic).segments.values() if each.state == "ACTIVE"]
    pair = sorted(active, key=lambda each: each.hash_range.start)[:2]
    await asyncio.to_thread(scalable.merge, topic, pair[0].segment_id, pair[1].segment_id)
    await sending
    async with asyncio.timeout(100):
        while len({(each.key, each.value) for each in found}) < count * len(KEYS):
            await asyncio.sleep(0.01)
    for each in consumers:
        await each.close()
    await asyncio.gather(*readers)
    for key, values in by_key(found).items():
        firsts = list(dict.fromkeys(values))
        assert firsts == list(range(count)), f"{key}: {values}"
    assert len({each.id.segment_id for each in found}) > 2


async def test_what_a_stream_acknowledged_does_not_come_again(client: Client, topic: str) -> None:
    consumer = await client.stream_consumer(topic, "s", name="c", earliest=True)
    await publish(client, topic, 0, 3)
    messages = await receive(consumer, 3 * len(KEYS))
    await consumer.acknowledge_cumulative(messages[-1])
    await consumer.close()
    await publish(client, topic, 3, 1)
    again = await client.stream_consumer(topic, "s", name="d")
    assert by_key(await receive(again, len(KEYS))) == {key: [3] for key in KEYS}
    await nothing_more(again)


async def test_segments_of_a_stream_go_to_who_is_left(client: Client, topic: str) -> None:
    consumers = [await client.stream_consumer(topic, "s", name=f"c{number}", earliest=True) for number in range(2)]
    await consumers[0].close()
    await publish(client, topic, 0, 2)
    assert by_key(await receive(consumers[1], 2 * len(KEYS))) == {key: [0, 1] for key in KEYS}


async def test_a_checkpoint_goes_on_where_it_was_taken(client: Client, topic: str, admin: AdminClient) -> None:
    """Also behind a split that the reader has not seen."""
    await publish(client, topic, 0, 4)
    consumer = await client.checkpoint_consumer(topic)
    first = await receive(consumer, 2 * len(KEYS))
    stored = consumer.checkpoint().to_bytes()
    await consumer.close()
    admin.scalable_topics.split(topic, 0)
    await publish(client, topic, 4, 2)
    again = await client.checkpoint_consumer(topic, Checkpoint.from_bytes(stored))
    rest = await receive(again, 4 * len(KEYS))
    assert by_key(first + rest) == {key: list(range(6)) for key in KEYS}
    await nothing_more(again)
    newest = await client.checkpoint_consumer(topic, LATEST)
    await publish(client, topic, 6, 1)
    assert by_key(await receive(newest, len(KEYS))) == {key: [6] for key in KEYS}
    admin.scalable_topics.split(topic, 1)
    await publish(client, topic, 7, 1)
    assert by_key(await receive(newest, len(KEYS))) == {key: [7] for key in KEYS}


@pytest.mark.parametrize("batching", [True, False])
async def test_a_checkpoint_at_the_end_of_sealed_segments_goes_on_with_their_children(
    client: Client, topic: str, admin: AdminClient, batching: bool
) -> None:
    await publish(client, topic, 0, 2, batching=batching)
    consumer = await client.checkpoint_consumer(topic)
    await receive(consumer, 2 * len(KEYS))
    stored = consumer.checkpoint()
    await consumer.close()
    admin.scalable_topics.split(topic, 0)
    admin.scalable_topics.split(topic, 1)
    await publish(client, topic, 2, 2)
    again = await client.checkpoint_consumer(topic, stored)
    assert by_key(await receive(again, 2 * len(KEYS))) == {key: [2, 3] for key in KEYS}


async def test_nothing_is_lost_and_no_key_out_of_order_when_the_server_is_killed(
    own_server: ServerProcess,
) -> None:
    """kill -9 while messages are on their way: producer and consumer come back by themselves."""
    async with Client(own_server.service_url) as client:
        topic = "topic://public/default/killed"
        with AdminClient(own_server.http_url) as admin:
            admin.scalable_topics.create(topic, 2)
        consumer = await client.stream_consumer(topic, "s", name="c", earliest=True)
        producer = await client.producer(topic, name="p", send_timeout_s=300)
        count = 20

        async def send(key: str) -> None:
            for number in range(count):
                await producer.send(str(number).encode(), key=key)
                await asyncio.sleep(0.02)

        sending = asyncio.gather(*map(send, KEYS))
        found: list[Message] = []
        for at in (5 * len(KEYS), count * len(KEYS)):
            async with asyncio.timeout(100):
                while len({(each.key, each.value) for each in found}) < at:
                    found.append(await consumer.receive())
                    await consumer.acknowledge_cumulative(found[-1])
            if at < count * len(KEYS):
                await asyncio.to_thread(own_server.kill)
                await asyncio.to_thread(own_server.start)
        await sending
        for key, values in by_key(found).items():
            assert list(dict.fromkeys(values)) == list(range(count)), f"{key}: {values}"


async def test_classic_topics_are_read_and_written_as_well(client: Client, admin: AdminClient) -> None:
    topic = "persistent://public/default/classic-of-client"
    admin.topics.create_partitioned(topic, 3)
    consumer = await client.queue_consumer(topic, "q", earliest=True)
    await publish(client, topic, 0, 2)
    assert by_key(await receive(consumer, 2 * len(KEYS))) == {key: [0, 1] for key in KEYS}
    reader = await client.checkpoint_consumer(topic, EARLIEST)
    assert len(by_key(await receive(reader, 2 * len(KEYS)))) == len(KEYS)
    with pytest.raises(InvalidArgumentError, match="is not a scalable topic"):
        await client.stream_consumer(topic, "s")


async def test_errors_name_what_is_wrong(client: Client, topic: str) -> None:
    with pytest.raises(RequestRefusedError, match="Namespace not found"):
        await client.producer("topic://public/nowhere/t")
    with pytest.raises(InvalidArgumentError, match="compression"):
        await client.producer(topic, compression="rar")
    producer = await client.producer(topic)
    with pytest.raises(RequestRefusedError, match="takes"):
        await producer.send(bytes(6 * 1024 * 1024))
    assert await producer.send(b"goes on")
    with pytest.raises(InvalidArgumentError, match="bytes"):
        await producer.send("text")  # type: ignore[arg-type]
