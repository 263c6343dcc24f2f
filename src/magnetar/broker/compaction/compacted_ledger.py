"""One compacted ledger, closed and complete: found by position, read in order. Replaced as a whole by the next compaction."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import BYTES_PER_READ_MAX, ENTRIES_PER_DISPATCH_MAX
from magnetar.broker.compaction.errors import CompactedDataError
from magnetar.broker.compaction.raw_message import decode
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ports import ReadableLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.reads import read_payloads, resolve

Compacted = tuple[Entry, list[int] | None]
"""An entry, and the words of the messages left in it when it is a rewritten batch."""

CompactedDone = Callable[[MagnetarError | None, list[Compacted]], None]

PLACES_MAX: Final = 1024
"""Readers whose next place is remembered; one that is not costs a binary search."""


class CompactedLedger:
    """`horizon`: everything of the topic up to it was compacted into this ledger."""

    def __init__(self, handle: ReadableLedger, horizon: Position, first: Position | None) -> None:
        self.ledger_id = handle.ledger_id
        self.horizon = horizon
        self.first = first
        """The oldest entry's position, None when nothing was left."""
        self.entries = handle.last_add_confirmed + 1
        self.size_bytes = handle.length
        self._handle = handle
        self._places: OrderedDict[Position, int] = OrderedDict()

    @classmethod
    async def over(cls, handle: ReadableLedger, horizon: Position) -> CompactedLedger:
        """Around an opened ledger. Raises CompactedDataError, LedgerError."""
        opened = cls(handle, horizon, None)
        if opened.entries:
            opened.first = (await opened.entry(0))[0].position
        return opened

    # ---- Message path

    def read_from(self, position: Position, max_entries: int, max_bytes: int, done: CompactedDone) -> None:
        """The entries at or after `position`, in order, at least one if there is any: `done(None, [])` says that there is none."""
        if self.first is None or position > self.horizon:
            done(None, [])
            return
        place = 0 if position <= self.first else self._places.get(position)
        if place is not None:
            self._read(place, max_entries, max_bytes, done)
            return

        def found(error: MagnetarError | None, place: int) -> None:
            if error is None:
                self._read(place, max_entries, max_bytes, done)
            else:
                done(error, [])

        _Search(self._handle, self.entries, position, found).step()

    def _read(self, place: int, max_entries: int, max_bytes: int, done: CompactedDone) -> None:
        if place >= self.entries:
            done(None, [])
            return

        def answered(error: MagnetarError | None, payloads: list[bytes]) -> None:
            if error is not None:
                done(error, [])
                return
            try:
                found = [decode(payload) for payload in payloads]
            except CompactedDataError as damage:
                done(damage, [])
                return
            last = found[-1][0]
            self._remember(Position(last.ledger_id, last.entry_id + 1), place + len(found))
            done(None, found)

        self._handle.read(place, min(place + max_entries, self.entries) - 1, max_bytes, answered)

    def _remember(self, position: Position, place: int) -> None:
        self._places[position] = place
        self._places.move_to_end(position)
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    # ---- Control plane

    async def entry(self, place: int) -> Compacted:
        """The entry at a place, counted from 0. Raises CompactedDataError, LedgerError."""
        return decode((await read_payloads(self._handle, place, place, 1))[0])

    async def last(self) -> Compacted | None:
        return await self.entry(self.entries - 1) if self.entries else None

    async def first_published_at(self, timestamp_ms: int) -> Position | None:
        """The first entry with a publish time >= `timestamp_ms`, None when all are older."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            entry, _ = await self.entry(middle)
            if metadata_of(entry).publish_time_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return (await self.entry(low))[0].position if low < self.entries else None

    async def pages(self) -> AsyncIterator[list[Entry]]:
        """All entries in order, about BYTES_PER_READ_MAX at a time."""
        place = 0
        while place < self.entries:
            page: asyncio.Future[list[Compacted]] = asyncio.get_running_loop().create_future()
            self._read(place, ENTRIES_PER_DISPATCH_MAX, BYTES_PER_READ_MAX, resolve(page))
            found = await page
            place += len(found)
            yield [entry for entry, _ in found]


class _Search:
    """The first place whose entry is at or after a position: about log2(entries) reads, one after the other."""

    __slots__ = ("_done", "_handle", "_high", "_low", "_position")

    def __init__(
        self,
        handle: ReadableLedger,
        entries: int,
        position: Position,
        done: Callable[[MagnetarError | None, int], None],
    ) -> None:
        self._handle = handle
        self._low, self._high = 0, entries
        self._position = position
        self._done = done

    def step(self) -> None:
        if self._low >= self._high:
            self._done(None, self._low)
            return
        middle = (self._low + self._high) // 2
        self._handle.read(middle, middle, 1, self._answered)

    def _answered(self, error: MagnetarError | None, payloads: list[bytes]) -> None:
        middle = (self._low + self._high) // 2
        if error is None:
            try:
                entry, _ = decode(payloads[0])
            except CompactedDataError as damage:
                error = damage
            else:
                if entry.position < self._position:
                    self._low = middle + 1
                else:
                    self._high = middle
        if error is not None:
            self._done(error, 0)
        else:
            self.step()
