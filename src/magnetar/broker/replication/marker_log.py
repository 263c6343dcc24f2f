"""The markers that lie in a topic: hidden from every backlog, and how far those of other clusters were dealt with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.replication.origin_log import read_entries
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import LATEST, Position
from magnetar.wire.pulsar.headers import parse_metadata
from magnetar.wire.pulsar.markers import Marker, decode

CURSOR_NAME: Final = "pulsar.replicated.subscriptions"
SCAN_CURSOR_NAME: Final = "pulsar.replicated.subscriptions.scan"

SCAN_ENTRIES_MAX: Final = 100_000
"""Entries that are looked through for markers when a topic is loaded, the newest ones. Markers before them count in backlogs until
they are read."""

PassCaughtUp = Callable[[Position], None]


class MarkerLog:
    """`pass_caught_up(position)`: who needs nothing but the marker there consumes it."""

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

    def stored(self, position: Position) -> None:
        """A marker lies there now."""
        hidden = self._ledger.hidden
        hidden.forget_before(self._ledger.first_position.ledger_id)
        hidden.add(*position)
        self._pass_caught_up(position)

    def close(self) -> None:
        """Nobody consumes markers here any more."""
        self._pass_caught_up = _nobody

    async def drop(self) -> None:
        """No subscription is replicated any more: what arrives from now on is dealt with at once, or not at all."""
        async with self._opening:
            if self._cursor is not None and not self._cursor.closed:
                await self._ledger.delete_cursor(CURSOR_NAME)
            self._cursor = None

    def dealt_with(self, upto: Position) -> None:
        """Everything up to there has had its effect, and that is durable."""
        if self._cursor is not None and self._cursor.mark_delete_position < upto:
            self._cursor.acknowledge_cumulative(upto)

    async def recover(self, subscriptions: Iterable[Subscription]) -> list[tuple[Marker, str]]:
        """Find the markers that somebody has yet to consume; those that were not dealt with are the answer,
        each with the cluster that sent it, empty for this one."""
        await self.open()
        assert self._cursor is not None
        ledger, done = self._ledger, self._cursor.mark_delete_position
        end = ledger.last_confirmed
        marks = [each.cursor.mark_delete_position for each in subscriptions if each.durable]
        start = ledger.next_position(min([done, *marks]))
        surplus = ledger.index.entries_between(ledger.index.previous(start), end) - SCAN_ENTRIES_MAX
        if surplus > 0:
            start = ledger.index.at_rank(ledger.index.total_entries - SCAN_ENTRIES_MAX)
        found: list[tuple[Marker, str]] = []

        def take(entry: Entry) -> None:
            marker = marker_in(entry) if metadata_of(entry).marker_type >= 0 else None
            if marker is not None:
                ledger.hidden.add(*entry.position)
                if entry.position > done:
                    found.append((marker, sender_of(entry.data)))

        await read_entries(ledger, SCAN_CURSOR_NAME, start, end, take)
        return found


def _nobody(position: Position) -> None:
    pass


def sender_of(data: bytes) -> str:
    """The cluster that a stored marker came from, empty for this one."""
    return parse_metadata(data).replicated_from


def marker_in(entry: Entry) -> Marker | None:
    """The marker of an entry; None for one that cannot be read."""
    try:
        return decode(entry.data)
    except ValueError:
        return None
