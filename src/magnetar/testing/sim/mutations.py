"""Deliberate bugs, patched into the running code: what the simulator must catch. Each undoes one rule that the protocol rests on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from magnetar.base.errors import BadVersionError, DiskIOError
from magnetar.base.tasks import FATAL
from magnetar.bookkeeper.bookie import bookie as bookie_module
from magnetar.bookkeeper.bookie.add_path import AddPath
from magnetar.bookkeeper.bookie.garbage_collector import GarbageCollector
from magnetar.bookkeeper.bookie.ledger_state import LedgerState
from magnetar.bookkeeper.bookie.storage.compaction import LogCompaction
from magnetar.bookkeeper.bookie.storage.cookie import Found
from magnetar.bookkeeper.bookie.storage.journal import Journal
from magnetar.bookkeeper.bookie.storage.journal_format import pack_commit
from magnetar.bookkeeper.bookie.storage.storage import LedgerStorage
from magnetar.bookkeeper.client import last_confirmed, recovery, recovery_read
from magnetar.bookkeeper.client.last_confirmed import LastConfirmedRead
from magnetar.bookkeeper.client.pending_adds import PendingAdds
from magnetar.bookkeeper.client.recovery import TailRecovery
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, FLAG_HIGH_PRIORITY, ReturnCode
from magnetar.bookkeeper.quorum import Coverage, EntryVote

Patch = Callable[[ExitStack], None]

MUTATIONS: dict[str, Patch] = {}
"""Mutations by name."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The bug is in the code while this lasts."""
    with ExitStack() as stack:
        MUTATIONS[name](stack)
        yield


def _mutation(name: str) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        MUTATIONS[name] = patch
        return patch

    return register


def patch_attribute(stack: ExitStack, target: Any, name: str, value: Any) -> None:
    original = target.__dict__[name] if isinstance(target, type) else getattr(target, name)
    setattr(target, name, value)
    stack.callback(setattr, target, name, original)


# ---- Bookie


@_mutation("ack before fsync")
def _ack_before_fsync(stack: ExitStack) -> None:
    original = Journal.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        self._fsync = False

    patch_attribute(stack, Journal, "__init__", init)


@_mutation("fsync error ignored")
def _fsync_error_ignored(stack: ExitStack) -> None:
    def write(self: Any, records: list[bytes]) -> None:
        file = self._file
        if file is None or self._offset >= self._file_bytes_max:
            file = self._next_file()
        header, body = pack_commit(self._sequence + 1, self._salt, records)
        file.write_at(self._offset, (header, body))
        with contextlib.suppress(DiskIOError):
            file.fsync()
        self._offset += len(header) + len(body)
        self._sequence += 1

    patch_attribute(stack, Journal, "_write", write)


@_mutation("fence not journaled")
def _fence_not_journaled(stack: ExitStack) -> None:
    def fence(self: Any, ledger_id: int, master_key: bytes, done: Callable[[int], None]) -> None:
        state = self._ledgers.setdefault(ledger_id, LedgerState(ledger_id))
        state.fence_under(master_key, durable=True)
        done(int(ReturnCode.OK))

    patch_attribute(stack, AddPath, "fence", fence)


@_mutation("checkpoint mark passes what is not flushed")
def _early_mark(stack: ExitStack) -> None:
    original = LedgerStorage.flush

    def flush(self: Any, half: Any, states: Any, mark: int | None, trim: Any) -> int:
        if mark is not None:
            self.mark.advance(mark)
            if trim is not None:
                trim(mark)
        return original(self, half, states, None, None)

    patch_attribute(stack, LedgerStorage, "flush", flush)


@_mutation("a checkpoint leaves out ledger states")
def _states_left_out(stack: ExitStack) -> None:
    original = LedgerStorage.flush

    def flush(self: Any, half: Any, states: Any, mark: int | None, trim: Any) -> int:
        empty = half is None or not half.ledgers
        return original(self, half, [] if empty else states, mark, trim)

    patch_attribute(stack, LedgerStorage, "flush", flush)


@_mutation("compaction deletes before the index is written")
def _compaction_deletes_first(stack: ExitStack) -> None:
    original = LogCompaction._next_records

    def next_records(self: Any, live: Any) -> Any:
        records = original(self, live)
        if records:
            self._storage.logs.delete(self._meta.log_id)
            self._storage.logs._disk.fsync_dir(self._storage.logs._directory)
        return records

    patch_attribute(stack, LogCompaction, "_next_records", next_records)


@_mutation("collection lists the metadata first and does not look again")
def _listing_first(stack: ExitStack) -> None:
    original = GarbageCollector._delete_ledgers

    async def delete_ledgers(self: Any, list_ledgers: Any) -> None:
        listed = await list_ledgers()
        await asyncio.sleep(0.02)

        async def known() -> Any:
            return listed

        self._ledger_exists = None
        await original(self, known)

    patch_attribute(stack, GarbageCollector, "_delete_ledgers", delete_ledgers)


@_mutation("deleted ledgers are forgotten at once")
def _no_tombstone(stack: ExitStack) -> None:
    original = GarbageCollector._delete_ledgers

    async def delete_ledgers(self: Any, list_ledgers: Any) -> None:
        await original(self, list_ledgers)
        gone = [ledger_id for ledger_id, state in self._ledgers.items() if state.deleted_ms is not None]
        await self._checkpoint()
        await self._executor.run(self._forget, gone)
        for ledger_id in gone:
            del self._ledgers[ledger_id]

    patch_attribute(stack, GarbageCollector, "_delete_ledgers", delete_ledgers)


