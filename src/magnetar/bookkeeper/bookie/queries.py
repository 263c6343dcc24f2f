"""What a bookie answers beyond adds and reads: LACs and those who wait for them, force, disk space, lists of entries."""

from __future__ import annotations

import logging
from collections.abc import Callable

from magnetar.base.errors import StorageError
from magnetar.base.executor import Executor
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.bookkeeper.bookie.add_path import AddPath
from magnetar.bookkeeper.bookie.lac_watch import LacWatch
from magnetar.bookkeeper.bookie.ledger_state import LedgerState
from magnetar.bookkeeper.bookie.read_path import ReadPath
from magnetar.bookkeeper.bookie.storage.disk import DiskSpace
from magnetar.bookkeeper.bookie.storage.entry_list import list_entries
from magnetar.bookkeeper.bookie.storage.index import Index
from magnetar.bookkeeper.bookie.storage.write_cache import WriteCache
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.ports import AddDone, EntriesDone, InfoDone

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
