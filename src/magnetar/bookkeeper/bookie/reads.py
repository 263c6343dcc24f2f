"""Reads that memory could not answer: queued, and served many at a time with one hop to the read thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.base.errors import StorageError
from magnetar.base.executor import Executor
from magnetar.bookkeeper.bookie.storage.latencies import Latencies
from magnetar.bookkeeper.bookie.storage.storage import LedgerStorage

_logger = logging.getLogger(__name__)

ReadResult = Callable[[StorageError | None, list[bytes]], None]
"""`done(error, packed entries)`: no error and no entries means that the first one is positively missing."""

PENDING_READS_MAX: Final = 10_000
"""Reads that wait for the disk: further ones are refused with TOO_MANY_REQUESTS."""

_REQUESTS_PER_HOP: Final = 64
_BYTES_PER_HOP: Final = 16 * 1024 * 1024


class _Request(NamedTuple):
    ledger_id: int
    first_entry_id: int
    entries_max: int
    max_bytes: int
    done: ReadResult


class ReadQueue:
    """`submit` on the loop, `run` as its task."""

    __slots__ = ("_executor", "_queue", "_storage", "_wakeup", "latency", "requests_total")

    def __init__(self, storage: LedgerStorage, executor: Executor) -> None:
        self._storage = storage
        self._executor = executor
        self._queue: deque[_Request] = deque()
        self._wakeup = asyncio.Event()
        self.requests_total = 0
        self.latency = Latencies()
        """Of hops to the read thread, each for up to 64 requests."""

    def submit(self, ledger_id: int, first_entry_id: int, count: int, max_bytes: int, done: ReadResult) -> bool:
        """False when the queue is full. `first_entry_id` -1: the last entry in the logs."""
        if len(self._queue) >= PENDING_READS_MAX:
            return False
        self._queue.append(_Request(ledger_id, first_entry_id, count, max_bytes, done))
        self.requests_total += 1
        self._wakeup.set()
        return True

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._queue:
                requests = self._take()
                started_s = asyncio.get_running_loop().time()
                results = await self._executor.run(self._serve, requests)
                self.latency.add(1000 * (asyncio.get_running_loop().time() - started_s))
                for request, (error, entries) in zip(requests, results, strict=True):
                    try:
                        request.done(error, entries)
                    except Exception:  # the reads behind it belong to others
                        _logger.exception("the callback of a read failed")

    def _take(self) -> list[_Request]:
        taken: list[_Request] = []
        size = 0
        while self._queue and len(taken) < _REQUESTS_PER_HOP and size < _BYTES_PER_HOP:
            request = self._queue.popleft()
            size += request.max_bytes
            taken.append(request)
        return taken

    def _serve(self, requests: list[_Request]) -> list[tuple[StorageError | None, list[bytes]]]:
        results: list[tuple[StorageError | None, list[bytes]]] = []
        for ledger_id, first_entry_id, count, max_bytes, _ in requests:
            try:
                if first_entry_id < 0:
                    last = self._storage.last_entry(ledger_id)
                    results.append((None, [] if last is None else [last[1]]))
                else:
                    results.append((None, self._storage.read(ledger_id, first_entry_id, count, max_bytes)))
            except StorageError as error:
                results.append((error, []))
        return results
