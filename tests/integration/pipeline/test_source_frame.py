"""CREATE SOURCE over a real topic: declared, generated and included columns, kinds of change, and messages that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String
from pyspark.sql import DataFrame, Observation, SparkSession

from magnetar.pipeline.connect.errors import SourceError
from magnetar.pipeline.operators.changelog import CHANGE, DELETE, INSERT, UPDATE_AFTER
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.lowering.stages import ROW_ID
from magnetar.pipeline.views.source.frame import decode, raw_schema, source_schema, with_columns
from magnetar.pipeline.views.source.options import reader_options
from magnetar.testing.server import ServerProcess
from tests.support.topics import produce

Sources = Callable[..., CreateSource]


@pytest.fixture
def source(server: ServerProcess, topic: str) -> Sources:
    """`source("a INT", "FORMAT PLAIN ENCODE JSON", include="INCLUDE KEY")` of the test's topic."""

    def create(
        columns: str, form: str = "FORMAT PLAIN ENCODE JSON", include: str = "", options: str = ""
    ) -> CreateSource:
        where = f"connector = 'pulsar', topic = '{topic}', service.url = '{server.service_url}', startingOffsets = 'earliest'"
        statement = parse_one(f"CREATE SOURCE s ({columns}) {include} WITH ({where}{options}) {form}")
        assert isinstance(statement, CreateSource)
        return statement

    return create


def load(spark: SparkSession, source: CreateSource) -> DataFrame:
    return spark.read.format("magnetar").schema(raw_schema(source)).options(**reader_options(source)).load()


def test_json_columns_times_generated_and_included(
    spark: SparkSession, client: pulsar.Client, topic: str, source: Sources
) -> None:
    created = source(
        "id BIGINT, `Two Words` VARCHAR, at TIMESTAMPTZ, price NUMERIC(10, 2), raw JSONB, deep STRUCT<x INT, y VARCHAR[]>, "
        "twice BIGINT AS id * 2, hour AS date_trunc('hour', at)".replace("`", '"'),
        include="INCLUDE KEY AS k INCLUDE HEADER 'h' AS h INCLUDE EVENT_TIME AS event INCLUDE PARTITION",
    )
    producer = client.create_producer(topic)
    times: list[Any] = ["2026-01-02T03:04:05.678Z", 1767323045, 1767323045678, 1767323045678000, None]
    for number, at in enumerate(times):
        row = {"id": number, "Two Words": "z", "at": at, "price": 1.25, "raw": {"q": [1]}, "deep": {"x": 7, "y": ["p"]}}
        producer.send(
            json.dumps(row).encode(), {"h": f"h{number}"}, partition_key=f"k{number}", event_timestamp=1_700_000_000_000
        )
    frame = decode(load(spark, created), created)
    assert frame.schema == source_schema(spark, created)
    rows = frame.orderBy(ROW_ID).collect()
    assert [row.id for row in rows] == [0, 1, 2, 3, 4]
    assert [str(row["at"]) for row in rows] == [
        "2026-01-02 03:04:05.678000",
        "2026-01-02 03:04:05",
        "2026-01-02 03:04:05.678000",
        "2026-01-02 03:04:05.678000",
        "None",
    ]
    first = rows[0]
    assert (first["Two Words"], str(first.price), first.raw, first.deep) == ("z", "1.25", '{"q":[1]}', (7, ["p"]))
    assert (first.twice, str(first.hour), first.k, first.h) == (0, "2026-01-02 03:00:00", "k0", "h0")
    assert (str(first.event), first["__partition"], first[CHANGE]) == ("2023-11-14 22:13:20", -1, INSERT)


BAD = [b"{", b"", b"null", b'[{"a":1}]', b'{"a":"x"}', b'{"a":1.5}', b'{"a":5} x', b'{"a":5}{"a":6}', b'{"t":"noon"}']


