"""A ledger that is read and not written: closed, or open in another client's hands.

How far the latter may be read by now is asked of its bookies, or waited for there (long poll). An entry carries the LAC of its sending,
so a reader sees an entry once the next one is sent, or its writer's explicit LAC is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.client.last_confirmed import LastConfirmedRead
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.client.range_read import RangeDone, RangeRead, length_up_to
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.errors import LedgerClosedError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

POLL_S: Final = 5.0
"""One long poll: then the metadata is looked at again, for the ledger may have moved to other bookies or have been closed."""

QUIET_S: Final = 0.2
"""Between polls that bookies answer at once without news (the ledger is fenced and not closed yet)."""


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
                channel = self._source.bookies.channel(bookie_id)
                done = partial(self._on_answer, index, len(ensemble))
                self._forget.append(channel.wait_lac(self._source.ledger_id, self._known, self._timeout_s, done))
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


class LedgerReader:
    """Entries `0..last_add_confirmed`. For a ledger that is not closed this is what was confirmed when it was opened, less the tail
    (at least the last entry) that only its writer knows to be confirmed; it grows when the reader is asked to look again."""

    __slots__ = ("_closed", "_manager", "_source", "last_add_confirmed", "ledger_id", "length")

    def __init__(self, source: LedgerSource, manager: LedgerManager, last_add_confirmed: int, length: int) -> None:
        self._source = source
        self._manager = manager
        self._closed = False
        self.ledger_id = source.ledger_id
        self.last_add_confirmed = last_add_confirmed
        self.length = length
        """Payload bytes of the entries up to `last_add_confirmed`."""

    @property
    def metadata(self) -> LedgerMetadata:
        return self._source.metadata

    @property
    def ctime_ms(self) -> int:
        """Wall time of the ledger's creation; -1 when its creator did not say."""
        return self._source.metadata.ctime_ms

    def read(self, first: int, last: int, max_bytes: int, done: RangeDone) -> None:
        """Payloads of the entries from `first` on: at least one, then up to `last` or until `max_bytes` would be passed.

        `done(error, payloads)` may run before this returns.
        """
        if self._closed:
            done(LedgerClosedError(f"the reader of ledger {self.ledger_id} is closed"), [])
        elif not 0 <= first <= last <= self.last_add_confirmed:
            done(range_error(self.ledger_id, first, last, self.last_add_confirmed), [])
        else:
            RangeRead(self._source, first, last, max_bytes, done).start()

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies how far the ledger may be read now, and move on to there (readLastAddConfirmed)."""
        return await self._advance(await last_confirmed(self._source, self._manager, self.last_add_confirmed))

    async def try_read_last_add_confirmed(self) -> int:
        """As `read_last_add_confirmed`, content with the first news that any bookie has."""
        return await self._advance(await try_last_confirmed(self._source, self.last_add_confirmed))

    async def wait_last_add_confirmed(self, timeout_s: float) -> int:
        """Wait until there is more to read or the ledger is closed, at most so long (readLastAddConfirmedAndEntry's long poll)."""
        known = self.last_add_confirmed
        return await self._advance(await wait_last_confirmed(self._source, self._manager, known, timeout_s))

    async def _advance(self, lac: int) -> int:
        """LAC never goes back."""
        metadata = self._source.metadata
        if metadata.state is LedgerState.CLOSED:
            self.last_add_confirmed, self.length = metadata.last_entry_id, metadata.length
        elif lac > self.last_add_confirmed:
            length = await length_up_to(self._source, lac)
            self.last_add_confirmed, self.length = lac, length
        return self.last_add_confirmed

    async def close(self) -> None:
        """Later reads fail."""
        self._closed = True


def range_error(ledger_id: int, first: int, last: int, last_add_confirmed: int) -> InvalidArgumentError:
    """For a read outside of what is confirmed."""
    return InvalidArgumentError(
        f"ledger {ledger_id}: entries {first}..{last} are not within the confirmed 0..{last_add_confirmed}"
    )
