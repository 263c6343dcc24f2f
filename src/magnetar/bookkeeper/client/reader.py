"""A ledger that is read and not written: closed, or open in another client's hands."""

from __future__ import annotations

from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.client import tail
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.client.range_read import RangeDone, RangeRead, length_up_to
from magnetar.bookkeeper.errors import LedgerClosedError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


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
        return await self._advance(await tail.last_confirmed(self._source, self._manager, self.last_add_confirmed))

    async def try_read_last_add_confirmed(self) -> int:
        """As `read_last_add_confirmed`, content with the first news that any bookie has."""
        return await self._advance(await tail.try_last_confirmed(self._source, self.last_add_confirmed))

    async def wait_last_add_confirmed(self, timeout_s: float) -> int:
        """Wait until there is more to read or the ledger is closed, at most so long (readLastAddConfirmedAndEntry's long poll)."""
        known = self.last_add_confirmed
        return await self._advance(await tail.wait_last_confirmed(self._source, self._manager, known, timeout_s))

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
