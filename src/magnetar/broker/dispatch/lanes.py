"""Key_Shared's table: which consumer owns which slot, what waits for it, and which slots are draining.

Pure. A *lane* is a consumer with what waits for it. A slot is *draining* while a consumer that no longer owns it still holds
unacknowledged entries of it (PIP-379): new entries of that slot, and of that slot only, wait on the slot until those are settled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Final, Protocol

from magnetar.broker.dispatch.receiver import HELD_SLOT_MASK, Receiver
from magnetar.broker.dispatch.waiting import SLOT_BITS, SLOT_MASK, Waiting
from magnetar.hashing.errors import UnknownMemberError


class KeyRanges(Protocol):
    """A split of the slots among members; the classes of `magnetar.hashing` satisfy it."""

    def add(self, member: str, ranges: Sequence[tuple[int, int]]) -> None: ...

    def remove(self, member: str) -> None: ...

    def ranges(self) -> list[tuple[int, int, str]]:
        """(first slot, last slot, member), ascending; gaps have no owner."""
        ...


KEY_MAX: Final = 1 << 64
"""Above every position key."""


class Parking:
    """Positions that wait for the same reason."""

    __slots__ = ("skipped", "waiting")

    def __init__(self) -> None:
        self.waiting = Waiting()
        self.skipped: dict[int, int] = {}
        """Slots whose entries from that position key on are not remembered one by one; found again by scanning."""


class Lane(Parking):
    """One consumer, and what waits for its permits."""

    __slots__ = ("consumer", "member", "scan_key", "scanning")

    def __init__(self, consumer: Receiver, member: str) -> None:
        super().__init__()
        self.consumer = consumer
        self.member = member
        self.scan_key = -1
        """No skipped position lies below it; -1 if unknown: start at the smallest of `skipped`."""
        self.scanning = False
        """True if it takes part in the scan whose entries are being handed out."""

    @property
    def can_take(self) -> bool:
        """True if the consumer has permits and its channel is writable."""
        consumer = self.consumer
        return consumer.permits > 0 and not consumer.blocked_on_unacked and consumer.channel.writable

    @property
    def goes_up_to(self) -> int:
        """The last position key that the consumer may be given now: what waits goes first. -1 if it can take none."""
        if not self.can_take:
            return -1
        return self.waiting.first() >> SLOT_BITS if self.waiting else KEY_MAX


class Draining(Parking):
    """One slot that waits for its former owner's acknowledgements."""

    __slots__ = ("remaining",)

    def __init__(self) -> None:
        super().__init__()
        self.remaining = 0
        """Entries of the slot that the former owner holds."""


