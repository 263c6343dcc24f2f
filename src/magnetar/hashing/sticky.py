"""Sticky ranges:

every consumer of a Key_Shared subscription brings the slots it wants (Pulsar's `KeySharedPolicy.stickyHashRange`).

Nothing is moved on joins and leaves; what no range covers has no owner, and its messages wait until somebody comes
for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from magnetar.hashing.errors import (
    DuplicateMemberError,
    InvalidRangeError,
    RangeCoverageError,
    RangeOverlapError,
    UnknownMemberError,
)
from magnetar.hashing.murmur3 import KEY_SHARED_SLOTS
from magnetar.hashing.ranges import Range

MAX_RANGES_SHOWN = 10
"""Gaps listed in the text of a RangeCoverageError; further ones are counted only."""


class StickyRanges:
    """Ranges with inclusive ends over `size` slots, sorted; any number a member."""

    __slots__ = ("_ranges", "_size", "_starts")

    def __init__(self, size: int = KEY_SHARED_SLOTS) -> None:
        """`size`: the number of slots, from 1 on."""
        if size < 1:
            raise InvalidRangeError(f"{size} slots: give at least 1")
        self._size = size
        self._ranges: list[Range] = []
        self._starts: list[int] = []

    @property
    def size(self) -> int:
        """How many slots there are."""
        return self._size

    @property
    def members(self) -> tuple[str, ...]:
        """The members in the order of their first ranges."""
        return tuple(dict.fromkeys(member for _, _, member in self._ranges))

    def add(self, member: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Give `member` the slots of `ranges` (inclusive pairs). All or nothing.

        InvalidRangeError (none given, negative, reversed, beyond the slots), RangeOverlapError, DuplicateMemberError.
        """
        if any(member == taken for _, _, taken in self._ranges):
            raise DuplicateMemberError(f"{member!r} has ranges already: remove it first or use another name")
        if not ranges:
            raise InvalidRangeError(f"{member!r} brings no range: a sticky consumer must name at least one")
        for start, end in ranges:
            if not 0 <= start <= end < self._size:
                raise InvalidRangeError(f"range {start}-{end} must run upwards within 0 to {self._size - 1}")
        merged = sorted([*self._ranges, *((start, end, member) for start, end in ranges)])
        for (low_start, low_end, low), (high_start, high_end, high) in pairwise(merged):
            if high_start <= low_end:
                raise RangeOverlapError(
                    f"range {high_start}-{high_end} of {high!r} overlaps {low_start}-{low_end} of {low!r}"
                )
        self._replace(merged)

    def remove(self, member: str) -> None:
        """Free all ranges of `member`. UnknownMemberError."""
        left = [entry for entry in self._ranges if entry[2] != member]
        if len(left) == len(self._ranges):
            raise UnknownMemberError(f"{member!r} has no range: it never joined or has left already")
        self._replace(left)

    def owner(self, slot: int) -> str | None:
        """The member whose range holds `slot`;

        None where nothing covers it. InvalidRangeError outside 0 to size - 1.
        """
        if not 0 <= slot < self._size:
            raise InvalidRangeError(f"slot {slot} is outside 0 to {self._size - 1}: take the hash modulo {self._size}")
        index = bisect_right(self._starts, slot) - 1
        if index < 0:
            return None
        _, end, member = self._ranges[index]
        return member if slot <= end else None

    def ranges(self) -> list[Range]:
        """All ranges from the lowest up: (first slot, last slot inclusive, member)."""
        return list(self._ranges)

    def gaps(self) -> list[tuple[int, int]]:
        """The slots without an owner, as inclusive pairs."""
        found: list[tuple[int, int]] = []
        free_from = 0
        for start, end, _ in self._ranges:
            if start > free_from:
                found.append((free_from, start - 1))
            free_from = end + 1
        if free_from < self._size:
            found.append((free_from, self._size - 1))
        return found

    def check_coverage(self) -> None:
        """RangeCoverageError, naming the gaps, unless every slot has an owner."""
        gaps = self.gaps()
        if gaps:
            shown = ", ".join(f"{start}-{end}" for start, end in gaps[:MAX_RANGES_SHOWN])
            more = f" and {len(gaps) - MAX_RANGES_SHOWN} more" if len(gaps) > MAX_RANGES_SHOWN else ""
            raise RangeCoverageError(
                f"no consumer covers slots {shown}{more}: keys there wait until one brings these ranges"
            )

    def validate(self) -> None:
        """Assert the invariants: sorted, inside the slots, no overlap."""
        assert self._starts == [start for start, _, _ in self._ranges]
        assert all(0 <= start <= end < self._size for start, end, _ in self._ranges)
        assert all(low[1] < high[0] for low, high in pairwise(self._ranges))

    def _replace(self, ranges: list[Range]) -> None:
        self._ranges = ranges
        self._starts = [start for start, _, _ in ranges]