@_mutation("no cookie check")
def _no_cookie_check(stack: ExitStack) -> None:
    async def check_store(store: Any, cookie: Any, found: Found) -> tuple[bool, None]:
        return await store.read(cookie.bookie_id) is None, None

    patch_attribute(stack, bookie_module, "check_store", check_store)


# ---- Writer


@_mutation("resend before the metadata is written")
def _resend_before_cas(stack: ExitStack) -> None:
    original = LedgerWriter._run_change

    async def run_change(self: Any, change: Any) -> None:
        self._changes.ensemble = change.apply(self._source.metadata).last_segment.ensemble
        self._resume()
        self._changes.begin()
        await original(self, change)

    patch_attribute(stack, LedgerWriter, "_run_change", run_change)


@_mutation("a change keeps the acknowledgements of replaced bookies")
def _stale_acks(stack: ExitStack) -> None:
    original = PendingAdds.end_change

    def end_change(self: Any, ensemble: tuple[str, ...]) -> Any:
        before = [(add, add.acks) for add in self._queue]
        resend = original(self, ensemble)
        for add, acks in before:
            add.acks |= acks
            add.complete = add.acks.bit_count() >= self._ack_quorum
        return resend

    patch_attribute(stack, PendingAdds, "end_change", end_change)


@_mutation("entries complete in any order")
def _unordered(stack: ExitStack) -> None:
    original = PendingAdds.acknowledge

    def acknowledge(self: Any, add: Any, index: int) -> bool:
        original(self, add, index)
        return bool(add.complete) and not self.changing

    def pop_completed(self: Any) -> Any:
        for add in self._queue:
            if add.complete and not self.changing:
                self._queue.remove(add)
                self.count -= add.count
                self.lac = max(self.lac, add.entry_id + add.count - 1)
                return add
        return None

    patch_attribute(stack, PendingAdds, "acknowledge", acknowledge)
    patch_attribute(stack, PendingAdds, "pop_completed", pop_completed)


@_mutation("one acknowledgement is enough")
def _one_ack(stack: ExitStack) -> None:
    original = PendingAdds.__init__

    def init(self: Any, write_quorum: int, ack_quorum: int, lac: int = -1) -> None:
        original(self, write_quorum, 1, lac)

    patch_attribute(stack, PendingAdds, "__init__", init)


# ---- Recovery


@_mutation("no coverage rule")
def _no_coverage(stack: ExitStack) -> None:
    patch_attribute(stack, Coverage, "covered", property(lambda self: bool(self._known)))


@_mutation("recovery reads without fence")
def _reads_without_fence(stack: ExitStack) -> None:
    patch_attribute(stack, recovery_read, "_READ_FLAGS", FLAG_HIGH_PRIORITY)


@_mutation("an I/O error counts as a negative")
def _error_is_negative(stack: ExitStack) -> None:
    wrong = EXPLICIT_NEGATIVES | {int(ReturnCode.IO_ERROR)}
    patch_attribute(stack, recovery_read, "EXPLICIT_NEGATIVES", wrong)
    patch_attribute(stack, last_confirmed, "EXPLICIT_NEGATIVES", wrong)


@_mutation("one negative is enough")
def _one_negative(stack: ExitStack) -> None:
    original = EntryVote.__init__

    def init(self: Any, write_quorum: int, ack_quorum: int) -> None:
        original(self, write_quorum, ack_quorum)
        self._negatives_needed = 1

    patch_attribute(stack, EntryVote, "__init__", init)


@_mutation("the LAC is not floored")
def _lac_not_floored(stack: ExitStack) -> None:
    original = LastConfirmedRead.__init__

    def init(self: Any, *args: Any, **more: Any) -> None:
        original(self, *args, **more)
        self._lac = -1

    patch_attribute(stack, LastConfirmedRead, "__init__", init)


@_mutation("the length comes from the last segment only")
def _length_from_last_segment(stack: ExitStack) -> None:
    async def length_up_to(source: Any, entry_id: int) -> int:
        return 0

    patch_attribute(stack, recovery, "length_up_to", length_up_to)


@_mutation("ensembles are written during recovery")
def _ensembles_written_early(stack: ExitStack) -> None:
    original = TailRecovery._replace

    def replace(self: Any) -> bool:
        made = original(self)
        if made:
            self._context.scope.spawn(write(self), "early write", FATAL)
        return made

    async def write(self: Any) -> None:
        manager, ledger_id = self._context.manager, self._source.ledger_id
        while True:
            metadata, version = await manager.read(ledger_id)
            for change in self._made:
                metadata = change.apply(metadata)
            with contextlib.suppress(BadVersionError):
                await manager.write(ledger_id, metadata, version)
                return

    patch_attribute(stack, TailRecovery, "_replace", replace)


@_mutation("a recovery does not store its tail again")
def _tail_not_stored(stack: ExitStack) -> None:
    def add(self: Any, packed: bytes, entry: Any) -> None:
        self._pending.lac = entry.entry_id

    patch_attribute(stack, TailRecovery, "_add", add)


@_mutation("a recovery stores its tail on one bookie")
def _tail_on_one(stack: ExitStack) -> None:
    original = TailRecovery._copy

    async def copy(self: Any, lac: int) -> Any:
        self._pending._ack_quorum = 1
        return await original(self, lac)

    patch_attribute(stack, TailRecovery, "_copy", copy)
