"""The sessions of a metadata server: who they are, when they were last heard, which are over. Pure."""

from __future__ import annotations

import hmac
from typing import Final

STALL_S: Final = 1.0
"""A look at the sessions that comes this much too late means that the server itself stood still: nobody is blamed for it."""


class Session:
    """One client's session; `connection` is None while it is away."""

    __slots__ = ("connection", "heard_s", "id", "password", "timeout_s")

    def __init__(self, session_id: int, password: bytes, timeout_s: float, now_s: float) -> None:
        self.id = session_id
        self.password = password
        self.timeout_s = timeout_s
        self.heard_s = now_s
        self.connection: int | None = None


class Sessions:
    """By id. Times come from the caller's monotonic clock."""

    def __init__(self, timeout_min_s: float, timeout_max_s: float) -> None:
        self._timeout_min_s = timeout_min_s
        self._timeout_max_s = timeout_max_s
        self._by_id: dict[int, Session] = {}
        self._looked_s = -1.0

    def __len__(self) -> int:
        return len(self._by_id)

    def timeout_s(self, wanted_ms: int) -> float:
        """What is granted to a client that asks for this."""
        return min(max(wanted_ms / 1000, self._timeout_min_s), self._timeout_max_s)

    def add(self, session: Session) -> None:
        self._by_id[session.id] = session

    def get(self, session_id: int) -> Session | None:
        return self._by_id.get(session_id)

    def take_up(self, session_id: int, password: bytes) -> Session | None:
        """The session that a returning client says it has; None: it is over, or another's."""
        session = self._by_id.get(session_id)
        return session if session is not None and hmac.compare_digest(session.password, password) else None

    def remove(self, session_id: int) -> Session | None:
        return self._by_id.pop(session_id, None)

    def expired(self, now_s: float, interval_s: float) -> list[Session]:
        """Those not heard for their time; to be called every `interval_s`. They are forgotten here."""
        late_s = now_s - self._looked_s - interval_s if self._looked_s >= 0 else 0.0
        self._looked_s = now_s
        if late_s > STALL_S:
            for session in self._by_id.values():
                session.heard_s += late_s
        over = [session for session in self._by_id.values() if now_s - session.heard_s > session.timeout_s]
        for session in over:
            del self._by_id[session.id]
        return over
