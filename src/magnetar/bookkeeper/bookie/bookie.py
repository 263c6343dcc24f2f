"""The bookie: composes journal, write cache, entry logs, index and garbage collection, and owns their start and stop.

A failed fsync or a failed write to journal, log or index stops it for good (fail-stop): nothing is acknowledged any more, and
`on_fatal` lets the process exit. What is on disk is then decided by the next start, never guessed by this one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType

from magnetar.base.clock import Clock, SystemClock
from magnetar.base.errors import StorageError
from magnetar.base.executor import Executor, ThreadExecutor
from magnetar.base.tasks import FATAL, TaskScope
from magnetar.bookkeeper.bookie.add_path import AddPath
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.disk_monitor import DiskMonitor
from magnetar.bookkeeper.bookie.flusher import Flusher
from magnetar.bookkeeper.bookie.garbage_collector import GarbageCollector, LedgerExists, LedgerHomes, ListLedgers
from magnetar.bookkeeper.bookie.ledger_state import LedgerState
from magnetar.bookkeeper.bookie.queries import Queries
from magnetar.bookkeeper.bookie.read_path import ReadPath
from magnetar.bookkeeper.bookie.reads import ReadQueue
from magnetar.bookkeeper.bookie.recovery import Recovered, recover
from magnetar.bookkeeper.bookie.statistics import BookieStatistics, DirectoryUsage
from magnetar.bookkeeper.bookie.storage.cookie import (
    Cookie,
    CookieStore,
    check_directories,
    check_store,
    stamp_directories,
)
from magnetar.bookkeeper.bookie.storage.directory_lock import DirectoryLock
from magnetar.bookkeeper.bookie.storage.disk import Disk, OsDisk
from magnetar.bookkeeper.bookie.storage.index import Index
from magnetar.bookkeeper.bookie.storage.index_factory import open_index
from magnetar.bookkeeper.bookie.storage.interpreter import hand_over
from magnetar.bookkeeper.bookie.storage.journal import Journal
from magnetar.bookkeeper.bookie.storage.read_cache import ReadCache
from magnetar.bookkeeper.bookie.storage.storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.unsynced_mark import UnsyncedMark
from magnetar.bookkeeper.bookie.storage.write_cache import WriteCache
from magnetar.bookkeeper.ports import AddDone, BatchDone, LacDone, ReadDone

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BookieExecutors:
    """One worker each: commits of the journal, flush and garbage collection, reads from the logs. Long work on them calls
    `hand_over` now and then."""

    journal: Executor
    storage: Executor
    reads: Executor
    hand_over: Callable[[], None] = hand_over

    @classmethod
    def threads(cls) -> BookieExecutors:
        return cls(ThreadExecutor("bookie-journal"), ThreadExecutor("bookie-storage"), ThreadExecutor("bookie-read"))

    def close(self) -> None:
        for executor in (self.reads, self.storage, self.journal):
            executor.close()


class Bookie:
    """`async with Bookie(config) as bookie:`. Implements `BookieService`.

    `list_ledgers`: the ids of all existing ledgers, for garbage collection; without it nothing is ever deleted. `ledger_exists`:
    asked once more before a deletion. `homes`: for giving up copies that the metadata does not count on. `on_fatal(error)`: the
    bookie has stopped itself; exit. `on_read_only_change(read_only)`: for the registration. Raises StartupError (directory in
    use, wrong directory) and CorruptionError when entered.
    """

    def __init__(
        self,
        config: BookieConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        rng: random.Random | None = None,
        executors: BookieExecutors | None = None,
        list_ledgers: ListLedgers | None = None,
        ledger_exists: LedgerExists | None = None,
        homes: LedgerHomes | None = None,
        cookie_store: CookieStore | None = None,
        on_fatal: Callable[[StorageError], None] | None = None,
        on_read_only_change: Callable[[bool], None] | None = None,
        index_factory: Callable[[str, str], Index] = open_index,
        lock_directory: Callable[[str], AbstractContextManager[object]] = DirectoryLock,
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._disk = disk or OsDisk()
        self._rng = rng or random.Random()
        self._executors = executors or BookieExecutors.threads()
        self._list_ledgers = list_ledgers
        self._ledger_exists = ledger_exists
        self._homes = homes
        self._cookie_store = cookie_store
        self._on_fatal = on_fatal
        self._on_read_only_change = on_read_only_change
        self._index_factory = index_factory
        self._lock_directory = lock_directory
        self._resources = AsyncExitStack()
        self._tasks = TaskScope("bookie")
        self._storage_lock = asyncio.Lock()
        self._cache = WriteCache()
        self._read_cache = ReadCache(config.read_cache_bytes)
        self._ledgers: dict[int, LedgerState] = {}
        self.failed: StorageError | None = None

    # ---- BookieChannel

    def add_entry(
        self, ledger_id: int, entry_id: int, entry: bytes, master_key: bytes, flags: int, done: AddDone
    ) -> None:
        """See `BookieChannel.add_entry`."""
        self._adds.add_run(ledger_id, range(entry_id, entry_id + 1), [entry], master_key, flags, done)

    def add_run(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: list[bytes],
        master_key: bytes,
        flags: int,
        done: AddDone,
    ) -> None:
        """See `BookieChannel.add_run`."""
        self._adds.add_run(ledger_id, entry_ids, entries, master_key, flags, done)

    def read_entry(self, ledger_id: int, entry_id: int, flags: int, master_key: bytes, done: ReadDone) -> None:
        """See `BookieChannel.read_entry`."""
        self._reads.read_entry(ledger_id, entry_id, flags, master_key, done)

    def read_batch(self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int, done: BatchDone) -> None:
        """See `BookieChannel.read_batch`."""
        self._reads.read_batch(ledger_id, first_entry_id, max_count, max_bytes, done)

    def write_lac(self, ledger_id: int, body: bytes, master_key: bytes, done: AddDone) -> None:
        """See `BookieChannel.write_lac`."""
        self._adds.write_lac(ledger_id, body, master_key, done)

    def read_lac(self, ledger_id: int, done: LacDone) -> None:
        """See `BookieChannel.read_lac`."""
        self._reads.read_lac(ledger_id, done)

    # ---- Operation

    async def checkpoint(self) -> None:
        """Flush the write cache and move the checkpoint mark now."""
        await self._flusher.checkpoint()

    async def collect_garbage(self) -> None:
        """Delete what the metadata no longer lists, and compact, now."""
        await self._garbage.collect(major=True)

    def collection_paused(self) -> AbstractAsyncContextManager[None]:
        """`async with` it: no garbage is collected, so that all that the metadata names stays while it is copied."""
        return self._garbage.paused

    def last_added(self) -> dict[int, int | None]:
        """By ledger, the highest entry added since this start. None: nobody has written to it since, and nobody but a recovery will."""
        return {
            ledger_id: state.last_entry_id if state.last_entry_id >= 0 else None
            for ledger_id, state in self._ledgers.items()
            if state.deleted_ms is None
        }

    async def check_disk(self) -> None:
        """Look at the free space now, which may change read-only mode."""
        await self._monitor.check()

    @property
    def read_only(self) -> bool:
        """The disk is full: adds are refused."""
        return self._adds.read_only

    @property
    def takes_high_priority(self) -> bool:
        """Adds of recovery find room, even in read-only mode."""
        return self._adds.takes_high_priority

    def ledger_ids(self) -> list[int]:
        """Ledgers that this bookie holds something of, sorted."""
        return sorted(ledger_id for ledger_id, state in self._ledgers.items() if state.deleted_ms is None)

    def known_ledger_ids(self) -> list[int]:
        """The same with those that were deleted and are still remembered, unsorted."""
        return list(self._ledgers)

    def statistics(self) -> BookieStatistics:
        """Counters and sizes at this moment."""
        adds, reads, journal, logs, garbage = self._adds, self._reads, self._journal, self._storage.logs, self._garbage
        tombstones = sum(1 for state in self._ledgers.values() if state.deleted_ms is not None)
        halves = [half for half in (self._cache.active, self._cache.flushing) if half is not None]
        return BookieStatistics(
            adds_total=adds.adds_total,
            add_bytes_total=adds.add_bytes_total,
            adds_refused_total=adds.adds_refused_total,
            reads_total=reads.reads_total,
            read_bytes_total=reads.bytes_total,
            reads_from_disk_total=self._read_queue.requests_total,
            read_errors_total=reads.errors_total,
            journal_commits_total=journal.commits_total,
            journal_fsyncs_total=journal.fsyncs_total,
            journal_bytes_total=journal.size_bytes_total,
            journal_pending_bytes=journal.pending_bytes,
            journal_queued=journal.queued,
            journal_sync=journal.sync_latency.summary(),
            journal_add=journal.add_latency.summary(),
            disk_read=self._read_queue.latency.summary(),
            journal_sequence=journal.durable_sequence,
            checkpoint_sequence=self._storage.mark.sequence,
            write_cache_bytes=self._cache.size_bytes,
            write_cache_entries=sum(half.entries_count for half in halves),
            read_cache_bytes=self._read_cache.size_bytes,
            adds_waiting=adds.waiting_count,
            flushes_total=self._flusher.flushes_total,
            ledgers=len(self._ledgers) - tombstones,
            tombstones=tombstones,
            entry_logs=len(logs.metas),
            entry_log_bytes=logs.size_bytes,
            damaged_entry_logs=sum(meta.damaged for meta in list(logs.metas.values())),
            ledgers_deleted_total=garbage.ledgers_deleted_total,
            overreplicated_deleted_total=garbage.overreplicated_deleted_total,
            entry_logs_deleted_total=garbage.logs_deleted_total,
            compacted_bytes_total=garbage.compacted_bytes_total,
            garbage_collections_failed_total=garbage.failed_total,
            read_only=adds.read_only,
            failed=self.failed is not None,
            directories=tuple(
                DirectoryUsage(path, space.total_bytes, space.free_bytes)
                for path, space in sorted(self._monitor.spaces.items())
            ),
        )

    # ---- Start and stop

    async def __aenter__(self) -> Bookie:
        async with AsyncExitStack() as stack:
            stack.callback(self._executors.close)
            for directory in (self.config.data_dir, self.config.journal_dir, self.config.ledger_dir):
                if directory is not None:
                    stack.enter_context(self._lock_directory(str(directory)))
            new_cookie = await self._claim_directories()
            space = await self._executors.storage.run(self._disk.free, self.config.ledger_path)
            self.config = self.config.fitted(space.total_bytes)
            index = await self._executors.storage.run(self._index_factory, self.config.ledger_path, self.config.index)
            stack.push_async_callback(self._executors.storage.run, index.close)
            if new_cookie is not None and self._cookie_store is not None:
                await self._cookie_store.write(self.config.bookie_id, *new_cookie)
            await self._executors.storage.run(self._begin_unsynced)
            started_s = self._clock.monotonic_s()
            self._storage, recovered = await self._executors.storage.run(self._recover, index)
            stack.push_async_callback(self._executors.storage.run, self._storage.logs.close)
            self._report_recovery(recovered, self._clock.monotonic_s() - started_s)
            self._build(recovered)
            stack.push_async_callback(self._journal.close)
            await self._monitor.check()
            await self._tasks.__aenter__()
            # Without the body's exception: a task group would wrap it, and callers could not catch it by its class.
            stack.push_async_callback(self._tasks.__aexit__, None, None, None)
            self._spawn()
            self._resources = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.failed is None:
                await self._journal.drain()
                await self.checkpoint()
                await self._seal_current_log()
                await self._executors.storage.run(self._end_unsynced)
        finally:
            await self._resources.__aexit__(kind, error, trace)

    async def _seal_current_log(self) -> None:
        """Saves the next process a scan. Everything in the log is durable already, so a failure loses nothing."""
        if self.failed is not None or self.read_only:
            return
        try:
            async with self._storage_lock:
                await self._executors.storage.run(self._storage.logs.seal)
        except StorageError as error:
            _logger.warning("the current entry log stays unsealed: %s", error)

    def _begin_unsynced(self) -> None:
        mark = UnsyncedMark(self._disk, self.config.ledger_path, self.config.boot_id)
        mark.check()
        if self.config.unsafe_no_fsync:
            mark.put()

    def _end_unsynced(self) -> None:
        """After the last checkpoint. What a full disk has kept from it stays in the journal, and the mark with it."""
        if self._storage.mark.sequence < self._journal.durable_sequence:
            return
        try:
            UnsyncedMark(self._disk, self.config.ledger_path, self.config.boot_id).clear()
        except StorageError as error:
            _logger.warning("whether this bookie ran without fsync stays as it was noted: %s", error)

    async def _claim_directories(self) -> tuple[bytes, bytes | None] | None:
        """The cookie that the metadata store has to be told and the one that it has; None when it knows."""
        run = self._executors.storage.run
        config = self.config
        directories = {"journal": config.journal_path, "ledgers": config.ledger_path}
        for path in directories.values():
            await run(self._disk.make_dir, path)
        cookie = Cookie(config.bookie_id, config.journal_path, config.ledger_path, config.instance_id)
        found = await run(check_directories, self._disk, cookie, directories)
        fresh = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        cookie = replace(cookie, directories_id=found.directories_id or fresh)
        tell, known = (
            (False, None) if self._cookie_store is None else await check_store(self._cookie_store, cookie, found)
        )
        # Without a store nobody is told of an id that is drawn now: a start with one marks them.
        if not found.stamped or (not found.current and self._cookie_store is not None):
            await run(stamp_directories, self._disk, cookie, directories)
        return (cookie.pack(), known) if tell else None

    def _recover(self, index: Index) -> tuple[LedgerStorage, Recovered]:
        storage = LedgerStorage(self.config, self._disk, index, self._executors.hand_over)
        return storage, recover(self.config, self._disk, storage)

    def _report_recovery(self, recovered: Recovered, seconds: float) -> None:
        journal = recovered.journal
        if self.config.unsafe_no_fsync:
            _logger.warning("UNSAFE: unsafe_no_fsync is set; a power cut will lose acknowledged entries and fences")
        if journal.torn_bytes:
            _logger.warning(
                "the last commit of the journal cannot be read (%d bytes): either it was under way when this bookie was killed, and "
                "nobody was told of it, or it was acknowledged and is damaged now, which this copy alone cannot tell. %d of its "
                "entries are whole and were kept; the others are read from other bookies, if the ledgers have more copies",
                journal.torn_bytes,
                len(journal.salvaged),
            )
        if journal.records or journal.torn_bytes:
            _logger.info(
                "journal replayed: commits=%d records=%d bytes=%d torn_bytes=%d seconds=%.3f rate_mb_s=%.0f",
                journal.commits,
                journal.records,
                journal.size_bytes,
                journal.torn_bytes,
                seconds,
                journal.size_bytes / 1e6 / max(seconds, 1e-9),
            )

    def _build(self, recovered: Recovered) -> None:
        config, executors = self.config, self._executors
        self._ledgers = recovered.ledgers
        self.suspects = recovered.suspects
        """Ledgers that may have lost an entry with the journal's last commit: whoever runs this bookie asks for their repair."""
        self._cache.active = recovered.half
        self._journal = Journal(
            config,
            self._disk,
            executors.journal,
            self._rng,
            recovered.journal.last_sequence,
            self._fail,
            lambda error: self._monitor.full(error),
        )
        self._flusher = Flusher(
            config.flush_interval_s,
            self._storage,
            executors.storage,
            self._storage_lock,
            self._journal,
            self._fail,
            lambda error: self._monitor.full(error),
        )
        self._adds = AddPath(
            config,
            self._ledgers,
            recovered.dirty,
            self._cache,
            self._journal,
            self._flusher.wake,
            lambda: self._monitor.want_room(),
        )
        self._flusher.attach(self._adds)
        self._read_queue = ReadQueue(self._storage, executors.reads)
        self._reads = ReadPath(config, self._ledgers, self._cache, self._read_cache, self._read_queue, self._adds)
        self._monitor = DiskMonitor(
            config, self._disk, executors.storage, self._adds, self._cache, self._read_only_changed, self._flusher
        )
        queries = self.queries = Queries(
            self._ledgers,
            self._adds,
            self._reads,
            self._cache,
            self._storage.index,
            executors.reads,
            self._tasks,
            lambda: self._monitor.spaces.get(config.ledger_path),
        )
        self.last_confirmed = queries.last_confirmed
        self.wait_lac = queries.wait_lac
        self.force_ledger = queries.force_ledger
        self.bookie_info = queries.bookie_info
        self.list_entries = queries.list_entries
        self._garbage = GarbageCollector(
            config,
            self._clock,
            self._storage,
            executors.storage,
            self._storage_lock,
            self._ledgers,
            self._list_ledgers,
            self._ledger_exists,
            self._homes,
            self._adds.bury,
            self.checkpoint,
            self._adds.journal_barrier,
            lambda: self._monitor.pressure,
            lambda: self._monitor.compaction_bytes,
        )

    def _spawn(self) -> None:
        self._tasks.spawn(self._journal.run(), "journal", FATAL)
        self._tasks.spawn(self._read_queue.run(), "reads", FATAL)
        self._tasks.spawn(self._flusher.run(), "flush", FATAL)
        self._tasks.supervise(self._monitor.run, "disk")
        self._tasks.supervise(self._collect_regularly, "garbage")

    async def _collect_regularly(self) -> None:
        """On a full disk whenever the disk is looked at: what was deleted has to make room."""
        config, waited_s = self.config, 0.0
        step_s = min(config.gc_interval_s, config.disk_check_interval_s)
        while True:
            await asyncio.sleep(step_s)
            waited_s += step_s
            if self.failed is not None or (waited_s < config.gc_interval_s and not self.read_only):
                continue
            waited_s = 0.0
            await self._garbage.collect()
            if self.read_only:
                await self.checkpoint()  # what was deleted before it reached an entry log leaves the journal
                await self._monitor.check()

    def _read_only_changed(self, read_only: bool) -> None:
        if self._on_read_only_change is not None:
            self._on_read_only_change(read_only)

    def _fail(self, error: StorageError) -> None:
        if self.failed is not None:
            return
        self.failed = error
        _logger.critical("bookie stops, nothing is acknowledged any more: %s", error)
        self._journal.failed = error
        self._reads.fail()
        self.queries.fail()
        if self._on_fatal is not None:
            self._on_fatal(error)
        self._adds.fail()
