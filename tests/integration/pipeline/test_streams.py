"""Topics as streams and streams into topics, with checkpoints that lose their last commit."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

from magnetar.testing.server import ServerProcess
from tests.support.topics import drain, produce


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With deduplication, as an exact sink needs it."""
    settings = {
        "brokerDeduplicationEnabled": "true",
        "defaultRetentionTimeInMinutes": 60,
        "defaultRetentionSizeInMB": -1,
    }
    process = ServerProcess(tmp_path_factory.mktemp("server") / "data", settings).start()
    yield process
    process.close()


@pytest.fixture
def run(spark: Any, server: ServerProcess, tmp_path: Path) -> Callable[..., list[Any]]:
    """`run(write, topic=...)`: one `AvailableNow` run of a query with the test's checkpoint; the progress of its batches."""

    def once(write: Callable[[Any], Any], checkpoint: str = "checkpoint", **options: object) -> list[Any]:
        texts = {"service.url": server.service_url} | {name: str(value) for name, value in options.items()}
        frame = spark.readStream.format("magnetar").options(**texts).load()
        writer = write(frame).option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        return [each for each in query.recentProgress if each.numInputRows]

    return once


def partitioned(server: ServerProcess, topic: str, count: int, method: str = "PUT") -> None:
    path = f"/admin/v2/persistent/public/default/{topic.rpartition('/')[2]}/partitions"
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(server.http_url + path, str(count).encode(), headers, method=method)
    urllib.request.urlopen(asked, timeout=60).close()


def backlog(server: ServerProcess, topic: str, subscription: str) -> int:
    path = f"/admin/v2/persistent/public/default/{topic.rpartition('/')[2]}/stats"
    with urllib.request.urlopen(server.http_url + path, timeout=60) as answer:
        return int(json.load(answer)["subscriptions"][subscription]["msgBacklog"])


