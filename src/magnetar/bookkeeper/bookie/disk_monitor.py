"""Watches the room on the bookie's disks and makes the bookie read-only, and writable again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from magnetar.base.errors import DiskFullError, StorageError
from magnetar.base.executor import Executor
from magnetar.bookkeeper.bookie.add_path import AddPath
from magnetar.bookkeeper.bookie.config import ENTRY_OVERHEAD_BYTES, BookieConfig, headroom_bytes
from magnetar.bookkeeper.bookie.flusher import Flusher
from magnetar.bookkeeper.bookie.storage.disk import Disk, DiskSpace
from magnetar.bookkeeper.bookie.storage.write_cache import WriteCache

_logger = logging.getLogger(__name__)

_ROOM_PARTS: Final = 4
"""Of the room for entries one part is given out at a time: an entry is written to the journal and to an entry log, and the index grows."""

_ROOM_BYTES_MIN: Final = 64 * 1024
"""With less room than this (or than a sixteenth of a smaller headroom) the bookie is read-only."""


class DiskPressure(IntEnum):
    """How full the fullest of the bookie's disks is; decides which compactions may run, since they need room first."""

    NONE = 0
    WARN = 1
    """Minor compaction only."""
    FULL = 2
    """The bookie is read-only; nothing is copied, wholly dead files still go."""


class DiskMonitor:
    """`run` as a task; `full` when a write failed for want of room. `on_change(read_only)` is called after each change.

    Entries of clients must leave a headroom (`config.headroom_bytes`), and what is only in the journal and in memory needs its room
    once more when it goes to the entry logs. The add path gets leave for some bytes at a time and calls `want_room` when they are used up.
    """

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        executor: Executor,
        adds: AddPath,
        cache: WriteCache,
        on_change: Callable[[bool], None],
        flusher: Flusher,
    ) -> None:
        self._config = config
        self._disk = disk
        self._executor = executor
        self._adds = adds
        self._cache = cache
        self._on_change = on_change
        self._flusher = flusher
        self._paths = (config.journal_path, config.ledger_path)
        self._wakeup = asyncio.Event()
        self.spaces: dict[str, DiskSpace] = {}
        self._warn = False
        self._room_bytes = 0
        self._headroom_bytes = 0

    async def run(self) -> None:
        """Check at the interval, and when the add path wants room, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self.check()
            timer = loop.call_later(self._config.disk_check_interval_s, self._wakeup.set)
            try:
                await self._wakeup.wait()
            finally:
                timer.cancel()
            self._wakeup.clear()

    def want_room(self) -> None:
        """The add path has used up what it was given leave for."""
        self._wakeup.set()

    async def check(self) -> None:
        """Look at the disks now."""
        if not await self._look():
            return
        if self._is_full() and not self._adds.read_only and self._cache.size_bytes:
            await self._flusher.checkpoint()  # lets go of the journal, whose content is counted twice until then
            if not await self._look():
                return
        free = min(space.free_bytes for space in self.spaces.values())
        self._set(
            self._is_full(),
            free >= self._config.disk_free_reserve_bytes,
            f"free={free}",
            max(self._room_bytes, 0) // _ROOM_PARTS,
        )

    def full(self, error: DiskFullError) -> None:
        """A write failed for want of room."""
        self._set(True, False, str(error))

    @property
    def pressure(self) -> DiskPressure:
        """As of the last look."""
        if self._adds.read_only:
            return DiskPressure.FULL
        return DiskPressure.WARN if self._warn else DiskPressure.NONE

    @property
    def compaction_bytes(self) -> int:
        """On a full disk: an entry log with at most this much alive may be copied into the headroom, to give back the rest. 0 when the disk
        is full by its ratio only."""
        if not self._adds.read_only or self._room_bytes >= self._headroom_bytes:
            return 0
        return max(0, self._room_bytes + self._headroom_bytes // 2)

    async def _look(self) -> bool:
        try:
            self.spaces = await self._executor.run(self._measure)
        except StorageError as error:
            _logger.warning("free space is unknown: %s", error)
            return False
        unflushed = self._cache.size_bytes + self._cache.entries_count * ENTRY_OVERHEAD_BYTES
        rooms = [
            (space.free_bytes - headroom_bytes(space.total_bytes) - unflushed, headroom_bytes(space.total_bytes))
            for space in self.spaces.values()
        ]
        self._room_bytes, self._headroom_bytes = min(rooms)
        self._warn = any(self._is_over(space, self._config.disk_usage_warn_ratio) for space in self.spaces.values())
        return True

    def _is_full(self) -> bool:
        read_only = self._adds.read_only
        # A read-only bookie waits for more room than one that writes, or it would change to and fro.
        least = self._headroom_bytes // 4 if read_only else min(_ROOM_BYTES_MIN, self._headroom_bytes // 16)
        ratio = self._config.disk_usage_low_ratio if read_only else self._config.disk_usage_max_ratio
        return self._room_bytes < least or any(self._is_over(space, ratio) for space in self.spaces.values())

    def _set(self, read_only: bool, reserve: bool, why: str, room_bytes: int | None = None) -> None:
        changed = self._adds.read_only != read_only
        if changed:
            _logger.warning("bookie is %s: %s", "read-only, its disk is full" if read_only else "writable again", why)
        self._adds.set_read_only(read_only, reserve, room_bytes)
        if changed:
            if not read_only:
                self._flusher.wake()
            self._on_change(read_only)

    def _measure(self) -> dict[str, DiskSpace]:
        return {path: self._disk.free(path) for path in self._paths}

    def _is_over(self, space: DiskSpace, ratio: float) -> bool:
        used = space.total_bytes - space.free_bytes
        return used > space.total_bytes * ratio and space.free_bytes < self._config.disk_free_plenty_bytes
