"""Reads a topic's log for where its messages came from: only when another cluster's update asks, each entry once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.broker.replication.origins import Origin, Origins, origin_of
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.reads import read_page
from magnetar.wire.pulsar.headers import parse_metadata

CURSOR_NAME: Final = "pulsar.replicated.subscriptions.origins"


class OriginLog:
    """One caller at a time."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger
        self.origins: Origins | None = None

    async def known(self, after: Position, upto: Position) -> Origins:
        """Everything in (after, upto] is noted. Raises what reading raised."""
        origins = self.origins
        if origins is None or after < origins.start:
            origins = self.origins = Origins(after)
        if origins.noted < upto:
            await read_entries(
                self._ledger,
                CURSOR_NAME,
                self._ledger.next_position(origins.noted),
                upto,
                lambda entry: origins.note(entry.position, origin_in(entry)),
            )
        return origins


def origin_in(entry: Entry) -> Origin | None:
    """None for a marker, and for what cannot be read."""
    try:
        return origin_of(parse_metadata(entry.data))
    except (ValueError, DecodeError):
        return None


async def read_entries(
    ledger: ManagedLedger, cursor_name: str, first: Position, last: Position, take: Callable[[Entry], None]
) -> None:
    """Hand out first..last in order, of what is stored by now. `cursor_name` is the reader's for as long as it takes."""
    if first > last:
        return
    cursor = ledger.new_non_durable_cursor(cursor_name, first)
    try:
        while page := await read_page(cursor):
            for entry in page:
                if entry.position > last:
                    return
                take(entry)
            if page[-1].position >= last:
                return
            await asyncio.sleep(0)  # the others on this loop have their turn
    finally:
        ledger.discard_cursor(cursor_name)
