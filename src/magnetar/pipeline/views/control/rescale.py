"""A change of parallelism before and after it is made: which vnodes move, a picture of the map, and how many units a load asks for.

Nothing of the state is touched: the runs stay where they are, the units' vnodes are others. A decision core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from magnetar.hashing.mapping import Move, VnodeMapping, diff
from magnetar.hashing.vnode import segment_vnodes

PICTURE_WIDTH: Final = 64
PICTURE_VNODES_MAX: Final = 1024
"""Maps of more vnodes are told in numbers only."""

SYMBOLS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Of units in a picture; those of further units begin again from the first."""

BUSY_HIGH: Final = 0.8
"""Above this share of time spent in epochs a load asks for more units."""
BUSY_WANTED: Final = 0.6
"""What more units are to come to, as far as they can."""
BUSY_KEPT: Final = 0.8
"""What fewer units may come to."""
WORK_LEAST: Final = 0.3
"""Below this share of time in which units work, more of them would hardly make an epoch shorter."""
WORK_KEPT: Final = 0.6
"""What fewer units may come to."""
HARDLY: Final = 0.05
"""Fewer units that work little may add so much to the time spent in epochs, however much that is: it is spent on something else."""
BEHIND_S: Final = 10.0
"""So many seconds' worth of messages behind the topics is a backlog that asks for more units as well."""


