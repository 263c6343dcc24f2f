"""How far a ledger that another client writes may be read by now: by asking, or by waiting at its bookies (long poll).

An entry carries the LAC of its sending, so a reader sees an entry once the next one is sent, or its writer's explicit LAC is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from magnetar.bookkeeper.client.last_confirmed import LastConfirmedRead
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.bookkeeper.ports import BookieChannel, LongPollDone

POLL_S: Final = 5.0
"""One long poll: then the metadata is looked at again, for the ledger may have moved to other bookies or have been closed."""

QUIET_S: Final = 0.2
"""Between polls that bookies answer at once without news (the ledger is fenced and not closed yet)."""

WaitLac = Callable[[int, int, float, LongPollDone], Callable[[], None]]


async def last_confirmed(source: LedgerSource, manager: LedgerManager, known: int) -> int:
    """The LAC as of now, at least `known`; of a closed ledger its last entry. Raises LedgerRecoveryError when too few bookies answer."""
    await _refresh(source, manager)
    if source.metadata.state is LedgerState.CLOSED:
        return source.metadata.last_entry_id
    return max(known, await LastConfirmedRead(source, fence=False).run())


async def try_last_confirmed(source: LedgerSource, known: int) -> int:
    """The LAC that the first bookie with news tells, which others may know better; `known` when nobody has any."""
    if source.metadata.state is LedgerState.CLOSED:
        return source.metadata.last_entry_id
    return await LastConfirmedRead(source, fence=False, known=known).run()


async def wait_last_confirmed(source: LedgerSource, manager: LedgerManager, known: int, timeout_s: float) -> int:
    """As soon as the LAC is above `known`, or the ledger is closed, or the time is up: the LAC then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        await _refresh(source, manager)
        if source.metadata.state is LedgerState.CLOSED:
            return source.metadata.last_entry_id
        started_s = loop.time()
        left_s = deadline - started_s
        if left_s <= 0:
            return known
        lac = await _LongPoll(source, known, min(left_s, POLL_S)).run()
        if lac > known:
            return lac
        if loop.time() - started_s < QUIET_S:
            await asyncio.sleep(min(QUIET_S, max(deadline - loop.time(), 0)))


async def _refresh(source: LedgerSource, manager: LedgerManager) -> None:
    if source.metadata.state is not LedgerState.CLOSED:
        source.metadata, _ = await manager.read(source.ledger_id)


class _LongPoll:
    """One poll at every bookie of the last ensemble; the first news, or everybody's silence, ends it."""

    def __init__(self, source: LedgerSource, known: int, timeout_s: float) -> None:
        self._source = source
        self._known = known
        self._timeout_s = timeout_s
        self._silent: set[int] = set()
        self._forget: list[Callable[[], None]] = []
        self._answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        ensemble = self._source.metadata.last_segment.ensemble
        try:
            for index, bookie_id in enumerate(ensemble):
                wait = _wait_lac(self._source.bookies.channel(bookie_id))
                done = partial(self._on_answer, index, len(ensemble))
                if wait is None:
                    done(int(ReturnCode.BAD_REQUEST), -1, None)
                else:
                    self._forget.append(wait(self._source.ledger_id, self._known, self._timeout_s, done))
            return await self._answer
        finally:
            for forget in self._forget:
                forget()

    def _on_answer(self, index: int, size: int, code: int, lac: int, entry: bytes | None) -> None:
        if self._answer.done():
            return
        if code == ReturnCode.OK and lac > self._known:
            self._answer.set_result(lac)
            return
        self._silent.add(index)
        if len(self._silent) == size:
            self._answer.set_result(self._known)


def _wait_lac(channel: BookieChannel) -> WaitLac | None:
    """The long poll of a bookie that is more than the ledger client's minimum."""
    wait: WaitLac | None = getattr(channel, "wait_lac", None)
    return wait
