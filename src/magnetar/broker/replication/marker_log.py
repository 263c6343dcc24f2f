"""The markers that lie in a topic: hidden from every backlog, and how far those of other clusters were dealt with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from magnetar.base.limits import BYTES_PER_READ_MAX, ENTRIES_PER_DISPATCH_MAX
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import LATEST, Position
from magnetar.managed_ledger.reads import entries_future
from magnetar.wire.pulsar.markers import Marker, decode

CURSOR_NAME: Final = "pulsar.replicated.subscriptions"
SCAN_CURSOR_NAME: Final = "pulsar.replicated.subscriptions.scan"

SCAN_ENTRIES_MAX: Final = 100_000
"""Entries that are looked through for markers when a topic is loaded, the newest ones. Markers before them count in backlogs until
they are read."""

PassCaughtUp = Callable[[Position], list[str]]


class MarkerLog:
    """`pass_caught_up(position)`: who needs nothing but the marker there consumes it; their names."""

    def __init__(self, ledger: ManagedLedger, pass_caught_up: PassCaughtUp) -> None:
        self._ledger = ledger
        self._pass_caught_up = pass_caught_up
        self._cursor: ManagedCursor | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """The cursor; everything before now is dealt with when it is new."""
        async with self._opening:
            if self._cursor is None or self._cursor.closed:
                self._cursor = await self._ledger.open_cursor(CURSOR_NAME, initial=LATEST)

    def stored(self, position: Position) -> list[str]:
        """A marker lies there now."""
        hidden = self._ledger.hidden
        hidden.forget_before(self._ledger.first_position.ledger_id)
        hidden.add(*position)
        return self._pass_caught_up(position)

    @property
    def settled(self) -> bool:
        cursor = self._cursor
        return cursor is None or cursor.mark_delete_position >= self._ledger.last_confirmed

    def dealt_with(self) -> None:
        """Everything that is stored by now has had its effect, and that is durable."""
        if self._cursor is not None and not self.settled:
            self._cursor.acknowledge_cumulative(self._ledger.last_confirmed)

    async def recover(self, subscriptions: Iterable[Subscription]) -> list[Marker]:
        """Find the markers that somebody has yet to consume; those that were not dealt with are the answer."""
        await self.open()
        assert self._cursor is not None
        ledger, done = self._ledger, self._cursor.mark_delete_position
        end = ledger.last_confirmed
        marks = [each.cursor.mark_delete_position for each in subscriptions if each.durable]
        start = ledger.next_position(min([done, *marks]))
        surplus = ledger.entries_between(ledger.previous_position(start), end) - SCAN_ENTRIES_MAX
        if surplus > 0:
            start = ledger.index.at_rank(ledger.entries_total - SCAN_ENTRIES_MAX)
        found: list[Marker] = []
        if start > end:
            return found
        cursor = ledger.new_non_durable_cursor(SCAN_CURSOR_NAME, start)
        try:
            while page := await _page(cursor):
                for entry in page:
                    if entry.position > end:
                        return found
                    if metadata_of(entry).marker_type >= 0:
                        marker = _decoded(entry)
                        if marker is not None:
                            ledger.hidden.add(*entry.position)
                            if entry.position > done:
                                found.append(marker)
                await asyncio.sleep(0)
            return found
        finally:
            ledger.discard_cursor(SCAN_CURSOR_NAME)


def _decoded(entry: Entry) -> Marker | None:
    try:
        return decode(entry.data)
    except ValueError:
        return None


async def _page(cursor: ManagedCursor) -> list[Entry]:
    future: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()
    cursor.read(ENTRIES_PER_DISPATCH_MAX, BYTES_PER_READ_MAX, entries_future(future))
    return await future
