"""The decision to split or merge, under random layouts, loads and policies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.scalable.autoscale import Decision, Rates, ScalePolicy, SegmentLoad, decide, overridden
from magnetar.broker.scalable.layout import SegmentLayout

POLICY = ScalePolicy()
HOUR_MS = 3_600_000


def load(ratio: float, quiet_s: float = 0.0) -> SegmentLoad:
    """`ratio`: of the split threshold of messages in."""
    return SegmentLoad(Rates(messages_in=ratio * POLICY.split.messages_in), quiet_s)


def choose(
    layout: SegmentLayout, loads: dict[int, SegmentLoad], consumers: int = 0, policy: ScalePolicy = POLICY
) -> Decision:
    return decide(layout, loads, consumers, policy, HOUR_MS)


def test_a_busy_segment_is_split() -> None:
    layout = SegmentLayout.create(2, 0)
    found = choose(layout, {0: load(0.5), 1: load(1.5)})
    assert found.segment_ids == (1,)
    assert "1.5 times the threshold of messages in" in found.reason
    assert choose(layout, {0: load(0.5), 1: load(1.0)}).segment_ids == ()
    bytes_out = SegmentLoad(Rates(bytes_out=3 * POLICY.split.bytes_out))
    assert "3.0 times the threshold of bytes out" in choose(layout, {0: bytes_out}).reason


def test_more_consumers_than_segments() -> None:
    layout = SegmentLayout.create(2, 0)
    assert choose(layout, {0: load(0.1), 1: load(0.2)}, consumers=3).segment_ids == (1,)
    assert choose(layout, {}, consumers=3).segment_ids == (0,), "the first of equals"
    assert choose(layout, {}, consumers=2).segment_ids == ()


@pytest.mark.parametrize(
    ("change", "blocked"),
    [
        ({"enabled": False}, ""),
        ({"max_segments": 2}, "max_segments"),
        ({"split_cooldown_s": 7200.0}, "cooldown"),
        ({"min_segments": 0}, "invalid_policy"),
        ({"merge": POLICY.split}, "invalid_policy"),
    ],
)
def test_what_stands_in_the_way_of_a_split(change: dict[str, object], blocked: str) -> None:
    layout = SegmentLayout.create(1, 0).split(0, 1)
    found = choose(layout, {1: load(2)}, policy=replace(POLICY, **change))  # type: ignore[arg-type]
    assert (found.segment_ids, found.blocked) == ((), blocked)
    assert found.reason


def test_a_segment_of_one_hash_is_not_split() -> None:
    layout = SegmentLayout.create(1, 0)
    for _ in range(16):
        layout = layout.split(layout.active[0].id, 1)
    tiny = layout.active[0]
    assert choose(layout, {tiny.id: load(9)}, policy=replace(POLICY, max_depth=100)).blocked == "unsplittable"


def test_quiet_neighbours_are_merged() -> None:
    layout = SegmentLayout.create(4, 0)
    quiet = {number: load(0.05, 300) for number in range(4)}
    assert choose(layout, {**quiet, 2: load(0.01, 300)}).segment_ids == (1, 2)
    assert choose(layout, {**quiet, 1: load(0.05, 299)}).segment_ids == (2, 3)
    assert choose(layout, {0: quiet[0], 2: quiet[2]}).segment_ids == (), "not neighbours"
    assert choose(layout, quiet, consumers=4).segment_ids == (), "each of the consumers has one"
    assert choose(layout, quiet, policy=replace(POLICY, min_segments=4)).segment_ids == ()
    merged = layout.merge(0, 1, 0)
    both = {**quiet, 4: load(0.01, 300)}
    assert choose(merged, both, policy=replace(POLICY, max_depth=1)).segment_ids == (2, 3)
    assert choose(merged, both, policy=replace(POLICY, max_depth=0)).blocked == "max_dag_depth"
    assert choose(merged, both, policy=replace(POLICY, merge_cooldown_s=7200.0)).blocked == "cooldown"


def test_a_topics_own_policy() -> None:
    own = overridden(POLICY, {"maxSegments": 3, "splitMsgRateInThreshold": 5.0, "enabled": None, "unknown": 1})
    assert own == replace(POLICY, max_segments=3, split=replace(POLICY.split, messages_in=5.0))
    assert overridden(POLICY, None) == POLICY


RATES = st.builds(Rates, *(st.floats(0, 1e6) for _ in range(4)))


@settings(max_examples=200, deadline=None)
@given(
    changes=st.lists(st.integers(0, 1000), max_size=12),
    data=st.data(),
    consumers=st.integers(0, 10),
    policy=st.builds(
        ScalePolicy, max_segments=st.integers(1, 12), min_segments=st.integers(1, 4), max_depth=st.integers(0, 4)
    ),
)
def test_every_decision_can_be_carried_out(
    changes: list[int], data: st.DataObject, consumers: int, policy: ScalePolicy
) -> None:
    """And is within the policy; a merge never makes a split necessary."""
    layout = SegmentLayout.create(2, 0)
    for number in changes:
        active = layout.active
        if number % 2 and len(active) > 1:
            place = number % (len(active) - 1)
            layout = layout.merge(active[place].id, active[place + 1].id, 0)
        else:
            layout = layout.split(active[number % len(active)].id, 0)
    loads = {
        each.id: SegmentLoad(data.draw(RATES), data.draw(st.sampled_from([0.0, 300.0])))
        for each in layout.active
        if data.draw(st.booleans())
    }
    found = decide(layout, loads, consumers, policy, HOUR_MS)
    assert found.reason
    if len(found.segment_ids) == 1:
        after = layout.split(found.segment_ids[0], HOUR_MS)
        assert len(after.active) <= policy.max_segments
    elif found.segment_ids:
        low, high = found.segment_ids
        after = layout.merge(low, high, HOUR_MS)
        assert len(after.active) >= max(policy.min_segments, consumers)
        joined = SegmentLoad(loads[low].rates + loads[high].rates)
        rest = {number: each for number, each in loads.items() if number not in (low, high)}
        again = decide(after, {**rest, after.next_id - 1: joined}, consumers, policy, 10 * HOUR_MS)
        assert len(again.segment_ids) != 1, "the merge would be undone"
