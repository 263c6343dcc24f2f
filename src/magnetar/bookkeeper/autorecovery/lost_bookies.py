"""When is a bookie that has gone away lost? (BookKeeper replication/Auditor, lostBookieRecoveryDelay). Pure.

One bookie may come back within the delay: nothing is copied then. Two or more at once are past waiting for.
"""

from __future__ import annotations

from collections.abc import Collection


class LostBookies:
    """Told who is registered, says whose ledgers are to be audited. `delay_s` 0: never wait."""

    def __init__(self, known: Collection[str], delay_s: float) -> None:
        self._known = set(known)
        self._since_s: dict[str, float] = {}
        self._delay_s = delay_s

    @property
    def waiting(self) -> frozenset[str]:
        """Bookies that are gone and may still come back in time: at most one."""
        return frozenset(self._since_s)

    @property
    def due_s(self) -> float | None:
        """When the delay of the missing bookie ends (monotonic); None when none is missing."""
        return min(self._since_s.values()) + self._delay_s if self._since_s else None

    def set_delay(self, delay_s: float) -> None:
        """Takes effect with the next `observe`, also for a bookie that is missing already."""
        self._delay_s = delay_s

    def observe(self, available: Collection[str], now_s: float) -> frozenset[str]:
        """`available`: all registered bookies, writable or not. Answers the bookies that are lost now; each is answered once.

        Call it again at `due_s`, and whenever a registration changes.
        """
        present = set(available)
        self._known |= present
        missing = self._known - present
        self._since_s = {bookie_id: self._since_s.get(bookie_id, now_s) for bookie_id in sorted(missing)}
        due_s = self.due_s
        if due_s is None or (len(missing) == 1 and now_s < due_s):
            return frozenset()
        self._known -= missing
        self._since_s.clear()
        return frozenset(missing)

    def validate(self) -> None:
        assert self._since_s.keys() <= self._known
        assert len(self._since_s) <= 1
