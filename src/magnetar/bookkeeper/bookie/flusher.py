"""Checkpoints: when a half of the write cache is full, and at an interval, memory goes to the entry logs and the mark moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.base.errors import DiskFullError, StorageError
from magnetar.base.executor import Executor
from magnetar.bookkeeper.bookie.add_path import AddPath
from magnetar.bookkeeper.bookie.storage.journal import Journal
from magnetar.bookkeeper.bookie.storage.storage import LedgerStorage


class Flusher:
    """`checkpoint` whenever, one at a time; `run` as a task; `wake` to have one soon."""

    def __init__(
        self,
        interval_s: float,
        storage: LedgerStorage,
        executor: Executor,
        storage_lock: asyncio.Lock,
        journal: Journal,
        on_fatal: Callable[[StorageError], None],
        on_full: Callable[[DiskFullError], None],
    ) -> None:
        self._interval_s = interval_s
        self._storage = storage
        self._executor = executor
        self._storage_lock = storage_lock
        self._journal = journal
        self._on_fatal = on_fatal
        self._on_full = on_full
        self._wakeup = asyncio.Event()
        self._adds: AddPath | None = None
        self.flushes_total = 0

    def attach(self, adds: AddPath) -> None:
        """Flusher and add path know each other; this closes the circle."""
        self._adds = adds

    def wake(self) -> None:
        self._wakeup.set()

    async def run(self) -> None:
        """Flush until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            timer = loop.call_later(self._interval_s, self._wakeup.set)
            try:
                await self._wakeup.wait()
            finally:
                timer.cancel()
            self._wakeup.clear()
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Persist everything added so far and let go of the journal below. A full disk leaves it for later."""
        adds = self._adds
        assert adds is not None, "attach comes first"
        async with self._storage_lock:
            if self._journal.failed is not None:
                return
            half, states, mark = adds.swap()
            try:
                await self._executor.run(self._storage.flush, half, states, mark, self._journal.trim)
            except DiskFullError as error:
                self._on_full(error)
            except StorageError as error:
                self._on_fatal(error)
            else:
                self.flushes_total += 1
                adds.flushed(states)
                await self._executor.run(half.discard, self._storage.hand_over)
