"""Auto-split hash ranges: Pulsar's default way to share the 65,536 slots of a Key_Shared subscription.

The rule (pulsar PR 18878, "Auto-split Hash Range"): a newcomer takes the lower half of the largest region (the lowest
one of several equally large); a leaver's region goes to its right neighbour, and the last region, which has none, to
its left. So one member is touched by a join or a leave, and regions are uneven by at most a factor of two after joins
alone.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from magnetar.hashing.errors import DuplicateMemberError, InvalidRangeError, RangesExhaustedError, UnknownMemberError
from magnetar.hashing.murmur3 import KEY_SHARED_SLOTS

Range = tuple[int, int, str]
"""First slot, last slot (inclusive), member."""


class AutoSplitRanges:
    """Regions over `size` slots, one a member, in order; no gaps, no overlaps."""

    __slots__ = ("_members", "_size", "_starts")

    def __init__(self, size: int = KEY_SHARED_SLOTS) -> None:
        """`size`: the number of slots, a power of two from 2 on."""
        if size < 2 or size & (size - 1):
            raise InvalidRangeError(f"{size} slots cannot be halved evenly: give a power of two from 2 on")
        self._size = size
        self._starts: list[int] = []
        self._members: list[str] = []

    @property
    def size(self) -> int:
        """How many slots there are."""
        return self._size

    @property
    def members(self) -> tuple[str, ...]:
        """The members in the order of their regions."""
        return tuple(self._members)

    def add(self, member: str) -> None:
        """Give `member` the lower half of the largest region (all of it to the first).

        DuplicateMemberError, RangesExhaustedError.
        """
        if member in self._members:
            raise DuplicateMemberError(f"{member!r} has a region already: remove it first or use another name")
        if not self._members:
            self._starts.append(0)
            self._members.append(member)
            return
        index, width = self._largest()
        if width < 2:
            raise RangesExhaustedError(f"all {self._size} slots have a member of their own: {member!r} cannot get one")
        start = self._starts[index]
        # The upper half is the one rounded down, as in the broker; widths are odd only after some 2^15 joins and
        # leaves.
        self._starts[index] = start + width - (width >> 1)
        self._starts.insert(index, start)
        self._members.insert(index, member)

    def remove(self, member: str) -> None:
        """Merge the region of `member` into its right neighbour, the last region into its left one.

        UnknownMemberError.
        """
        try:
            index = self._members.index(member)
        except ValueError:
            raise UnknownMemberError(f"{member!r} has no region: it never joined or has left already") from None
        del self._members[index]
        # The right neighbour begins where the leaver began; without one, the left neighbour just has no end before
        # `size`.
        del self._starts[index + 1 if index < len(self._members) else index]

    def owner(self, slot: int) -> str | None:
        """The member whose region holds `slot`; None without members. InvalidRangeError outside 0 to size - 1."""
        if not 0 <= slot < self._size:
            raise InvalidRangeError(f"slot {slot} is outside 0 to {self._size - 1}: take the hash modulo {self._size}")
        if not self._members:
            return None
        return self._members[bisect_right(self._starts, slot) - 1]

    def ranges(self) -> list[Range]:
        """All regions from slot 0 up: (first slot, last slot inclusive, member)."""
        ends = [*self._starts[1:], self._size]
        return [(start, end - 1, member) for start, end, member in zip(self._starts, ends, self._members, strict=False)]

    def validate(self) -> None:
        """Assert the invariants: full coverage, no overlap, every region at least one slot, members unique."""
        assert len(self._starts) == len(self._members)
        assert len(set(self._members)) == len(self._members)
        if self._starts:
            assert self._starts[0] == 0
            assert self._starts[-1] < self._size
            assert all(low < high for low, high in pairwise(self._starts))

    def _largest(self) -> tuple[int, int]:
        """Index and width of the largest region, the lowest of equals."""
        best, best_width = 0, 0
        last = len(self._starts) - 1
        for index, start in enumerate(self._starts):
            width = (self._starts[index + 1] if index < last else self._size) - start
            if width > best_width:
                best, best_width = index, width
        return best, best_width
