"""Joins kept up to date are the joins of the final rows, however both sides' changes are cut into epochs."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.errors import ChangelogError, LateRowsError, StateSchemaError
from magnetar.pipeline.operators.changelog import DELETE, INSERT
from magnetar.pipeline.operators.interval_join import IntervalJoin
from magnetar.pipeline.operators.join import Join
from magnetar.pipeline.operators.operator import LEFT, RIGHT
from magnetar.pipeline.operators.temporal_join import UNMATCHED, TemporalJoin
from magnetar.pipeline.operators.window import LATE_ROWS
from tests.support.operators import INTEGERS, NAN, Change, Memory, Row, delta, final_rows, histories, plain, plain_rows

LEFT_SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.float64()), ("n", pa.int64())])
RIGHT_SCHEMA = pa.schema([("rk", pa.int64()), ("g", pa.float64()), ("rn", pa.int64())])
JOIN_KEYS = st.sampled_from([1.0, 1.0, 1.0, 2.0, NAN, None])
HISTORIES = histories({"g": JOIN_KEYS, "n": INTEGERS})
HOW = st.sampled_from(["inner", "left"])


def right_side(changes: list[Change] | None) -> list[Change]:
    return [(change, {"rk": row["k"], "g": row["g"], "rn": row["n"]}) for change, row in changes or ()]


def joined(left: list[Row], right: list[Row], how: str) -> list[Row]:
    found = []
    for row in left:
        matches = [other for other in right if row["g"] is not None and plain(other["g"]) == plain(row["g"])]
        found += [{**other, **row} for other in matches]
        if not matches and how == "left":
            found.append({"rk": None, "rn": None, **row})
    return found


def join(how: str) -> Memory:
    return Memory(Join((1, 2), "j", LEFT_SCHEMA, RIGHT_SCHEMA, ["g"], ["k"], ["rk"], how=how, vnode_count=4))


def deltas(left: list[Change], right: list[Change]) -> dict[str, Any]:
    return {LEFT: delta(left, LEFT_SCHEMA), RIGHT: delta(right, RIGHT_SCHEMA)}


@settings(max_examples=50, deadline=None)
@given(HISTORIES, HISTORIES, HOW)
def test_joins_of_changing_tables(left: list[list[Change]], right: list[list[Change]], how: str) -> None:
    memory = join(how)
    for number, (ours, theirs) in enumerate(zip_longest(left, right)):
        memory.epoch(deltas((ours or [])[::-1], right_side(theirs)))
        wanted = joined(
            final_rows(left[: number + 1]),
            final_rows([right_side(changes) for changes in right[: number + 1]], ["rk"]),
            how,
        )
        assert memory.view.rows == plain_rows(wanted)


@settings(max_examples=40, deadline=None)
@given(histories({"g": JOIN_KEYS, "n": INTEGERS}, append_only=True), histories({"n": INTEGERS}), HOW)
def test_temporal_joins_see_the_table_of_their_epoch(
    left: list[list[Change]], right: list[list[Change]], how: str
) -> None:
    right = [[(change, {"g": float(row["k"]), "rn": row["n"]}) for change, row in changes] for changes in right]
    schema = pa.schema([("g", pa.float64()), ("rn", pa.int64())])
    memory = Memory(TemporalJoin(1, "j", LEFT_SCHEMA, schema, ["g"], ["k"], how=how, vnode_count=4))
    wanted: list[Row] = []
    unmatched = 0
    for number, (ours, theirs) in enumerate(zip_longest(left, right)):
        memory.epoch({LEFT: delta(ours or [], LEFT_SCHEMA), RIGHT: delta(theirs or [], schema)})
        table = {row["g"]: row["rn"] for row in final_rows(right[: number + 1], ["g"])}
        for _, row in ours or []:
            unmatched += row["g"] not in table
            if row["g"] in table or how == "left":
                wanted.append({**row, "rn": table.get(row["g"])})
    assert memory.view.rows == plain_rows(wanted)
    assert memory.counters.get(UNMATCHED, 0) == unmatched


def test_one_hot_key_costs_its_changes() -> None:
    """A changed row of a key with many rows gives its own matches, not the key's product."""
    memory = join("inner")
    many = [(INSERT, {"k": number, "g": 1.0, "n": 0}) for number in range(50)]
    memory.epoch(deltas(many, right_side(many)))
    assert len(memory.view.rows) == 2500
    assert memory.epoch(deltas(many[:0], [(DELETE, {"rk": 3, "g": 1.0, "rn": 0})])).height == 50


@pytest.mark.parametrize("side", [0, 1])
def test_changes_that_do_not_fit_are_refused(side: int) -> None:
    memory = join("left")
    change = [(DELETE, {"k": 1, "g": 1.0, "n": 0})]
    with pytest.raises(ChangelogError, match="not there"):
        memory.epoch(deltas([], right_side(change)) if side else deltas(change, []))
    with pytest.raises(ChangelogError, match="not NULL"):
        memory.epoch(deltas([], [(INSERT, {"rk": None, "g": 1.0, "rn": 0})]))


