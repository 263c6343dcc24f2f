"""Reads of stored entries across a managed ledger's ledgers: live handles, a few open ones of closed ledgers, merged requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import FATAL, TaskScope
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import LostLedgerError, ManagedLedgerClosedError
from magnetar.managed_ledger.ports import LedgerClient, PayloadsDone, ReadableLedger, ReadEntriesDone

OPEN_READERS_MAX = 16
"""Handles of closed ledgers that one managed ledger keeps open; the least recently used one goes."""

Opened = Callable[[MagnetarError | None, ReadableLedger | None], None]


class StoredEntryReader:
    """Reads entries of one ledger at a time. Requests for the same range that is being read already share the answer."""

    def __init__(self, client: LedgerClient, scope: TaskScope, name: str) -> None:
        self._client = client
        self._scope = scope
        self._name = name
        self._live: ReadableLedger | None = None
        self._handles: OrderedDict[int, ReadableLedger] = OrderedDict()
        self._opening: dict[int, list[Opened]] = {}
        self._reading: dict[tuple[int, int, int, int], list[ReadEntriesDone]] = {}
        self.reads = 0
        self.merged_reads = 0

    def set_live(self, handle: ReadableLedger | None) -> None:
        """The ledger being written is read through the handle that writes it."""
        self._live = handle

    def keep(self, handle: ReadableLedger) -> None:
        """Use this handle for its (closed) ledger instead of opening another one."""
        self._handles[handle.ledger_id] = handle
        self._shrink()

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        self._handles.pop(ledger_id, None)

    def read(self, ledger_id: int, first: int, last: int, max_bytes: int, done: ReadEntriesDone) -> None:
        """Entries first.. of the ledger: at least one, or an error. LostLedgerError: the ledger does not exist any more."""
        key = (ledger_id, first, last, max_bytes)
        waiting = self._reading.get(key)
        if waiting is not None:
            self.merged_reads += 1
            waiting.append(done)
            return
        self._reading[key] = [done]
        self.reads += 1

        def answered(error: MagnetarError | None, payloads: list[bytes]) -> None:
            entries = [Entry(ledger_id, first + place, payload) for place, payload in enumerate(payloads)]
            if isinstance(error, NoSuchLedgerError):
                error = self._lost(ledger_id, error)
            for waiter in self._reading.pop(key):
                waiter(error, entries)

        self._with_handle(ledger_id, first, last, max_bytes, answered)

    def _with_handle(self, ledger_id: int, first: int, last: int, max_bytes: int, answered: PayloadsDone) -> None:
        live = self._live
        handle = live if live is not None and live.ledger_id == ledger_id else self._handles.get(ledger_id)
        if handle is not None:
            if handle is not live:
                self._handles.move_to_end(ledger_id)
            handle.read(first, last, max_bytes, answered)
            return

        def opened(error: MagnetarError | None, reader: ReadableLedger | None) -> None:
            if reader is None:
                answered(error, [])
            else:
                reader.read(first, last, max_bytes, answered)

        waiting = self._opening.get(ledger_id)
        if waiting is not None:
            waiting.append(opened)
        else:
            self._opening[ledger_id] = [opened]
            self._scope.spawn(self._open(ledger_id), f"open ledger {ledger_id}", FATAL)

    async def _open(self, ledger_id: int) -> None:
        error: MagnetarError | None = None
        reader: ReadableLedger | None = None
        try:
            reader = await self._client.open_ledger(ledger_id, recover=False)
        except MagnetarError as raised:
            error = raised
        except asyncio.CancelledError:
            self._answer(ledger_id, ManagedLedgerClosedError(f"{self._name}: the broker stops"), None)
            raise
        else:
            self.keep(reader)
        self._answer(ledger_id, error, reader)

    def _answer(self, ledger_id: int, error: MagnetarError | None, reader: ReadableLedger | None) -> None:
        for waiter in self._opening.pop(ledger_id):
            waiter(error, reader)

    def _shrink(self) -> None:
        while len(self._handles) > OPEN_READERS_MAX:
            self._handles.popitem(last=False)

    def _lost(self, ledger_id: int, error: NoSuchLedgerError) -> LostLedgerError:
        lost = LostLedgerError(f"{self._name}: ledger {ledger_id} is in the list but does not exist: {error}")
        lost.__cause__ = error
        return lost
