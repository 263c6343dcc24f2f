"""A `BookieChannel` that tells moments, and in scripts holds back or drops single requests and answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnetar.bookkeeper.codes import FLAG_FENCE, FLAG_RECOVERY_ADD
from magnetar.bookkeeper.ports import (
    AddDone,
    BatchDone,
    BookieChannel,
    EntriesDone,
    LacDone,
    LongPollDone,
    ReadDone,
    RunAnswers,
)
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.moments import Moments

Gate = Callable[[str, str, int, int, Callable[[], None]], None]
"""`gate(what, bookie id, ledger id, entry id, go)`: call `go` now, later or never. `what`: as in `moment`, with sent or answered."""


class Tap:
    """Wraps one client's channel to one bookie."""

    def __init__(
        self, moments: Moments, process: Process, bookie_id: str, channel: BookieChannel, gate: Gate | None = None
    ) -> None:
        self._moments = moments
        self._process = process
        self._bookie_id = bookie_id
        self._channel = channel
        self._gate = gate

    def add_entry(
        self, ledger_id: int, entry_id: int, entry: bytes, master_key: bytes, flags: int, done: AddDone
    ) -> None:
        what = "recovery-add" if flags & FLAG_RECOVERY_ADD else "add"

        def answered(code: int) -> None:
            self._pass(f"{what} answered", ledger_id, entry_id, lambda: done(code))

        self._pass(
            f"{what} sent",
            ledger_id,
            entry_id,
            lambda: self._channel.add_entry(ledger_id, entry_id, entry, master_key, flags, answered),
        )

    def add_run(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: list[bytes],
        master_key: bytes,
        flags: int,
        done: AddDone,
    ) -> None:
        if len(entries) == 1 or self._gate is not None:  # scripts hold back single entries
            answers = RunAnswers(len(entries), done)
            for entry_id, entry in zip(entry_ids, entries, strict=True):
                self.add_entry(ledger_id, entry_id, entry, master_key, flags, answers)
            return

        def answered(code: int) -> None:
            self._pass("add answered", ledger_id, entry_ids[0], lambda: done(code))

        self._pass(
            "add sent",
            ledger_id,
            entry_ids[0],
            lambda: self._channel.add_run(ledger_id, entry_ids, entries, master_key, flags, answered),
        )

    def read_entry(self, ledger_id: int, entry_id: int, flags: int, master_key: bytes, done: ReadDone) -> None:
        what = ("fence" if entry_id < 0 else "recovery-read") if flags & FLAG_FENCE else "read"

        def answered(code: int, entry: bytes | None) -> None:
            self._pass(f"{what} answered", ledger_id, entry_id, lambda: done(code, entry))

        self._pass(
            f"{what} sent",
            ledger_id,
            entry_id,
            lambda: self._channel.read_entry(ledger_id, entry_id, flags, master_key, answered),
        )

    def read_batch(self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int, done: BatchDone) -> None:
        self._channel.read_batch(ledger_id, first_entry_id, max_count, max_bytes, done)

    def write_lac(self, ledger_id: int, body: bytes, master_key: bytes, done: AddDone) -> None:
        self._channel.write_lac(ledger_id, body, master_key, done)

    def read_lac(self, ledger_id: int, done: LacDone) -> None:
        def answered(code: int, body: bytes | None, entry: bytes | None) -> None:
            self._pass("lac answered", ledger_id, -1, lambda: done(code, body, entry))

        self._pass("lac sent", ledger_id, -1, lambda: self._channel.read_lac(ledger_id, answered))

    def wait_lac(self, ledger_id: int, previous_lac: int, timeout_s: float, done: LongPollDone) -> Callable[[], None]:
        return self._channel.wait_lac(ledger_id, previous_lac, timeout_s, done)

    def force_ledger(self, ledger_id: int, done: AddDone) -> None:
        self._channel.force_ledger(ledger_id, done)

    def list_entries(self, ledger_id: int, done: EntriesDone) -> None:
        self._channel.list_entries(ledger_id, done)

    def _pass(self, what: str, ledger_id: int, entry_id: int, go: Callable[[], None]) -> None:
        if self._moments.listeners:
            self._moments.tell(self._process, f"client {what} {self._bookie_id}")
        if self._gate is None:
            go()
        else:
            self._gate(what, self._bookie_id, ledger_id, entry_id, go)
