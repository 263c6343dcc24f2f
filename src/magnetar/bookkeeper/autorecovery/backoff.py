"""When may a ledger be tried again that could not be repaired? Pure.

Ledgers that cannot be repaired now, maybe never (Qw = 1 and the bookie is gone), must not be tried in a circle.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LEDGERS_MAX: Final = 100_000
"""Ledgers whose failures are remembered; above it the one that may be tried soonest is forgotten, and tried."""


class _Failure(NamedTuple):
    times: int
    until_s: float
    reason: str


class Backoff:
    """Delays double from `first_s` up to `longest_s`, for each ledger."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        assert 0 < first_s <= longest_s
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures: dict[int, _Failure] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, ledger_id: int, now_s: float, reason: str) -> bool:
        """The ledger could not be repaired. True when the reason is new: worth a line in the log."""
        before = self._failures.get(ledger_id)
        times = 1 if before is None else before.times + 1
        delay_s = min(self._first_s * 2.0 ** min(times - 1, 60), self._longest_s)
        self._failures[ledger_id] = _Failure(times, now_s + delay_s, reason)
        if len(self._failures) > LEDGERS_MAX:
            del self._failures[min(self._failures, key=lambda known: self._failures[known].until_s)]
        return before is None or before.reason != reason

    def repaired(self, ledger_id: int) -> None:
        self._failures.pop(ledger_id, None)

    def retry_all(self, now_s: float) -> None:
        """Something has changed, a bookie came: what failed may work now. How often each failed is remembered."""
        self._failures = {ledger: known._replace(until_s=now_s) for ledger, known in self._failures.items()}

    def waiting(self, now_s: float) -> set[int]:
        """Ledgers not to be tried yet."""
        return {ledger_id for ledger_id, failure in self._failures.items() if failure.until_s > now_s}

    def next_s(self, now_s: float) -> float | None:
        """When the next of the waiting ones may be tried; None when none waits."""
        return min((failure.until_s for failure in self._failures.values() if failure.until_s > now_s), default=None)

    def reasons(self) -> dict[int, str]:
        """Why each ledger could not be repaired, by id."""
        return {ledger_id: failure.reason for ledger_id, failure in self._failures.items()}
