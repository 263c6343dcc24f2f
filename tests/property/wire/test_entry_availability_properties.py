"""Lists of entries: what goes in comes out, striping stays small, garbage is refused."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire.bookkeeper.availability import EntryAvailability, Group
from magnetar.wire.bookkeeper.frames import BookieFrameError

IDS = st.sets(st.integers(0, 200), max_size=120) | st.sets(st.integers(0, 2**63 - 1), max_size=20)


@given(IDS)
def test_entries_come_back(ids: set[int]) -> None:
    packed = EntryAvailability.of(sorted(ids)).to_bytes()
    found = EntryAvailability.from_bytes(packed)
    assert found.entries_count == len(ids)
    assert found.last_entry_id == max(ids, default=-1)
    for entry_id in {0, *ids, *(it + 1 for it in ids), *(it - 1 for it in ids)}:
        assert found.holds(entry_id) == (entry_id in ids)


@given(st.integers(2, 7), st.integers(1, 6), st.integers(10, 300))
def test_what_striping_leaves_on_a_bookie_is_a_few_groups(ensemble: int, quorum: int, entries: int) -> None:
    quorum = min(quorum, ensemble)
    ids = [it for it in range(entries) if 0 in {(it + place) % ensemble for place in range(quorum)}]
    found = EntryAvailability.of(ids)
    assert len(found.groups) <= 3
    assert found.entries_count == len(ids)


def test_the_bytes() -> None:
    """64 bytes of header; one group of 24 bytes for sequences of one size and period, period 0 for a single one."""
    packed = EntryAvailability.of([0, 1, 3, 4, 6, 7, 100]).to_bytes()
    groups = struct.pack(">qqii", 0, 6, 2, 3) + struct.pack(">qqii", 100, 100, 1, 0)
    assert packed == struct.pack(">ii", 0, 2) + bytes(56) + groups


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with contextlib.suppress(BookieFrameError):
        assert EntryAvailability.from_bytes(data).to_bytes() == data[:8].ljust(64, b"\0") + data[64:]


@pytest.mark.parametrize(
    "groups",
    [
        [Group(-1, -1, 1, 0)],
        [Group(0, 0, 0, 0)],
        [Group(0, 0, 1, 5)],
        [Group(5, 0, 1, 5)],
        [Group(0, 10, 1, 3)],
        [Group(0, 10, 6, 5)],
        [Group(0, 10, 1, 0)],
        [Group(0, 10, 2, 5), Group(11, 11, 1, 0)],
    ],
)
def test_impossible_groups_are_refused(groups: list[Group]) -> None:
    packed = struct.pack(">ii", 0, len(groups)) + bytes(56) + b"".join(struct.pack(">qqii", *it) for it in groups)
    with pytest.raises(BookieFrameError):
        EntryAvailability.from_bytes(packed)
