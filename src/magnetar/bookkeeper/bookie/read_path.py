"""Reads: active half, flushing half, read cache (all at once, `done` before the call returns), then index and entry log.

A read that cannot be done is IO_ERROR. NO_ENTRY and NO_LEDGER are said on positive proof only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from magnetar.base.errors import StorageError
from magnetar.bookkeeper.bookie.add_path import AddPath
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.ledger_state import LedgerState
from magnetar.bookkeeper.bookie.reads import ReadQueue
from magnetar.bookkeeper.bookie.storage.read_cache import ReadCache
from magnetar.bookkeeper.bookie.storage.write_cache import WriteCache
from magnetar.bookkeeper.codes import FLAG_FENCE, LAST_ENTRY, ReturnCode
from magnetar.bookkeeper.entry_format import peek_ids
from magnetar.bookkeeper.ports import BatchDone, LacDone, ReadDone

_logger = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 5 * 1024 * 1024
"""One batch read returns no more than this, as in BookKeeper, unless its first entry alone is longer."""

BATCH_ENTRIES_MAX: Final = 10_000

_OK: Final = int(ReturnCode.OK)
_NO_ENTRY: Final = int(ReturnCode.NO_ENTRY)
_NO_LEDGER: Final = int(ReturnCode.NO_LEDGER)
_BAD_REQUEST: Final = int(ReturnCode.BAD_REQUEST)
_IO_ERROR: Final = int(ReturnCode.IO_ERROR)
_TOO_MANY_REQUESTS: Final = int(ReturnCode.TOO_MANY_REQUESTS)


class ReadPath:
    """Lives on the event loop."""

    __slots__ = (
        "_adds",
        "_ahead_bytes",
        "_ahead_entries",
        "_cache",
        "_failed",
        "_ledgers",
        "_queue",
        "_read_cache",
        "bytes_total",
        "errors_total",
        "reads_total",
    )

    def __init__(
        self,
        config: BookieConfig,
        ledgers: dict[int, LedgerState],
        cache: WriteCache,
        read_cache: ReadCache,
        queue: ReadQueue,
        adds: AddPath,
    ) -> None:
        self._ledgers = ledgers
        self._cache = cache
        self._read_cache = read_cache
        self._queue = queue
        self._adds = adds
        self._ahead_entries = config.read_ahead_entries
        self._ahead_bytes = config.read_ahead_bytes
        self._failed = False
        self.reads_total = 0
        self.errors_total = 0
        self.bytes_total = 0

    def fail(self) -> None:
        """Answer IO_ERROR from now on: memory may hold what the disk does not."""
        self._failed = True

    def read_entry(self, ledger_id: int, entry_id: int, flags: int, master_key: bytes, done: ReadDone) -> None:
        """See `BookieChannel.read_entry`."""
        if not flags & FLAG_FENCE:
            self._read(ledger_id, entry_id, done)
            return

        def fenced(code: int) -> None:
            if code == _OK:
                self._read(ledger_id, entry_id, done)
            else:
                done(code, None)

        self._adds.fence(ledger_id, master_key, fenced)

    def read_batch(self, ledger_id: int, first_entry_id: int, max_count: int, max_bytes: int, done: BatchDone) -> None:
        """See `BookieChannel.read_batch`."""
        self.reads_total += 1
        code = self._refusal(ledger_id)
        if code is None and first_entry_id < 0:
            code = _BAD_REQUEST
        if code is not None:
            done(code, [])
            return
        count = min(max_count, BATCH_ENTRIES_MAX) if max_count > 0 else BATCH_ENTRIES_MAX
        size_max = min(max_bytes, BATCH_BYTES_MAX)
        entries = self._from_memory(ledger_id, first_entry_id, count, size_max)
        if entries:
            self.bytes_total += sum(map(len, entries))
            done(_OK, entries)
            return

        def read(error: StorageError | None, found: list[bytes]) -> None:
            if error is not None:
                self._report(error)
                done(_IO_ERROR, [])
            else:
                self.bytes_total += sum(map(len, found))
                done(_OK if found else self._missing(ledger_id), found)

        if not self._queue.submit(ledger_id, first_entry_id, count, size_max, read):
            done(_TOO_MANY_REQUESTS, [])

    def read_lac(self, ledger_id: int, done: LacDone) -> None:
        """See `BookieChannel.read_lac`."""
        state = self._ledgers.get(ledger_id)
        body = state.explicit_lac if state is not None else None

        def read(code: int, entry: bytes | None) -> None:
            if code == _NO_ENTRY and body is not None:
                code = _OK
            done(code, body if code == _OK else None, entry)

        self._read(ledger_id, LAST_ENTRY, read)

    # ---- Parts

    def _read(self, ledger_id: int, entry_id: int, done: ReadDone) -> None:
        self.reads_total += 1
        code = self._refusal(ledger_id)
        if code is not None:
            done(code, None)
            return
        if entry_id < 0:
            if entry_id == LAST_ENTRY:
                self._read_last(ledger_id, done)
            else:
                done(_BAD_REQUEST, None)
            return
        entry = self._cache.get(ledger_id, entry_id) or self._read_cache.get(ledger_id, entry_id)
        if entry is not None:
            self.bytes_total += len(entry)
            done(_OK, entry)
            return

        def read(error: StorageError | None, found: list[bytes]) -> None:
            if error is not None:
                self._report(error)
                done(_IO_ERROR, None)
            elif found:
                self._read_cache.put_all(ledger_id, entry_id, found)
                self.bytes_total += len(found[0])
                done(_OK, found[0])
            else:
                done(self._missing(ledger_id), None)

        if not self._queue.submit(ledger_id, entry_id, self._ahead_entries, self._ahead_bytes, read):
            done(_TOO_MANY_REQUESTS, None)

    def _read_last(self, ledger_id: int, done: ReadDone) -> None:
        """The logs may hold a higher entry than memory (a repeated add of an older one), so both are asked."""

        def read(error: StorageError | None, found: list[bytes]) -> None:
            if error is not None:
                self._report(error)
                done(_IO_ERROR, None)
                return
            in_logs = peek_ids(found[0])[1] if found else -1
            in_memory = self._cache.last_entry_id(ledger_id)
            if in_memory >= 0 and in_memory >= in_logs:
                done(_OK, self._cache.get(ledger_id, in_memory))
            elif in_logs >= self._last_added(ledger_id):
                done(_OK, found[0]) if found else done(self._missing(ledger_id), None)
            else:  # a flush moved a higher entry from memory to the logs meanwhile
                self._read_last(ledger_id, done)

        if not self._queue.submit(ledger_id, LAST_ENTRY, 1, 0, read):
            done(_TOO_MANY_REQUESTS, None)

    def _from_memory(self, ledger_id: int, first_entry_id: int, count: int, max_bytes: int) -> list[bytes]:
        halves = self._cache.of_ledger(ledger_id)
        get_cached: Callable[[int, int], bytes | None] = self._read_cache.get
        entries: list[bytes] = []
        size = 0
        for entry_id in range(first_entry_id, first_entry_id + count):
            for held in halves:
                if (entry := held.get(entry_id)) is not None:
                    break
            else:
                entry = get_cached(ledger_id, entry_id)
            if entry is None:
                break
            size += len(entry)
            if entries and size > max_bytes:
                break
            entries.append(entry)
        return entries

    def _refusal(self, ledger_id: int) -> int | None:
        if self._failed:
            return _IO_ERROR
        state = self._ledgers.get(ledger_id)
        return _NO_LEDGER if state is None or state.deleted_ms is not None else None

    def _missing(self, ledger_id: int) -> int:
        """The answer when the logs do not hold an entry: the ledger itself may have been deleted meanwhile."""
        return self._refusal(ledger_id) or _NO_ENTRY

    def _last_added(self, ledger_id: int) -> int:
        state = self._ledgers.get(ledger_id)
        return -1 if state is None or state.deleted_ms is not None else state.last_entry_id

    def _report(self, error: StorageError) -> None:
        self.errors_total += 1
        _logger.error("read failed: %s", error)
