"""Work that grows with topics, partitions or subscriptions: it leaves the loop to the data plane every few milliseconds.

Such a route is marked `heavy` where it is documented. Of each role (of each address, where nobody is asked) one such request is under
way at a time, the others wait. What they make, they make in slices: after each, whoever worked waits for as long as it has worked, behind
all other heavy requests that wait already, so that together they take at most half of the loop's time however many there are. Answers
are sent in pieces as they are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

from magnetar.broker.errors import TooManyRequestsError

SLICE_S: Final = 0.002
"""Longest piece of work without a pause."""

WAITING_MAX: Final = 16
"""Heavy requests of one role that wait for its turn: further ones are answered with 429."""

TURN_TIMEOUT_S: Final = 60.0
"""One that has waited for this long is answered with 429."""


class Workload:
    """The heavy requests of one server, which share its event loop."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}
        self._free_at_s = 0.0

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Raises TooManyRequestsError when too many of the same wait, or for too long."""
        lock = self._turns.setdefault(who, asyncio.Lock())
        waiting = self._waiting.get(who, 0)
        if waiting > WAITING_MAX:
            raise TooManyRequestsError(
                f"{waiting} requests over many topics are under way for the same caller; wait for their answers"
            )
        self._waiting[who] = waiting + 1
        try:
            try:
                async with asyncio.timeout(TURN_TIMEOUT_S):
                    await lock.acquire()
            except TimeoutError:
                raise TooManyRequestsError(
                    f"earlier requests over many topics for the same caller took longer than {TURN_TIMEOUT_S:.0f} s; try again"
                ) from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                del self._waiting[who], self._turns[who]

    def reserve(self, now_s: float, work_s: float) -> float:
        """The moment until which somebody who has worked for so long has to wait."""
        begins_s = max(now_s, self._free_at_s)
        self._free_at_s = begins_s + work_s
        return self._free_at_s


class Pace:
    """The pauses of one request: `await pace.breathe()` after every piece of work of less than a millisecond."""

    __slots__ = ("_since_s", "_workload")

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._since_s = perf_counter()

    async def breathe(self) -> None:
        """Let others work, if this one has for long enough."""
        now_s = perf_counter()
        work_s = now_s - self._since_s
        if work_s < SLICE_S:
            return
        await asyncio.sleep(self._workload.reserve(now_s, work_s) - now_s)
        self._since_s = perf_counter()
