"""Consistent hashing as Pulsar's Key_Shared does it: 100 points a member on a 32-bit circle (pulsar PR 18878).

A key belongs to the first point at or after its place, clockwise. A join adds points only, so keys move to the
newcomer only; a leave takes its points away, so the leaver's keys move only. Both hold exactly, whatever the order of
joins.

**Collisions.** Two members can hash to the same point. The document picks `hash % list size` there: a newcomer on the
point then takes keys it does not come for and shuffles the rest between the others (kept as `compat="pr-18878"`).
Here the point stays with the member that came first; later ones queue behind it in the order of their joins and
inherit it when those before them leave. That is the only trace of the join order: without equal points the owners are
a function of the set of members. More independence is impossible: a rule that looked at the set alone would take the
point from an existing member or refuse it to a newcomer depending on its name.

**Slots.** A broker hands over the 16-bit slot of a key (`slot_bits=16`), which is put on the circle at `slot *
65,536`; points keep all their 32 bits, so members hide each other by place and not by arrival. `slot_bits=32` takes
the whole hash.

**Points** are `murmur3(member + separator + i)` for i = 1 to 100. The document's separator is empty, so that member
`c` at 11 and member `c1` at 1 collide; current brokers put a NUL byte between (`separator="\\0"`), which is worth
having when names end in digits.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Final, Literal

from magnetar.hashing.errors import DuplicateMemberError, HashingError, InvalidRangeError, UnknownMemberError
from magnetar.hashing.murmur3 import murmur3_32
from magnetar.hashing.ranges import Range

POINTS_PER_MEMBER: Final = 100
"""Pulsar's `subscriptionKeySharedConsistentHashingReplicaPoints`; balance improves with its square root."""

Compat = Literal["pr-18878"]


def member_points(member: str, count: int = POINTS_PER_MEMBER, separator: str = "") -> list[int]:
    """The points of `member` for i = 1 to `count`, in that order, unsigned 32-bit."""
    prefix = f"{member}{separator}"
    return [murmur3_32(f"{prefix}{i}") for i in range(1, count + 1)]