@dataclass(frozen=True)
class RescalePlan:
    """The mapping now and then."""

    before: VnodeMapping
    after: VnodeMapping

    @staticmethod
    def to(before: VnodeMapping, units: int) -> RescalePlan:
        """The plan of least movement. VnodeCountError with more units than vnodes, EmptyRingError for none."""
        return RescalePlan(before, before if units == len(before.units) else before.rescale(units))

    @property
    def moves(self) -> list[Move]:
        return diff(self.before, self.after)

    def describe(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        moves = self.moves
        return {
            "vnodes": self.before.vnodes,
            "vnodes_moved": len(moves),
            "units_before": len(self.before.units),
            "units_after": len(self.after.units),
            "before": self.before.counts(),
            "after": self.after.counts(),
            "version": self.after.version,
            "state_bytes_rewritten": 0,
        }

    def picture(self) -> list[str]:
        """Lines: each vnode as the symbol of its unit, before and after, with a mark below those that move."""
        if self.before.vnodes > PICTURE_VNODES_MAX:
            return [f"({self.before.vnodes} vnodes: no picture)"]
        names = list(dict.fromkeys((*self.before.units, *self.after.units)))
        symbol = {name: SYMBOLS[position % len(SYMBOLS)] for position, name in enumerate(names)}
        before, after = _line(self.before, symbol), _line(self.after, symbol)
        moved = {move.vnode for move in self.moves}
        marks = "".join("^" if vnode in moved else " " for vnode in range(self.before.vnodes))
        lines = []
        for start in range(0, self.before.vnodes, PICTURE_WIDTH):
            part = slice(start, start + PICTURE_WIDTH)
            lines += [f"{start:>6} before {before[part]}", f"       after  {after[part]}"]
            if marks[part].strip():
                lines.append(f"              {marks[part].rstrip()}")
        return lines


def splits(mapping: VnodeMapping, segments: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Which segments to split in the middle, one after another, so that units read few messages of others' vnodes.

    `segments`: the ranges that take messages, as places on the ring of 65,536, both included. Split is the one with vnodes of the most
    units, until each has those of one, or there are as many segments as units.
    """
    now, found = sorted(segments), list[tuple[int, int]]()
    while len(now) < len(mapping.units):
        start, end = max(now, key=lambda each: (len(_units_of(mapping, each)), each[1] - each[0], -each[0]))
        if len(_units_of(mapping, (start, end))) < 2 or start == end:
            break
        middle = start + (end - start) // 2
        found.append((start, end))
        now.remove((start, end))
        now += [(start, middle), (middle + 1, end)]
    return found


def merges(mapping: VnodeMapping, segments: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Which neighbours to merge, one pair after another, until there are at most as many segments as units. `segments` as in `splits`.

    Merged is the pair by which units come to read the fewest messages of segments that they do not read now, on keys that are spread
    evenly: none where both have vnodes of the same units. Of equal pairs it is the narrowest, then the lowest.
    """
    now, found = sorted(segments), list[tuple[tuple[int, int], tuple[int, int]]]()
    while len(now) > len(mapping.units):
        low, high = min(pairwise(now), key=lambda pair: (_read_more(mapping, *pair), pair[1][1] - pair[0][0], pair))
        found.append((low, high))
        place = now.index(low)
        now[place : place + 2] = [(low[0], high[1])]
    return found


def _read_more(mapping: VnodeMapping, low: tuple[int, int], high: tuple[int, int]) -> int:
    """Places on the ring that units read once these two are one segment and do not read now, added up over the units."""
    of_low, of_high = _units_of(mapping, low), _units_of(mapping, high)
    return len(of_low - of_high) * (high[1] - high[0] + 1) + len(of_high - of_low) * (low[1] - low[0] + 1)


def _units_of(mapping: VnodeMapping, segment: tuple[int, int]) -> set[int]:
    return {mapping.owners[vnode] for vnode in segment_vnodes(*segment, mapping.vnodes)}


def _line(mapping: VnodeMapping, symbol: dict[str, str]) -> str:
    return "".join(symbol[mapping.units[owner]] for owner in mapping.owners)


@dataclass(frozen=True, slots=True)
class Load:
    """What a driver measured lately. `busy`: the share of time spent in epochs; `work`: the share that a unit worked, the mean of all,
    which is what another number of them changes: decoding, planning and the commit take as long. `lag_messages` None: not known."""

    units: int
    busy: float
    work: float
    rows_per_s: float
    lag_messages: int | None = None

    @property
    def is_behind(self) -> bool:
        return self.lag_messages is not None and self.lag_messages > BEHIND_S * max(self.rows_per_s, 1.0)

    def work_with(self, units: int) -> float:
        """The same work done by so many units."""
        return self.work * self.units / units

    def busy_with(self, units: int) -> float:
        """As far as the load stays the same: where it is more than these units can do, both stay at 1."""
        return self.busy - self.work + self.work_with(units)


def wanted_units(load: Load, least: int, most: int) -> tuple[int, str]:
    """How many units this load asks for, and why. It steps rather than leaps: at most twice as many, at least half."""
    told = f"epochs take {load.busy:.0%} of the time, units work {load.work:.0%}"
    wanted = load.units
    if load.busy > BUSY_HIGH or (load.is_behind and load.busy > BUSY_WANTED):
        if load.work >= WORK_LEAST:
            more = range(load.units + 1, 2 * load.units)
            wanted = next((units for units in more if load.busy_with(units) <= BUSY_WANTED), 2 * load.units)
        told += f", {load.lag_messages} messages behind" if load.is_behind else ""
    elif not load.is_behind:
        fewer = range((load.units + 1) // 2, load.units)
        wanted = next((units for units in fewer if _are_enough(load, units)), load.units)
    bounded = min(max(wanted, least), most)
    if bounded != wanted:
        told += f"; {wanted} units are outside {least} to {most}"
    return bounded, told


def _are_enough(load: Load, units: int) -> bool:
    work, busy = load.work_with(units), load.busy_with(units)
    return (busy <= BUSY_KEPT and work <= WORK_KEPT) or (busy <= load.busy + HARDLY and work < WORK_LEAST)


START_S: Final = 20.0
"""Before anything is judged: first epochs start Python workers and compile, or catch up with what came meanwhile."""
GROW_AFTER_S: Final = 10.0
"""So long every look has to ask for more units."""
SHRINK_AFTER_S: Final = 60.0
"""So long every look has to ask for fewer."""
SETTLE_S: Final = 20.0
"""After a change: rates are those of the last 10 seconds, and an epoch may have been under way."""
GAIN_LEAST: Final = 0.2
"""Of what more units promise, this share has to come: more rows a second, or less time spent in epochs."""
CAP_S: Final = 300.0
"""How long no more units are tried than those that were enough, and no fewer than those that were wanted back."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Another number of units, and why."""

    units: int
    reason: str


class AdaptiveUnits:
    """Looked at about each second, from one thread."""

    def __init__(self, least: int, most: int) -> None:
        """1 <= least <= most."""
        assert 1 <= least <= most, (least, most)
        self.least = least
        self.most = most
        self._began_s: float | None = None
        self._changed_s: float | None = None
        self._since_s: float | None = None
        self._target = 0
        self._growth: Load | None = None
        """The load before the last change to more units."""
        self._cap: tuple[int, float] | None = None
        self._shrunk: tuple[int, float] | None = None
        """From how many units, and when."""
        self._floor: tuple[int, float] | None = None

    def look(self, load: Load, now_s: float) -> Decision | None:
        """What to change now, if anything; it then counts as changed. `now_s`: monotonic."""
        if self._began_s is None:
            self._began_s = now_s
        if now_s - self._began_s < START_S or (self._changed_s is not None and now_s - self._changed_s < SETTLE_S):
            return None
        growth, self._growth = self._growth, None
        if growth is not None and self._was_in_vain(growth, load):
            self._cap = (growth.units, now_s + CAP_S)
            kept = f"{load.units} units did no more than {growth.units}"
            return self._changed(Decision(growth.units, kept), now_s)
        if self._cap is not None and now_s >= self._cap[1]:
            self._cap = None
        most = self.most if self._cap is None else max(self._cap[0], self.least)
        if self._floor is not None and now_s >= self._floor[1]:
            self._floor = None
        least = self.least if self._floor is None else min(max(self._floor[0], self.least), most)
        wanted, reason = wanted_units(load, least, most)
        if wanted == load.units:
            self._since_s = None
            return None
        grows = wanted > load.units
        if self._since_s is None or grows != (self._target > load.units):
            self._since_s, self._target = now_s, wanted
        # the least change that every look asked for
        self._target = min(self._target, wanted) if grows else max(self._target, wanted)
        if now_s - self._since_s < (GROW_AFTER_S if grows else SHRINK_AFTER_S):
            return None
        if grows:
            self._growth = load
            if self._shrunk is not None and now_s - self._shrunk[1] < CAP_S:
                self._floor = (min(self._target, self._shrunk[0]), now_s + CAP_S)
        else:
            self._shrunk = (load.units, now_s)
        return self._changed(Decision(self._target, reason), now_s)

    def _was_in_vain(self, growth: Load, load: Load) -> bool:
        if load.busy <= BUSY_HIGH or not load.units > growth.units >= self.least:
            return False
        gained = load.rows_per_s / max(growth.rows_per_s, 1.0) * growth.busy / load.busy
        promised = growth.busy / growth.busy_with(load.units)
        return gained < 1 + GAIN_LEAST * (promised - 1)

    def _changed(self, decision: Decision, now_s: float) -> Decision:
        self._changed_s, self._since_s = now_s, None
        return decision
