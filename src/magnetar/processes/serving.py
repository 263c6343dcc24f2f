"""How every server process runs: ready line, signals, exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from magnetar.base.errors import MagnetarError
from magnetar.processes.composition import Composition

logger = logging.getLogger(__name__)


async def serve_until_told(server: Composition, warnings: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM, or until the server fails. Returns the exit code.

    The ready line is the only output on stdout: `magnetar ready URL ...`.
    """
    for warning in warnings:
        logger.warning(warning)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    failure: BaseException | None = None
    try:
        async with server:
            print("magnetar ready", *server.urls, flush=True)
            await _first(stop, server.failed)
            logger.info("stopping")
            failure = server.failure
    except BaseExceptionGroup as group:  # a background task of some part has failed
        expected = group.subgroup(MagnetarError)
        if expected is None:
            raise
        failure = _first_of(expected)
    if failure is not None:
        print(f"magnetar: {failure}", file=sys.stderr)
        return 1
    return 0


def _first_of(group: BaseExceptionGroup[MagnetarError]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _first(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait()) for event in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
