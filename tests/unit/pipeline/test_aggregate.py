"""Aggregates kept up to date are what a recomputation of the final rows gives, however the changes are cut into epochs."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.errors import AggregateOverflowError, ChangelogError, StateSchemaError
from magnetar.pipeline.operators.aggregate import MergedAggregate, aggregate
from magnetar.pipeline.operators.aggregate_functions import Call
from magnetar.pipeline.operators.changelog import CHANGE, DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from magnetar.pipeline.operators.operator import INPUT, EpochContext
from tests.support.operators import (
    DOUBLES,
    GROUPS,
    INTEGERS,
    SCHEMA,
    Change,
    Memory,
    Row,
    delta,
    final_rows,
    histories,
    plain_rows,
)

VALUES = {"g": GROUPS, "n": INTEGERS, "v": DOUBLES}

SUBTRACTED = [
    Call("count", None, "rows"),
    Call("count", "v", "count_v"),
    Call("sum", "n", "sum_n"),
    Call("avg", "n", "avg_n"),
]
MERGED = [
    *SUBTRACTED,
    Call("sum", "v", "sum_v"),
    Call("avg", "v", "avg_v"),
    Call("min", "v", "min_v"),
    Call("max", "v", "max_v"),
    Call("min", "n", "min_n"),
    Call("max", "n", "max_n"),
]
ALL = [Call("count_distinct", "v", "distinct_v"), *MERGED, Call("count_distinct", "n", "distinct_n")]


def value_of(call: Call, rows: list[Row]) -> Any:
    """By the definition, in plain Python."""
    if call.column is None:
        return len(rows)
    values = [row[call.column] for row in rows if row[call.column] is not None]
    if call.function == "count":
        return len(values)
    if call.function == "count_distinct":
        return len({"NaN" if value != value else value for value in values})
    if not values:
        return None
    if call.function == "sum":
        return sum(values)
    if call.function == "avg":
        return sum(values) / len(values)
    return (min if call.function == "min" else max)(values, key=lambda value: (math.isnan(value), value))


def recomputed(calls: list[Call], rows: list[Row], group: tuple[str, ...]) -> list[Row]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in group), []).append(row)
    return [
        dict(zip(group, key, strict=True)) | {call.name: value_of(call, found) for call in calls}
        for key, found in groups.items()
    ]


def check(calls: list[Call], epochs: list[list[Change]], group: tuple[str, ...], append_only: bool) -> Memory:
    operator = aggregate(1, "t", SCHEMA, group, calls, append_only=append_only, row_key=["k"], vnode_count=4)
    memory = Memory(operator)
    for number, changes in enumerate(epochs):
        # a shuffle keeps no order, so none is relied on
        memory.epoch({INPUT: delta(changes if number % 2 else reversed(changes))})
        assert memory.view.rows == plain_rows(recomputed(calls, final_rows(epochs[: number + 1]), group))
    return memory


@settings(max_examples=60, deadline=None)
@given(histories(VALUES, append_only=True), st.sampled_from([("g",), (), ("g", "v")]))
def test_append_only_partial_results_merge(epochs: list[list[Change]], group: tuple[str, ...]) -> None:
    calls = [call for call in MERGED if call.column not in group]
    memory = check(calls, epochs, group, append_only=True)
    assert isinstance(memory.operator, MergedAggregate)
    assert memory.state_rows(1) == len(memory.view.rows)


@settings(max_examples=60, deadline=None)
@given(histories(VALUES), st.sampled_from([("g",), ()]))
def test_counts_and_whole_sums_are_subtracted(epochs: list[list[Change]], group: tuple[str, ...]) -> None:
    memory = check(SUBTRACTED, epochs, group, append_only=False)
    assert isinstance(memory.operator, MergedAggregate)
    assert memory.state_rows(1) == len(memory.view.rows), "nothing is kept for groups that are empty"


@settings(max_examples=60, deadline=None)
@given(histories(VALUES), st.sampled_from([("g",), (), ("g", "v")]))
def test_retractions_recompute_their_groups(epochs: list[list[Change]], group: tuple[str, ...]) -> None:
    calls = [call for call in ALL if call.column not in group]
    memory = check(calls, epochs, group, append_only=False)
    assert memory.state_rows(1) == len(final_rows(epochs))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([("g",), ()]), st.booleans())
def test_decimals_are_exact(data: st.DataObject, group: tuple[str, ...], append_only: bool) -> None:
    """An average has four digits more, rounded half away from zero."""
    schema = pa.schema([("k", pa.int64()), ("g", pa.string()), ("m", pa.decimal128(10, 2))])
    decimals = st.sampled_from([None, *map(Decimal, ("-1.25", "0.00", "0.01", "0.02", "99999999.99"))])
    epochs = data.draw(histories({"g": GROUPS, "m": decimals}, append_only=append_only))
    functions = ["count", "sum", "avg", *(["min", "max"] if append_only else [])]
    calls = [Call(function, "m", f"{function}_m") for function in functions]
    memory = Memory(aggregate(1, "t", schema, group, calls, append_only=append_only, row_key=["k"], vnode_count=4))
    assert isinstance(memory.operator, MergedAggregate)
    for number, changes in enumerate(epochs):
        memory.epoch({INPUT: delta(changes, schema)})
        wanted = recomputed(calls, final_rows(epochs[: number + 1]), group)
        for row in wanted:
            if row["avg_m"] is not None:
                row["avg_m"] = row["avg_m"].quantize(Decimal("0.000001"), ROUND_HALF_UP)
        assert memory.view.rows == plain_rows(wanted)


def rows_of(*keys: int, change: int = INSERT, n: int | None = 1) -> list[Change]:
    return [(change, {"k": key, "g": "a", "n": n, "v": 1.0}) for key in keys]


def test_nothing_comes_of_nothing() -> None:
    memory = Memory(aggregate(1, "t", SCHEMA, ["g"], ALL, append_only=False, row_key=["k"]))
    assert memory.epoch({}).height == 0
    assert memory.epoch({INPUT: delta([])}).height == 0
    assert memory.epoch({INPUT: delta([*rows_of(1), *rows_of(1, change=DELETE)])}).height == 0
    assert memory.state_rows(1) == 0


def test_an_unchanged_result_is_no_change() -> None:
    memory = Memory(aggregate(1, "t", SCHEMA, ["g"], [Call("max", "n", "m")], append_only=True))
    assert memory.epoch({INPUT: delta(rows_of(1, n=5))}).height == 1
    assert memory.epoch({INPUT: delta(rows_of(2, n=4))}).height == 0
    assert memory.epoch({INPUT: delta(rows_of(3, n=6))})[CHANGE].to_list() == [UPDATE_BEFORE, UPDATE_AFTER]


@pytest.mark.parametrize("calls", [SUBTRACTED, ALL], ids=["subtracted", "recomputed"])
def test_changes_that_do_not_fit_are_refused(calls: list[Call]) -> None:
    memory = Memory(aggregate(1, "t", SCHEMA, ["g"], calls, append_only=False, row_key=["k"]))
    with pytest.raises(ChangelogError):
        memory.epoch({INPUT: delta(rows_of(1, change=DELETE))})
    memory.epoch({INPUT: delta(rows_of(1))})
    with pytest.raises(ChangelogError):
        memory.epoch({INPUT: delta(rows_of(1, 2, change=DELETE))})
    with pytest.raises(ChangelogError):
        memory.epoch({INPUT: delta(rows_of(1, change=DELETE, n=9))})
    with pytest.raises(ChangelogError, match="_change"):
        memory.epoch({INPUT: delta(rows_of(3, change=7))})
    with pytest.raises(ChangelogError, match="are needed"):
        memory.epoch({INPUT: delta(rows_of(3)).drop("n")})
    memory.epoch({INPUT: delta(rows_of(1, change=DELETE))})
    assert not memory.view.rows


def test_a_key_is_there_once() -> None:
    memory = Memory(aggregate(1, "t", SCHEMA, ["g"], ALL, append_only=False, row_key=["k"]))
    with pytest.raises(ChangelogError, match="more than once"):
        memory.epoch({INPUT: delta([*rows_of(1), *rows_of(1, n=2)])})
    memory.epoch({INPUT: delta(rows_of(1))})
    with pytest.raises(ChangelogError, match="already"):
        memory.epoch({INPUT: delta(rows_of(1, n=2))})


def test_append_only_means_it() -> None:
    memory = Memory(aggregate(1, "t", SCHEMA, ["g"], MERGED, append_only=True))
    with pytest.raises(ChangelogError, match="inserts only"):
        memory.epoch({INPUT: delta(rows_of(1, change=DELETE))})


def test_sums_do_not_wrap_around() -> None:
    calls = [Call("sum", "n", "s")]
    memory = Memory(aggregate(1, "t", SCHEMA, ["g"], calls, append_only=True))
    memory.epoch({INPUT: delta([*rows_of(1, n=2**62), *rows_of(2, n=2**62 - 1)])})
    assert memory.view.rows == {(("g", "a"), ("s", 2**63 - 1))}
    with pytest.raises(AggregateOverflowError):
        memory.epoch({INPUT: delta(rows_of(3))})
    with pytest.raises(AggregateOverflowError):
        Memory(aggregate(1, "t", SCHEMA, ["g"], calls, append_only=True)).epoch({INPUT: delta(rows_of(1, 2, n=2**62))})


def test_what_cannot_be_aggregated_is_said_at_once() -> None:
    schema = SCHEMA.append(pa.field("d", pa.date32())).append(pa.field("l", pa.list_(pa.int64())))
    for calls, text in [
        ([Call("median", "n", "x")], "there are count"),
        ([Call("sum", None, "x")], "needs a column"),
        ([Call("sum", "zz", "x")], "columns"),
        ([Call("sum", "d", "x")], "date32"),
        ([Call("max", "l", "x")], "arrays, structs and maps are not taken"),
        ([Call("sum", "n", "g")], "twice"),
    ]:
        with pytest.raises(StateSchemaError, match=text):
            aggregate(1, "t", schema, ["g"], calls, append_only=True)
    with pytest.raises(StateSchemaError, match="needs a key"):
        aggregate(1, "t", schema, ["g"], [Call("min", "d", "x")], append_only=False)


def test_rows_of_which_no_column_is_needed_are_none_while_there_are_none() -> None:
    """count(*) reads no column of its input; an epoch without input adds nothing to it, in whichever unit."""
    operator = aggregate(1, "v", pa.schema([]), [], [Call("count", None, "n")], append_only=False)
    result = operator.apply({}, {}, EpochContext(epoch=1, now_us=0))
    assert [writes.height for writes in result.writes.values()] == [0]
    assert result.changelog.height == 0
