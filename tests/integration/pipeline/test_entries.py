"""Entries from raw frames: none is lost or doubled, whatever is asked in between and whatever breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pulsar
import pytest

from magnetar.pipeline.connect.entries import ClientEntries, RawEntries
from magnetar.pipeline.connect.offsets import EARLIEST, Position, Range
from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.connect.range_reader import read_entries
from magnetar.testing.server import ServerProcess
from tests.support.topics import produce

BATCHING = {
    "block_if_queue_full": True,
    "batching_enabled": True,
    "batching_max_messages": 100,
    "batching_max_publish_delay_ms": 50,
}
COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


def collect(source: RawEntries | ClientEntries, count: int, ask: bool = False) -> list[bytes | None]:
    found: list[bytes | None] = []
    give_up = time.monotonic() + 30
    while len(found) < count and time.monotonic() < give_up:
        for entry in source.receive(0.5):
            found += entry.messages.values()
        if ask:
            assert source.has_more() is (len(found) < count)
    source.close()
    return found


def test_a_question_between_messages_loses_none(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    values = [b"%d" % number + b"x" * 500 for number in range(30_000)]
    produce(client, topic, values, **BATCHING)
    connection = read_options({"service.url": server.service_url, "topic": topic}).connection
    assert collect(RawEntries(connection, topic, EARLIEST), len(values), ask=True) == values
    middle = collect(RawEntries(connection, topic, Position(0, 0, 3)), len(values))
    assert middle == values


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_official_client_finds_the_same(
    server: ServerProcess, client: pulsar.Client, topic: str, compression: pulsar.CompressionType
) -> None:
    producer = client.create_producer(topic, compression_type=compression, **BATCHING)
    for number in range(300):
        properties = {"n": str(number)} if number % 3 == 0 else None
        content = None if number % 7 == 0 else b"v%d" % number
        key = f"k{number}" if number % 2 else None
        producer.send_async(content, lambda _result, _id: None, properties, key, event_timestamp=number % 5)
    producer.flush()
    producer.send(b"alone", partition_key="z")
    options = read_options({"service.url": server.service_url, "topic": topic})

    def seen(source: RawEntries | ClientEntries) -> list[object]:
        found: list[object] = []
        while len(found) < 301:
            for entry in source.receive(5.0):
                some = entry.messages
                nothing = [None] * len(some)
                found += zip(
                    [(entry.ledger, entry.entry, entry.batch_size, entry.publish_time_ms)] * len(some),
                    some.indexes,
                    some.values(),
                    some.keys or nothing,
                    some.event_times_ms or [0] * len(some),
                    [sorted(each) for each in some.properties or [[] for _ in nothing]],
                    strict=True,
                )
        source.close()
        return found

    raw = seen(RawEntries(options.connection, topic, EARLIEST))
    assert raw == seen(ClientEntries(options.connection, topic, EARLIEST))


def test_what_only_the_client_reads_is_read_by_it(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    produce(client, topic, [b"a", b"b"])
    large = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    large.send(b"c" * 6_000_000)
    produce(client, topic, [b"d"])
    options = read_options({"service.url": server.service_url, "topic": topic})
    whole = Range(topic, EARLIEST, Position(2**40, 0))
    found: list[bytes | None] = []
    for entry in read_entries(options, whole):
        found += entry.messages.values()
        if len(found) == 4:
            break
    assert found == [b"a", b"b", b"c" * 6_000_000, b"d"]


def test_a_server_that_dies_again_and_again_costs_nothing(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client]
) -> None:
    server = start_server(defaultRetentionTimeInMinutes=60, defaultRetentionSizeInMB=-1)
    topic = "persistent://public/default/dies"
    values = [b"%d" % number + b"x" * 2000 for number in range(20_000)]
    produce(connect(server.service_url), topic, values, **BATCHING)
    options = read_options({"service.url": server.service_url, "topic": topic})
    seen = 0
    found: list[bytes | None] = []
    kills = iter([2_000, 9_000])
    due = next(kills)
    for entry in read_entries(options, Range(topic, EARLIEST, Position(2**40, 0))):
        found += entry.messages.values()
        seen = len(found)
        if seen >= due:
            due = next(kills, 10**9)
            threading.Thread(target=server.restart).start()
        if seen >= len(values):
            break
    assert found == values
