"""Joins kept up to date are the joins of the final rows, however both sides' changes are cut into epochs."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.errors import ChangelogError, StateSchemaError
from magnetar.pipeline.operators.changelog import DELETE, INSERT
from magnetar.pipeline.operators.join import Join
from magnetar.pipeline.operators.operator import LEFT, RIGHT
from magnetar.pipeline.operators.temporal_join import UNMATCHED, TemporalJoin
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
