"""A connection does not outlive the credential it was opened with (CVE-2023-31007).

Shortly before the end a client that can is asked for a new credential (AUTH_CHALLENGE); without one the connection ends in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

CHALLENGE_LEAD_MS = 10_000
"""A client is asked so long before the end, or at half of what is left if that is later."""

CHALLENGE_MIN_MS = 1000
"""With less time left than this the client is not challenged: its answer would come too late."""

RECHECK_MS = 3_600_000
"""The wall clock may be set: a far end is looked at again after this long."""


class Timer(Protocol):
    """The handle that `call_later` returns."""

    def cancel(self) -> None: ...


class CredentialWatch:
    """One connection's. `challenge` asks the client, None for one that cannot be asked; `end` closes the connection."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], Timer],
        challenge: Callable[[], None] | None,
        end: Callable[[], None],
    ) -> None:
        self._now_ms = now_ms
        self._call_later = call_later
        self._challenge = challenge
        self._end = end
        self._timer: Timer | None = None
        self._expires_ms: int | None = None
        self._ask_at_ms: int | None = None
        self.asked = False

    def begin(self, expires_ms: int | None) -> None:
        """A credential was accepted that ends then; None: never."""
        self.cancel()
        self.asked = False
        self._expires_ms = expires_ms
        if expires_ms is None:
            return
        left_ms = expires_ms - self._now_ms()
        can_ask = self._challenge is not None and left_ms >= CHALLENGE_MIN_MS
        self._ask_at_ms = expires_ms - min(CHALLENGE_LEAD_MS, left_ms // 2) if can_ask else None
        self._arm(expires_ms)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, expires_ms: int) -> None:
        now_ms = self._now_ms()
        next_ms = expires_ms if self._ask_at_ms is None else self._ask_at_ms
        self._timer = self._call_later(min(max(0, next_ms - now_ms), RECHECK_MS) / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        expires_ms, now_ms = self._expires_ms, self._now_ms()
        assert expires_ms is not None
        if now_ms >= expires_ms:
            self._end()
            return
        if self._ask_at_ms is not None and now_ms >= self._ask_at_ms and self._challenge is not None:
            self._ask_at_ms = None
            self.asked = True
            self._challenge()
        self._arm(expires_ms)
