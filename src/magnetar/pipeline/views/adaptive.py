"""Units that follow a load: what `wanted_units` asks for, once it has asked for long enough. A decision core.

More units come sooner than fewer, as falling behind costs more than idling. After a change nothing is judged until the rates are those
of the new number; units that brought nothing (the epoch's fixed cost, or too few cores, is the limit) are taken back and not tried again
for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.pipeline.views.rescale import BUSY_HIGH, Load, wanted_units

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