def test_messages_that_cannot_be_read_are_never_left_out_in_silence(
    spark: SparkSession, client: pulsar.Client, topic: str, source: Sources
) -> None:
    produce(client, topic, [b'{"a":1}', *BAD, b'{"a":2,"b":"c"}'])
    strict = source("a INT, t TIMESTAMP", options=", on.decode.error = 'strict'")
    with pytest.raises(Exception, match=rf"source s: the message {topic} \d+:\d+:0 cannot be read as PLAIN JSON"):
        decode(load(spark, strict), strict).select(ROW_ID).collect()

    def counted(policy: str) -> tuple[list[Any], dict[str, int]]:
        lenient = source("a INT, t TIMESTAMP", options=f", on.decode.error = '{policy}'")
        seen = Observation()
        rows = decode(load(spark, lenient), lenient, seen).orderBy(ROW_ID).collect()
        return [row.a for row in rows], dict(seen.get)

    assert counted("skip") == ([1, 2], {"rows": 11, "undecodable": len(BAD)})
    assert counted("dead_letter") == counted("skip")
    assert counted("null") == ([1, *[None] * len(BAD), 2], {"rows": 11, "undecodable": len(BAD)})
    with pytest.raises(SourceError, match="give one of null, skip, dead_letter, strict"):
        counted("ignore")


CSV_ROWS = {
    b'1,"a, ""b""",1767323045,2.50,true,"{""q"":1}"\n': (1, 'a, "b"', "2026-01-02 03:04:05", "2.50", True, '{"q":1}'),
    b',"",2026-01-02T03:04:05Z,,f,\r\n': (None, "", "2026-01-02 03:04:05", "None", False, None),
    " 7 ,\u00e4 \U0001f600 ,,-1,,".encode(): (7, "\u00e4 \U0001f600 ", "None", "-1.00", None, None),
}
CSV_BAD = [b"", b"1", b"1,2,,,,,7", b"x,a,,,,", b"1.5,a,,,,", b"1,a,noon,,,", b"1,a,,,maybe,", b"1,a,,,,\n2,b,,,,"]


def test_csv(spark: SparkSession, client: pulsar.Client, topic: str, source: Sources) -> None:
    produce(client, topic, [*CSV_ROWS, *CSV_BAD])
    columns = "a BIGINT, b VARCHAR, at TIMESTAMP, p NUMERIC(10, 2), yes BOOLEAN, j JSONB, twice BIGINT AS a * 2"
    created = source(columns, "FORMAT PLAIN ENCODE CSV (without_header = 'true', on.decode.error = 'skip')")
    seen = Observation()
    rows = decode(load(spark, created), created, seen).orderBy(ROW_ID).collect()
    assert [(row.a, row.b, str(row["at"]), str(row.p), row.yes, row.j) for row in rows] == list(CSV_ROWS.values())
    assert [row.twice for row in rows] == [2, None, 14]
    assert dict(seen.get) == {"rows": len(CSV_ROWS) + len(CSV_BAD), "undecodable": len(CSV_BAD)}
    strict = source(columns, "FORMAT PLAIN ENCODE CSV (on.decode.error = 'strict')")
    with pytest.raises(Exception, match=rf"source s: the message {topic} \d+:\d+:0 cannot be read as PLAIN CSV"):
        decode(load(spark, strict), strict).select(ROW_ID).collect()
    lenient = source("a INT, b VARCHAR", "FORMAT PLAIN ENCODE CSV (delimiter = '\\t')")
    produce(client, topic, [b"5\tx y", b"z\tw"])
    last = decode(load(spark, lenient), lenient).orderBy(ROW_ID).collect()[-2:]
    assert [(row.a, row.b) for row in last] == [(5, "x y"), (None, "w")]