def test_sides_that_do_not_fit_are_refused() -> None:
    same = RIGHT_SCHEMA.append(pa.field("n", pa.int64()))
    text = pa.schema([("rk", pa.int64()), ("g", pa.string())])
    for right, on, how, message in [
        (same, ["g"], "inner", "both sides; rename"),
        (text, ["g"], "inner", "cast one side"),
        (RIGHT_SCHEMA, ["n"], "inner", "not on both sides"),
        (RIGHT_SCHEMA, [], "inner", "at least one"),
        (RIGHT_SCHEMA, ["g"], "semi", "not supported"),
    ]:
        with pytest.raises(StateSchemaError, match=message):
            Join((1, 2), "j", LEFT_SCHEMA, right, on, ["k"], ["rk"], how=how)


TIMED_LEFT = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("lt", pa.timestamp("us"))])
TIMED_RIGHT = pa.schema([("rk", pa.int64()), ("g", pa.int64()), ("rt", pa.timestamp("us"))])
BOUNDS = st.tuples(st.integers(-6, 3) | st.none(), st.integers(-3, 6) | st.none())
ARRIVALS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 12), st.sampled_from([0, 0, 1, 4])), max_size=25
)


def interval_join(low: int | None, high: int | None, **options: bool) -> Memory:
    inner = Join((1, 2), "j", TIMED_LEFT, TIMED_RIGHT, ["g"], ["k"], ["rk"], vnode_count=4)
    return Memory(IntervalJoin(inner, ("lt", "rt"), low, high, **options))


def at(microseconds: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(microseconds=microseconds)


def stored_times(memory: Memory, table_id: int, column: str) -> list[int]:
    return [round((time - at(0)) / timedelta(microseconds=1)) for time in memory.tables[table_id][1][column].to_list()]


@settings(max_examples=150, deadline=None)
@given(BOUNDS, ARRIVALS)
def test_rows_near_each_other_meet_and_rows_that_are_done_go(
    bounds: tuple[int | None, int | None], arrivals: list[tuple[bool, int, int, int]]
) -> None:
    """Nothing is late: rows come at or behind the watermark that the epoch before had reached, in any order."""
    low, high = bounds
    memory, watermark = interval_join(low, high), 0
    rows: dict[bool, list[Row]] = {True: [], False: []}
    epoch: dict[bool, list[Change]] = {True: [], False: []}
    for number, (on_left, group, ahead, advance) in enumerate([*arrivals, (True, 0, 0, 30), (False, 9, 0, 0)]):
        time = at(watermark + ahead)
        row = {"k": number, "g": group, "lt": time} if on_left else {"rk": number, "g": group, "rt": time}
        rows[on_left].append(row)
        epoch[on_left].append((INSERT, row))
        if not advance:
            continue
        memory.epoch({LEFT: delta(epoch[True], TIMED_LEFT), RIGHT: delta(epoch[False], TIMED_RIGHT)}, watermark)
        assert low is None or all(time - low >= watermark for time in stored_times(memory, 1, "lt"))
        assert high is None or all(time + high >= watermark for time in stored_times(memory, 2, "rt"))
        epoch, watermark = {True: [], False: []}, watermark + advance

    def is_near(row: Row) -> bool:
        apart = (row["lt"] - row["rt"]) / timedelta(microseconds=1)
        return (low is None or apart >= low) and (high is None or apart <= high)

    memory.epoch({LEFT: delta(epoch[True], TIMED_LEFT), RIGHT: delta(epoch[False], TIMED_RIGHT)}, watermark)
    wanted = [{**left, **right} for left in rows[True] for right in rows[False] if left["g"] == right["g"]]
    assert plain_rows(filter(is_near, memory.view.all())) == plain_rows(filter(is_near, wanted))
    assert memory.counters[LATE_ROWS] == 0


def test_a_late_row_meets_what_is_left_and_is_counted_or_refused() -> None:
    memory = interval_join(-5, 5)
    memory.epoch(
        {
            RIGHT: delta(
                [(INSERT, {"rk": 1, "g": 0, "rt": at(1)}), (INSERT, {"rk": 2, "g": 0, "rt": at(8)})], TIMED_RIGHT
            )
        },
        0,
    )
    late = {LEFT: delta([(INSERT, {"k": 1, "g": 0, "lt": at(4)})], TIMED_LEFT)}
    memory.epoch(late, 10)
    assert {row["rk"] for row in memory.view.all()} == {2}, "the other one was done"
    assert memory.counters[LATE_ROWS] == 1
    assert (memory.state_rows(1), memory.state_rows(2)) == (0, 1)
    with pytest.raises(LateRowsError, match="1 rows came"):
        interval_join(-5, 5, fails_late=True).epoch(late, 10)