class ConsistentHashRanges:
    """Members on a circle of 2^32 places; `owner` takes a slot of `slot_bits` bits."""

    __slots__ = (
        "_compat",
        "_holders",
        "_members",
        "_owners",
        "_points",
        "_points_per_member",
        "_separator",
        "_shift",
        "_size",
    )

    def __init__(
        self,
        points_per_member: int = POINTS_PER_MEMBER,
        compat: Compat | None = None,
        *,
        separator: str = "",
        slot_bits: Literal[16, 32] = 16,
    ) -> None:
        """`points_per_member` from 1 on; `compat="pr-18878"` resolves collisions by the document's unstable formula."""
        if points_per_member < 1:
            raise HashingError(f"{points_per_member} points a member: give at least 1")
        if compat not in (None, "pr-18878"):
            raise HashingError(f"unknown compat {compat!r}: leave it out or give 'pr-18878'")
        if slot_bits not in (16, 32):
            raise HashingError(f"slots of {slot_bits} bits: give 16 (Key_Shared slots) or 32 (whole hashes)")
        self._points_per_member = points_per_member
        self._compat = compat
        self._separator = separator
        self._size = 1 << slot_bits
        self._shift = 32 - slot_bits
        self._members: list[str] = []
        self._points: list[int] = []
        self._owners: list[str] = []
        self._holders: dict[int, list[str]] = {}
        """Points that several members hash to -> these members in join order. The first one is in `_owners`."""

    @property
    def size(self) -> int:
        """How many slots there are: 65,536 or 2^32."""
        return self._size

    @property
    def members(self) -> tuple[str, ...]:
        """The members in the order of their joins."""
        return tuple(self._members)

    def points(self) -> list[tuple[int, str]]:
        """All points from 0 up with the member that owns each (in compat mode: the first of its list)."""
        return list(zip(self._points, self._owners, strict=True))

    def collisions(self) -> dict[int, tuple[str, ...]]:
        """The points that several members hash to, with these members in join order."""
        return {point: tuple(self._holders[point]) for point in sorted(self._holders)}

    def add(self, member: str) -> None:
        """Put the points of `member` on the circle;

        points that are taken stay with their holder. DuplicateMemberError.
        """
        if member in self._members:
            raise DuplicateMemberError(f"{member!r} is on the ring already: remove it first or use another name")
        self._members.append(member)
        # A member's own points can coincide as well; dict.fromkeys keeps one of them, in order.
        for point in dict.fromkeys(member_points(member, self._points_per_member, self._separator)):
            index = bisect_left(self._points, point)
            if index < len(self._points) and self._points[index] == point:
                self._holders.setdefault(point, [self._owners[index]]).append(member)
            else:
                self._points.insert(index, point)
                self._owners.insert(index, member)

    def remove(self, member: str) -> None:
        """Take the points of `member` away; the next in the queue inherits a shared one. UnknownMemberError."""
        if member not in self._members:
            raise UnknownMemberError(f"{member!r} is not on the ring: it never joined or has left already")
        self._members.remove(member)
        for point in dict.fromkeys(member_points(member, self._points_per_member, self._separator)):
            index = bisect_left(self._points, point)
            queue = self._holders.get(point)
            if queue is None:
                del self._points[index]
                del self._owners[index]
                continue
            queue.remove(member)
            self._owners[index] = queue[0]
            if len(queue) == 1:
                del self._holders[point]

    def owner(self, slot: int) -> str | None:
        """The member of the first point at or after `slot`, clockwise;

        None without members. InvalidRangeError outside the slots.
        """
        if not 0 <= slot < self._size:
            raise InvalidRangeError(f"slot {slot} is outside 0 to {self._size - 1}: check slot_bits")
        points = self._points
        if not points:
            return None
        index = bisect_left(points, slot << self._shift)
        if index == len(points):
            index = 0
        if self._compat is not None and (queue := self._holders.get(points[index])) is not None:
            return queue[slot % len(queue)]
        return self._owners[index]

    def ranges(self) -> list[Range]:
        """Who owns which slots, from 0 up, neighbours of one owner merged: (first slot, last slot inclusive, member).

        In compat mode the owner alternates from slot to slot in front of a shared point; such slots are listed one by
        one with 16-bit slots and refused (HashingError) with 32-bit ones.
        """
        found: list[Range] = []
        start = 0
        for index in range(len(self._points) + 1):
            last = index == len(self._points)
            point, owner = (
                (None, self._owners[0] if self._owners else "") if last else (self._points[index], self._owners[index])
            )
            end = self._size - 1 if point is None else point >> self._shift
            if end < start or not self._points:
                continue
            for entry in self._arc(start, end, self._points[0] if point is None else point, owner):
                if found and found[-1][2] == entry[2]:
                    entry = (found.pop()[0], entry[1], entry[2])
                found.append(entry)
            start = end + 1
        return found

    def validate(self) -> None:
        """Assert the invariants:

        points strictly ascending on the circle, every owner a member, queues of two or more led by the owner.
        """
        assert len(self._points) == len(self._owners)
        assert all(low < high for low, high in pairwise(self._points))
        assert all(0 <= point < 1 << 32 for point in self._points)
        assert set(self._owners) <= set(self._members)
        for point, queue in self._holders.items():
            assert len(queue) > 1
            assert self._owners[bisect_left(self._points, point)] == queue[0]

    def _arc(self, start: int, end: int, point: int, owner: str) -> list[Range]:
        """The slots in front of one point, split up where the compat formula alternates."""
        queue = self._holders.get(point) if self._compat is not None else None
        if queue is None:
            return [(start, end, owner)]
        if self._shift == 0:
            raise HashingError(
                "pr-18878 alternates owners inside an arc: ask owner() for single hashes, or use 16-bit slots"
            )
        return [(slot, slot, queue[slot % len(queue)]) for slot in range(start, end + 1)]
