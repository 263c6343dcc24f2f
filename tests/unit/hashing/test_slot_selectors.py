"""The three selectors of Key_Shared: the pictures of the document, collisions, bad input."""

from __future__ import annotations

import itertools

import pytest

from magnetar.hashing.consistent import ConsistentHashRanges, member_points
from magnetar.hashing.errors import (
    DuplicateMemberError,
    HashingError,
    InvalidRangeError,
    RangeCoverageError,
    RangeOverlapError,
    RangesExhaustedError,
    UnknownMemberError,
)
from magnetar.hashing.ranges import AutoSplitRanges
from magnetar.hashing.sticky import StickyRanges

C1_C2_C3 = [(0, 16383, "C3"), (16384, 32767, "C2"), (32768, 65535, "C1")]


def autosplit(*members: str) -> AutoSplitRanges:
    ranges = AutoSplitRanges()
    for member in members:
        ranges.add(member)
    return ranges


def test_autosplit_joins_as_in_the_pictures() -> None:
    ranges = AutoSplitRanges()
    pictures = [
        [(0, 65535, "C1")],
        [(0, 32767, "C2"), (32768, 65535, "C1")],
        C1_C2_C3,
        # The picture names the last two the other way round, against its own text and Pulsar's code: the newcomer is the lower.
        [(0, 16383, "C3"), (16384, 32767, "C2"), (32768, 49151, "C4"), (49152, 65535, "C1")],
    ]
    for member, picture in zip(("C1", "C2", "C3", "C4"), pictures, strict=True):
        ranges.add(member)
        assert ranges.ranges() == picture


def test_autosplit_leaves_as_in_the_pictures() -> None:
    ranges = autosplit("C1", "C2", "C3", "C4")
    ranges.remove("C4")
    assert ranges.ranges() == C1_C2_C3
    ranges.remove("C1")
    assert ranges.ranges() == [(0, 16383, "C3"), (16384, 65535, "C2")]


def test_a_middle_leaver_goes_to_its_right_neighbour() -> None:
    ranges = autosplit("C1", "C2", "C3")
    ranges.remove("C2")
    assert ranges.ranges() == [(0, 16383, "C3"), (16384, 65535, "C1")]
    ranges.remove("C3")
    assert ranges.ranges() == [(0, 65535, "C1")]
    ranges.remove("C1")
    assert ranges.ranges() == []
    assert ranges.owner(0) is None


def test_autosplit_owner_of_the_worked_example() -> None:
    assert autosplit("C1", "C2", "C3", "C4").owner(6067) == "C3"


def test_autosplit_refuses_what_cannot_be() -> None:
    ranges = AutoSplitRanges(2)
    ranges.add("A")
    ranges.add("B")
    with pytest.raises(RangesExhaustedError):
        ranges.add("C")
    with pytest.raises(DuplicateMemberError):
        ranges.add("A")
    with pytest.raises(UnknownMemberError):
        ranges.remove("C")
    for slot in (-1, 2):
        with pytest.raises(InvalidRangeError):
            ranges.owner(slot)
    for size in (0, 1, 3, -4):
        with pytest.raises(InvalidRangeError, match="power of two"):
            AutoSplitRanges(size)


def test_sticky_ranges_have_owners_and_gaps() -> None:
    ranges = StickyRanges()
    ranges.add("A", [(0, 99), (200, 299)])
    ranges.add("B", [(100, 199)])
    assert [ranges.owner(slot) for slot in (0, 99, 100, 199, 200, 299, 300, 65535)] == [*list("AABBAA"), None, None]
    assert ranges.members == ("A", "B")
    assert ranges.gaps() == [(300, 65535)]
    with pytest.raises(RangeCoverageError, match="300-65535"):
        ranges.check_coverage()
    ranges.add("C", [(300, 65535)])
    ranges.check_coverage()
    ranges.remove("A")
    assert ranges.owner(50) is None
    assert ranges.gaps() == [(0, 99), (200, 299)]
    ranges.validate()


def test_sticky_overlap_names_both_and_changes_nothing() -> None:
    ranges = StickyRanges()
    ranges.add("A", [(0, 100)])
    with pytest.raises(RangeOverlapError, match="100-200 of 'B' overlaps 0-100 of 'A'"):
        ranges.add("B", [(300, 400), (100, 200)])
    with pytest.raises(RangeOverlapError):
        ranges.add("B", [(300, 400), (400, 500)])
    assert ranges.ranges() == [(0, 100, "A")]


