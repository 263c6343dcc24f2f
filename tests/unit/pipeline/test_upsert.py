"""The last and the first row of each key, against a plain dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.errors import ChangelogError, StateSchemaError
from magnetar.pipeline.operators.changelog import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from magnetar.pipeline.operators.operator import INPUT
from magnetar.pipeline.operators.upsert import ABSENT_DELETES, DUPLICATES, Deduplicate, Upsert
from tests.support.operators import DOUBLES, GROUPS, INTEGERS, SCHEMA, Change, Memory, Row, delta, key_of, plain_rows

KEYS = st.sampled_from([0, 1, 2, None])
ROWS = st.fixed_dictionaries({"k": KEYS, "g": GROUPS, "n": INTEGERS, "v": DOUBLES})


def stream(changes: list[int]) -> st.SearchStrategy[list[list[Change]]]:
    """Changes that need not fit each other, in epochs."""
    return st.lists(st.lists(st.tuples(st.sampled_from(changes), ROWS), max_size=8), max_size=6)


@settings(max_examples=80, deadline=None)
@given(stream([INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE]), st.sampled_from([("k",), ("k", "v")]))
def test_the_last_row_counts(epochs: list[list[Change]], key: tuple[str, ...]) -> None:
    memory = Memory(Upsert(1, "t", SCHEMA, key, vnode_count=4))
    rows: dict[object, Row] = {}
    absent = 0
    for changes in epochs:
        memory.epoch({INPUT: delta(changes)})
        for change, row in changes:
            if change in (INSERT, UPDATE_AFTER):
                rows[key_of(row, key)] = row
            elif change == DELETE:
                absent += rows.pop(key_of(row, key), None) is None
        assert memory.view.rows == plain_rows(rows.values())
        assert memory.state_rows(1) == len(rows)
    assert memory.counters.get(ABSENT_DELETES, 0) == absent


@settings(max_examples=60, deadline=None)
@given(stream([INSERT]), st.sampled_from([("k",), ("k", "v")]))
def test_the_first_row_counts(epochs: list[list[Change]], key: tuple[str, ...]) -> None:
    memory = Memory(Deduplicate(1, "t", SCHEMA, key, vnode_count=4))
    rows: dict[object, Row] = {}
    for changes in epochs:
        memory.epoch({INPUT: delta(changes)})
        for _, row in changes:
            rows.setdefault(key_of(row, key), row)
        assert memory.view.rows == plain_rows(rows.values())
    assert memory.counters.get(DUPLICATES, 0) == sum(map(len, epochs)) - len(rows)


def test_a_first_row_cannot_be_taken_back() -> None:
    memory = Memory(Deduplicate(1, "t", SCHEMA, ["k"]))
    row = {"k": 1, "g": "a", "n": 1, "v": 1.0}
    with pytest.raises(ChangelogError, match="inserts only"):
        memory.epoch({INPUT: delta([(INSERT, row), (DELETE, row)])})
    with pytest.raises(StateSchemaError, match="needs a key"):
        Upsert(1, "t", SCHEMA, [])
