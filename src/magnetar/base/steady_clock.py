"""A wall clock that does not follow jumps at once: what is decided by it cannot be taken back, as the expiry of messages.

Wall clocks are set: by hand, by a time server at last, by a machine that wakes up. A clock that has jumped may be right now or have been
right before; nobody can tell at that moment. So the time goes on as if nothing had happened, by the monotonic clock, and the new time is
taken for right once it has held for `HOLD_S`. Small corrections are followed at once. A machine that slept has not jumped.
"""

from __future__ import annotations

import logging
from typing import Final

from magnetar.base.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

JUMP_MS: Final = 2_000
"""A larger difference between what the wall clock and the monotonic one say has passed is a jump; leap seconds are smaller."""

HOLD_S: Final = 600.0
"""So long a clock that has jumped must go on from there before it is followed."""


class SteadyClock:
    """Implements `Clock`. One that nobody looks at for long sees a jump when it is looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._passed_s = clock.since_boot_s if isinstance(clock, SystemClock) else clock.monotonic_s
        self._wall_ms = clock.now_ms()
        self._seen_s = self._passed_s()
        self._ahead_ms = 0
        self._since_s = 0.0
        self.jumps = 0
        """Since the start; going back to where it was before is none."""

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    @property
    def ahead_ms(self) -> int:
        """How much later it is by the wall clock than by this one; 0: it is followed."""
        self.now_ms()
        return self._ahead_ms

    def now_ms(self) -> int:
        wall_ms, passed_s = self._clock.now_ms(), self._passed_s()
        steady_ms = self._wall_ms + round((passed_s - self._seen_s) * 1000)
        ahead_ms = wall_ms - steady_ms
        if abs(ahead_ms) > JUMP_MS and not self._believed(ahead_ms, passed_s):
            return steady_ms
        if self._ahead_ms:
            logger.warning("the wall clock is followed again")
            self._ahead_ms = 0
        self._wall_ms, self._seen_s = wall_ms, passed_s
        return wall_ms

    def _believed(self, ahead_ms: int, passed_s: float) -> bool:
        if abs(ahead_ms - self._ahead_ms) > JUMP_MS:
            self.jumps += 1
            self._ahead_ms, self._since_s = ahead_ms, passed_s
            logger.warning(
                "the wall clock has jumped, by %+.1f s so far: what goes by the time of day, as message TTL, delayed delivery and "
                "retention, goes on as if it had not, for %g s at most",
                ahead_ms / 1000,
                HOLD_S,
            )
        return passed_s - self._since_s >= HOLD_S
