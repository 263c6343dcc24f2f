"""Waits for a sign of life from a client."""

from __future__ import annotations

import asyncio

from magnetar.base import limits


class Probes:
    """Those that wait to learn if a client is alive: any byte from it answers all of them."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[bool]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def settle(self, alive: bool) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(alive)
        self._waiting.clear()

    async def sign_of_life(self) -> bool:
        """False when none came within PROBE_TIMEOUT_S."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(limits.PROBE_TIMEOUT_S):
                return await waiter
        except TimeoutError:
            return False
