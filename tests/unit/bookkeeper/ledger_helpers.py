"""Short words for what ledger tests do all the time."""

from __future__ import annotations

import asyncio

from magnetar.base.errors import LedgerError, MagnetarError
from magnetar.bookkeeper.client.reader import LedgerReader
from magnetar.bookkeeper.client.writer import LedgerWriter


class Outcomes:
    """`done` callbacks of appends and what they were told, in the order of the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, LedgerError | None]] = []

    def append(self, writer: LedgerWriter, payload: bytes) -> int:
        return writer.append(payload, lambda error: self.calls.append((payload, error)))

    def append_run(self, writer: LedgerWriter, payloads: list[bytes]) -> int:
        left = iter(payloads)

        def done(error: LedgerError | None, count: int) -> None:
            self.calls.extend((next(left), error) for _ in range(count))

        return writer.append_run(payloads, done)

    @property
    def stored(self) -> list[bytes]:
        return [payload for payload, error in self.calls if error is None]

    @property
    def errors(self) -> list[LedgerError]:
        return [error for _, error in self.calls if error is not None]


async def settle() -> None:
    """Let every answer that is on its way arrive."""
    for _ in range(20):
        await asyncio.sleep(0)


async def append_all(writer: LedgerWriter, payloads: list[bytes]) -> None:
    """Append and wait until all are stored."""
    outcomes = Outcomes()
    for payload in payloads:
        outcomes.append(writer, payload)
    async with asyncio.timeout(60):
        while len(outcomes.calls) < len(payloads):
            await asyncio.sleep(0)
    assert outcomes.stored == payloads


async def read(handle: LedgerReader | LedgerWriter, first: int, last: int, max_bytes: int = 1 << 30) -> list[bytes]:
    """One read, its error raised."""
    answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, payloads: list[bytes]) -> None:
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(payloads)

    handle.read(first, last, max_bytes, done)
    async with asyncio.timeout(60):
        return await answer


async def read_all(handle: LedgerReader | LedgerWriter) -> list[bytes]:
    """Everything confirmed, in as many reads as it takes."""
    payloads: list[bytes] = []
    while len(payloads) <= handle.last_add_confirmed:
        payloads += await read(handle, len(payloads), handle.last_add_confirmed)
    return payloads
