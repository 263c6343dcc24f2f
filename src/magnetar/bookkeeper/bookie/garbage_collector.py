"""Gives disk space back: ledgers that the metadata no longer lists, entry logs without a live ledger, logs that are mostly dead.

Deletes on positive proof only. The local ledgers are taken before the metadata is listed, so a ledger created in between is never
seen as missing; a listing that fails deletes nothing; a log that cannot be parsed is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from magnetar.base.clock import Clock
from magnetar.base.errors import CorruptionError, MagnetarError
from magnetar.base.executor import Executor
from magnetar.base.limits import BOOKIE_FENCES_KEPT_MAX
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.disk_monitor import DiskPressure
from magnetar.bookkeeper.bookie.ledger_state import LedgerState
from magnetar.bookkeeper.bookie.storage.compaction import LogCompaction
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogMeta
from magnetar.bookkeeper.bookie.storage.entry_log_format import HEADER_BYTES
from magnetar.bookkeeper.bookie.storage.storage import LedgerStorage

_logger = logging.getLogger(__name__)

ListLedgers = Callable[[], Awaitable[Collection[int]]]
"""Ids of all ledgers that exist, from the metadata. Must raise when it cannot know."""

LedgerExists = Callable[[int], Awaitable[bool]]
"""A direct look at one ledger's metadata, asked before a deletion."""

_LEDGERS_PER_STEP: Final = 64

_AT_ONCE_MS: Final = 0
"""Time of a tombstone that the next round removes: the ledger exists, and this bookie may be asked to store it again, or it never had
an entry here, only fences. A tombstone would keep everybody out of that id, whoever has fenced it."""


class LedgerHomes(Protocol):
    """Which bookies a ledger's metadata names, as the collection of superfluous copies asks for it."""

    async def stored_elsewhere(self, ledger_id: int) -> bool:
        """The ledger is closed and none of its segments names this bookie. Must raise when it cannot know."""
        ...

    def lock(self, ledger_id: int) -> AbstractAsyncContextManager[bool]:
        """The ledger's replication lock; False when somebody else holds it: a copy may be on its way to this bookie."""
        ...


