"""What a ledger client needs of one bookie. The in-process `Bookie` and the socket channel both fit it.

Plain calls and callbacks, no task and no future per entry. Callbacks run on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar.wire.bookkeeper.availability import EntryAvailability

AddDone = Callable[[int], None]
"""`done(code)`; `code` is a ReturnCode value."""

ReadDone = Callable[[int, bytes | None], None]
"""`done(code, packed entry)`; the entry is None unless the code is OK."""

BatchDone = Callable[[int, list[bytes]], None]
"""`done(code, packed entries)`: consecutive ones from the first; empty unless the code is OK."""

LacDone = Callable[[int, bytes | None, bytes | None], None]
"""`done(code, explicit LAC body, packed last entry)`; either may be None."""

LastConfirmedDone = Callable[[int, int], None]
"""`done(code, LAC)`; -1 unless the code is OK."""

LongPollDone = Callable[[int, int, bytes | None], None]
"""`done(code, LAC, packed entry)`; -1 and None unless the code is OK."""

InfoDone = Callable[[int, int, int], None]
"""`done(code, total bytes, free bytes)` of the disk that holds the ledgers."""

EntriesDone = Callable[[int, EntryAvailability | None], None]
"""`done(code, entries)`; None unless the code is OK."""


class RunAnswers:
    """Makes one answer of those to the entries of a run, for bookies that are asked for each of them."""

    __slots__ = ("_code", "_done", "_left")

    def __init__(self, count: int, done: AddDone) -> None:
        self._left = count
        self._done = done
        self._code = 0

    def __call__(self, code: int, count: int = 1) -> None:
        """So many entries have this answer."""
        self._left -= count
        self._code = self._code or code
        if not self._left:
            self._done(self._code)


class AddWatch(Protocol):
    """Follows one run of entries to its bookies and back."""

    def sent(self, ledger_id: int, entry_id: int, bookies: Sequence[str]) -> None:
        """It goes to these bookies; once more where the ledger was changed for another."""
        ...

    def answered(self, bookie_id: str, code: int) -> None:
        """OK (0): the bookie has it in its journal, on disk."""
        ...


class WatchedRun(list[bytes]):
    """Entries whose way somebody follows. It goes through all layers like any other run, and the ledger's writer looks for it."""

    __slots__ = ("watch",)

    def __init__(self, entries: list[bytes], watch: AddWatch) -> None:
        super().__init__(entries)
        self.watch = watch


class BookieChannel(Protocol):
    """One bookie. Every call ends in exactly one call of `done`, unless the bookie is stopped."""

    def add_entry(
        self, ledger_id: int, entry_id: int, entry: bytes, master_key: bytes, flags: int, done: AddDone
    ) -> None:
        """Store a packed entry. OK comes only once it is durable, and never before this call has returned; a refusal may."""
        ...

    def add_run(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: list[bytes],
        master_key: bytes,
        flags: int,
        done: AddDone,
    ) -> None:
        """Store packed entries with ascending ids, mostly consecutive ones; one answer for all of them: OK, or the first code that is
        not. After a refusal some of them may be stored. The list belongs to the bookie from now on, and is not changed."""
        ...

    def read_entry(self, ledger_id: int, entry_id: int, flags: int, master_key: bytes, done: ReadDone) -> None:
        """Read one packed entry; `LAST_ENTRY` means the highest one held. With `FLAG_FENCE` the ledger is durably fenced
        before any answer. `done` may run before this call returns."""
        ...

    def read_batch(self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int, done: BatchDone) -> None:
        """Consecutive packed entries from `first_entry_id`: at least one, then until `max_count` (<= 0: no limit), until
        `max_bytes` would be passed, or until one is missing. `done` may run before this call returns."""
        ...

    def write_lac(self, ledger_id: int, body: bytes, master_key: bytes, done: AddDone) -> None:
        """Store an explicit LAC (packed by the ledger's writer); OK once it is durable."""
        ...

    def read_lac(self, ledger_id: int, done: LacDone) -> None:
        """The explicit LAC and the highest entry held; NO_ENTRY when there is neither."""
        ...

    def wait_lac(self, ledger_id: int, previous_lac: int, timeout_s: float, done: LongPollDone) -> Callable[[], None]:
        """Wait until the LAC is above `previous_lac`, the ledger is fenced or deleted, or the time is up; then answer OK with the
        LAC, and the entry after `previous_lac` if it is confirmed and held here. What is returned forgets the request."""
        ...

    def force_ledger(self, ledger_id: int, done: AddDone) -> None:
        """OK once everything that the bookie has taken so far is durable."""
        ...

    def list_entries(self, ledger_id: int, done: EntriesDone) -> None:
        """Which entries of the ledger the bookie holds."""
        ...


class BookieService(BookieChannel, Protocol):
    """The rest of what a bookie does, for its server and for tools."""

    def last_confirmed(self, ledger_id: int, done: LastConfirmedDone) -> None:
        """The highest LAC that the bookie has heard of. `done` may run before this call returns."""
        ...

    def bookie_info(self, done: InfoDone) -> None:
        """How large the bookie's disk is."""
        ...
