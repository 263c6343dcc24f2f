"""Topics as DataFrames: what was sent is what `load()` shows, each message of [start, end) once."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

from magnetar.pipeline.connect import broker
from magnetar.pipeline.connect.broker import Topics, id_position
from magnetar.pipeline.connect.options import read_options
from magnetar.testing.server import ServerProcess
from tests.support.topics import produce
from tests.support.waiting import wait_until

Read = Callable[..., Any]
BATCH = 7
BENCH = Path(__file__).resolve().parents[3] / "bench" / "connector.py"


def test_metadata_columns(read: Read, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    first = producer.send(b"a", {"p": "1"}, partition_key="k", event_timestamp=1_700_000_000_123)
    producer.send(b"b")
    frame = read(topic=topic)
    keyed, plain = frame.selectExpr(
        "*", "unix_millis(__eventTime) event", "__publishTime > '2020-01-01' late"
    ).collect()
    assert (keyed.value, keyed["__key"], keyed.event) == (b"a", "k", 1_700_000_000_123)
    assert (keyed["__topic"], keyed["__messageProperties"], keyed["__partition"]) == (topic, {"p": "1"}, -1)
    at = id_position(pulsar.MessageId.deserialize(bytes(keyed["__messageId"])))
    assert at == id_position(first) == (keyed["__ledgerId"], keyed["__entryId"], keyed["__batchIndex"])
    assert (plain.value, plain["__key"], plain["__eventTime"], plain["__messageProperties"]) == (b"b", None, None, {})
    assert keyed.late
    assert plain.late


def test_every_range_of_a_topic_across_ledgers_batches_and_a_restart(
    spark: Any, start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client]
) -> None:
    server = start_server(
        managedLedgerMaxEntriesPerLedger=3,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
        defaultRetentionTimeInMinutes=60,
        defaultRetentionSizeInMB=-1,
    )
    topic = "persistent://public/default/ranges"
    batching = {"batching_enabled": True, "batching_max_messages": BATCH, "batching_max_publish_delay_ms": 5000}
    values = [b"%d" % number for number in range(60)]
    ids = produce(connect(server.service_url), topic, values[:40], **batching)
    server.restart()
    ids += produce(connect(server.service_url), topic, values[40:])
    where = [id_position(each) for each in ids]
    assert len({at.ledger for at in where}) > 2
    assert max(at.batch for at in where) == BATCH - 1

    def values_of(**options: object) -> list[bytes]:
        texts = {name: str(value) for name, value in options.items()} | {"service.url": server.service_url}
        frame = spark.read.format("pulsar").options(topic=topic, **texts).load()
        return sorted((bytes(row.value) for row in frame.collect()), key=int)

    def offsets(index: int) -> str:
        return json.dumps({topic: where[index].document()})

    assert values_of() == values
    for first, last in [(0, 5), (3, 14), (13, 15), (20, 59), (8, 8)]:
        assert values_of(startingOffsets=offsets(first), endingOffsets=offsets(last)) == values[first:last]
    split = {"admin.url": server.http_url, "minPartitions": "4"}
    assert values_of(**split) == values
    assert spark.read.format("pulsar").options(
        **split, **{"service.url": server.service_url, "topic": topic}
    ).load().rdd.getNumPartitions() in (3, 4)


def test_partitions_pattern_time_and_empty_topic(
    read: Read, client: pulsar.Client, server: ServerProcess, topic: str
) -> None:
    name = f"{topic}-many"
    path = f"/admin/v2/persistent/public/default/{name.rpartition('/')[2]}/partitions"
    asked = urllib.request.Request(server.http_url + path, b"3", {"Content-Type": "application/json"}, method="PUT")
    urllib.request.urlopen(asked, timeout=60).close()
    sent = [b"%d" % number for number in range(30)]
    produce(client, name, sent, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    rows = read(topic=name).collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(sent)
    assert {row["__partition"] for row in rows} == {0, 1, 2}
    pattern = {"topicsPattern": f"{name.rpartition('/')[2][:-2]}.*", "admin.url": server.http_url}
    assert read(**pattern).count() == len(sent)
    latest = max(row["__publishTime"] for row in rows)
    later = read(topic=name, startingTime=int(latest.timestamp() * 1000) + 1)
    assert later.count() == 0
    client.create_producer(f"{topic}-none").close()
    assert read(topics=f"{topic}-none,{name}", startingTime=1).count() == len(sent)


class Flight(Record):  # type: ignore[misc]
    carrier = String()
    delay = Integer()


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_fields_of_the_registered_schema_are_columns(
    read: Read, client: pulsar.Client, topic: str, schema: Any
) -> None:
    producer = client.create_producer(topic, schema=schema(Flight))
    for number in range(40):
        producer.send_async(Flight(carrier="AA", delay=number), lambda _result, _id: None, partition_key="k")
    producer.flush()
    rows = read(topic=topic).select("delay", "carrier", "__key").orderBy("delay").collect()
    assert [tuple(row) for row in rows] == [(number, "AA", "k") for number in range(40)]
    produce(client, f"{topic}-bytes", [b"x"])
    with pytest.raises(Exception, match="allowDifferentTopicSchemas=true"):
        read(topics=f"{topic},{topic}-bytes")
    both = read(topics=f"{topic},{topic}-bytes", allowDifferentTopicSchemas="true")
    assert both.columns[0] == "value"
    assert both.count() == 41


def test_conditions_on_topics_are_looked_at_before_reading(
    read: Read, client: pulsar.Client, server: ServerProcess, topic: str
) -> None:
    for name in "abc":
        produce(client, f"{topic}-{name}", [name.encode()])
    names = ",".join(f"{topic}-{name}" for name in "abc")
    frame = read(topics=names, pushdown="true", startingOffsets=json.dumps({f"{topic}-b": "earliest"}))
    for condition, found in [
        (f"__topic = '{topic}-a'", ["a"]),
        (f"__topic IN ('{topic}-a', '{topic}-c') AND __partition = -1", ["a", "c"]),
        (f"__topic = '{topic}-a' AND __topic = '{topic}-c'", []),
        (f"__topic = '{topic}-a' OR value = 'c'", ["a", "c"]),
    ]:
        some = frame.filter(condition)
        assert sorted(bytes(row.value).decode() for row in some.collect()) == found
        if "OR" not in condition and found:
            assert some.rdd.getNumPartitions() == len(found)


def test_until_a_time(read: Read, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for value in (b"a", b"b", b"c"):
        producer.send(value)
        time.sleep(0.01)
    times = [int(row["__publishTime"].timestamp() * 1000) for row in read(topic=topic).orderBy("__entryId").collect()]
    assert [bytes(row.value) for row in read(topic=topic, endingTime=times[2]).collect()] == [b"a", b"b"]
    assert read(topic=topic, endingTime=times[2] + 1).count() == 3
    assert read(topic=topic, startingTime=times[1], endingTime=times[2]).count() == 1


def test_what_is_asked_for_wrongly_is_refused_with_the_fix(read: Read, topic: str) -> None:
    for options, words in [
        ({"topic": topic, "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({"topic": topic, "topics": topic}, "exactly one of"),
        ({"topicsPattern": "a.*"}, "give admin.url"),
        ({"topic": topic, "startingOffsets": "x"}, "are not offsets"),
    ]:
        with pytest.raises(Exception, match=words):
            read(**options)


def test_only_the_columns_that_are_asked_for(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    produce(client, topic, [b"v"])
    options = {"service.url": server.service_url, "topic": topic}
    frame = spark.read.format("magnetar").schema("__partition int, value binary").options(**options).load()
    assert [tuple(row) for row in frame.collect()] == [(-1, bytearray(b"v"))]


def test_the_bench_measures_every_contender(spark: Any, server: ServerProcess, topic: str, tmp_path: Path) -> None:
    """Its numbers are for a quiet machine."""
    spec = importlib.util.spec_from_file_location("bench_connector", BENCH)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    lines = bench.measure(spark, server, topic, 500, 1, 64, tmp_path)
    assert [each["name"] for each in lines if each["target"]] == ["value", "all columns"]
    assert len(lines) == 5
    assert all(each["rows_per_s"] > 0 and each["ratio"] > 0 for each in lines)


class Asked:
    """A client that counts how often it is asked for partitions."""

    def __init__(self, client: pulsar.Client) -> None:
        self._client = client
        self.times = 0

    def __getattr__(self, name: str) -> Any:
        self.times += name == "get_topic_partitions"
        return getattr(self._client, name)


def test_a_topic_that_is_created_while_it_is_looked_for_has_all_its_partitions(
    server: ServerProcess, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Created behind the answer that names it as unpartitioned and before it is opened."""
    namespace = "public/created-between"
    topic = f"persistent://{namespace}/late"

    def admin(method: str, path: str, body: str) -> None:
        request = urllib.request.Request(f"{server.http_url}/admin/v2/{path}", body.encode(), method=method)
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()

    admin("PUT", f"namespaces/{namespace}", "{}")
    admin("POST", f"namespaces/{namespace}/autoTopicCreation", '{"allowAutoTopicCreation": false}')

    class CreatesBehindTheFirstAnswer(Asked):
        def create_reader(self, *values: Any, **named: Any) -> Any:
            if self.times == 1:
                admin("PUT", f"persistent/{namespace}/late/partitions", "3")
            return client.create_reader(*values, **named)

    asked = CreatesBehindTheFirstAnswer(client)
    monkeypatch.setattr(broker, "shared_client", lambda _: asked)
    options = read_options({"service.url": server.service_url, "topic": topic, "waitingForNonExistedTopic": "true"})
    assert Topics(options).partitions() == [f"{topic}-partition-{number}" for number in range(3)]


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_topic_that_is_not_there_is_waited_for(
    partitions: int, read: Read, server: ServerProcess, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First its namespace is not there, then it creates no topics; the broker calls one that is not there unpartitioned."""
    namespace = f"public/waiting-{partitions}"
    topic = f"persistent://{namespace}/late"

    def admin(method: str, path: str, body: str) -> None:
        request = urllib.request.Request(f"{server.http_url}/admin/v2/{path}", body.encode(), method=method)
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()

    monkeypatch.setattr(broker, "TOPIC_WAIT_S", 0.05)
    asked = Asked(client)
    monkeypatch.setattr(broker, "shared_client", lambda _: asked)
    waiting = Topics(
        read_options({"service.url": server.service_url, "topic": topic, "waitingForNonExistedTopic": "true"})
    )
    named: list[list[str]] = []
    rows: list[list[Any]] = []
    threads = [
        threading.Thread(target=lambda: named.append(waiting.partitions()), daemon=True),
        threading.Thread(
            target=lambda: rows.append(read(topic=topic, waitingForNonExistedTopic="true").collect()), daemon=True
        ),
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: asked.times >= 3, 60, "looks at a namespace that is not there")
    admin("PUT", f"namespaces/{namespace}", "{}")
    admin("POST", f"namespaces/{namespace}/autoTopicCreation", '{"allowAutoTopicCreation": false}')
    with pytest.raises(Exception, match="topic does not exist"):
        read(topic=topic).collect()
    before = asked.times
    wait_until(lambda: asked.times >= before + 3, 60, "looks at a topic that is not there")
    assert all(thread.is_alive() for thread in threads)
    path = f"persistent/{namespace}/late"
    admin("PUT", f"{path}/partitions" if partitions else path, str(partitions) if partitions else "")
    for thread in threads:
        thread.join(60)
    assert named == [[f"{topic}-partition-{number}" for number in range(partitions)] or [topic]]
    assert rows == [[]]
    client.create_producer(topic).send(b"here")
    assert [row.value for row in read(topic=topic, waitingForNonExistedTopic="true").collect()] == [b"here"]


def test_credentials_are_in_no_plan(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, capfd: Any
) -> None:
    secret = "s3cr3t-of-this-test"
    client.create_producer(topic).close()
    auth = {"pulsar.client.authPluginClassName": "AuthenticationToken", "pulsar.client.authParams": f"token:{secret}"}
    options = {"service.url": server.service_url, "topic": topic} | auth
    frame = spark.read.format("magnetar").options(**options).load()
    frame.explain("extended")
    frame.collect()
    shown = capfd.readouterr()
    assert "magnetar" in shown.out
    assert secret not in shown.out + shown.err
    with pytest.raises(Exception, match="unknown option") as refused:
        spark.read.format("magnetar").options(**options, nonsense="1").load()
    assert secret not in str(refused.value)


def test_a_batch_read_of_a_topic_that_is_not_there_names_it_and_makes_none(
    read: Read, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic).close()
    assert read(topic=topic).count() == 0
    for names in ({"topic": f"{topic}-misspelt"}, {"topics": f"{topic},{topic}-misspelt"}):
        for _ in range(2):  # the first one has not made it
            with pytest.raises(Exception, match=f"topic does not exist: {topic}-misspelt; correct the name"):
                read(**names).count()