def test_upsert_replaces_and_deletes_by_the_key_of_the_message(
    spark: SparkSession, client: pulsar.Client, topic: str, source: Sources
) -> None:
    producer = client.create_producer(topic)
    producer.send(b'{"id":7,"name":"a"}', partition_key="7")
    producer.send(b"", partition_key="7")
    one = source("id INT, name VARCHAR, PRIMARY KEY (id)", "FORMAT UPSERT ENCODE JSON")
    rows = decode(load(spark, one), one).orderBy(ROW_ID).collect()
    assert [(row.id, row.name, row[CHANGE]) for row in rows] == [(7, "a", UPDATE_AFTER), (7, None, DELETE)]
    producer.send(b"", partition_key='{"id":8,"name":"b"}')
    two = source(
        "id INT, name VARCHAR, x INT, PRIMARY KEY (id, name)", "FORMAT UPSERT ENCODE JSON (on.decode.error = 'skip')"
    )
    rows = decode(load(spark, two), two).orderBy(ROW_ID).collect()
    assert [(row.id, row.name, row[CHANGE]) for row in rows] == [(7, "a", UPDATE_AFTER), (8, "b", DELETE)]
    keyed = source("name VARCHAR, PRIMARY KEY (k)", "FORMAT UPSERT ENCODE JSON", include="INCLUDE KEY AS k")
    rows = decode(load(spark, keyed), keyed).orderBy(ROW_ID).collect()
    assert [row.k for row in rows] == ["7", "7", '{"id":8,"name":"b"}']


def test_a_row_that_cannot_have_its_key_is_not_made(
    spark: SparkSession, client: pulsar.Client, topic: str, source: Sources
) -> None:
    produce(client, topic, [b'{"id":7,"n":"x"}', b"{", b'{"n":3}', b'{"id":"x","n":4}'])
    keyed = source("id INT, n INT, PRIMARY KEY (id)", "FORMAT UPSERT ENCODE JSON")
    rows = decode(load(spark, keyed), keyed).orderBy(ROW_ID).collect()
    assert [(row.id, row.n) for row in rows] == [(7, None), (None, 3)], "a key that the message says is NULL is one"


def test_debezium_envelopes(spark: SparkSession, client: pulsar.Client, topic: str, source: Sources) -> None:
    def envelope(op: str, before: Any, after: Any) -> dict[str, Any]:
        return {"op": op, "before": before, "after": after, "source": {"lsn": 1}}

    old, new, other = (
        {"id": 1, "n": "old"},
        {"id": 1, "n": "new", "d": 20_000},
        {"id": 2, "n": "new", "d": "2024-10-04"},
    )
    sent = [
        envelope("r", None, old),
        {"schema": {}, "payload": envelope("u", None, new)},
        envelope("u", {"id": 1}, other),
        envelope("d", {"id": 2}, None),
    ]
    produce(client, topic, [*(json.dumps(each).encode() for each in sent), b""])
    form = "FORMAT DEBEZIUM ENCODE JSON"
    created = source("id INT, n VARCHAR, d DATE, PRIMARY KEY (id)", form)
    rows = decode(load(spark, created), created).orderBy(ROW_ID, "id").collect()
    assert [(row[CHANGE], row.id, row.n, None if row.d is None else str(row.d)) for row in rows] == [
        (INSERT, 1, "old", None),
        (UPDATE_AFTER, 1, "new", "2024-10-04"),
        (DELETE, 1, None, None),
        (UPDATE_AFTER, 2, "new", "2024-10-04"),
        (DELETE, 2, None, None),
    ]
    produce(client, topic, [b'{"op":"t"}', b'{"op":"x","after":{"id":1}}', b'{"op":"c","after":{"id":7,"d":"noon"}}'])
    strict = source("id INT, n VARCHAR, d DATE, PRIMARY KEY (id)", form, options=", on.decode.error = 'strict'")
    with pytest.raises(Exception, match="cannot be read as DEBEZIUM JSON"):
        decode(load(spark, strict), strict).collect()
    lenient = source("id INT, d DATE, PRIMARY KEY (id)", form, options=", on.decode.error = 'null'")
    assert [(row.id, row.d) for row in decode(load(spark, lenient), lenient).orderBy(ROW_ID).collect()[-1:]] == [
        (7, None)
    ]


