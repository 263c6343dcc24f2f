"""How long a session may be relied on without having heard of it: given up before the server can give it away.

What counts is when the newest request was *sent* that has been answered: the server has heard this process then or later, and begins
to count at that moment. Other signs of life prove nothing, as a server may talk to somebody whom it does not hear.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from magnetar.base.clock import Clock

GIVE_UP_SHARE: Final = 5 / 6
"""Of the session's time, without proof: it is over."""

DOUBT_SHARE: Final = 1 / 12
"""Of the session's time: so much more while the connection is there. This process may have stood still, with the answer on its way."""


class Leased(Protocol):
    """Whose session it is."""

    @property
    def session_timeout_s(self) -> float: ...

    @property
    def proven_s(self) -> float:
        """Of the monotonic clock: when the newest answered request was sent."""
        ...

    @property
    def is_connected(self) -> bool: ...

    def lease_over(self) -> None:
        """Called once for each `begin`."""
        ...


class Lease:
    """`begin` with a session or a change of its connection, `end` with the session."""

    def __init__(self, leased: Leased, clock: Clock) -> None:
        self._leased = leased
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.end()
        self._look(doubted=False)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, doubted: bool) -> None:
        leased = self._leased
        left_s = leased.session_timeout_s * GIVE_UP_SHARE - (self._clock.monotonic_s() - leased.proven_s)
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look, False)
        elif leased.is_connected and not doubted:
            self._timer = self._loop.call_later(leased.session_timeout_s * DOUBT_SHARE, self._look, True)
        else:
            self._timer = None
            leased.lease_over()
