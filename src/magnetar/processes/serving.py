"""How every server process runs: ready line, signals, exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

logger = logging.getLogger(__name__)


class Served(Protocol):
    """What a process serves once it is entered. `failure` is set, and `failed` fires, when a part had to stop itself."""

    failed: asyncio.Event
    failure: BaseException | None

    @property
    def urls(self) -> Sequence[str]:
        """What the ready line names."""
        ...


async def serve_until_told(server: AbstractAsyncContextManager[Served], warnings: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM, or until the server fails. Returns the exit code.

    The ready line is the only output on stdout: `magnetar ready URL ...`.
    """
    for warning in warnings:
        logger.warning(warning)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with server as served:
        print("magnetar ready", *served.urls, flush=True)
        await _first(stop, served.failed)
        logger.info("stopping")
        failure = served.failure
    if failure is not None:
        print(f"magnetar: {failure}", file=sys.stderr)
        return 1
    return 0


async def _first(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait()) for event in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
