"""How producers of the official client spread messages over partitions of two brokers, and what moves when partitions are added."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import pulsar
import pytest

from magnetar.testing.cluster import ClusterProcesses
from tests.support.brokers import STEADY, broker_names, owner_of, send, spread_out

Connect = Callable[..., pulsar.Client]

PARTITIONS = 4
KEYS = [f"key-{number}" for number in range(300)]
ROUND_ROBIN = pulsar.PartitionsRoutingMode.RoundRobinDistribution

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    directory = tmp_path_factory.mktemp("cluster") / "c"
    with ClusterProcesses(directory, bookies=1, brokers=2, settings=STEADY) as processes:
        yield processes


@pytest.fixture
def topic(cluster: ClusterProcesses) -> str:
    """Four partitions, at both brokers."""
    name = f"routed-{next(_names)}"
    send("PUT", f"{cluster.http_url}/admin/v2/persistent/public/default/{name}/partitions", PARTITIONS)
    parts = [f"{name}-partition-{number}" for number in range(PARTITIONS)]
    spread_out(cluster, parts)
    assert {owner_of(cluster, part) for part in parts} == set(broker_names(cluster))
    return name


def place(message: pulsar.Message) -> int:
    """The partition."""
    return int(message.topic_name().rpartition("-")[2])


def take(consumers: Iterable[pulsar.Consumer], count: int) -> list[tuple[str, pulsar.Message]]:
    """So many messages with their consumers' names, as they come."""
    found: list[tuple[str, pulsar.Message]] = []
    for consumer in itertools.cycle(consumers):
        if len(found) == count:
            return found
        try:
            message = consumer.receive(20)
        except pulsar.Timeout:
            continue
        consumer.acknowledge(message)
        found.append((consumer.consumer_name(), message))
    raise AssertionError("no consumers")


def by_key(taken: list[tuple[str, pulsar.Message]], what: Callable[[str, pulsar.Message], object]) -> dict[str, object]:
    """What each key has; it must have one only."""
    found: dict[str, set[object]] = {}
    for name, message in taken:
        found.setdefault(message.partition_key(), set()).add(what(name, message))
    assert all(len(values) == 1 for values in found.values()), "a key was in two places"
    return {key: values.pop() for key, values in found.items()}


def test_single_partition(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    """Without a key one partition, the producer's own; with a key that key's."""
    client = connect(cluster.service_urls)
    consumer = client.subscribe(topic, "s")
    single = {"message_routing_mode": pulsar.PartitionsRoutingMode.UseSinglePartition}
    for _ in range(3):
        producer = client.create_producer(topic, **single)
        for number in range(20):
            producer.send(str(number).encode())
        messages = [message for _, message in take([consumer], 20)]
        assert len({place(message) for message in messages}) == 1
        assert [int(message.data()) for message in messages] == list(range(20))
    places = []
    for mode in (single, {"message_routing_mode": ROUND_ROBIN}):
        producer = client.create_producer(topic, **mode)
        for key in KEYS[:50]:
            producer.send(b"x", partition_key=key)
        places.append(by_key(take([consumer], 50), lambda _, message: place(message)))
    assert places[0] == places[1], "a key's partition does not depend on the mode"
    assert len(set(places[0].values())) > 1


def test_custom_router(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    client = connect(cluster.service_urls)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, count: int(message.data()) * 3 % count,
    )
    for number in range(40):
        producer.send(str(number).encode())
    for _, message in take([consumer], 40):
        assert place(message) == int(message.data()) * 3 % PARTITIONS


def test_round_robin_goes_on_with_each_batch(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    client = connect(cluster.service_urls)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        message_routing_mode=ROUND_ROBIN,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=60_000,
    )
    for number in range(80):
        producer.send_async(str(number).encode(), None)
    producer.flush()
    placed = {int(message.data()): message for _, message in take([consumer], 80)}
    batches = [[placed[number] for number in range(start, start + 10)] for start in range(0, 80, 10)]
    firsts = [place(batch[0]) for batch in batches]
    assert [(first - firsts[0]) % PARTITIONS for first in firsts] == [number % PARTITIONS for number in range(8)]
    for batch in batches:
        entries = {(place(each), each.message_id().ledger_id(), each.message_id().entry_id()) for each in batch}
        assert len(entries) == 1, "a batch is one entry of one partition"


def test_keys_keep_partition_and_consumer_and_half_of_them_move_when_partitions_double(
    cluster: ClusterProcesses, connect: Connect, topic: str
) -> None:
    """Client's routing is hash modulo count: of 4 partitions' keys each stays or goes to the one that is 4 further, and nowhere else."""
    first, second = (cluster.broker(name)[0] for name in broker_names(cluster))
    writer = connect(first)
    producers = [writer.create_producer(topic, message_routing_mode=ROUND_ROBIN) for _ in range(2)]

    def consumers(client: pulsar.Client) -> list[pulsar.Consumer]:
        shared = pulsar.ConsumerType.KeyShared
        return [client.subscribe(topic, "keys", shared, consumer_name=f"consumer-{number}") for number in range(3)]

    def written(using: list[pulsar.Producer]) -> None:
        for producer in using:
            for key in KEYS:
                producer.send_async(b"x", None, partition_key=key)
            producer.flush()

    reader = connect(second)
    reading = consumers(reader)
    written(producers)
    taken = take(reading, 2 * len(KEYS))
    before = by_key(taken, lambda _, message: place(message))
    assert set(before.values()) == set(range(PARTITIONS))
    who_before = by_key(taken, lambda name, _: name)
    assert len(set(who_before.values())) == len(reading), "each consumer has keys"
    send("POST", f"{cluster.http_url}/admin/v2/persistent/public/default/{topic}/partitions", 2 * PARTITIONS)
    writer.close()
    reader.close()  # clients look for new partitions once a minute; new ones see them at once
    reading = consumers(connect(first))
    client = connect(second)
    written([client.create_producer(topic, message_routing_mode=ROUND_ROBIN) for _ in range(2)])
    taken = take(reading, 2 * len(KEYS))
    after = by_key(taken, lambda _, message: place(message))
    by_key(taken, lambda name, _: name)
    moved = [key for key in KEYS if after[key] != before[key]]
    assert all(after[key] == int(str(before[key])) + PARTITIONS for key in moved)
    print(f"{len(moved)} of {len(KEYS)} keys moved from {PARTITIONS} to {2 * PARTITIONS} partitions")
    assert 0.35 * len(KEYS) < len(moved) < 0.65 * len(KEYS)
    owners = {owner_of(cluster, f"{topic}-partition-{number}") for number in range(2 * PARTITIONS)}
    assert owners == set(broker_names(cluster))
