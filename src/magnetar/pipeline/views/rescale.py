"""A change of parallelism before and after it is made: which vnodes move, a picture of the map, and how many units a load asks for.

Nothing of the state is touched: the runs stay where they are, the units' vnodes are others. A decision core.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from magnetar.hashing.mapping import Move, VnodeMapping, diff

PICTURE_WIDTH: Final = 64
PICTURE_VNODES_MAX: Final = 1024
"""Maps of more vnodes are told in numbers only."""

SYMBOLS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Of units in a picture; those of further units begin again from the first."""

BUSY_HIGH: Final = 0.8
"""Above this share of time spent in epochs a load asks for more units."""
BUSY_LOW: Final = 0.25
BUSY_WANTED: Final = 0.6
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
    """What a driver measured lately. `busy`: the share of time spent in epochs; `lag_messages` None: not known."""

    units: int
    busy: float
    rows_per_s: float
    lag_messages: int | None = None


def wanted_units(load: Load, least: int, most: int) -> tuple[int, str]:
    """How many units this load asks for, and why. Epochs have a fixed cost as well, so it steps rather than leaps: at most twice as
    many, at least half."""
    behind = load.lag_messages is not None and load.lag_messages > BEHIND_S * max(load.rows_per_s, 1.0)
    needed = ceil(load.units * load.busy / BUSY_WANTED)
    if load.busy > BUSY_HIGH or (behind and load.busy > BUSY_WANTED):
        wanted = min(max(needed, load.units + 1), 2 * load.units)
        reason = f"epochs take {load.busy:.0%} of the time" + (
            f", {load.lag_messages} messages behind" if behind else ""
        )
    elif load.busy < BUSY_LOW and not behind:
        wanted = max(needed, (load.units + 1) // 2, 1)
        reason = f"epochs take only {load.busy:.0%} of the time"
    else:
        wanted = load.units
        reason = f"epochs take {load.busy:.0%} of the time, which is what these units are for"
    bounded = min(max(wanted, least), most)
    if bounded != wanted:
        reason += f"; {wanted} units are outside {least} to {most}"
    return bounded, reason
