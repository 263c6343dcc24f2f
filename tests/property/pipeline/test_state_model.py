"""State tables against a dict: any mixture of puts, deletions, rescales, merges and collections shows the same rows."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.base.clock import SystemClock
from magnetar.pipeline.state import compaction, gc, vnode_set
from magnetar.pipeline.state.compaction import BASE_LEVEL, RUNS_PER_LEVEL
from tests.support.state_tables import VNODES, Key, StateTableHarness

keys: st.SearchStrategy[Key] = st.tuples(
    st.none() | st.sampled_from(["", "a", "b", "ä", "a\x00"]), st.none() | st.integers(-3, 3)
)
changes = st.dictionaries(keys, st.none() | st.floats(-5, 5), max_size=12)


@settings(deadline=None, max_examples=40)
@given(
    steps=st.lists(
        changes.map(lambda found: ("epoch", found))
        | st.integers(1, 6).map(lambda units: ("rescale", units))
        | st.just(("collect", None)),
        max_size=25,
    )
)
def test_rows_are_those_of_a_dict(steps: list[tuple[str, object]]) -> None:
    harness = StateTableHarness(f"memory://state-{uuid4().hex}")
    model: dict[Key, float] = {}
    by_epoch = {0: dict(model)}
    for kind, value in steps:
        if kind == "epoch":
            assert isinstance(value, dict)
            harness.epoch(value)
            for key, put in value.items():
                if put is None:
                    model.pop(key, None)
                else:
                    model[key] = put
            by_epoch[harness.manifest.epoch] = dict(model)
        elif kind == "rescale":
            assert isinstance(value, int)
            files_before = harness.files.fs.find(harness.files.root)
            harness.mapping = harness.mapping.rescale(value)
            harness.commit(mapping=harness.mapping.to_json())
            written = set(harness.files.fs.find(harness.files.root)) - set(files_before)
            assert len(written) == 1, "the manifest, and no state"
        else:
            gc.collect(harness.files, SystemClock(), kept=3, orphan_age_s=1e9)
        assert harness.rows() == model
    for number in harness.store.numbers():
        manifest = harness.store.read(number)
        assert harness.rows(manifest.tables[7]) == by_epoch[manifest.epoch], f"epoch {manifest.epoch}, read later"
    for unit in harness.mapping.units:
        check_bounds(harness, vnode_set.of(harness.mapping.vnodes_of(unit)))


def check_bounds(harness: StateTableHarness, bits: int) -> None:
    """At most one base, and less than RUNS_PER_LEVEL runs of a level once nothing is left to merge."""
    runs = harness.state.runs
    while (merged := compaction.plan(runs, bits)) is not None:
        runs = compaction.replace_runs(runs, merged, compaction.run_merge(harness.files, harness.state, merged))
    for vnode in vnode_set.members(bits):
        levels = [run.level for run in runs if run.vnode_bits >> vnode & 1]
        assert levels.count(BASE_LEVEL) <= 1
        assert all(levels.count(level) < RUNS_PER_LEVEL for level in set(levels) - {BASE_LEVEL})


@settings(max_examples=40)
@given(steps=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 6)), min_size=1, max_size=4))
def test_another_number_of_units_is_no_reason_to_merge(steps: list[tuple[int, int]]) -> None:
    """With rows of all vnodes in each epoch: in the epoch after a rescale no unit merges that would not have merged without it."""
    harness = StateTableHarness(f"memory://state-{uuid4().hex}")
    every: dict[Key, float | None] = {("a", number): 1.0 for number in range(60)}
    for epochs, units in steps:
        for _ in range(epochs):
            harness.epoch(every)
        merges = [
            compaction.plan(harness.state.runs, vnode_set.of(harness.mapping.vnodes_of(u)))
            for u in harness.mapping.units
        ]
        harness.mapping = harness.mapping.rescale(units)
        after = [
            compaction.plan(harness.state.runs, vnode_set.of(harness.mapping.vnodes_of(u)))
            for u in harness.mapping.units
        ]
        assert any(after) == any(merges)


@given(vnodes=st.sets(st.integers(0, VNODES - 1)))
def test_vnode_sets(vnodes: set[int]) -> None:
    bits = vnode_set.of(vnodes)
    assert list(vnode_set.members(bits)) == sorted(vnodes)
    assert vnode_set.from_text(vnode_set.to_text(bits)) == bits
