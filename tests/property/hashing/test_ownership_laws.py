"""Laws of ownership: full coverage, no overlap, least movement, join then leave leads back, order of joins where it must not matter."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from magnetar.hashing.consistent import ConsistentHashRanges
from magnetar.hashing.errors import RangeOverlapError
from magnetar.hashing.mapping import VnodeMapping, diff
from magnetar.hashing.ranges import AutoSplitRanges
from magnetar.hashing.ring import HashRing
from magnetar.hashing.sticky import StickyRanges

names = st.text("abc123", min_size=1, max_size=3)
members = st.lists(names, min_size=1, max_size=8, unique=True)
events = st.lists(st.tuples(st.booleans(), names), max_size=40)


def owners(selector: Any) -> list[str | None]:
    table: list[str | None] = [None] * selector.size
    for start, end, member in selector.ranges():
        assert table[start : end + 1] == [None] * (end + 1 - start), "overlap"
        table[start : end + 1] = [member] * (end + 1 - start)
    return table


@settings(max_examples=150, deadline=None)
@given(events=events)
def test_autosplit_covers_everything_and_touches_one_neighbour(events: list[tuple[bool, str]]) -> None:
    ranges = AutoSplitRanges(256)
    before: list[str | None] = [None] * 256
    for joins, member in events:
        known = member in ranges.members
        if joins and not known:
            largest = max((end + 1 - start for start, end, _ in ranges.ranges()), default=256)
            ranges.add(member)
            after = owners(ranges)
            moved = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
            # From one member to the newcomer, and half of the largest region.
            assert len(moved) == 1
            assert next(iter(moved))[1] == member
            assert after.count(member) == (largest + 1) // 2 or len(ranges.members) == 1
        elif not joins and known:
            ranges.remove(member)
            after = owners(ranges)
            moved = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
            assert len(moved) <= 1
            assert all(old == member for old, _ in moved)
        else:
            continue
        ranges.validate()
        assert (None in after) == (not ranges.members)
        assert [ranges.owner(slot) for slot in range(256)] == after
        before = after


@settings(max_examples=150, deadline=None)
@given(members=members, newcomer=names)
def test_join_then_leave_leads_back(members: list[str], newcomer: str) -> None:
    assume(newcomer not in members)
    for selector in (AutoSplitRanges(), ConsistentHashRanges(), ConsistentHashRanges(compat="pr-18878")):
        for member in members:
            selector.add(member)
        before = selector.ranges()
        selector.add(newcomer)
        selector.remove(newcomer)
        selector.validate()
        assert selector.ranges() == before


@settings(max_examples=150, deadline=None)
@given(members=members, newcomer=names, points=st.integers(1, 30))
def test_consistent_hashing_moves_to_the_newcomer_and_from_the_leaver_only(
    members: list[str], newcomer: str, points: int
) -> None:
    assume(newcomer not in members)
    ring = ConsistentHashRanges(points)
    for member in members:
        ring.add(member)
    before = owners(ring)
    assert None not in before
    held = ring.points()
    ring.add(newcomer)
    ring.validate()
    after = owners(ring)
    assert all(new in (old, newcomer) for old, new in zip(before, after, strict=True))
    # Equal points stay with whom they were: the names are made to collide (c at 11, c1 at 1).
    assert set(held) <= set(ring.points())
    leaver = members[0]
    ring.remove(leaver)
    ring.validate()
    last = owners(ring)
    assert all(old in (new, leaver) for old, new in zip(after, last, strict=True))


@settings(max_examples=120, deadline=None)
@given(data=st.data(), members=members)
def test_consistent_hashing_depends_on_the_order_at_equal_points_only(data: Any, members: list[str]) -> None:
    rings = []
    for order in (members, data.draw(st.permutations(members))):
        ring = ConsistentHashRanges(slot_bits=32)
        for member in order:
            ring.add(member)
        rings.append(ring)
    first, second = (dict(ring.points()) for ring in rings)
    assert first.keys() == second.keys()
    differing = {point for point in first if first[point] != second[point]}
    assert differing <= rings[0].collisions().keys()
    assert {point: set(queue) for point, queue in rings[0].collisions().items()} == {
        point: set(queue) for point, queue in rings[1].collisions().items()
    }


@settings(max_examples=150, deadline=None)
@given(wanted=st.lists(st.tuples(names, st.integers(0, 99), st.integers(0, 30)), max_size=12))
def test_sticky_ranges_never_overlap(wanted: list[tuple[str, int, int]]) -> None:
    ranges = StickyRanges(100)
    table: list[str | None] = [None] * 100
    for member, start, length in wanted:
        end = min(start + length, 99)
        if member in ranges.members:
            continue
        free = table[start : end + 1] == [None] * (end + 1 - start)
        try:
            ranges.add(member, [(start, end)])
        except RangeOverlapError:
            assert not free
        else:
            assert free
            table[start : end + 1] = [member] * (end + 1 - start)
        ranges.validate()
        assert owners(ranges) == table
    covered = {slot for start, end in ranges.gaps() for slot in range(start, end + 1)}
    assert covered == {slot for slot, owner in enumerate(table) if owner is None}


@settings(max_examples=120, deadline=None)
@given(data=st.data(), nodes=members, newcomer=names, algorithm=st.sampled_from(["ketama", "crc32"]))
def test_rings_are_monotone_and_know_no_order(data: Any, nodes: list[str], newcomer: str, algorithm: Any) -> None:
    assume(newcomer not in nodes)
    ring = HashRing(nodes, algorithm)
    ring.validate()
    shuffled = HashRing(data.draw(st.permutations(nodes)), algorithm)
    assert ring.points() == shuffled.points()
    keys = [f"key-{number}" for number in range(300)]
    before = [ring.get(key) for key in keys]
    points = ring.points()
    ring.add(newcomer)
    after = [ring.get(key) for key in keys]
    assert all(new in (old, newcomer) for old, new in zip(before, after, strict=True))
    assert all(ring.get_n(key, len(ring))[0] == owner for key, owner in zip(keys[:20], after, strict=False))
    assert all(sorted(ring.get_n(key, len(ring))) == sorted(ring.nodes) for key in keys[:5])
    ring.remove(newcomer)
    assert ring.points() == points


weights = st.dictionaries(names, st.sampled_from([1, 1, 1, 2, 3, 0.5]), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(first=weights, changes=st.lists(weights, min_size=1, max_size=4), count=st.integers(6, 64))
def test_mappings_move_the_provably_least(first: dict[str, float], changes: list[dict[str, float]], count: int) -> None:
    mapping = VnodeMapping.even(first, count)
    for target in changes:
        after = mapping.rescale(target)
        after.validate()
        assert after.vnodes == count
        kept = count - len(diff(mapping, after))
        assert kept == most_kept(mapping.counts(), target, count)
        assert VnodeMapping.from_json(after.to_json()) == after
        mapping = after


def most_kept(now: dict[str, int], target: dict[str, float], count: int) -> int:
    """By trying every way to round the exact shares to floors and ceilings."""
    total = sum(target.values())
    floors = {unit: int(weight * count / total + 1e-9) for unit, weight in target.items()}
    fractional = [unit for unit, weight in target.items() if weight * count / total - floors[unit] > 1e-9]
    left = count - sum(floors.values())
    return max(
        sum(min(now.get(unit, 0), floors[unit] + (unit in ceilings)) for unit in target)
        for ceilings in combinations(fractional, left)
    )


@settings(max_examples=150, deadline=None)
@given(start=st.integers(1, 12), target=st.integers(1, 12), count=st.integers(12, 300))
def test_equal_units_differ_by_one_at_most(start: int, target: int, count: int) -> None:
    mapping = VnodeMapping.even(start, count).rescale(target)
    sizes = mapping.counts().values()
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == target
    groups = mapping.groups(3)
    assert sorted(vnode for _, part in groups for vnode in part) == list(range(count))
