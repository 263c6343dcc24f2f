"""Which stages the driver runs without Spark, and which messages it reads for them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.connect.reading.range_reader import KeptConnections
from magnetar.pipeline.operators.aggregate import aggregate
from magnetar.pipeline.operators.aggregate_functions import Call
from magnetar.pipeline.sql.computed import Computed
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.plan import Named
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.epoch.plain_stage import PlainSource, plain_stage
from magnetar.pipeline.views.lowering.stages import Feed, Filter, Select, Stage, Step
from magnetar.pipeline.views.source.options import reader_options

ROWS = pa.schema([("k", pa.string()), ("__arg0", pa.int64())])
PLAIN = Select((Named("k", "k"), Named("`n`", "__arg0")))


def source(columns: str = "k VARCHAR, n BIGINT", form: str = "FORMAT PLAIN ENCODE JSON") -> PlainSource | None:
    found = parse_one(
        f"CREATE SOURCE s ({columns}) WITH (connector = 'pulsar', topic = 't', service.url = 'pulsar://a:1') {form}"
    )
    assert isinstance(found, CreateSource)
    return PlainSource.of(found, read_options(reader_options(found)), KeptConnections())


def stage(*steps: Step, place_by: tuple[str, ...] = ("k",)) -> Stage:
    operator = aggregate(1, "v/1", ROWS, ["k"], [Call("max", "__arg0", "m")], append_only=True)
    return Stage("v/1", (Feed("input", "s", steps, ROWS, place_by),), operator)


def test_columns_as_they_come_need_no_spark() -> None:
    known = source()
    assert known is not None
    found = plain_stage(stage(PLAIN), known, None)
    assert found is not None
    assert found.columns == {"k": "k", "__arg0": "n"}
    twice = plain_stage(
        stage(Select((Named("n", "x"), Named("k", "y"))), Select((Named("y", "k"), Named("x", "__arg0")))), known, None
    )
    assert twice is not None
    assert twice.columns == {"k": "k", "__arg0": "n"}
    changes = pa.schema([("k", pa.string()), ("n", pa.int64())])
    assert plain_stage(stage(PLAIN), None, changes) is not None
    assert plain_stage(stage(PLAIN), None, changes.set(1, pa.field("n", pa.int32()))) is None, "Spark casts"
    assert plain_stage(stage(PLAIN), None, None) is None


@pytest.mark.parametrize(
    "steps",
    [
        (Filter("n > 1"), PLAIN),
        (Select((Named("k", "k"), Named("n + 1", "__arg0"))),),
        (Select((Named("k", "k"), Named("null", "__arg0"))),),
        (Select((Named("k", "k"), Named("_row_id", "__arg0"))),),
        (Select((Named("k", "k"), Named(Computed.of("n", "true", "n"), "__arg0"))),),
        (Select((Named("k", "k"),)),),
    ],
)
def test_whatever_is_computed_is_for_spark(steps: tuple[Step, ...]) -> None:
    assert plain_stage(stage(*steps), source(), None) is None


def test_stages_with_several_inputs_or_partial_results_are_for_spark() -> None:
    one, known = stage(PLAIN), source()
    assert plain_stage(replace(one, feeds=one.feeds * 2), known, None) is None
    assert plain_stage(replace(one, preaggregate=(Named("count(1)", "c"),)), known, None) is None
    assert plain_stage(replace(one, preaggregate=(Named("count(1)", "c"),), takes_rows=True), known, None) is not None
    assert plain_stage(stage(PLAIN, place_by=()), known, None) is None


@pytest.mark.parametrize(
    ("columns", "form"),
    [
        ("k VARCHAR, n TIMESTAMP", "FORMAT PLAIN ENCODE JSON"),
        ("k VARCHAR, n BIGINT, twice BIGINT AS n * 2", "FORMAT PLAIN ENCODE JSON"),
        ("k VARCHAR, n NUMERIC", "FORMAT PLAIN ENCODE JSON"),
        ("k VARCHAR, n BIGINT", "FORMAT PLAIN ENCODE CSV"),
    ],
)
def test_other_messages_are_for_spark(columns: str, form: str) -> None:
    assert source(columns, form) is None


def test_one_message_that_is_not_plain_leaves_all_to_spark() -> None:
    known = source()
    assert known is not None
    assert known.decoded([b'{"k": "a", "n": 1}', b"{}"]) == [{"k": "a", "n": 1}, {}]
    assert known.decoded([b'{"k": "a", "n": 1}', b'{"n": "1"}']) is None
    assert known.decoded([b'{"k": "a", "n": 1, "n": 2}']) is None
