"""Layouts of scalable topics under random splits, merges, rebucketing and pruning, and what consumers are assigned meanwhile."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from magnetar.broker.scalable.assignment import assign, readable, withheld
from magnetar.broker.scalable.layout import HASH_MAX, LayoutError, Segment, SegmentLayout, SegmentState
from magnetar.broker.scalable.records import PendingChange, TopicRecord


class LayoutMachine(RuleBasedStateMachine):
    """A topic with one stream subscription, whose messages carry the number of the change before which they were sent."""

    @initialize(count=st.integers(1, 9), buckets=st.integers(0, 9))
    def begin(self, count: int, buckets: int) -> None:
        """Without buckets: a classic topic, which is migrated at once."""
        classic = SegmentLayout.of_classic([f"persistent://t/n/x-partition-{number}" for number in range(count)], 1)
        self.layout = SegmentLayout.create(count, 1, buckets) if buckets else classic
        self.seen = set(self.layout.segments)
        self.drained: set[int] = set()
        self.before: dict[str, tuple[int, ...]] = {}
        self.lineage = {each: frozenset[int]() for each in self.seen}
        """All ancestors that a segment ever had."""
        if not buckets:
            self.changed(classic.migrated(2))
            assert all(set(each.parents) == set(range(count)) for each in self.layout.active)
            assert {(each.start, each.end) for each in self.layout.sealed} == {(0, HASH_MAX)}

    def changed(self, after: SegmentLayout) -> None:
        assert after.epoch > self.layout.epoch
        new = set(after.segments) - set(self.layout.segments)
        assert not new & self.seen, "an id was given twice"
        assert all(each < after.next_id for each in after.segments)
        for each in new:
            parents = after.segments[each].parents
            self.lineage[each] = frozenset(parents).union(*(self.lineage[parent] for parent in parents))
        self.seen |= new
        self.layout = after

    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        segment = data.draw(st.sampled_from(self.layout.active))
        if segment.start == segment.end:
            with pytest.raises(LayoutError):
                self.layout.split(segment.id, 2)
            return
        after = self.layout.split(segment.id, 2)
        low, high = (after.segments[each] for each in after.segments[segment.id].children)
        assert (low.start, high.end, low.end + 1) == (segment.start, segment.end, high.start)
        assert 0 <= (low.end - low.start) - (high.end - high.start) <= 1
        self.changed(after)

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        active = self.layout.active
        place = data.draw(st.integers(0, len(active) - 1))
        other = data.draw(st.integers(0, len(active) - 1))
        first, second = active[place], active[other]
        if abs(place - other) != 1:
            with pytest.raises(LayoutError):
                self.layout.merge(first.id, second.id, 3)
            return
        after = self.layout.merge(first.id, second.id, 3)
        assert after == self.layout.merge(second.id, first.id, 3)
        self.changed(after)

    @rule(data=st.data(), buckets=st.integers(1, 12))
    def rebucket(self, data: st.DataObject, buckets: int) -> None:
        segment = data.draw(st.sampled_from(self.layout.active))
        if buckets == segment.buckets:
            with pytest.raises(LayoutError):
                self.layout.rebucket(segment.id, buckets, 4)
            return
        self.changed(self.layout.rebucket(segment.id, buckets, 4))

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        """A consumer acknowledges everything in a sealed segment that it was given."""
        sealed = [each.id for each in readable(self.layout, self.drained) if not each.active]
        if sealed:
            self.drained.add(data.draw(st.sampled_from(sealed)))

    @rule(data=st.data())
    def drain_an_empty_one(self, data: st.DataObject) -> None:
        """Nothing was ever sent to it, which its broker says whether or not anybody may read it yet."""
        sealed = [each.id for each in self.layout.sealed]
        if sealed:
            self.drained.add(data.draw(st.sampled_from(sealed)))

    @rule()
    def prune(self) -> None:
        oldest = [each.id for each in self.layout.removable(self.drained)]
        if oldest:
            for segment in self.layout.segments.values():
                parents = set(segment.parents) & set(self.layout.segments)
                assert parents <= set(oldest) or not parents & set(oldest), "parents of one child go together"
            after = self.layout.without(oldest)
            assert after.epoch == self.layout.epoch + len(oldest)
            self.changed(after)

    @rule(consumers=st.sets(st.sampled_from("abcdefg"), max_size=5))
    def rebalance(self, consumers: set[str]) -> None:
        segments = readable(self.layout, self.drained)
        after = assign(segments, consumers, self.before)
        given_out = [each for some in after.values() for each in some]
        assert sorted(given_out) == (sorted(each.id for each in segments) if consumers else [])
        if consumers:
            sizes = [len(some) for some in after.values()]
            assert max(sizes) - min(sizes) <= 1
        self.before = after

    @invariant()
    def key_order_is_kept(self) -> None:
        """Nothing is given out before everything that was sent earlier to the same hashes is acknowledged."""
        if not hasattr(self, "layout"):
            return
        for segment in readable(self.layout, self.drained):
            assert self.lineage[segment.id] <= self.drained
        waiting = withheld(self.layout, self.drained)
        assert all(ancestors for ancestors in waiting.values())
        given_out = {each.id for each in readable(self.layout, self.drained)}
        assert given_out | set(waiting) | self.drained >= set(self.layout.segments), "a segment is in no list"
        assert not given_out & set(waiting)

    @invariant()
    def nothing_is_stuck(self) -> None:
        """As long as something is not drained, something can be read."""
        if hasattr(self, "layout"):
            assert readable(self.layout, self.drained)

    @invariant()
    def json_is_exact(self) -> None:
        if hasattr(self, "layout"):
            assert SegmentLayout.from_json(json.loads(json.dumps(self.layout.as_json()))) == self.layout

    @invariant()
    def every_hash_has_one_segment(self) -> None:
        if hasattr(self, "layout"):
            active = self.layout.active
            assert sum(each.end - each.start + 1 for each in active) == HASH_MAX + 1
            for key_hash in (0, 1, 0x7FFF, 0x8000, HASH_MAX):
                assert self.layout.at(key_hash) in active


LayoutMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLayouts = LayoutMachine.TestCase


@given(
    segments=st.sets(st.integers(0, 40), max_size=20),
    consumers=st.sets(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6),
    joining=st.text("xyz", min_size=1, max_size=2),
)
def test_a_consumer_that_joins_moves_only_its_share(segments: set[int], consumers: set[str], joining: str) -> None:
    listed = [Segment(each, each, each) for each in sorted(segments)]
    before = assign(listed, consumers, {})
    after = assign(listed, consumers | {joining}, before)
    moved = [each for name, some in before.items() for each in some if each not in after[name]]
    assert len(moved) <= len(after[joining])


@given(st.integers(1, 64), st.integers(0, 3), st.integers(1, 10**12))
def test_a_pending_change_is_the_same_each_time(count: int, place: int, started_ms: int) -> None:
    layout = SegmentLayout.create(count, 1)
    ids = tuple(each.id for each in layout.active[place % count :][:2])
    classic = SegmentLayout.of_classic([str(number) for number in range(count)])
    every = tuple(range(count))
    for before, chosen in ((layout, ids[:1]), (layout, ids), (classic, every)):
        pending = PendingChange(chosen, started_ms, migration=before is classic)
        record = TopicRecord(before, {"a": "b"}, {"enabled": False}, pending, ("0000-ffff-0",), {"newer": [1]})
        again = TopicRecord.from_json(json.loads(json.dumps(record.as_json())))
        assert again == record
        assert again.pending is not None
        assert again.pending.applied_to(again.layout) == pending.applied_to(before)


def test_what_is_not_a_layout() -> None:
    layout = SegmentLayout.create(2, 1)
    first, second = layout.segments[0], layout.segments[1]
    for segments in (
        {0: first},
        {},
        {0: first, 1: Segment(1, 0x7000, HASH_MAX)},
        {0: first, 1: Segment(1, 0x9000, HASH_MAX)},
    ):
        with pytest.raises(LayoutError):
            SegmentLayout(0, 2, segments)
    with pytest.raises(LayoutError):
        SegmentLayout(0, 1, {0: first, 1: second})
    with pytest.raises(LayoutError):
        SegmentLayout(0, 3, {0: first, 1: second, 2: Segment(2, 0, 9, SegmentState.SEALED)})
    with pytest.raises(LayoutError):
        SegmentLayout.from_json({"epoch": 0})
    for count in (0, 1025):
        with pytest.raises(LayoutError):
            SegmentLayout.create(count, 1)
    with pytest.raises(LayoutError):
        layout.merge(0, 7, 1)
    with pytest.raises(LayoutError):
        layout.migrated(1)
    with pytest.raises(LayoutError):
        layout.without([0])


def test_an_empty_parent_does_not_let_its_children_overtake() -> None:
    """Apache's 5.0.0-M1 asks for direct parents only, and gives them out while the grandparent still has messages."""
    layout = SegmentLayout.create(1, 1).split(0, 2).split(1, 3)
    assert [each.id for each in readable(layout, {1})] == [0]
    assert withheld(layout, {1}) == {1: [0], 2: [0], 3: [0], 4: [0]}
    assert [each.id for each in readable(layout, {0, 1})] == [3, 4, 2]
