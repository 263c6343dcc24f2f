"""Whose subscriptions read and send next: turns go round the tenants, and a turn of the loop has a bound.

A pump asks for a turn with `call_soon`, as it would ask the event loop. The loop would run all that asked at once: with a thousand
backlogs being read, everybody else would wait for a thousand turns.

Who stood still for longer than its session may not be the owner any more, and would send what others have acknowledged at the new one:
no turn begins behind `proven_until_s` before the metadata store was heard of again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from magnetar.base.clock import Clock
from magnetar.base.limits import DISPATCH_TURN_S
from magnetar.broker.dispatch.ports import Scheduler, Timer

DOUBT_STEP_S: Final = 0.01
"""Between two looks whether the session still lives."""

Callback = Callable[[], object]


class DispatchTurns:
    """One per broker."""

    def __init__(self, loop: Scheduler, clock: Clock, proven_until_s: Callable[[], float] = lambda: math.inf) -> None:
        """`proven_until_s`: of the metadata store."""
        self.loop = loop
        self._proven_until_s = proven_until_s
        self._known_until_s = -math.inf
        """What `proven_until_s` has answered last."""
        self._now_s = clock.monotonic_s
        self._tenants: dict[str, TenantTurns] = {}
        self._rotation: deque[TenantTurns] = deque()
        self._waiting = 0
        self._scheduled = False

    def of(self, tenant: str) -> TenantTurns:
        """The scheduler for subscriptions of this tenant."""
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = TenantTurns(self)
        return found

    def offer(self, tenant: TenantTurns) -> None:
        """One more callback waits there."""
        self._waiting += 1
        if len(tenant.waiting) == 1:
            self._rotation.append(tenant)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._run)

    def _run(self) -> None:
        """One callback of each tenant after the other, until the turn's time is used up or all that waited have run."""
        rotation = self._rotation
        now_s = self._now_s()
        if now_s >= self._known_until_s:
            self._known_until_s = self._proven_until_s()
            if now_s >= self._known_until_s:
                self.loop.call_later(DOUBT_STEP_S, self._run)
                return
        end_s = now_s + DISPATCH_TURN_S
        try:
            for _ in range(self._waiting):
                tenant = rotation.popleft()
                callback = tenant.waiting.popleft()
                self._waiting -= 1
                if tenant.waiting:
                    rotation.append(tenant)
                callback()
                if self._now_s() >= end_s:
                    break
        finally:
            self._scheduled = bool(rotation)
            if rotation:
                self.loop.call_soon(self._run)


class TenantTurns:
    """Implements `ports.Scheduler`."""

    __slots__ = ("_turns", "waiting")

    def __init__(self, turns: DispatchTurns) -> None:
        self._turns = turns
        self.waiting: deque[Callback] = deque()

    def call_soon(self, callback: Callback, /) -> None:
        self.waiting.append(callback)
        self._turns.offer(self)

    def call_later(self, delay_s: float, callback: Callback, /) -> Timer:
        """Timers only wake; what they wake waits for its turn."""
        return self._turns.loop.call_later(delay_s, callback)
