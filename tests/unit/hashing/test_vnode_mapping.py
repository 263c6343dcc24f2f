"""VnodeMapping: evenness, least movement, weights, JSON, and bad input."""

from __future__ import annotations

import pytest

from magnetar.hashing.errors import (
    DuplicateMemberError,
    EmptyRingError,
    HashingError,
    InvalidWeightError,
    UnknownMemberError,
    VnodeCountError,
)
from magnetar.hashing.mapping import VnodeMapping, diff


def test_even_blocks_give_the_remainder_to_the_first() -> None:
    mapping = VnodeMapping.even(3)
    assert mapping.ranges() == [(0, 85, "0"), (86, 170, "1"), (171, 255, "2")]
    assert (mapping.owner(0), mapping.owner(255), mapping.version) == ("0", "2", 1)


def test_a_chain_of_rescalings_moves_the_least_possible_each_time() -> None:
    mapping = VnodeMapping.even(4)
    moved = []
    for units in (5, 3, 6, 4, 5, 3, 6):
        after = mapping.rescale(units)
        after.validate()
        assert after.version == mapping.version + 1
        moved.append(len(diff(mapping, after)))
        mapping = after
    assert moved == [51, 102, 127, 84, 51, 102, 127]


def test_three_units_to_four_move_a_quarter_to_the_newcomer_only() -> None:
    before = VnodeMapping.even(["a", "b", "c"])
    after = before.add("d")
    moves = diff(before, after)
    assert len(moves) == 64
    assert {move.target for move in moves} == {"d"}
    assert after.counts() == {"a": 64, "b": 64, "c": 64, "d": 64}


def test_removal_moves_the_leavers_vnodes_only() -> None:
    before = VnodeMapping.even(["a", "b", "c", "d"])
    moves = diff(before, before.remove("b"))
    assert {move.source for move in moves} == {"b"}
    assert len(moves) == 64


def test_weights_are_followed_to_the_vnode() -> None:
    mapping = VnodeMapping.even({"a": 1, "b": 2, "c": 5})
    assert mapping.counts() == {"a": 32, "b": 64, "c": 160}
    heavier = mapping.reweight("a", 2)
    heavier.validate()
    assert {move.target for move in diff(mapping, heavier)} == {"a"}


def test_groups_cut_each_units_vnodes_evenly() -> None:
    mapping = VnodeMapping.even(["a", "b"], 10)
    assert mapping.groups() == [("a", [0, 1, 2, 3, 4]), ("b", [5, 6, 7, 8, 9])]
    assert mapping.groups(2) == [("a", [0, 1]), ("a", [2, 3, 4]), ("b", [5, 6]), ("b", [7, 8, 9])]
    assert sum(len(part) for _, part in mapping.groups(7)) == 10


def test_json_round_trip_and_sql_literal() -> None:
    mapping = VnodeMapping.even({"a": 1, "b": 2.5}, 4).rescale({"b": 1, "c": 1})
    assert VnodeMapping.from_json(mapping.to_json()) == mapping
    assert VnodeMapping.even(2, 4).sql_array() == "array(0,0,1,1)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format":2}',
        '{"format":1,"version":1,"vnodes":4,"units":[{"name":"a","weight":1}],"runs":[[0,3]]}',
        '{"format":1,"version":1,"vnodes":4,"units":[{"name":"a","weight":1}],"runs":[[1,4]]}',
        '{"format":1,"version":1,"vnodes":4,"units":[{"name":"a","weight":0}],"runs":[[0,4]]}',
    ],
)
def test_foreign_json_is_refused(text: str) -> None:
    with pytest.raises(HashingError):
        VnodeMapping.from_json(text)


def test_bad_units_are_refused_with_their_fix() -> None:
    with pytest.raises(EmptyRingError):
        VnodeMapping.even([])
    with pytest.raises(EmptyRingError):
        VnodeMapping.even(0)
    with pytest.raises(DuplicateMemberError):
        VnodeMapping.even(["a", "a"])
    with pytest.raises(InvalidWeightError):
        VnodeMapping.even({"a": 0})
    with pytest.raises(VnodeCountError, match="fewer units"):
        VnodeMapping.even(5, 4)
    with pytest.raises(VnodeCountError, match="2 to 32768"):
        VnodeMapping.even(1, 1)
    mapping = VnodeMapping.even(["a"])
    with pytest.raises(UnknownMemberError):
        mapping.remove("b")
    with pytest.raises(EmptyRingError):
        mapping.remove("a")
    with pytest.raises(DuplicateMemberError):
        mapping.add("a")
    with pytest.raises(VnodeCountError):
        mapping.owner(256)
    with pytest.raises(VnodeCountError, match="never changes"):
        diff(mapping, VnodeMapping.even(["a"], 128))
    with pytest.raises(VnodeCountError):
        mapping.rescale(300)
