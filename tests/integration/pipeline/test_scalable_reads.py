"""Scalable topics as DataFrames and streams: each message once and a key's in order, while segments split, merge and go."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from magnetar.admin.client import AdminClient
from magnetar.testing.server import ServerProcess
from tests.support.scalable import KEYS, active, publish
from tests.support.waiting import wait_until


@pytest.fixture
def topic(new_scalable_topic: Callable[[int], str]) -> str:
    """A scalable topic of two segments, 0 and 1."""
    return new_scalable_topic(2)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Deletes a sealed segment as soon as all subscriptions have read it."""
    settings = {"scalableTopicAutoScaleIntervalSeconds": "0.2", "scalableTopicAutoScaleEnabled": "false"}
    process = ServerProcess(tmp_path_factory.mktemp("forgetful") / "data", settings).start()
    yield process
    process.close()


def by_key(rows: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        found[row["__key"]].append(int(row.value))
    return found


def test_batch_reads_of_all_segments_in_the_order_of_keys(
    read: Callable[..., Any], server: ServerProcess, admin: AdminClient, topic: str
) -> None:
    publish(server.service_url, topic, range(5))
    admin.scalable_topics.split(topic, 0)
    publish(server.service_url, topic, range(5, 10))
    admin.scalable_topics.merge(topic, 3, 1)
    publish(server.service_url, topic, range(10, 15))
    frame = read(topic=topic)
    rows = frame.collect()
    assert by_key(rows) == {key: list(range(15)) for key in KEYS}
    assert {row["__topic"] for row in rows} == {topic}
    assert {row["__partition"] for row in rows} == {0, 1, 2, 3, 4}

    cut = {"admin.url": server.http_url, "minPartitions": 8, "pushdown": "true"}
    spread = read(topic=topic, **cut).select("value", "__key", "__partition")
    assert spread.rdd.getNumPartitions() >= 8
    assert by_key(spread.collect()) == by_key(rows)
    assert by_key(spread.where("__partition = 4").collect()) == by_key(
        [each for each in rows if each["__partition"] == 4]
    )

    later = rows[-1]["__publishTime"]
    since = [row for row in rows if row["__publishTime"] >= later]
    timed = read(topic=topic, startingTime=int(later.timestamp() * 1000)).collect()
    assert sorted(map(str, timed)) == sorted(map(str, since))

    last = max((row for row in rows if row["__partition"] == 4), key=lambda row: (row["__ledgerId"], row["__entryId"]))
    name = next(each for each in admin.scalable_topics.stats(topic).segments.values() if each.name.endswith("-4")).name
    at = {"ledger": last["__ledgerId"], "entry": last["__entryId"], "batch": 0}
    tail = read(topic=topic, startingOffsets=json.dumps({name: at}), endingOffsets=json.dumps({topic: "latest"}))
    assert [row for row in tail.collect() if row["__partition"] == 4] == [
        row for row in rows if row["__partition"] == 4 and row["__entryId"] >= last["__entryId"]
    ]
    with pytest.raises(PySparkException, match="does not exist"):
        read(topic="topic://public/default/not-there").collect()


def test_a_stream_follows_splits_and_merges_within_its_limits_and_over_restarts(
    spark: Any, server: ServerProcess, admin: AdminClient, topic: str, tmp_path: Path
) -> None:
    seen: list[list[Any]] = []

    def run() -> None:
        frame = (
            spark.readStream.format("magnetar")
            .option("service.url", server.service_url)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("maxMessagesPerTrigger", 50)
            .option("predefinedSubscription", "spark")
            .schema("value binary, __key string, __partition int")
            .load()
        )
        writer = frame.writeStream.foreachBatch(lambda batch, _: seen.append(batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    publish(server.service_url, topic, range(6))
    admin.scalable_topics.split(topic, 0)
    publish(server.service_url, topic, range(6, 12))
    run()
    read_by_then = [row for batch in seen for row in batch]
    assert by_key(read_by_then) == {key: list(range(12)) for key in KEYS}
    for batch in seen:
        ids = {row["__partition"] for row in batch}
        assert len(batch) <= 50
        assert not (0 in ids and ids & {2, 3}), "a child was read beside its parent"

    publish(server.service_url, topic, range(12, 15))
    admin.scalable_topics.merge(topic, 3, 1)
    admin.scalable_topics.split(topic, 4)
    publish(server.service_url, topic, range(15, 20))
    run()
    assert by_key([row for batch in seen for row in batch]) == {key: list(range(20)) for key in KEYS}
    stats = admin.scalable_topics.stats(topic)
    for number in map(int, stats.segments):
        backlog = admin.scalable_topics.segment_stats(topic, number).backlog
        assert backlog.get("spark") == 0, number


def test_segments_that_were_read_may_be_deleted_and_others_are_told_of(
    spark: Any, forgetful: ServerProcess, tmp_path: Path
) -> None:
    topic, seen = "topic://public/default/gone", list[Any]()

    def run(checkpoint: str, **more: str) -> None:
        options = {"service.url": forgetful.service_url, "topic": topic, "startingOffsets": "earliest"} | more
        frame = spark.readStream.format("magnetar").options(**options).schema("value binary, __key string").load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    with AdminClient(forgetful.http_url) as admin:
        admin.scalable_topics.create(topic, 1)
        publish(forgetful.service_url, topic, range(3))
        run("held", predefinedSubscription="s")
        run("loose")
        for number, first in enumerate(range(3, 9, 3)):
            admin.scalable_topics.split(topic, active(admin, topic)[0])
            publish(forgetful.service_url, topic, range(first, first + 3))
            if number == 0:
                seen.clear()
            run("held", predefinedSubscription="s")
            # What is sealed is read by now, and goes; the next run begins without it.
            wait_until(lambda: len(admin.scalable_topics.metadata(topic).segments) == len(active(admin, topic)))
        assert by_key(seen) == {key: list(range(3, 9)) for key in KEYS}
        with pytest.raises(PySparkException, match="the segment was deleted"):
            run("loose")
        run("loose", failOnDataLoss="false")


def test_batch_reads_of_a_topic_that_was_a_classic_one(
    read: Callable[..., Any], server: ServerProcess, admin: AdminClient
) -> None:
    admin.topics.create_partitioned("was-classic", 2)
    publish(server.service_url, "persistent://public/default/was-classic", range(3))
    admin.scalable_topics.migrate("was-classic")
    topic = "topic://public/default/was-classic"
    publish(server.service_url, topic, range(3, 6))
    rows = read(topic=topic).collect()
    assert by_key(rows) == {key: list(range(6)) for key in KEYS}
    assert {row["__partition"] for row in rows} == {0, 1, 2, 3}
