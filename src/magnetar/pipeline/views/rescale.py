"""A change of parallelism before and after it is made: which vnodes move, a picture of the map, and how many units a load asks for.

Nothing of the state is touched: the runs stay where they are, the units' vnodes are others. A decision core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from magnetar.hashing.mapping import Move, VnodeMapping, diff

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
