"""Awaitable forms of calls that end in a callback, for the control plane (recovery, searches); the message path uses callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from magnetar.base.errors import LedgerError, MagnetarError
from magnetar.base.limits import BYTES_PER_READ_MAX, ENTRIES_PER_DISPATCH_MAX
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ports import ReadableLedger, ReadEntriesDone, WritableLedger

T = TypeVar("T")


def resolve(future: asyncio.Future[T]) -> Callable[[MagnetarError | None, T], None]:
    """A `done(error, value)` that resolves `future`."""

    def done(error: MagnetarError | None, value: T) -> None:
        if future.done():  # the waiter was cancelled
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    return done


def resolve_durable(future: asyncio.Future[None]) -> Callable[[MagnetarError | None], None]:
    """A `done(error)` that resolves `future`."""
    done = resolve(future)
    return lambda error: done(error, None)


class ReadableCursor(Protocol):
    """The part of a managed cursor that reads on."""

    def read(self, max_entries: int, max_bytes: int, done: ReadEntriesDone) -> None: ...


async def read_page(cursor: ReadableCursor) -> list[Entry]:
    """The next entries of a cursor, [] at the end."""
    future: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()
    cursor.read(ENTRIES_PER_DISPATCH_MAX, BYTES_PER_READ_MAX, resolve(future))
    return await future


async def read_payloads(ledger: ReadableLedger, first: int, last: int, max_bytes: int) -> list[bytes]:
    """All payloads of first..last, in as many reads as it takes."""
    found: list[bytes] = []
    while first + len(found) <= last:
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        ledger.read(first + len(found), last, max_bytes, resolve(future))
        payloads = await future
        assert payloads, "a read answers at least one entry or an error"
        found.extend(payloads)
    return found


async def append_all(ledger: WritableLedger, payloads: Sequence[bytes]) -> None:
    """Append at least one payload, and wait until all of them are durable. LedgerError."""
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(payloads)

    def added(error: LedgerError | None) -> None:
        nonlocal left
        left -= 1
        if stored.done():
            return
        if error is not None:
            stored.set_exception(error)
        elif left == 0:
            stored.set_result(None)

    for payload in payloads:
        ledger.append(payload, added)
    await stored
