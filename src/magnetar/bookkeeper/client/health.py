"""Which bookies to read from first: how each has answered lately (BookKeeper reorderReadSequence). Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

READ_FAILURE_HISTORY_S: Final = 60.0
"""A bookie that failed a read is asked after those that did not for so long."""

SLOW_S: Final = 10.0
"""A bookie that kept a reader waiting is asked after the others for so long."""

HEALTHY, FAILED, READ_ONLY, SLOW, UNAVAILABLE = range(5)


class ReadHealth:
    """Times are seconds of one monotonic clock."""

    __slots__ = ("_failed_at_s", "_slow_at_s")

    def __init__(self) -> None:
        self._failed_at_s: dict[str, float] = {}
        self._slow_at_s: dict[str, float] = {}

    @property
    def eventful(self) -> bool:
        """Something has happened lately that may matter for the order."""
        return bool(self._failed_at_s or self._slow_at_s)

    def failed(self, bookie_id: str, now_s: float) -> None:
        self._failed_at_s[bookie_id] = now_s

    def slow(self, bookie_id: str, now_s: float) -> None:
        self._slow_at_s[bookie_id] = now_s

    def forget(self, bookie_id: str) -> None:
        self._failed_at_s.pop(bookie_id, None)
        self._slow_at_s.pop(bookie_id, None)

    def order(
        self,
        bookies: list[str],
        now_s: float,
        available: Callable[[str], bool],
        writable: Callable[[str], bool],
    ) -> list[str]:
        """Healthy, failed lately (the longest ago first), read-only, slow, unavailable; otherwise as they come."""
        for times, age_s in ((self._failed_at_s, READ_FAILURE_HISTORY_S), (self._slow_at_s, SLOW_S)):
            for bookie_id in [name for name, then_s in times.items() if now_s - then_s >= age_s]:
                del times[bookie_id]

        def rank(bookie_id: str) -> tuple[int, float]:
            if not available(bookie_id):
                return UNAVAILABLE, 0.0
            if bookie_id in self._slow_at_s:
                return SLOW, self._slow_at_s[bookie_id]
            if not writable(bookie_id):
                return READ_ONLY, 0.0
            if bookie_id in self._failed_at_s:
                return FAILED, self._failed_at_s[bookie_id]
            return HEALTHY, 0.0

        return sorted(bookies, key=rank)
