"""Which unit reads which messages of a scalable topic: every message once, and the unit of its vnode where segments allow it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.scalable.layout import hash_of, place_of
from magnetar.hashing.errors import KeyEncodingError
from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.vectorized.vnode import segment_vnodes_of, vnodes
from magnetar.hashing.vnode import segment_vnode, segment_vnodes, vnode
from magnetar.pipeline.connect.offsets import EARLIEST, Position, Range
from magnetar.pipeline.connect.raw.batch_walk import Messages
from magnetar.pipeline.connect.raw.entries import Entry
from magnetar.pipeline.views.control.rescale import merges, splits
from magnetar.pipeline.views.source import own_vnodes

KEYS = st.one_of(st.none(), st.text(max_size=8))
COUNTS = st.sampled_from([2, 3, 16, 100, 256, 1000, 32_768])


@given(st.lists(KEYS, max_size=50), COUNTS)
def test_every_form_of_the_function_gives_the_same(keys: list[str | None], count: int) -> None:
    expected = [segment_vnode(key, count) for key in keys]
    assert segment_vnodes_of(pa.array(keys, pa.string()), count).tolist() == expected
    assert vnodes([pa.chunked_array([pa.array(keys, pa.string())])], count=count, hash="segment").tolist() == expected
    assert [vnode([key], ["varchar"], count, "segment") for key in keys] == expected
    for key in (key for key in keys if key is not None):
        place = place_of(hash_of(key))
        assert segment_vnode(key, count) in segment_vnodes(place, place, count)


def test_other_keys_are_refused() -> None:
    for values, types in (([1], ["integer"]), (["a", "b"], ["varchar", "varchar"])):
        with pytest.raises(KeyEncodingError, match="one varchar"):
            vnode(values, types, hash="segment")
    with pytest.raises(KeyEncodingError, match="one varchar"):
        vnodes([pa.array([1])], hash="segment")


@st.composite
def tilings(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Ranges that tile the ring."""
    cuts = sorted(draw(st.sets(st.integers(1, 0xFFFF), max_size=7)))
    return list(zip([0, *cuts], [*(cut - 1 for cut in cuts), 0xFFFF], strict=True))


@st.composite
def layouts(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Ranges that tile the ring, and perhaps one that has all of it."""
    return draw(tilings()) + ([(0, 0xFFFF)] if draw(st.booleans()) else [])


@st.composite
def mappings(draw: st.DrawFn) -> VnodeMapping:
    """Such as rescales leave behind."""
    found = VnodeMapping.even(draw(st.integers(1, 5)), draw(st.sampled_from([16, 100, 256])))
    for units in draw(st.lists(st.integers(1, 6), max_size=3)):
        found = found.rescale(units)
    return found


@given(layouts(), mappings(), st.lists(KEYS, max_size=40), st.randoms(use_true_random=False))
def test_each_message_is_read_once_and_by_the_unit_of_its_vnode(
    tiles: list[tuple[int, int]], mapping: VnodeMapping, keys: list[str | None], random: object
) -> None:
    """Wherever the messages lie: those outside of the segment of their key come to one unit all the same."""
    pick = random.choice  # type: ignore[attr-defined]
    parts, held = [], {}
    for number, (start, end) in enumerate(tiles):
        topic = f"segment://t/n/x/{start:04x}-{end:04x}-{number}"
        parts.append(Range(topic, EARLIEST, Position(1, 1)))
        held[topic] = list[str | None]()
    for key in keys:
        held[pick(parts).topic].append(key)
    seen: dict[str, list[str | None]] = {topic: [] for topic in held}
    for unit, own in enumerate(own_vnodes.own_parts(parts, mapping)):
        for each in own:
            found = _taken(each, held[each.part.topic], mapping.vnodes)
            seen[each.part.topic] += found
            for key in found:
                number = segment_vnode(key, mapping.vnodes)
                assert number not in each.segment or mapping.owners[number] == unit
    assert {topic: sorted(map(repr, found)) for topic, found in seen.items()} == {
        topic: sorted(map(repr, found)) for topic, found in held.items()
    }


@given(st.integers(1, 4), st.integers(0, 3))
def test_as_many_segments_as_units_have_one_unit_each_when_units_are_doubled(units: int, doublings: int) -> None:
    mapping, segments = VnodeMapping.even(1, 256), [(0, 0xFFFF)]
    for _ in range(doublings):
        mapping = mapping.rescale(2 * len(mapping.units))
        segments = _after(segments, splits(mapping, segments))
    assert len(segments) == len(mapping.units)
    owners = [{mapping.owners[each] for each in segment_vnodes(*segment, 256)} for segment in segments]
    assert sorted(map(list, owners)) == [[unit] for unit in range(len(mapping.units))]
    assert splits(mapping, segments) == []
    fewer = mapping.rescale(units)
    assert splits(fewer, segments) == [] or len(segments) < units


@pytest.mark.parametrize("doublings", [0, 1, 2])
def test_units_that_were_doubled_and_are_halved_again_have_one_segment_each(doublings: int) -> None:
    mapping, segments = VnodeMapping.even(1, 256), [(0, 0xFFFF)]
    for _ in range(doublings):
        mapping = mapping.rescale(2 * len(mapping.units))
        segments = _after(segments, splits(mapping, segments))
    for _ in range(doublings):
        mapping = mapping.rescale(len(mapping.units) // 2)
        for low, high in merges(mapping, segments):
            segments = _merged(segments, low, high)
        assert len(segments) == len(mapping.units)
        for start, end in segments:
            assert len({mapping.owners[each] for each in segment_vnodes(start, end, 256)}) == 1


@given(tilings(), mappings())
def test_merges_are_of_neighbours_and_end_at_the_number_of_units(
    tiles: list[tuple[int, int]], mapping: VnodeMapping
) -> None:
    segments = tiles
    for low, high in merges(mapping, tiles):
        assert low[1] + 1 == high[0]
        segments = _merged(segments, low, high)
    assert len(segments) == min(len(tiles), len(mapping.units))
    assert merges(mapping, segments) == []
    assert not (splits(mapping, tiles) and merges(mapping, tiles))


def _merged(segments: list[tuple[int, int]], low: tuple[int, int], high: tuple[int, int]) -> list[tuple[int, int]]:
    assert {low, high} <= set(segments)
    return sorted({*segments, (low[0], high[1])} - {low, high})


def _after(segments: list[tuple[int, int]], split: list[tuple[int, int]]) -> list[tuple[int, int]]:
    for start, end in split:
        middle = start + (end - start) // 2
        segments = sorted({*segments, (start, middle), (middle + 1, end)} - {(start, end)})
    return segments


def _taken(own: own_vnodes.OwnPart, keys: list[str | None], count: int) -> list[str | None]:
    """What a unit reads of an entry with these keys."""
    rows = len(keys)
    messages = Messages(b"", [0] * rows, [0] * rows, range(rows), named=list(keys))
    taken = own_vnodes.taken_of(own, count)
    entry = Entry(1, 0, rows, 0, None, messages)
    return (entry if taken is None else taken(entry)).messages.keys or []