class Lanes:
    """Owners of slots. Changes only with `add` and `remove`, and when a drained slot is released."""

    __slots__ = ("_by_member", "_owners", "_ranges", "_starts", "all", "drained", "draining", "unowned", "version")

    def __init__(self, ranges: KeyRanges) -> None:
        self._ranges = ranges
        self._starts: list[int] = [0]
        self._owners: list[Lane | None] = [None]
        self._by_member: dict[str, Lane] = {}
        self.version = 0
        """Changes with the table."""
        self.all: list[Lane] = []
        """Lanes in the order in which their consumers joined."""
        self.draining: dict[int, Draining] = {}
        self.drained: list[int] = []
        """Draining slots with nothing left to wait for; released at the start of the next round, so that owners of slots
        never change in the middle of one."""
        self.unowned = Parking()
        """Positions of slots that nobody owns (gaps between sticky ranges, no consumer at all)."""

    @property
    def table(self) -> tuple[list[int], list[Lane | None]]:
        """First slots of stretches and their owners, for hot loops: `owners[bisect_right(starts, slot) - 1]`."""
        return self._starts, self._owners

    def owner(self, slot: int) -> Lane | None:
        return self._owners[bisect_right(self._starts, slot) - 1]

    def lane_of(self, consumer: Receiver) -> Lane:
        return next(lane for lane in self.all if lane.consumer is consumer)

    def parking(self, slot: int) -> Parking:
        """The place where entries of `slot` wait."""
        return self.draining.get(slot) or self.owner(slot) or self.unowned

    def add(self, consumer: Receiver, ranges: Sequence[tuple[int, int]]) -> None:
        """Give `consumer` its slots. HashingError when sticky `ranges` overlap or are malformed."""
        member = consumer.name
        number = 1
        while member in self._by_member:
            # Two consumers may have one name; their points must differ all the same.
            number += 1
            member = f"{consumer.name}\0{number}"
        self._ranges.add(member, ranges)
        lane = Lane(consumer, member)
        self.all.append(lane)
        self._by_member[member] = lane
        self._rebalance([])

    def remove(self, consumer: Receiver) -> None:
        """Its slots go to others, with what waits. It must hold nothing any more."""
        assert not consumer.held
        lane = self.lane_of(consumer)
        self.all.remove(lane)
        del self._by_member[lane.member]
        self._ranges.remove(lane.member)
        self._rebalance([lane])

    def ranges_of(self, consumer: Receiver) -> list[tuple[int, int]]:
        """The slots that `consumer` owns, as inclusive pairs."""
        member = self.lane_of(consumer).member
        return [(start, end) for start, end, owner in self._ranges.ranges() if owner == member]

    def draining_of(self, consumer: Receiver) -> dict[int, int]:
        """Entries of draining slots that `consumer` holds, by slot."""
        found: dict[int, int] = {}
        for value in consumer.held.values() if self.draining else ():
            slot = value & HELD_SLOT_MASK
            if slot in self.draining:
                found[slot] = found.get(slot, 0) + 1
        return found

    def what_if(self, joins: str = "", leaves: str = "") -> list[tuple[int, int, str]]:
        """The ranges, by names of members, if one joined or left. Nothing changes. HashingError for what cannot be."""
        ranges = deepcopy(self._ranges)
        if leaves:
            members = [lane.member for lane in self.all if lane.consumer.name == leaves]
            if not members:
                raise UnknownMemberError(f"no consumer is called {leaves!r} here")
            for member in members:
                ranges.remove(member)
        if joins:
            ranges.add(joins, ())
        return ranges.ranges()

    def settled(self, slot: int) -> None:
        """A held entry of `slot` was settled."""
        draining = self.draining.get(slot)
        if draining is not None:
            draining.remaining -= 1
            if draining.remaining == 0:
                self.drained.append(slot)

    def release_drained(self) -> None:
        """Hand what waited on drained slots to the owners."""
        drained, self.drained = self.drained, []
        for slot in drained:
            draining = self.draining.get(slot)
            if draining is None or draining.remaining:
                continue
            del self.draining[slot]
            target = self.owner(slot) or self.unowned
            for packed in draining.waiting:
                target.waiting.insert(packed)
            self._skip(target, draining.skipped)

    def clear(self) -> None:
        """Forget what waits: the cursor was reset."""
        for parking in (self.unowned, *self.all, *self.draining.values()):
            parking.waiting = Waiting()
            parking.skipped = {}
        for lane in self.all:
            lane.scan_key = -1

    def _rebalance(self, gone: Iterable[Lane]) -> None:
        """Lay the table out anew and put everything that waits where it now belongs: linear in what waits and is held."""
        self._lay_out()
        parkings: list[Parking] = [*gone, *self.all, self.unowned, *self.draining.values()]
        items: list[int] = []
        skipped: dict[int, int] = {}
        for parking in parkings:
            items.extend(parking.waiting)
            skipped.update(parking.skipped)
            parking.waiting = Waiting()
            parking.skipped = {}
        self.drained = []
        self.draining = self._find_draining()
        items.sort()
        for packed in items:
            slot = packed & SLOT_MASK
            self.parking(slot).waiting.append(packed >> SLOT_BITS, slot)
        for slot, from_key in skipped.items():
            self._skip(self.parking(slot), {slot: from_key})

    def _lay_out(self) -> None:
        starts: list[int] = []
        owners: list[Lane | None] = []
        free = 0
        for start, end, member in self._ranges.ranges():
            if start > free:
                starts.append(free)
                owners.append(None)
            starts.append(start)
            owners.append(self._by_member[member])
            free = end + 1
        starts.append(free)
        owners.append(None)
        self._starts = starts
        self._owners = owners
        self.version += 1

    def _find_draining(self) -> dict[int, Draining]:
        found: dict[int, Draining] = {}
        owner = self.owner
        for lane in self.all:
            for value in lane.consumer.held.values():
                slot = value & HELD_SLOT_MASK
                if owner(slot) is not lane:
                    draining = found.get(slot)
                    if draining is None:
                        draining = found[slot] = Draining()
                    draining.remaining += 1
        return found

    @staticmethod
    def _skip(parking: Parking, skipped: dict[int, int]) -> None:
        if not skipped:
            return
        parking.skipped.update(skipped)
        if isinstance(parking, Lane):
            parking.scan_key = -1

    def validate(self) -> None:
        """Assert that a slot is held by one consumer only, that draining slots are counted right, and that things wait where
        they belong."""
        holders: dict[int, Lane] = {}
        counts: dict[int, int] = {}
        for lane in self.all:
            for value in lane.consumer.held.values():
                slot = value & HELD_SLOT_MASK
                assert holders.setdefault(slot, lane) is lane, f"slot {slot} is held by two consumers"
                counts[slot] = counts.get(slot, 0) + 1
        for slot, lane in holders.items():
            if self.owner(slot) is not lane:
                assert self.draining[slot].remaining == counts[slot]
        for slot, draining in self.draining.items():
            assert draining.remaining == counts.get(slot, 0) or slot in self.drained
        for parking in (self.unowned, *self.all, *self.draining.values()):
            parking.waiting.validate()
            for packed in parking.waiting:
                assert self.parking(packed & SLOT_MASK) is parking
            assert all(self.parking(slot) is parking for slot in parking.skipped)
