"""Operators over real state tables: several units, files, compaction, and another number of units every few epochs."""

from __future__ import annotations

from itertools import zip_longest
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.operators.aggregate import aggregate
from magnetar.pipeline.operators.aggregate_functions import Call
from magnetar.pipeline.operators.join import Join
from magnetar.pipeline.operators.materialize import Materialized
from magnetar.pipeline.operators.operator import INPUT, LEFT, RIGHT, Operator
from magnetar.pipeline.state.table import StateTable
from tests.support.operator_harness import OperatorHarness
from tests.support.operators import Change, Memory, View, delta, final_rows, histories

SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.float64()), ("n", pa.int64()), ("t", pa.string())])
OTHER = pa.schema([("ok", pa.int64()), ("g", pa.float64()), ("m", pa.int64())])
GROUPS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, float("nan"), None])
HISTORIES = histories({"g": GROUPS, "n": st.integers(-3, 3) | st.none(), "t": st.sampled_from(["", "x", None])})
UNITS = st.lists(st.integers(1, 5), min_size=40, max_size=40)
COUNTS = [Call("count", None, "rows"), Call("sum", "n", "total")]


def other_side(changes: list[Change] | None) -> list[Change]:
    return [(change, {"ok": row["k"], "g": row["g"], "m": row["n"]}) for change, row in changes or ()]


def run_both(operator: Operator, epochs: list[dict[str, list[Change]]], units: list[int]) -> View:
    """In memory by one unit, and on disk by changing numbers of units, gives the same after each epoch."""
    memory = Memory(operator)
    with TemporaryDirectory() as root:
        harness = OperatorHarness(root, operator, 2)
        for changes, count in zip(epochs, units, strict=False):
            harness.rescale(count)
            deltas = {name: delta(found, OTHER if name == RIGHT else SCHEMA) for name, found in changes.items()}
            memory.epoch(deltas)
            harness.epoch(deltas)
            assert harness.view.rows == memory.view.rows
        for table in operator.state_tables():
            assert harness.stored(table.table_id).num_rows == memory.state_rows(table.table_id)
    return harness.view


@settings(max_examples=12, deadline=None)
@given(HISTORIES, UNITS)
def test_aggregates_with_partial_results(history: list[list[Change]], units: list[int]) -> None:
    operator = aggregate(1, "t", SCHEMA, ["g", "t"], COUNTS, append_only=False, vnode_count=16)
    run_both(operator, [{INPUT: changes} for changes in history], units)


@settings(max_examples=12, deadline=None)
@given(HISTORIES, UNITS)
def test_aggregates_that_are_stored_as_a_view(history: list[list[Change]], units: list[int]) -> None:
    operator = aggregate(1, "t", SCHEMA, ["t"], COUNTS, append_only=False, vnode_count=16)
    given = operator.output_schema
    table = StateTable(2, "v", pa.schema([pa.field("name", pa.string()), *list(given)[1:]]), ("name",), 16)
    renamed = {"name": "t", "rows": "rows", "total": "total"}
    run_both(Materialized(operator, table, renamed), [{INPUT: changes} for changes in history], units)


@settings(max_examples=12, deadline=None)
@given(HISTORIES, UNITS)
def test_groups_whose_rows_are_kept(history: list[list[Change]], units: list[int]) -> None:
    calls = [*COUNTS, Call("max", "t", "most"), Call("count_distinct", "n", "kinds")]
    operator = aggregate(1, "t", SCHEMA, ["g"], calls, append_only=False, row_key=["k"], vnode_count=16)
    view = run_both(operator, [{INPUT: changes} for changes in history], units)
    assert sum(dict(row)["rows"] for row in view.rows) == len(final_rows(history))


@settings(max_examples=12, deadline=None)
@given(HISTORIES, HISTORIES, UNITS, st.sampled_from(["inner", "left", "full"]))
def test_joins(left: list[list[Change]], right: list[list[Change]], units: list[int], how: str) -> None:
    operator = Join((1, 2), "j", SCHEMA, OTHER, ["g"], ["k"], ["ok"], how=how, vnode_count=16)
    epochs = [{LEFT: ours or [], RIGHT: other_side(theirs)} for ours, theirs in zip_longest(left, right)]
    run_both(operator, epochs, units)
