"""Awaitable reads for the control plane (recovery, searches); the message path uses callbacks."""

from __future__ import annotations

import asyncio

from magnetar.base.errors import MagnetarError
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ports import ReadableLedger, ReadEntriesDone


def entries_future(future: asyncio.Future[list[Entry]]) -> ReadEntriesDone:
    """A `done` that resolves `future`."""

    def done(error: MagnetarError | None, entries: list[Entry]) -> None:
        if future.done():  # the waiter was cancelled
            return
        if error is None:
            future.set_result(entries)
        else:
            future.set_exception(error)

    return done


async def read_payloads(ledger: ReadableLedger, first: int, last: int, max_bytes: int) -> list[bytes]:
    """All payloads of first..last, in as many reads as it takes."""
    found: list[bytes] = []
    while first + len(found) <= last:
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

        def done(
            error: MagnetarError | None, payloads: list[bytes], future: asyncio.Future[list[bytes]] = future
        ) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(payloads)
            else:
                future.set_exception(error)

        ledger.read(first + len(found), last, max_bytes, done)
        payloads = await future
        assert payloads, "a read answers at least one entry or an error"
        found.extend(payloads)
    return found
