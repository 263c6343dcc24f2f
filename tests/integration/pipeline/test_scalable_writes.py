"""Rows into scalable topics: by key to the segment of its hash, each once, also when segments split and merge in the middle."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.admin.client import AdminClient
from magnetar.client.scalable.layout import hash_of, place_of
from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.offsets import EARLIEST, Range
from magnetar.pipeline.connect.options import read_options, write_options
from magnetar.pipeline.connect.reading.range_reader import read_entries
from magnetar.pipeline.connect.segment_order import reading_order
from magnetar.pipeline.connect.writing.sender import Sender, sequence_id
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.proxy import CuttingProxy
from tests.support.scalable import KEYS, active

SETTINGS = {
    "brokerDeduplicationEnabled": "true",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With deduplication, as an exact sink needs it."""
    process = ServerProcess(tmp_path_factory.mktemp("server") / "data", SETTINGS).start()
    yield process
    process.close()


@pytest.fixture
def topic(new_scalable_topic: Callable[[int], str]) -> str:
    return new_scalable_topic(2)


def read_all(server: ServerProcess, topic: str) -> list[tuple[str | None, bytes]]:
    """Keys and values, in the order of the segments."""
    topics = Topics(options := read_options({"service.url": server.service_url, "topic": topic}))
    found = []
    for name in sorted(topics.partitions(), key=reading_order):
        low, high, _ = name.rpartition("/")[2].split("-")
        for entry in read_entries(options, Range(name, EARLIEST, topics.end(name))):
            keys = entry.messages.keys or [None] * len(entry.messages)
            for key, value in zip(keys, entry.messages.values(), strict=True):
                assert value is not None
                assert key is None or int(low, 16) <= place_of(hash_of(key)) <= int(high, 16)
                found.append((key, value))
    topics.close()
    return found


def stored(server: ServerProcess, topic: str) -> dict[str | None, list[int]]:
    """Numbers by key."""
    found: dict[str | None, list[int]] = defaultdict(list)
    for key, value in read_all(server, topic):
        found[key].append(int(value))
    return found


def send(sender: Sender, numbers: range) -> None:
    """One row of each number, the key by its turn."""
    for number in numbers:
        sender.send(sequence_id(1, number), b"%d" % number, KEYS[number % len(KEYS)], None, None, {"a": "b"})


def by_turn(count: int) -> dict[str | None, list[int]]:
    return {key: list(range(place, count, len(KEYS))) for place, key in enumerate(KEYS)}


def test_rows_follow_splits_and_merges_and_a_repeated_task_adds_nothing(
    server: ServerProcess, admin: AdminClient, topic: str
) -> None:
    options = write_options({"service.url": server.service_url, "topic": topic})
    sender = Sender(options, "task")
    send(sender, range(3000))
    admin.scalable_topics.split(topic, active(admin, topic)[0])
    send(sender, range(3000, 6000))
    admin.scalable_topics.merge(topic, *active(admin, topic)[1:3])
    send(sender, range(6000, 9000))
    sender.finish()
    sender.close()
    assert stored(server, topic) == by_turn(9000)

    # The same task again, which gets further than the first time, over a topic that was changed meanwhile.
    admin.scalable_topics.split(topic, active(admin, topic)[-1])
    again = Sender(options, "task")
    send(again, range(12_000))
    again.finish()
    again.close()
    assert stored(server, topic) == by_turn(12_000)


def test_rows_without_a_key_are_in_all_segments_and_known_again(
    server: ServerProcess, admin: AdminClient, topic: str
) -> None:
    options = write_options({"service.url": server.service_url, "topic": topic})
    for count in (500, 800):
        sender = Sender(options, "task")
        for number in range(count):
            sender.send(sequence_id(7, number), b"%d" % number, None, None, 1_700_000_000_000, None)
        sender.finish()
        sender.close()
        admin.scalable_topics.split(topic, active(admin, topic)[0])
    assert sorted(stored(server, topic)[None]) == list(range(800))
    assert all(admin.scalable_topics.segment_stats(topic, each).storage_size for each in (0, 1))


