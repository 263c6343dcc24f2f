"""Watches the room on the bookie's disks and makes the bookie read-only, and writable again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import IntEnum

from magnetar.base.errors import DiskFullError, StorageError
from magnetar.base.executor import Executor
from magnetar.bookkeeper.bookie.add_path import AddPath
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.disk import Disk, DiskSpace

_logger = logging.getLogger(__name__)

FREE_MIN_BYTES = 16 * 1024 * 1024
"""After a write failed for want of room, the bookie stays read-only until this much is free."""


class DiskPressure(IntEnum):
    """How full the fullest of the bookie's disks is; decides which compactions may run, since they need room first."""

    NONE = 0
    WARN = 1
    """Minor compaction only."""
    FULL = 2
    """The bookie is read-only; nothing is copied, wholly dead files still go."""


class DiskMonitor:
    """`run` as a task; `full` when a write failed for want of room. `on_change(read_only)` is called after each change."""

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        executor: Executor,
        adds: AddPath,
        on_change: Callable[[bool], None],
        retry_flush: Callable[[], None],
    ) -> None:
        self._config = config
        self._disk = disk
        self._executor = executor
        self._adds = adds
        self._on_change = on_change
        self._retry_flush = retry_flush
        self._paths = (config.journal_path, config.ledger_path)
        self.spaces: dict[str, DiskSpace] = {}
        self._warn = False

    async def run(self) -> None:
        """Check at the interval until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._config.disk_check_interval_s)

    async def check(self) -> None:
        """Look at the disks now."""
        try:
            self.spaces = await self._executor.run(self._measure)
        except StorageError as error:
            _logger.warning("free space is unknown: %s", error)
            return
        config, spaces = self._config, self.spaces.values()
        free = min(space.free_bytes for space in spaces)
        ratio = config.disk_usage_low_ratio if self._adds.read_only else config.disk_usage_max_ratio
        full = any(self._is_over(space, ratio) for space in spaces)
        if self._adds.read_only and not full and free < FREE_MIN_BYTES:
            full = True
        self._warn = any(self._is_over(space, config.disk_usage_warn_ratio) for space in spaces)
        self._set(full, free >= self._config.disk_free_reserve_bytes, f"free={free}")

    def full(self, error: DiskFullError) -> None:
        """A write failed for want of room."""
        self._set(True, False, str(error))

    @property
    def pressure(self) -> DiskPressure:
        """As of the last look."""
        if self._adds.read_only:
            return DiskPressure.FULL
        return DiskPressure.WARN if self._warn else DiskPressure.NONE

    def _set(self, read_only: bool, reserve: bool, why: str) -> None:
        changed = self._adds.read_only != read_only
        if changed:
            _logger.warning("bookie is %s: %s", "read-only, its disk is full" if read_only else "writable again", why)
        self._adds.set_read_only(read_only, reserve)
        if changed:
            if not read_only:
                self._retry_flush()
            self._on_change(read_only)

    def _measure(self) -> dict[str, DiskSpace]:
        return {path: self._disk.free(path) for path in self._paths}

    def _is_over(self, space: DiskSpace, ratio: float) -> bool:
        used = space.total_bytes - space.free_bytes
        return used > space.total_bytes * ratio and space.free_bytes < self._config.disk_free_plenty_bytes
