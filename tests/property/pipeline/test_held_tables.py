"""A table held in memory and brought from epoch to epoch is what reading that epoch from its runs gives, whatever is merged meanwhile;
and the changes that it tells of, applied one after the other, are the same rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("polars", reason="polars is not installed: pip install 'magnetar[spark]'")

from magnetar.base.clock import SystemClock
from magnetar.pipeline.serving import held_table
from magnetar.pipeline.serving.held_table import HeldTable, load
from magnetar.pipeline.serving.reader import Views
from magnetar.pipeline.serving.subscription import Feed
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.run import write_run
from tests.support.state_tables import TABLE, VNODES, StateTableHarness

KEYS = st.tuples(st.sampled_from(["a", "b", "c", "", None]), st.sampled_from([0, 1, 2, -1, None]))
EPOCHS = st.lists(
    st.dictionaries(KEYS, st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.5])), max_size=8), min_size=1, max_size=12
)


def rows_of(table: pa.Table) -> dict[Any, float]:
    found = {(row["k"], row["n"]): row["v"] for row in table.to_pylist()}
    assert len(found) == table.num_rows, "each key once"
    return found


def merged_with_the_newest(harness: StateTableHarness) -> None:
    """What this version's compaction does not do: all runs, the newest among them, as one base in which deletions are gone."""
    live = pa.Table.from_pylist([{"k": k, "n": n, "v": v} for (k, n), v in harness.rows().items()], TABLE.schema)
    newest = harness.manifest.epoch
    run = write_run(
        harness.files,
        TABLE,
        TABLE.with_vnodes(live, 0),
        level=100,
        oldest=1,
        newest=newest,
        vnode_bits=(1 << VNODES) - 1,
    )
    harness.commit(tables={TABLE.table_id: TableState(TABLE, (run,))})


@settings(max_examples=60)
@given(epochs=EPOCHS, steps=st.integers(1, 3), merges=st.booleans(), sorts=st.booleans())
def test_what_is_brought_along_is_what_is_read_anew(
    epochs: list[dict[Any, float | None]], steps: int, merges: bool, sorts: bool
) -> None:
    harness = StateTableHarness(f"memory://held-{uuid4().hex}", units=2)
    harness.epoch({("a", 0): 5.0, (None, None): 6.0})
    held = load(harness.files, harness.state, harness.manifest.epoch)
    before = held_table.NEWER_MIN
    held_table.NEWER_MIN = 2 if sorts else before  # type: ignore[misc]
    try:
        for number, changes in enumerate(epochs):
            if changes:
                harness.epoch(changes)
            if merges and number % 3 == 2:
                merged_with_the_newest(harness)
            if number % steps:
                continue
            earlier = rows_of(held.rows())
            held, changed = held.advanced(harness.files, harness.state, harness.manifest.epoch)
            assert rows_of(held.rows()) == harness.rows()
            check_slices(held)
            if changed is not None:
                for row in changed.before.to_dicts():
                    assert earlier.pop((row["k"], row["n"])) == row["v"]
                for row in changed.after.to_dicts():
                    assert (row["k"], row["n"]) not in earlier
                    earlier[row["k"], row["n"]] = row["v"]
            assert earlier == rows_of(held.rows())
    finally:
        held_table.NEWER_MIN = before  # type: ignore[misc]


def check_slices(held: HeldTable) -> None:
    whole = held.rows()
    for column, wanted in (("n", [1, -1, 7]), ("k", ["", "b"])):
        for _ in range(4):  # a scan first, then by the column in its order
            found = rows_of(held.rows_with(column, list(wanted)))
            every = rows_of(whole)
            assert {row for row in every if row[column == "n"] in wanted} <= found.keys()
            assert all(every[row] == value for row, value in found.items())
    for vnode in range(VNODES):
        part = rows_of(held.rows([vnode]))
        wanted = {
            (row["k"], row["n"])
            for row, at in zip(whole.to_pylist(), TABLE.vnodes_of(whole.cast(TABLE.schema)), strict=True)
            if at == vnode
        }
        assert wanted <= part.keys()


@settings(max_examples=30)
@given(epochs=EPOCHS, steps=st.integers(1, 4))
def test_a_subscription_is_told_of_each_epoch_however_seldom_it_looks(
    epochs: list[dict[Any, float | None]], steps: int
) -> None:
    harness = StateTableHarness(f"memory://told-{uuid4().hex}", units=2)
    harness.commit(views={"catalog": [], "tables": {"t": TABLE.table_id}, "stages": {}})
    feed = Feed(Views(harness.files, SystemClock()))
    feed.refresh()
    subscription = feed.subscribe("t")
    rows: dict[Any, float] = {}
    for number, changes in enumerate(epochs):
        harness.epoch(changes)
        if number % steps:
            continue
        feed.refresh()
        while (told := subscription.next(0)) is not None:
            for row in told.to_pylist():
                key = row["k"], row["n"]
                if row["_op"] in ("insert", "update_insert"):
                    assert key not in rows
                    rows[key] = row["v"]
                else:
                    assert rows.pop(key) == row["v"]
        assert rows == harness.rows()


def test_runs_that_count_for_fewer_vnodes_are_not_read_for_the_others() -> None:
    harness = StateTableHarness(f"memory://fewer-{uuid4().hex}", units=1)
    harness.epoch({(f"k{number}", number): 1.0 for number in range(40)})
    held = load(harness.files, harness.state, 1)
    (run,) = harness.state.runs
    narrowed = replace(run, vnodes="1")
    harness.commit(tables={TABLE.table_id: TableState(TABLE, (narrowed,))}, epoch=2)
    again = load(harness.files, harness.state, 2)
    assert again.rows().num_rows < held.rows().num_rows
