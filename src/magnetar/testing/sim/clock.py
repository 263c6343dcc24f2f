"""The clocks of one machine: the monotonic one follows the loop, the wall clock may be wrong and may jump."""

from __future__ import annotations

from magnetar.testing.sim.loop import START_MS, SimLoop


class SimClock:
    """See `base.clock.Clock`."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset_ms = 0

    def now_ms(self) -> int:
        return START_MS + int(self._loop.now_s * 1000) + self.offset_ms

    def monotonic_s(self) -> float:
        return self._loop.now_s
