"""What a bookie answers beyond adds and reads: LACs and those who wait for them (BookKeeper's long poll), force, disk space, lists of
entries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from magnetar.base.errors import StorageError
from magnetar.base.executor import Executor
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.bookkeeper.bookie.add_path import AddPath
from magnetar.bookkeeper.bookie.ledger_state import LedgerState
from magnetar.bookkeeper.bookie.read_path import ReadPath
from magnetar.bookkeeper.bookie.storage.disk import DiskSpace
from magnetar.bookkeeper.bookie.storage.index import Index
from magnetar.bookkeeper.bookie.storage.write_cache import WriteCache
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.entry_format import peek_ids
from magnetar.bookkeeper.ports import AddDone, EntriesDone, InfoDone, LastConfirmedDone, LongPollDone
from magnetar.wire.bookkeeper.availability import EntryAvailability

_logger = logging.getLogger(__name__)

LONG_POLLS_MAX: Final = 10_000
"""Requests that wait for a LAC to move: further ones are refused with TOO_MANY_REQUESTS."""

LONG_POLL_TIMEOUT_S_MAX: Final = 3600.0
"""A longer wait is answered after this, as if its time were up."""

_OK: Final = int(ReturnCode.OK)
_NO_LEDGER: Final = int(ReturnCode.NO_LEDGER)
_NO_ENTRY: Final = int(ReturnCode.NO_ENTRY)


class LacWatch:
    """Lives on the event loop. `changed(state)` when a ledger with watchers moved, was fenced, or was deleted."""

    __slots__ = ("_count", "_ledgers", "_reads")

    def __init__(self, ledgers: dict[int, LedgerState], reads: ReadPath) -> None:
        self._ledgers = ledgers
        self._reads = reads
        self._count = 0

    @property
    def waiting_count(self) -> int:
        return self._count

    def last_confirmed(self, ledger_id: int, done: LastConfirmedDone) -> None:
        """See `BookieService.last_confirmed`. What was stored before this process started is looked up once."""
        state = self._ledgers.get(ledger_id)
        if state is None or state.deleted_ms is not None:
            done(_NO_LEDGER, -1)
            return
        if state.lac_known:
            done(_OK, state.lac)
            return
        found = state

        def read(code: int, body: bytes | None, last: bytes | None) -> None:
            if code == _OK and last is not None:
                found.lac = max(found.lac, peek_ids(last)[2])
            elif code not in (_OK, _NO_ENTRY):
                done(code, -1)
                return
            found.lac_known = True
            done(_OK, found.lac)

        self._reads.read_lac(ledger_id, read)

    def wait(self, ledger_id: int, previous_lac: int, timeout_s: float, done: LongPollDone) -> Callable[[], None]:
        """See `BookieService.wait_lac`."""
        poll = _LongPoll(ledger_id, previous_lac, min(timeout_s, LONG_POLL_TIMEOUT_S_MAX), done)
        self.last_confirmed(ledger_id, partial(self._begin, poll))
        return partial(self._forget, poll)

    def changed(self, state: LedgerState) -> None:
        """Answer everybody who waits for this ledger."""
        watchers, state.watchers = state.watchers, None
        for watcher in watchers or ():
            try:
                watcher()
            except Exception:  # the add that moved the LAC belongs to somebody else
                _logger.exception("the callback of a long poll failed")

    def _begin(self, poll: _LongPoll, code: int, lac: int) -> None:
        if poll.ended:
            return
        state = self._ledgers.get(poll.ledger_id)
        if code != _OK or state is None:
            self._end(poll, code or _NO_LEDGER)
        elif lac > poll.previous_lac or not state.writable or poll.timeout_s <= 0:
            self._answer(poll)
        elif self._count >= LONG_POLLS_MAX:
            self._end(poll, int(ReturnCode.TOO_MANY_REQUESTS))
        else:
            self._count += 1
            poll.state = state
            poll.wake = partial(self._answer, poll)
            if state.watchers is None:
                state.watchers = []
            state.watchers.append(poll.wake)
            poll.timer = asyncio.get_running_loop().call_later(poll.timeout_s, self._answer, poll)

    def _answer(self, poll: _LongPoll) -> None:
        """What is known now; with the entry after the previous LAC, if that is confirmed."""
        self._unhook(poll)
        state = self._ledgers.get(poll.ledger_id)
        lac = state.lac if state is not None else -1
        if lac <= poll.previous_lac:
            self._end(poll, _OK, lac)
            return
        self._reads.read_entry(
            poll.ledger_id, poll.previous_lac + 1, 0, b"", lambda code, entry: self._end(poll, _OK, lac, entry)
        )

    def _end(self, poll: _LongPoll, code: int, lac: int = -1, entry: bytes | None = None) -> None:
        if not poll.ended:
            poll.ended = True
            poll.done(code, lac, entry)

    def _forget(self, poll: _LongPoll) -> None:
        poll.ended = True
        self._unhook(poll)

    def _unhook(self, poll: _LongPoll) -> None:
        if poll.timer is None:
            return
        poll.timer.cancel()
        poll.timer = None
        self._count -= 1
        watchers = poll.state.watchers if poll.state is not None else None
        if watchers is not None and poll.wake in watchers:
            watchers.remove(poll.wake)


class _LongPoll:
    """One request; `timer` while it waits."""

    __slots__ = ("done", "ended", "ledger_id", "previous_lac", "state", "timeout_s", "timer", "wake")

    def __init__(self, ledger_id: int, previous_lac: int, timeout_s: float, done: LongPollDone) -> None:
        self.ledger_id = ledger_id
        self.previous_lac = previous_lac
        self.timeout_s = timeout_s
        self.done = done
        self.ended = False
        self.state: LedgerState | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.wake: Callable[[], None] = _nothing


def _nothing() -> None:
    return None


_IDS_PER_STEP: Final = 20_000
_ENTRY_ID_MAX: Final = 2**63 - 1


async def list_entries(ledger_id: int, cache: WriteCache, index: Index, executor: Executor) -> EntryAvailability:
    """Everything that was held when this was called. Raises StorageError."""
    # Memory first: what a flush moves meanwhile is in the index by the time that is asked.
    halves = [half for half in (cache.active, cache.flushing) if half is not None]
    found = {entry_id for half in halves for entry_id in half.ledgers.get(ledger_id, ())}
    first = 0
    while True:
        ids = await executor.run(index.entry_ids, ledger_id, first, _IDS_PER_STEP)
        found.update(ids)
        if len(ids) < _IDS_PER_STEP or ids[-1] == _ENTRY_ID_MAX:
            return await executor.run(_pack, found)
        first = ids[-1] + 1


def _pack(entry_ids: set[int]) -> EntryAvailability:
    return EntryAvailability.of(sorted(entry_ids))


_logger = logging.getLogger(__name__)


class Queries:
    """The part of `BookieService` that is not `BookieChannel`. `space()`: of the disk with the ledgers, None when unknown."""

    def __init__(
        self,
        ledgers: dict[int, LedgerState],
        adds: AddPath,
        reads: ReadPath,
        cache: WriteCache,
        index: Index,
        executor: Executor,
        tasks: TaskScope,
        space: Callable[[], DiskSpace | None],
    ) -> None:
        self._ledgers = ledgers
        self._adds = adds
        self._cache = cache
        self._index = index
        self._executor = executor
        self._tasks = tasks
        self._space = space
        self._failed = False
        self.lacs = LacWatch(ledgers, reads)
        adds.wake_watchers = self.lacs.changed
        self.last_confirmed = self.lacs.last_confirmed
        self.wait_lac = self.lacs.wait

    def fail(self) -> None:
        """Answer IO_ERROR from now on."""
        self._failed = True

    def force_ledger(self, ledger_id: int, done: AddDone) -> None:
        """See `BookieService.force_ledger`. One journal: what is durable is so for all ledgers."""
        self._adds.force(done)

    def bookie_info(self, done: InfoDone) -> None:
        """See `BookieService.bookie_info`. As of the last look at the disk."""
        space = self._space()
        if space is None:
            done(int(ReturnCode.IO_ERROR), 0, 0)
        else:
            done(int(ReturnCode.OK), space.total_bytes, space.free_bytes)

    def list_entries(self, ledger_id: int, done: EntriesDone) -> None:
        """See `BookieService.list_entries`."""
        state = self._ledgers.get(ledger_id)
        if self._failed:
            done(int(ReturnCode.IO_ERROR), None)
        elif state is None or state.deleted_ms is not None:
            done(int(ReturnCode.NO_LEDGER), None)
        else:
            self._tasks.spawn(self._list_entries(ledger_id, done), "list of entries", REPORTED)

    async def _list_entries(self, ledger_id: int, done: EntriesDone) -> None:
        try:
            found = await list_entries(ledger_id, self._cache, self._index, self._executor)
        except StorageError as error:
            _logger.error("list of entries failed: %s", error)
            done(int(ReturnCode.IO_ERROR), None)
        else:
            done(int(ReturnCode.OK), found)