class GarbageCollector:
    """`collect()` on the loop; the work itself runs on the storage thread under the storage lock, in steps."""

    def __init__(
        self,
        config: BookieConfig,
        clock: Clock,
        storage: LedgerStorage,
        executor: Executor,
        storage_lock: asyncio.Lock,
        ledgers: dict[int, LedgerState],
        list_ledgers: ListLedgers | None,
        ledger_exists: LedgerExists | None,
        homes: LedgerHomes | None,
        bury: Callable[[LedgerState, int], None],
        checkpoint: Callable[[], Awaitable[None]],
        journal_barrier: Callable[[LedgerState], Awaitable[int]],
        pressure: Callable[[], DiskPressure],
        compaction_bytes: Callable[[], int],
    ) -> None:
        """`compaction_bytes()`: on a full disk, how much of an entry log may be alive for it to be compacted all the same."""
        self._config = config
        self._clock = clock
        self._storage = storage
        self._executor = executor
        self._storage_lock = storage_lock
        self._ledgers = ledgers
        self._list_ledgers = list_ledgers
        self._ledger_exists = ledger_exists
        self._homes = homes
        self._bury = bury
        self._checkpoint = checkpoint
        self._journal_barrier = journal_barrier
        self._pressure = pressure
        self._compaction_bytes = compaction_bytes
        self._homes_at_s = clock.monotonic_s() + config.gc_overreplicated_interval_s
        self._minor_at_s = clock.monotonic_s() + config.minor_compaction_interval_s
        self._major_at_s = clock.monotonic_s() + config.major_compaction_interval_s
        self._missing_ms: dict[int, int] = {}
        """Ledgers without an entry here that the metadata does not know: since when."""
        self.paused = asyncio.Lock()
        """Whoever holds it keeps everything that is there: a round waits."""
        self.ledgers_deleted_total = 0
        self.overreplicated_deleted_total = 0
        self.logs_deleted_total = 0
        self.compacted_bytes_total = 0
        self.failed_total = 0

    async def collect(self, major: bool = False) -> None:
        """One round. `major`: compact every log below the major ratio now.

        Errors are counted, not raised: every step leaves a state from which the next round goes on, and if the disk itself has
        failed the next flush stops the bookie.
        """
        try:
            async with self.paused:
                await self._collect(major)
        except MagnetarError as error:
            self.failed_total += 1
            _logger.warning("garbage collection is broken off: error=%s", error)

    async def _collect(self, major: bool) -> None:
        if self._list_ledgers is not None:
            await self._delete_ledgers(self._list_ledgers)
        await self._expire_tombstones()
        if self._homes is not None and self._homes_are_due(major):
            await self._delete_overreplicated(self._homes)
        await self._delete_logs()
        if self._pressure() is DiskPressure.FULL:
            await self._compact_in_headroom()
        else:
            await self._compact(self._due_ratio(major))

    # ---- Ledgers

    async def _delete_ledgers(self, list_ledgers: ListLedgers) -> None:
        local = sorted(ledger_id for ledger_id, state in self._ledgers.items() if state.deleted_ms is None)
        if not local:
            return
        listed = frozenset(await list_ledgers())
        kept = self._fences_kept([each for each in local if each not in listed and self._ledgers[each].keyless])
        doomed = [ledger_id for ledger_id in local if ledger_id not in listed and ledger_id not in kept]
        if self._ledger_exists is not None:
            doomed = [ledger_id for ledger_id in doomed if not await self._ledger_exists(ledger_id)]
        for start in range(0, len(doomed), _LEDGERS_PER_STEP):
            async with self._storage_lock:
                now_ms = self._clock.now_ms()
                tombstones: list[tuple[int, bytes]] = []
                for ledger_id in doomed[start : start + _LEDGERS_PER_STEP]:
                    state = self._ledgers[ledger_id]
                    self._bury(state, _AT_ONCE_MS if state.keyless else now_ms)
                    tombstones.append((ledger_id, state.pack()))
                await self._executor.run(self._delete_from_index, tombstones)
                self.ledgers_deleted_total += len(tombstones)

    def _fences_kept(self, missing: list[int]) -> frozenset[int]:
        """The ledgers of which the fences stay, though they are deleted: a writer that stood still since before it was replaced may still
        show one of these keys, and nothing else keeps it from writing into a ledger that nobody is going to read. They stay for as
        long as tombstones. Anybody may fence any id: of too many the newest stay."""
        now_ms = self._clock.now_ms()
        since_ms = self._missing_ms = {each: self._missing_ms.get(each, now_ms) for each in missing}
        newest = sorted(missing, key=lambda each: (since_ms[each], each))[-BOOKIE_FENCES_KEPT_MAX:]
        retention_ms = int(self._config.tombstone_retention_s * 1000)
        return frozenset(each for each in newest if now_ms - since_ms[each] <= retention_ms)

    def _delete_from_index(self, tombstones: list[tuple[int, bytes]]) -> None:
        for ledger_id, tombstone in tombstones:
            self._storage.index.delete_ledger(ledger_id, tombstone)
        self._storage.index.sync()

    def _homes_are_due(self, now: bool) -> bool:
        interval_s, now_s = self._config.gc_overreplicated_interval_s, self._clock.monotonic_s()
        if not interval_s or (not now and now_s < self._homes_at_s):
            return False
        self._homes_at_s = now_s + interval_s
        return True

    async def _delete_overreplicated(self, homes: LedgerHomes) -> None:
        """What re-replication has given to other bookies. The metadata is read again inside the lock that replicators hold."""
        live = [
            each for each, state in self._ledgers.items() if state.deleted_ms is None and each not in self._missing_ms
        ]
        for ledger_id in sorted(live):
            if not await homes.stored_elsewhere(ledger_id):
                continue
            async with homes.lock(ledger_id) as locked:
                if not locked or not await homes.stored_elsewhere(ledger_id):
                    continue
                async with self._storage_lock:
                    state = self._ledgers.get(ledger_id)
                    if state is None or state.deleted_ms is not None:
                        continue
                    self._bury(state, _AT_ONCE_MS)
                    await self._executor.run(self._delete_from_index, [(ledger_id, state.pack())])
                self.overreplicated_deleted_total += 1

    async def _expire_tombstones(self) -> None:
        before_ms = self._clock.now_ms() - int(self._config.tombstone_retention_s * 1000)
        old = [
            key for key, state in self._ledgers.items() if state.deleted_ms is not None and state.deleted_ms < before_ms
        ]
        if not old:
            return
        # The journal must not hold entries of a ledger that nobody remembers: a replay would take that for damage.
        barrier = await self._journal_barrier(self._ledgers[old[-1]])
        await self._checkpoint()
        if self._storage.mark.sequence < barrier:
            return  # no room for the checkpoint
        async with self._storage_lock:
            await self._executor.run(self._forget, old)
            for ledger_id in old:
                del self._ledgers[ledger_id]

    def _forget(self, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            self._storage.index.delete_ledger(ledger_id, None)
        self._storage.index.sync()

    # ---- Entry logs

    async def _delete_logs(self) -> None:
        async with self._storage_lock:
            live = self._live_ledgers()
            self.logs_deleted_total += await self._executor.run(self._delete_dead_logs, live)

    def _delete_dead_logs(self, live: frozenset[int]) -> int:
        """On the storage thread. The current log is sealed first when enough of it is dead to be worth a file of its own."""
        logs = self._storage.logs
        current = logs.current
        if current is not None and _live_ratio(current, live) < self._config.major_compaction_ratio:
            logs.seal()
        deleted = 0
        for log_id in sorted(logs.metas):
            meta = logs.metas[log_id]
            if meta is logs.current:
                continue
            ledgers = logs.ledgers_of(meta)
            if ledgers is not None and not meta.damaged and not any(ledger_id in live for ledger_id in ledgers):
                logs.delete(log_id)
                self._storage.index.forget_log(log_id)
                deleted += 1
        if deleted:
            self._storage.index.sync()
        return deleted

    # ---- Compaction

    def _due_ratio(self, major: bool) -> float:
        """0 when no compaction is due; one that was put off comes with the next round."""
        pressure = self._pressure()
        now_s = self._clock.monotonic_s()
        ratio = 0.0
        if now_s >= self._minor_at_s:
            ratio = self._config.minor_compaction_ratio
            self._minor_at_s = now_s + self._config.minor_compaction_interval_s
        if pressure is DiskPressure.NONE and (major or now_s >= self._major_at_s):
            ratio = self._config.major_compaction_ratio
            self._major_at_s = now_s + self._config.major_compaction_interval_s
        return ratio

    async def _compact(self, ratio: float) -> None:
        if ratio <= 0.0:
            return
        live = self._live_ledgers()
        logs = self._storage.logs
        for meta in [logs.metas[log_id] for log_id in sorted(logs.metas)]:
            if meta is not logs.current and not meta.damaged and _live_ratio(meta, live) < ratio:
                await self._compact_log(meta)

    async def _compact_in_headroom(self) -> None:
        """Logs of which so little is alive that a copy fits, those with the least first: each gives back more than it takes."""
        live, logs = self._live_ledgers(), self._storage.logs
        ratio, room = self._config.major_compaction_ratio, self._compaction_bytes()
        found = [
            (_live_ratio(meta, live) * (meta.end - HEADER_BYTES), log_id)
            for log_id, meta in logs.metas.items()
            if meta is not logs.current and not meta.damaged and _live_ratio(meta, live) < ratio
        ]
        for live_bytes, log_id in sorted(found):
            if live_bytes > room:
                break
            if log_id in logs.metas:
                await self._compact_log(logs.metas[log_id])

    async def _compact_log(self, meta: EntryLogMeta) -> None:
        work = LogCompaction(self._storage, meta, self._config.compaction_step_bytes)
        more = True
        try:
            while more:
                async with self._storage_lock:
                    if meta.log_id not in self._storage.logs.metas:
                        return
                    more = await self._executor.run(work.step, self._live_ledgers())
            self.logs_deleted_total += 1
        except CorruptionError as error:
            self.failed_total += 1
            _logger.warning("entry log is kept: log=%d error=%s", meta.log_id, error)
        finally:
            self.compacted_bytes_total += work.copied_bytes

    def _live_ledgers(self) -> frozenset[int]:
        return frozenset(ledger_id for ledger_id, state in self._ledgers.items() if state.deleted_ms is None)


def _live_ratio(meta: EntryLogMeta, live: Collection[int]) -> float:
    """Live bytes of all bytes; 1 when the log's content is not known."""
    total = meta.end - HEADER_BYTES
    if meta.ledgers is None or total <= 0:
        return 1.0
    return sum(size for ledger_id, size in meta.ledgers.items() if ledger_id in live) / total
