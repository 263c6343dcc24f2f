"""What managed ledgers need of a ledger client. `bookkeeper.client` fits; simulations and tests bring their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from magnetar.base.errors import LedgerError, MagnetarError
from magnetar.managed_ledger.entry import Entry

LedgerAddDone = Callable[[LedgerError | None], None]

LedgerRunDone = Callable[[LedgerError | None, int], None]
"""`done(error, count)`: the answer to so many entries, the next ones of those appended."""

PayloadsDone = Callable[[MagnetarError | None, list[bytes]], None]

AppendDone = Callable[[MagnetarError | None, int, int], None]
"""`done(error, ledger_id, entry_id)`, called in the order of the appends; the ids are -1 with an error."""

RunDone = Callable[[MagnetarError | None, int, int, int], None]
"""`done(error, ledger_id, entry_id, count)`: the same for the next `count` entries of a run, `entry_id` being that of the first of them."""

ReadEntriesDone = Callable[[MagnetarError | None, list[Entry]], None]
"""`done(error, entries)`; no entries with an error."""

DurableDone = Callable[[MagnetarError | None], None]
"""`done(error)` once a cursor's change is durable."""


class ReadableLedger(Protocol):
    """A ledger's handle, as far as reading goes."""

    ledger_id: int

    @property
    def last_add_confirmed(self) -> int: ...

    @property
    def length(self) -> int:
        """Payload bytes up to `last_add_confirmed`."""
        ...

    def read(self, first: int, last: int, max_bytes: int, done: PayloadsDone) -> None:
        """Payloads first..last or a prefix of at least one; `last` <= `last_add_confirmed`."""
        ...

    async def close(self) -> None: ...


class WritableLedger(ReadableLedger, Protocol):
    """The handle of the ledger's one writer."""

    def append(self, payload: bytes, done: LedgerAddDone) -> int:
        """Answers the entry id at once; `done` runs in entry order, once the entry is durable or has failed."""
        ...

    def append_run(self, payloads: list[bytes], done: LedgerRunDone) -> int:
        """Several entries; `done` may come in pieces, each with the number of entries that it answers."""
        ...


class LedgerClient(Protocol):
    """Creates, opens and deletes ledgers."""

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 1,
        write_quorum: int = 1,
        ack_quorum: int = 1,
        custom_metadata: Mapping[str, bytes] = ...,
    ) -> WritableLedger: ...

    async def open_ledger(self, ledger_id: int, *, recover: bool) -> ReadableLedger:
        """`recover` fences the ledger's writer, finds its last entry and closes it. Raises NoSuchLedgerError."""
        ...

    async def delete_ledger(self, ledger_id: int) -> None:
        """Raises NoSuchLedgerError when there is none."""
        ...