def test_row_ids_sort_as_positions_do(spark: SparkSession, topic: str, source: Sources) -> None:
    created = source("value BYTEA", "FORMAT PLAIN ENCODE BYTES")
    numbers = [0, 1, 9, 10, 15, 16, 255, 256, 2**31, 2**40]
    positions = sorted((ledger, entry, batch) for ledger in numbers for entry in numbers for batch in (0, 1, 16, 999))
    raw = spark.createDataFrame(
        [(b"", topic, -1, *position) for position in positions],
        "value binary, __topic string, __partition int, __ledgerId bigint, __entryId bigint, __batchIndex int",
    )
    ids = [row[0] for row in decode(raw, created).select(ROW_ID).collect()]
    assert ids == sorted(set(ids))


class Flight(Record):  # type: ignore[misc]
    carrier = String()
    delay = Integer()


class Longer(Record):  # type: ignore[misc]
    carrier = String()
    delay = Integer()
    gate = String(default=None, required_default=True)


def test_avro_by_the_version_of_each_message_with_columns_from_the_registry(
    spark: SparkSession, client: pulsar.Client, topic: str, source: Sources
) -> None:
    first = client.create_producer(topic, schema=AvroSchema(Flight))
    first.send(Flight(carrier="AA", delay=5), partition_key="AA")
    created = source("*", "FORMAT PLAIN ENCODE AVRO", include="INCLUDE KEY AS k")
    resolved = with_columns(created)
    assert [(column.name, column.type) for column in resolved.columns] == [("carrier", "VARCHAR"), ("delay", "INT")]
    second = client.create_producer(topic, schema=AvroSchema(Longer))
    second.send(Longer(carrier="BB", delay=None, gate="7"), partition_key="BB")
    first.send(Flight(carrier="CC", delay=-3))
    assert source_schema(spark, resolved) == decode(load(spark, resolved), resolved).schema
    rows = decode(load(spark, resolved), resolved).orderBy(ROW_ID).collect()
    assert [(row.carrier, row.delay, row.k) for row in rows] == [("AA", 5, "AA"), ("BB", None, "BB"), ("CC", -3, None)]
    named = source("gate VARCHAR, delay BIGINT", "FORMAT PLAIN ENCODE AVRO")
    rows = decode(load(spark, named), named).orderBy(ROW_ID).collect()
    assert [(row.gate, row.delay) for row in rows] == [(None, 5), ("7", None), (None, -3)]
    wrong = source("carrier INT", "FORMAT PLAIN ENCODE AVRO", options=", on.decode.error = 'strict'")
    with pytest.raises(Exception, match="cannot be read as PLAIN AVRO: a field has another type"):
        decode(load(spark, wrong), wrong).collect()


def test_json_columns_from_the_registry(
    spark: SparkSession, client: pulsar.Client, topic: str, source: Sources
) -> None:
    client.create_producer(topic, schema=JsonSchema(Flight)).send(Flight(carrier="AA", delay=5))
    resolved = with_columns(source("*"))
    assert [(row.carrier, row.delay) for row in decode(load(spark, resolved), resolved).collect()] == [("AA", 5)]
    with pytest.raises(SourceError, match="write ENCODE JSON"):
        with_columns(source("*", "FORMAT PLAIN ENCODE AVRO"))


def test_a_source_without_columns_or_with_what_a_message_cannot_tell_is_refused(
    spark: SparkSession, source: Sources
) -> None:
    with pytest.raises(SourceError, match="has no columns"):
        source_schema(spark, source("*"))
    for generated in ("now()", "count(*)"):
        with pytest.raises(SourceError, match="computed from one message alone"):
            source_schema(spark, source(f"a INT, b AS {generated}"))