@pytest.mark.parametrize("bad", [(-1, 5), (5, 4), (0, 65536)])
def test_sticky_refuses_ranges_that_are_none(bad: tuple[int, int]) -> None:
    with pytest.raises(InvalidRangeError, match="upwards within"):
        StickyRanges().add("A", [bad])


def test_sticky_refuses_members_it_knows_or_does_not_know() -> None:
    ranges = StickyRanges()
    with pytest.raises(InvalidRangeError, match="no range"):
        ranges.add("A", [])
    ranges.add("A", [(0, 1)])
    with pytest.raises(DuplicateMemberError):
        ranges.add("A", [(5, 6)])
    with pytest.raises(UnknownMemberError):
        ranges.remove("B")


def test_consistent_points_of_the_document() -> None:
    points = member_points("orders-aggregator-pod-2345-consumer")
    assert (len(points), points[0], points[1], points[99]) == (100, 1003084738, 373317202, 320276078)
    ring = ConsistentHashRanges()
    ring.add("orders-aggregator-pod-2345-consumer")
    assert {point for point, _ in ring.points()} == set(points)


def colliding(compat: str | None = None) -> ConsistentHashRanges:
    """Points of c at 11 to 19 are those of c1 at 1 to 9, and c's at 100 is c1's at 00: nine collisions at least."""
    ring = ConsistentHashRanges(compat=compat, slot_bits=32)  # type: ignore[arg-type]  # str for short
    ring.add("c")
    return ring


def test_a_collision_with_a_newcomer_takes_nothing_from_the_member_that_was_there() -> None:
    ring = colliding()
    before = {point: ring.owner(point) for point, _ in ring.points()}
    ring.add("c1")
    assert len(ring.collisions()) >= 9
    assert {point: ring.owner(point) for point in before} == before
    ring.validate()


def test_the_documents_formula_does_take_keys_by_collision() -> None:
    ring = colliding("pr-18878")
    ring.add("c1")
    # On a shared point the owner follows hash % 2, so every second hash in front of it has moved.
    owners = {ring.owner(point - parity) for point in ring.collisions() for parity in (0, 1)}
    assert owners == {"c", "c1"}


def test_the_queue_of_a_shared_point_inherits_in_join_order() -> None:
    ring = colliding()
    ring.add("c1")
    shared = next(iter(ring.collisions()))
    ring.remove("c")
    assert ring.owner(shared) == "c1"
    ring.add("c")
    assert ring.owner(shared) == "c1"
    assert ring.collisions()[shared] == ("c1", "c")


def test_a_separator_rules_out_collisions_of_such_names() -> None:
    ring = ConsistentHashRanges(separator="\0", slot_bits=32)
    ring.add("c")
    ring.add("c1")
    assert ring.collisions() == {}


def test_pr_18878_ranges_list_alternating_slots() -> None:
    ring = ConsistentHashRanges(compat="pr-18878")
    ring.add("c")
    ring.add("c1")
    expected = [(slot, ring.owner(slot)) for slot in range(65536)]
    assert [(slot, member) for start, end, member in ring.ranges() for slot in range(start, end + 1)] == expected
    whole = colliding("pr-18878")
    whole.add("c1")
    with pytest.raises(HashingError, match="ask owner"):
        whole.ranges()


def test_join_order_is_irrelevant_without_equal_points() -> None:
    members = ["alpha", "beta", "gamma", "delta"]
    rings = []
    for order in itertools.permutations(members):
        ring = ConsistentHashRanges()
        for member in order:
            ring.add(member)
        assert not ring.collisions()
        rings.append(ring.ranges())
    assert all(ranges == rings[0] for ranges in rings)


def test_consistent_hashing_refuses_bad_input() -> None:
    with pytest.raises(HashingError, match="at least 1"):
        ConsistentHashRanges(0)
    with pytest.raises(HashingError, match="pr-18878"):
        ConsistentHashRanges(compat="pr-1")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(HashingError, match=r"16 .* or 32"):
        ConsistentHashRanges(slot_bits=8)  # type: ignore[arg-type]  # the point of the test
    ring = ConsistentHashRanges()
    assert ring.owner(5) is None
    assert ring.ranges() == []
    ring.add("A")
    with pytest.raises(DuplicateMemberError):
        ring.add("A")
    with pytest.raises(UnknownMemberError):
        ring.remove("B")
    for slot in (-1, 65536):
        with pytest.raises(InvalidRangeError):
            ring.owner(slot)
