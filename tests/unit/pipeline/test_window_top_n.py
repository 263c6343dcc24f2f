"""Windows that close, and the first rows of groups, against plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cmp_to_key
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.operators.aggregate import aggregate
from magnetar.pipeline.operators.aggregate_functions import Call
from magnetar.pipeline.operators.changelog import CHANGE, DELETE, INSERT, UPDATE_BEFORE, empty_changelog
from magnetar.pipeline.operators.operator import INPUT
from magnetar.pipeline.operators.top_n import Order, top_n
from magnetar.pipeline.operators.window import LATE_ROWS, WINDOW_END, WINDOW_START, WindowAggregate, Windows
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
    plain,
    plain_rows,
)

INSTANT = pa.timestamp("us", "UTC")
TIMED = pa.schema([("k", pa.int64()), ("g", pa.string()), ("n", pa.int64()), ("t", INSTANT)])
WINDOWED = TIMED.append(pa.field(WINDOW_START, INSTANT)).append(pa.field(WINDOW_END, INSTANT))
WINDOWS = st.sampled_from([Windows("t", 10, 10), Windows("t", 10, 5), Windows("t", 10, 4, 3), Windows("t", 10, 10, -7)])
START = datetime(1970, 1, 1, tzinfo=UTC)


def instant(us: int) -> datetime:
    return START + timedelta(microseconds=us)


TIMES = st.one_of(st.none(), st.integers(-15, 40).map(instant))


def windows_of(us: int, windows: Windows) -> Iterator[tuple[int, int]]:
    """By the definition: every window that begins at a multiple of the hop and holds the time."""
    for place in range(-20, 60):
        start = place * windows.hop_us + windows.offset_us
        if start <= us < start + windows.size_us:
            yield start, start + windows.size_us


def spread(changes: list[Change], windows: Windows) -> list[Change]:
    return [
        (change, {**row, WINDOW_START: instant(start), WINDOW_END: instant(end)})
        for change, row in changes
        if row["t"] is not None
        for start, end in windows_of((row["t"] - START) // timedelta(microseconds=1), windows)
    ]


def sums(rows: list[Row]) -> list[Row]:
    found: dict[Any, Row] = {}
    for row in rows:
        key = (row[WINDOW_START], row["g"])
        first = {WINDOW_START: row[WINDOW_START], WINDOW_END: row[WINDOW_END], "g": row["g"], "rows": 0, "top": None}
        result = found.setdefault(key, first)
        result["rows"] += 1
        if row["n"] is not None:
            result["top"] = row["n"] if result["top"] is None else max(result["top"], row["n"])
    return list(found.values())


def row_key(row: Row) -> tuple[Any, ...]:
    return row[WINDOW_START], row["g"], row["k"]


def comparable(change: Change) -> tuple[Any, ...]:
    kind, row = change
    return kind, row["k"], str(row["g"]), str(row["n"]), row["t"], row[WINDOW_START], row[WINDOW_END]


@settings(max_examples=50, deadline=None)
@given(
    st.booleans().flatmap(
        lambda only: st.tuples(st.just(only), histories({"g": GROUPS, "n": INTEGERS, "t": TIMES}, append_only=only))
    ),
    WINDOWS,
    st.lists(st.sampled_from([0, 3, 5, 10]), min_size=30, max_size=30),
    st.booleans(),
)
def test_windows_close_with_the_watermark(
    history: tuple[bool, list[list[Change]]], windows: Windows, advances: list[int], on_close: bool
) -> None:
    append_only, epochs = history
    group = [WINDOW_START, WINDOW_END, "g"]
    calls = [Call("count", None, "rows"), Call("max", "n", "top")]
    inner = aggregate(1, "w", WINDOWED, group, calls, append_only=append_only, row_key=["k"], vnode_count=4)
    memory = Memory(WindowAggregate(inner, on_close=on_close))
    kept: dict[Any, Row] = {}
    late = 0
    watermark = None
    for number, (changes, advance) in enumerate(zip(epochs, advances, strict=False)):
        watermark = None if number == 0 else (-10 if watermark is None else watermark) + advance
        assigned, without_time = windows.assign(delta(changes, TIMED))
        assert without_time == sum(row["t"] is None for _, row in changes)
        wanted = spread(changes, windows)
        as_rows = [(row.pop(CHANGE), row) for row in assigned.to_dicts()]
        assert sorted(map(comparable, as_rows)) == sorted(map(comparable, wanted))
        memory.epoch({INPUT: assigned}, watermark)
        for change, row in wanted:
            if watermark is not None and row[WINDOW_END] <= instant(watermark):
                late += 1
            elif change in (DELETE, UPDATE_BEFORE):
                del kept[row_key(row)]
            else:
                kept[row_key(row)] = row
        closed = [row for row in kept.values() if watermark is not None and row[WINDOW_END] <= instant(watermark)]
        assert memory.view.rows == plain_rows(sums(closed if on_close else list(kept.values())))
        opened = [row for row in kept.values() if watermark is None or row[WINDOW_END] > instant(watermark)]
        assert memory.state_rows(1) == len(sums(opened) if append_only else opened), "closed windows leave no state"
    assert memory.counters.get(LATE_ROWS, 0) == late


@pytest.mark.parametrize("on_close", [False, True])
def test_a_window_closes_when_the_watermark_reaches_its_end(on_close: bool) -> None:
    calls = [Call("count", None, "rows")]
    inner = aggregate(1, "w", WINDOWED, [WINDOW_START, WINDOW_END], calls, append_only=True)
    memory = Memory(WindowAggregate(inner, on_close=on_close))

    def epoch(watermark: int) -> None:
        changes = delta([(INSERT, {"k": 1, "g": "a", "n": 1, "t": instant(9)})], TIMED)
        memory.epoch({INPUT: Windows("t", 10, 10).assign(changes)[0]}, watermark)

    epoch(9)
    assert [dict(row)["rows"] for row in memory.view.rows] == ([] if on_close else [1])
    assert memory.state_rows(1) == 1
    epoch(10)
    epoch(10)
    assert [dict(row)["rows"] for row in memory.view.rows] == [1]
    assert memory.state_rows(1) == 0
    assert memory.counters[LATE_ROWS] == 2


def test_windows_that_make_no_sense_are_refused() -> None:
    for size, hop in [(10, 0), (10, 11), (10_000, 1)]:
        with pytest.raises(StateSchemaError, match="hop"):
            Windows("t", size, hop)
    with pytest.raises(StateSchemaError, match="window_end"):
        WindowAggregate(aggregate(1, "w", WINDOWED, [WINDOW_START], [Call("count", None, "c")], append_only=True))


def before(order: list[Order], key: list[str]) -> Any:
    """Compares rows as ORDER BY does; equal ones by key."""

    def compare(one: Row, other: Row) -> int:
        for by in [*order, *(Order(name) for name in key)]:
            ours, theirs = one[by.column], other[by.column]
            nulls_first = not by.descending if by.nulls_first is None else by.nulls_first
            if (ours is None) != (theirs is None):
                return -1 if (ours is None) == nulls_first else 1
            ours, theirs = ((value != value, 0 if value != value else value) for value in (ours, theirs))
            if ours != theirs:
                return -1 if (ours < theirs) != by.descending else 1
        return 0

    return cmp_to_key(compare)


ORDERS = st.sampled_from(
    [[Order("v")], [Order("v", True), Order("n")], [Order("n", True, True)], [Order("v", False, False)], []]
)


@settings(max_examples=40, deadline=None)
@given(
    histories({"g": GROUPS, "n": INTEGERS, "v": DOUBLES}),
    ORDERS,
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from([["g"], []]),
    st.booleans(),
)
def test_the_first_rows_of_each_group(
    epochs: list[list[Change]], order: list[Order], limit: int, offset: int, group: list[str], ranked: bool
) -> None:
    rank = "rank" if ranked else None
    operator = top_n(
        1, "t", SCHEMA, group, order, limit, row_key=["k"], offset=offset, rank=rank, vnode_count=4
    )  # fmt: skip
    memory = Memory(operator)
    for number, changes in enumerate(epochs):
        memory.epoch({INPUT: delta(changes)})
        groups: dict[Any, list[Row]] = {}
        for row in final_rows(epochs[: number + 1]):
            groups.setdefault(tuple(plain(row[name]) for name in group), []).append(row)
        wanted = []
        for rows in groups.values():
            found = list(enumerate(sorted(rows, key=before(order, ["k"])), 1))[offset : offset + limit]
            wanted += [{**row, "rank": place} if ranked else row for place, row in found]
        assert memory.view.rows == plain_rows(wanted)


def test_what_cannot_be_ordered_is_said_at_once() -> None:
    for order, limit, rank in [([Order("zz")], 1, None), ([], 0, None), ([], 1, "n")]:
        with pytest.raises(StateSchemaError, match="top-n t"):
            top_n(1, "t", SCHEMA, ["g"], order, limit, row_key=["k"], rank=rank)


def test_no_changes_have_windows_too() -> None:
    found, without_time = Windows("t", 10, 5).assign(empty_changelog(TIMED))
    assert without_time == 0
    assert found.schema == empty_changelog(WINDOWED).schema
    assert isinstance(found, pl.DataFrame)
