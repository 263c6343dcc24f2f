"""Lookups that reach a broker without a session: it can say nothing itself, so it says who can, or waits until it can.

An error or a closed connection would be worse: the C++ client (and so Python's and Node's) pauses for twice as long after each, 12 to 25 s
once an outage has lasted for ten, and goes on pausing when all is well again. A lookup that is kept waiting pauses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.base.clock import Clock
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.namespaces.brokers import BrokerDirectory
from magnetar.broker.namespaces.records import BrokerAddress

HOLD_S: Final = 20.0
"""So long a lookup waits for a session; then the client is told to try again. Clients wait for 30 s."""

ASK_AGAIN_S: Final = 0.5
"""Pause between two rounds of asking the others."""


class SessionGate:
    """Open while this broker has a session. `is_ready` asks another broker whether it has one."""

    def __init__(
        self,
        brokers: BrokerDirectory,
        own_id: str,
        is_ready: Callable[[BrokerAddress], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        self._brokers = brokers
        self._own_id = own_id
        self._is_ready = is_ready
        self._clock = clock
        self._open = asyncio.Event()
        self._open.set()
        self._round = asyncio.Lock()
        self._other: BrokerAddress | None = None
        self._asked_s = -ASK_AGAIN_S

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    async def other(self) -> BrokerAddress | None:
        """None as soon as this broker can answer itself, another one that can before that. Raises ServiceNotReadyError after a while."""
        until_s = self._clock.monotonic_s() + HOLD_S
        while not self.is_open:
            found = await self._ask_around()
            if found is not None and not self.is_open:
                return found
            if self._clock.monotonic_s() >= until_s:
                raise ServiceNotReadyError("this broker has no session with the metadata store, and no other answers")
            try:
                async with asyncio.timeout(ASK_AGAIN_S):
                    await self._open.wait()
            except TimeoutError:
                continue
        return None

    async def _ask_around(self) -> BrokerAddress | None:
        """One round for all that wait."""
        async with self._round:
            if self._clock.monotonic_s() - self._asked_s < ASK_AGAIN_S:
                return self._other
            others = [address for address in self._brokers.remembered if address.broker_id != self._own_id]
            answers = await asyncio.gather(*(self._is_ready(address) for address in others))
            self._other = next((address for address, ready in zip(others, answers, strict=True) if ready), None)
            self._asked_s = self._clock.monotonic_s()
            return self._other
