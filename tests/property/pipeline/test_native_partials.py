"""Partial results that tasks make by DuckDB, sent to units and merged there, against the same rows in one delta."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.errors import AggregateOverflowError
from magnetar.pipeline.operators.aggregate import MergedAggregate, aggregate
from magnetar.pipeline.operators.aggregate_functions import Call
from magnetar.pipeline.operators.changelog import CHANGE, INSERT
from magnetar.pipeline.operators.native_partials import NativePartials, native_partials
from magnetar.pipeline.operators.operator import INPUT, EpochContext, OperatorResult
from magnetar.pipeline.state.table import OP, PUT, VNODE, as_frame
from magnetar.pipeline.views.epoch.native import of_unit, to_units, unread
from magnetar.pipeline.views.source.native_rows import UnreadRowsError

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("whole", pa.int64()),
        ("small", pa.int16()),
        ("truth", pa.bool_()),
        ("day", pa.date32()),
        ("real", pa.float64()),
        ("amount", pa.decimal128(10, 2)),
    ]
)
CALLS = [
    Call("count", None, "rows"),
    Call("count", "text", "texts"),
    Call("sum", "whole", "total"),
    Call("avg", "whole", "mean"),
    Call("sum", "small", "small_total"),
    Call("min", "text", "first"),
    Call("max", "text", "last"),
    Call("min", "whole", "least"),
    Call("max", "day", "newest"),
    Call("min", "truth", "all_true"),
    Call("max", "small", "greatest"),
]
CONTEXT = EpochContext(1, 0)
VNODES = 8

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.sampled_from(
    ["a", "b", "a\0", "\0", "", "😀"]
)
rows = st.fixed_dictionaries(
    {
        "text": st.none() | texts,
        "whole": st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
        "small": st.none() | st.integers(-(2**15), 2**15 - 1),
        "truth": st.none() | st.booleans(),
        "day": st.none() | st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    }
)


def operator(group: Sequence[str], calls: Sequence[Call] = CALLS, *, append_only: bool = True) -> Any:
    return aggregate(7, "g", SCHEMA, group, calls, append_only=append_only, row_key=["whole"], vnode_count=VNODES)


def applied(one: MergedAggregate, delta: pl.DataFrame, stored: pl.DataFrame | None) -> OperatorResult | str:
    state = {} if stored is None else {7: stored}
    try:
        return one.apply(state, {INPUT: delta}, CONTEXT)
    except AggregateOverflowError as error:
        return type(error).__name__


def exchanged(partials: NativePartials, tasks: Sequence[pa.Table], units: int) -> list[pl.DataFrame]:
    """What each unit gets."""
    mapping = VnodeMapping.even(units, VNODES)
    messages = [batch for task in tasks for batch in to_units(partials.of_rows(task), mapping.owners)]
    found = []
    for unit in range(units):
        mine = [batch for batch in messages if batch.column(0)[0].as_py() == unit]
        table = of_unit(mine, partials)
        if table is not None:
            frame = as_frame(table).with_columns(pl.col(VNODE).cast(pl.UInt16))
            assert set(frame[VNODE].unique()) <= set(mapping.vnodes_of(mapping.units[unit]))
            found.append(frame)
    return found


@settings(deadline=None)
@given(
    st.lists(rows, min_size=1, max_size=30),
    st.lists(rows, max_size=10),
    st.sampled_from([["text"], ["small", "text"], ["truth"], ["day"], ["whole"]]),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_they_come_to_what_the_rows_do(
    given_rows: list[dict[str, Any]], before: list[dict[str, Any]], group: list[str], tasks: int, units: int
) -> None:
    one = operator(group)
    partials = native_partials(one)
    assert partials is not None
    stored = None
    if before:
        first = applied(one, as_frame(pa.Table.from_pylist(before, SCHEMA)).with_columns(change()), None)
        if isinstance(first, str):
            return
        stored = first.writes[7].filter(pl.col(OP) == PUT).drop(OP)
    table = pa.Table.from_pylist(given_rows, SCHEMA)
    wanted = applied(one, as_frame(table).with_columns(change()), stored)
    parts = [table.take(list(range(task, table.num_rows, tasks))) for task in range(min(tasks, table.num_rows))]
    results = [applied(one, frame, stored) for frame in exchanged(partials, parts, units)]
    if isinstance(wanted, str):
        assert wanted in results
        return
    found = [result for result in results if not isinstance(result, str)]
    assert len(found) == len(results)
    for one_of in (lambda result: result.writes[7], lambda result: result.changelog):
        together = pl.concat([one_of(result) for result in found]).drop(VNODE)
        assert sorted(map(repr, together.rows())) == sorted(map(repr, one_of(wanted).rows()))
    assert sum(int(frame["_changes"].sum()) for frame in exchanged(partials, parts, units)) == len(given_rows)


def test_many_rows_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.pipeline.operators.native_partials.ROWS_AT_ONCE", 4)
    partials = native_partials(operator(["text"]))
    assert partials is not None
    table = pa.Table.from_pylist([{"text": f"t{number % 2}", "whole": number} for number in range(11)], SCHEMA)
    found = list(partials.of_batches(SCHEMA, iter(table.to_batches(max_chunksize=3))))
    assert [part.num_rows for part in found] == [2, 2]
    together = partials.merged(pa.concat_tables(found)).to_pylist()
    assert {row["text"]: row["_changes"] for row in together} == {"t0": 6, "t1": 5}


def test_what_reading_fails_with_is_what_comes_out() -> None:
    partials = native_partials(operator(["text"]))
    assert partials is not None

    def batches() -> Iterator[pa.RecordBatch]:
        yield from pa.Table.from_pylist([{"text": "a"}], SCHEMA).to_batches()
        raise UnreadRowsError

    with pytest.raises(UnreadRowsError):
        list(partials.of_batches(SCHEMA, batches()))


def change() -> pl.Expr:
    return pl.lit(INSERT, pl.Int8).alias(CHANGE)


@pytest.mark.parametrize(
    ("group", "call"),
    [
        (["text"], Call("sum", "real", "x")),
        (["text"], Call("min", "real", "x")),
        (["text"], Call("sum", "amount", "x")),
        (["text"], Call("count_distinct", "text", "x")),
        (["amount"], Call("count", None, "x")),
        ([], Call("count", None, "x")),
    ],
    ids=str,
)
def test_what_might_differ_is_left_to_spark(group: list[str], call: Call) -> None:
    assert native_partials(operator(group, [call])) is None


def test_rows_that_are_taken_away_are_left_to_spark() -> None:
    assert native_partials(operator(["text"], CALLS[:3], append_only=False)) is None


def test_a_task_that_could_not_read_its_rows_stops_all_units() -> None:
    partials = native_partials(operator(["text"]))
    assert partials is not None
    messages = list(unread(3))
    assert [batch.column(0)[0].as_py() for batch in messages] == [0, 1, 2]
    with pytest.raises(UnreadRowsError):
        of_unit(messages[1:2], partials)
    assert of_unit([], partials) is None
