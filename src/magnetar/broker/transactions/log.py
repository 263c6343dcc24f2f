"""A log of records of which some still count: a managed ledger, and a cursor that has acknowledged the others.

What is acknowledged goes with its ledger, so a log takes the room of the records that count, plus one ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from magnetar.base.errors import MagnetarError
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.ports import AppendDone, DurableDone
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.managed_ledger.reads import read_page

RESERVED_PROPERTY = "magnetar.reservedSequenceId"


class RecordLog:
    """Opened with `open`; nobody else writes to its ledger."""

    def __init__(self, ledger: ManagedLedger, cursor: ManagedCursor) -> None:
        self.ledger = ledger
        self.cursor = cursor
        self.appended = 0
        """Records appended here since the start."""

    @classmethod
    async def open(
        cls, factory: ManagedLedgerFactory, name: str, cursor_name: str, config: ManagedLedgerConfig
    ) -> RecordLog:
        """Raises what opening a managed ledger raises."""
        ledger = await factory.open(name, config)
        return cls(ledger, await ledger.open_cursor(cursor_name, initial=EARLIEST))

    async def records(self) -> AsyncIterator[Entry]:
        """All that still count, in order. Once, before anything is appended."""
        self.cursor.rewind()
        while page := await read_page(self.cursor):
            for entry in page:
                yield entry

    async def append(self, data: bytes) -> Position:
        """Durable on return. Raises what kept it from being stored."""
        stored: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

        def done(error: MagnetarError | None, ledger_id: int, entry_id: int) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(Position(ledger_id, entry_id))
            else:
                stored.set_exception(error)

        self.append_nowait(data, done)
        return await stored

    def append_nowait(self, data: bytes, done: AppendDone) -> None:
        """`done(error, ledger_id, entry_id)` in the order of the appends."""
        self.appended += 1
        self.ledger.append(data, done)

    def forget(self, places: Sequence[Position], done: DurableDone | None = None) -> None:
        """These records count no longer; `done` once that is durable."""
        if places:
            self.cursor.acknowledge(places, done)
        elif done is not None:
            done(None)

    async def reserve(self, number: int) -> None:
        """Keep a number with the log, whatever of it is trimmed. Durable on return."""
        await self.ledger.set_properties({**self.ledger.properties, RESERVED_PROPERTY: str(number)})

    @property
    def reserved(self) -> int:
        return int(self.ledger.properties.get(RESERVED_PROPERTY, "0"))

    async def close(self) -> None:
        await self.ledger.close()

    async def delete(self) -> None:
        await self.ledger.delete()


@dataclass(frozen=True, slots=True)
class TransactionStorage:
    """Where and how the topics of a broker keep their transactions. `ledgers`: settings of the logs of pending acknowledgements."""

    factory: ManagedLedgerFactory
    ledgers: ManagedLedgerConfig
    snapshot_transactions: int = 1000
    snapshot_interval_ms: int = 5000
