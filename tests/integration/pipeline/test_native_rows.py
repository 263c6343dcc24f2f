"""Messages that tasks decode by themselves and aggregate before Spark sees a row: as Spark reads them, or left to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.epoch.epoch import READ_AGAIN
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.pipeline.views.source.decoding import DECODED, PROBLEM, decode_values
from magnetar.pipeline.views.source.native_rows import UnreadRowsError, json_messages, json_rows
from magnetar.pipeline.views.source.options import reader_options
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import GROUPS, grouped, numbered, send, source, view_rows
from tests.support.topics import produce

COLUMNS = "k VARCHAR, n BIGINT, i INT, s SMALLINT, b BOOLEAN, d DOUBLE PRECISION"
ODD = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b" {} ",
    b'{"k":"a","k":"b"}',
    b'{"k":"a","n":1,}',
    b'{"n":1.0}',
    b'{"n":1e3}',
    b'{"n":"12"}',
    b'{"n":9223372036854775808}',
    b'{"n":-9223372036854775808}',
    b'{"i":2147483648}',
    b'{"s":-32769}',
    b'{"n":01}',
    b'{"n":-0}',
    b'{"k":1}',
    b'{"k":true}',
    b'{"k":{"a":1}}',
    b'{"b":"true"}',
    b'{"b":1}',
    b'{"d":1}',
    b'{"d":1e999}',
    b'{"d":NaN}',
    b'{"d":Inf}',
    b'{"x":-Infinity}',
    b'{"x":[Inf]}',
    b'{"x":nan}',
    b'{"k":"Inf: Inf"}',
    b"{'k':'a'}",
    b'{"k":"\\ud800"}',
    b'{"k":"\\ud83d\\ude00"}',
    b'{"k":"\\u0000"}',
    b'{"\\u006b":"z"}',
    b'{"K":"a"}',
    b'{"k":"a\xff"}',
    b'{"k":"a\nb"}',
    b'{"k":"a"}{"k":"b"}',
    b'{"k":"a"}x',
    b'{"k":"a"} /* c */',
    b'{"x":{"k":"in"},"y":[{"n":1}],"k":"out"}',
    b'{"x":1,"x":2}',
    b'{"x":"' + b"y" * 60_000 + b'"}',
    b'{"x":' + b"9" * 1_001 + b"}",
    b'{"x":' + b"[" * 1_001 + b"]" * 1_001 + b"}",
    b'{"' + b"y" * 50_001 + b'":1}',
    b'{"k":"' + b"y" * 5_000 + b'","n":7}',
]
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
)
objects = st.dictionaries(st.sampled_from(["k", "n", "i", "s", "b", "d", "x", "K"]), values, max_size=5)
plain = st.fixed_dictionaries(
    {},
    optional={
        "k": st.none() | st.text(max_size=3),
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "b": st.none() | st.booleans(),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "y": values,
    },
)
written = st.builds(lambda found, escaped: json.dumps(found, ensure_ascii=escaped), plain | objects, st.booleans())
cut = st.builds(
    lambda text, at: text[: at % (len(text) + 1)] + text[(at + 1) % (len(text) + 1) :], written, st.integers(0, 99)
)
messages = st.one_of(written, cut).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.sampled_from(ODD)


def created() -> CreateSource:
    statement = parse_one(
        f"CREATE SOURCE s ({COLUMNS}) WITH (connector = 'pulsar', topic = 't', service.url = 'pulsar://none:1') "
        "FORMAT PLAIN ENCODE JSON"
    )
    assert isinstance(statement, CreateSource)
    return statement


@settings(max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(messages, min_size=150, max_size=200))
def test_what_they_take_is_what_spark_reads(spark: SparkSession, given_messages: list[bytes]) -> None:
    one = created()
    rows = json_messages(one, read_options(reader_options(one)), {"k": "k"})
    assert rows is not None
    given_messages = [*ODD, *given_messages]
    raw = spark.createDataFrame(
        [(number, bytearray(m)) for number, m in enumerate(given_messages)], "at int, value binary"
    )
    decoded = decode_values(raw, one).frame.select("at", f"{DECODED}.*", PROBLEM).orderBy(F.col("at"))
    by_spark = decoded.collect()
    taken = []
    for message, wanted in zip(given_messages, by_spark, strict=True):
        try:
            (found,) = json_rows(pa.array([message], pa.binary()), rows.schema).to_pylist()
        except UnreadRowsError:
            continue
        taken.append(message)
        assert wanted[PROBLEM] is None, message
        assert {name: repr(wanted[name]) for name in found} == {name: repr(value) for name, value in found.items()}, (
            message
        )
    assert b"{}" in taken
    assert b'{"x":{"k":"in"},"y":[{"n":1}],"k":"out"}' in taken
    together = json_rows(pa.array(taken, pa.binary()), rows.schema)
    assert together.column("k").to_pylist() == [by_spark[given_messages.index(message)]["k"] for message in taken]


def test_types_and_sources_that_only_spark_reads() -> None:
    options = read_options(reader_options(created()))
    for columns, form in [
        ("k VARCHAR, at TIMESTAMP", "FORMAT PLAIN ENCODE JSON"),
        ("k VARCHAR, j JSONB[]", "FORMAT PLAIN ENCODE JSON"),
        ("k VARCHAR, u VARCHAR AS upper(k)", "FORMAT PLAIN ENCODE JSON"),
        ("k VARCHAR, n BIGINT", "FORMAT PLAIN ENCODE CSV"),
    ]:
        one = parse_one(
            f"CREATE SOURCE s ({columns}) WITH (connector = 'pulsar', topic = 't', service.url = 'pulsar://none:1') {form}"
        )
        assert isinstance(one, CreateSource)
        assert json_messages(one, options, {"k": "k"}) is None, columns


def test_epochs_begin_where_rows_are_read_and_go_through_spark_for_a_message_that_does_not_fit(
    spark: SparkSession, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    rows = numbered(0, 300)
    text = source(server.service_url, topic) + GROUPS
    for step in range(4):
        reports: list[EpochReport] = []
        if step == 0:
            send(client, topic, rows)
        else:  # more than what is an epoch of few rows
            more = numbered(300 * step, 300 * step + 300)
            extra = [b'{"k": "key-0", "n": 1.5}', b'{"k": 3, "n": 3}'] if step == 2 else []
            produce(client, topic, [*(json.dumps(row).encode() for row in more), *extra])
            rows += more
        if step == 2:
            rows += [{"k": "key-0", "n": 0}, {"k": "3", "n": 3}]
        pipeline = Pipeline("p", str(tmp_path / "p"), spark, units=2)
        pipeline.prepare(low_latency=True)
        pipeline.sql(text)
        pipeline.run(once=True, on_epoch=reports.append)
        (report,) = reports
        again: dict[str, Any] = {READ_AGAIN: 302, "undecodable": 1} if step == 2 else {}
        assert report.rows_in == 300 + (2 if step == 2 else 0)
        assert report.counters == again
        assert view_rows(tmp_path / "p") == grouped(rows)