def test_limits_new_partitions_and_a_truthful_backlog(
    run: Callable[..., list[Any]], spark: Any, server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    def into_memory(frame: Any) -> Any:
        return frame.selectExpr("cast(value AS string) v", "__partition p").writeStream.foreachBatch(keep)

    seen: list[tuple[str, int]] = []

    def keep(frame: Any, _batch: int) -> None:
        seen.extend((row.v, row.p) for row in frame.collect())

    topic += "-parts"
    partitioned(server, topic, 2)
    batching = {"batching_enabled": True, "batching_max_messages": 4, "batching_max_publish_delay_ms": 5000}
    values = [f"{number}" for number in range(41)]
    produce(client, f"{topic}-partition-0", [value.encode() for value in values[:30]], **batching)
    options = {"topic": topic, "startingOffsets": "earliest", "predefinedSubscription": "spark"}
    batches = run(into_memory, maxMessagesPerTrigger=12, **options)
    assert [each.numInputRows for each in batches] == [12, 12, 6]
    assert [value for value, _ in seen] == values[:30]
    assert backlog(server, f"{topic}-partition-0", "spark") == 0

    # By the admin API's statistics: whole entries of about so many bytes, at least one, and nothing is read for it.
    entry_bytes = 60
    by_size = run(
        lambda frame: frame.writeStream.format("noop"),
        "sized",
        maxBytesPerTrigger=entry_bytes,
        **{**options, "predefinedSubscription": "sized", "admin.url": server.http_url},
    )
    assert sum(each.numInputRows for each in by_size) == 30
    assert {each.numInputRows for each in by_size} == {4, 2}

    partitioned(server, topic, 3, "POST")
    produce(client, f"{topic}-partition-2", [value.encode() for value in values[30:]])
    run(into_memory, **options)
    assert [value for value, _ in seen] == values
    assert {part for _, part in seen} == {0, 2}


def test_a_run_that_ends_has_acknowledged_all_it_read(
    run: Callable[..., list[Any]], server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    """Spark ends the process that acknowledges by SIGKILL, and the client sends acknowledgements up to 0.1 s later."""
    produce(client, topic, [b"%d" % number for number in range(3)])
    left = []
    for number in range(8):
        name = f"short-{number}"
        options = {"topic": topic, "startingOffsets": "earliest", "predefinedSubscription": name}
        run(lambda frame: frame.writeStream.format("noop"), name, maxMessagesPerTrigger=1 + number % 3, **options)
        left.append(backlog(server, topic, name))
    assert left == [0] * 8


def test_a_batch_that_failed_is_not_acknowledged(
    run: Callable[..., list[Any]], server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    """Nor is it by the next run before that has read it again: it is in Spark's offset log by then."""
    produce(client, topic, [b"%d" % number for number in range(6)])
    options = {"topic": topic, "startingOffsets": "earliest", "predefinedSubscription": "spark"}
    seen: list[list[int]] = []
    left: list[int] = []

    def keep(frame: Any, batch: int) -> None:
        left.append(backlog(server, topic, "spark"))
        rows = sorted(int(row.v) for row in frame.selectExpr("cast(value AS string) v").collect())
        if batch == 1 and len(seen) == 1:
            seen.append([])
            raise ValueError("no such day")
        seen.append(rows)

    def write(frame: Any) -> Any:
        return frame.writeStream.foreachBatch(keep)

    with pytest.raises(Exception, match="no such day"):
        run(write, maxMessagesPerTrigger=2, **options)
    assert backlog(server, topic, "spark") == 4
    run(write, maxMessagesPerTrigger=2, **options)
    assert seen == [[0, 1], [], [2, 3], [4, 5]]
    assert left == [6, 4, 4, 2]
    assert backlog(server, topic, "spark") == 0


def test_a_repeated_micro_batch_is_written_once(
    run: Callable[..., list[Any]], server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    produce(client, source, [b"%d" % number for number in range(20)])

    def copy(frame: Any) -> Any:
        rows = frame.selectExpr(
            "value",
            "concat('k', cast(value AS string)) __key",
            "map('p', 'q') __messageProperties",
            "__publishTime __eventTime",
        )
        return (
            rows.writeStream.format("magnetar").options(**{"service.url": server.service_url}).option("topic", target)
        )

    options = {"topic": source, "startingOffsets": "earliest", "maxMessagesPerTrigger": 8}
    run(copy, **options)
    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    produce(client, source, [b"%d" % number for number in range(20, 25)])
    run(copy, **options)
    written = drain(client, target)
    assert [int(message.data()) for message in written] == list(range(25))
    assert written[3].partition_key() == "k3"
    assert written[3].properties() == {"p": "q"}
    assert written[3].event_timestamp() > 1_700_000_000_000


def test_batch_write(spark: Any, server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    frame = spark.range(50).selectExpr("cast(id AS string) value", f"'{topic}' __topic", "cast(id % 3 AS string) __key")
    to = {"service.url": server.service_url}
    frame.write.format("pulsar").mode("append").options(**to).save()
    written = drain(client, topic)
    assert sorted((int(each.data()), each.partition_key()) for each in written) == [(n, str(n % 3)) for n in range(50)]
    for columns, words in [("id", "to_json"), ("cast(id AS string) value", "say the topic once")]:
        with pytest.raises(Exception, match=words):
            spark.range(1).selectExpr(columns).write.format("magnetar").mode("append").options(**to).save()


class Flight(Record):  # type: ignore[misc]
    carrier = String()
    delay = Integer()


@pytest.mark.parametrize(("kind", "schema"), [("json", JsonSchema), ("avro", AvroSchema)])
def test_columns_written_with_a_schema_are_read_by_it(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, kind: str, schema: Any
) -> None:
    frame = spark.range(20).selectExpr(
        "'AA' carrier",
        "cast(id AS int) delay",
        "map('k', id) extra",
        "to_timestamp('2024-05-06T07:08:09Z') at",
        "cast(id AS string) __key",
        "map('p', cast(id AS string)) __messageProperties",
        "to_timestamp('2024-05-06T07:08:09Z') __eventTime",
    )
    to = {"service.url": server.service_url, "topic": topic, "pulsar.producer.compressionType": "ZSTD"}
    frame.write.format("magnetar").mode("append").options(**to, schema=kind).save()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema(Flight))
    found = [reader.read_next(30_000) for _ in range(20)]
    rows = {(each.value().carrier, each.value().delay) for each in found}
    assert rows == {("AA", number) for number in range(20)}
    assert {(each.partition_key(), each.properties()["p"]) for each in found} == {(str(n), str(n)) for n in range(20)}
    assert {each.event_timestamp() for each in found} == {1_714_979_289_000}
    back = spark.read.format("magnetar").options(**{"service.url": server.service_url, "topic": topic}).load()
    row = back.filter("delay = 7").selectExpr("carrier", "extra['k'] k", "cast(at AS string) at", "__key").first()
    assert tuple(row)[:2] == ("AA", 7)
    assert row["at"].startswith("2024-05-06")
    for columns, words in [("id `a b`", "not an Avro name"), ("'k' __key", "needs columns beside")]:
        with pytest.raises(Exception, match=words):
            spark.range(1).selectExpr(columns).write.format("magnetar").mode("append").options(**to, schema=kind).save()