def test_connections_that_break_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """The server is known to clients by the proxy's address."""
    server = ServerProcess(tmp_path / "data", SETTINGS | {"advertisedAddress": "127.0.0.2"}).start()
    proxy, requests = CuttingProxy(server.port), CuttingProxy(int(server.http_url.rpartition(":")[2]))
    try:
        with AdminClient(server.http_url) as admin:
            topic = "topic://public/default/cut"
            admin.scalable_topics.create(topic, 2)
            options = write_options({"service.url": f"pulsar://127.0.0.2:{server.port}", "topic": topic})
            sender = Sender(options, "task")
            for first in range(0, 9000, 3000):
                proxy.cut_after("up" if first else "down", 20_000 if first else 300)
                send(sender, range(first, first + 3000))
                admin.scalable_topics.split(topic, active(admin, topic)[0])
            sender.finish()
            sender.close()
            assert proxy.cuts
        assert stored(server, topic) == by_turn(9000)
    finally:
        proxy.close()
        requests.close()
        server.close()


def test_frames_streams_and_sinks_of_pipelines(
    spark: Any, server: ServerProcess, admin: AdminClient, topic: str, tmp_path: Path
) -> None:
    def writer(frame: Any) -> Any:
        return frame.format("magnetar").option("service.url", server.service_url)

    rows = [(number, KEYS[number % len(KEYS)]) for number in range(600)]
    frame = spark.createDataFrame(rows, "n long, k string").repartition(1)
    frame = frame.sortWithinPartitions("n").selectExpr("cast(n AS string) AS value", "k AS __key")
    writer(frame.write).option("topic", topic).mode("append").save()
    assert stored(server, topic) == by_turn(600)
    admin.scalable_topics.split(topic, active(admin, topic)[0])

    typed = spark.createDataFrame([(1, "a"), (2, "b")], "n long, name string").selectExpr("n", "name", "name AS __key")
    for schema in ("json", "avro"):
        writer(typed.write).option("topic", f"{topic}-{schema}").option("schema", schema).mode("append").save()
        loaded = spark.read.format("magnetar").option("service.url", server.service_url)
        columns = loaded.option("topic", f"{topic}-{schema}").load().select("n", "name", "__key")
        assert sorted(map(tuple, columns.collect())) == [(1, "a", "a"), (2, "b", "b")]

    # As a stream into a topic that is named by the rows, and a view of both into a third one, which splits between two runs.
    copy, counts = f"{topic}-copy", f"{topic}-counts"
    admin.scalable_topics.create(copy, 3)
    stream = spark.readStream.format("magnetar").option("service.url", server.service_url)
    stream = stream.option("topic", topic).option("startingOffsets", "earliest").option("maxMessagesPerTrigger", 250)
    selected = stream.load().selectExpr("value", "__key", f"'{copy}' AS __topic")
    query = writer(selected.writeStream).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert {key: sorted(found) for key, found in stored(server, copy).items()} == by_turn(600)

    where = f"connector = 'pulsar', service.url = '{server.service_url}', admin.url = '{server.http_url}'"
    text = (
        f"CREATE SOURCE src (value BYTEA) INCLUDE KEY AS k WITH ({where}, topic = '{copy}', startingOffsets = 'earliest') "
        "FORMAT PLAIN ENCODE BYTES; CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS c FROM src GROUP BY k; "
        f"CREATE SINK out FROM v WITH ({where}, topic = '{counts}') FORMAT UPSERT ENCODE JSON;"
    )

    def run() -> None:
        pipeline = Pipeline("p", str(tmp_path / "p"), spark, units=2)
        pipeline.sql(text)
        pipeline.run(once=True)

    run()
    admin.scalable_topics.split(counts, active(admin, counts)[0])
    sender = Sender(write_options({"service.url": server.service_url, "topic": copy}), "more")
    send(sender, range(600, 660))
    sender.finish()
    sender.close()
    run()
    sent = read_all(server, counts)
    newest = {key: json.loads(value)["c"] for key, value in sent}
    assert newest == dict.fromkeys(KEYS, 55)
    assert len(sent) == len(set(sent)) == 2 * len(KEYS)
