"""The entry logs of one directory: files `<id>.log` to which flushed entries are appended, sorted by ledger and entry.

`write`, `sync`, `seal` and `delete` belong to the storage thread; `read` may run beside them on the read thread. A log is written
by one process only: after a restart a new one is begun.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from magnetar.base.errors import CorruptionError, StorageError
from magnetar.bookkeeper.bookie.storage.disk import Disk, DiskFile
from magnetar.bookkeeper.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    LOG_ID_MAX,
    RECORD_HEADER_BYTES,
    TRAILER_BYTES,
    RecordHeaders,
    ScannedRecord,
    Trailer,
    check_header,
    pack_header,
    pack_seal,
    scan_records,
    unpack_map,
    unpack_trailer,
)
from magnetar.bookkeeper.bookie.storage.index import RUN_ENTRIES_MAX, IndexedRun
from magnetar.bookkeeper.bookie.storage.interpreter import hand_over

_logger = logging.getLogger(__name__)

SUFFIX: Final = ".log"

_WRITE_BYTES: Final = 256 * 1024
"""Written at a time, or RUN_ENTRIES_MAX entries, which is also what the kernel takes at a time; then the interpreter is handed over: longer
steps would hold up the event loop."""

_SYNC_BYTES: Final = 4 * 1024 * 1024
"""Written between two fsyncs of a flush: a longer queue at the device would hold up the journal's fsync."""

_SCAN_BYTES: Final = 4 * 1024 * 1024
_OPEN_READERS_MAX: Final = 256
"""Open files for reading: the one opened first is closed when there would be more."""


EntryRun = tuple[int, int, list[bytes]]
"""(ledger id, first entry id, packed entries with consecutive ids; `b""` for one that is missing)"""


@dataclass(slots=True)
class EntryLogMeta:
    """`ledgers`: bytes by ledger, None while nobody has scanned an unsealed log. `end`: where its records end."""

    log_id: int
    end: int
    ledgers: dict[int, int] | None = field(default_factory=dict)
    damaged: bool = False


class _Step:
    """What is appended with one call: records behind the end of a log."""

    __slots__ = ("_start", "end", "entries", "meta", "sizes")

    def __init__(self, meta: EntryLogMeta) -> None:
        self.meta = meta
        self.entries: list[bytes] = []
        self.sizes: list[int] = []
        self._start = self.end = meta.end

    def add(self, ledger_id: int, entries: list[bytes], sizes: list[int], size_bytes: int) -> None:
        """`size_bytes`: of the entries. Those that are missing are left out."""
        count = len(entries)
        if 0 in sizes:
            self.entries += filter(None, entries)
            self.sizes += filter(None, sizes)
            count -= sizes.count(0)
        else:
            self.entries += entries
            self.sizes += sizes
        size_bytes += RECORD_HEADER_BYTES * count
        self.end += size_bytes
        ledgers = self.meta.ledgers
        assert ledgers is not None
        ledgers[ledger_id] = ledgers.get(ledger_id, 0) + size_bytes

    def pieces(self, headers: RecordHeaders) -> list[bytes]:
        """What is written."""
        pieces = self.entries * 2
        pieces[::2], pieces[1::2] = headers.pack(self.entries, self.sizes), self.entries
        return pieces

    @property
    def room_bytes(self) -> int:
        """At least one entry fits, however long it is."""
        return _WRITE_BYTES - (self.end - self._start)


class EntryLogs:
    """All entry logs of a directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        log_bytes_max: int,
        log_ends: Mapping[int, int],
        hand_over: Callable[[], None] = hand_over,
    ) -> None:
        self._disk = disk
        self._hand_over = hand_over
        self._directory = directory
        self._log_bytes_max = log_bytes_max
        self._writer: DiskFile | None = None
        self._unsynced_bytes = 0
        self._readers: dict[int, DiskFile] = {}
        self._readers_lock = threading.Lock()
        self.current: EntryLogMeta | None = None
        self.metas: dict[int, EntryLogMeta] = {}
        names = disk.list(directory)
        for name in names:
            if name.endswith(SUFFIX):
                log_id = _log_id(name)
                self.metas[log_id] = self._inspect(log_id, log_ends.get(log_id, HEADER_BYTES))
        self._next_id = max([*self.metas, *log_ends, 0]) + 1

    # ---- Writing

    def write(self, runs: Iterable[EntryRun]) -> list[IndexedRun]:
        """Append entries in this order; returns where they lie. Durable after `sync`."""
        indexed: list[IndexedRun] = []
        headers = RecordHeaders()
        step = _Step(self._writable())
        for ledger_id, first_entry_id, entries in runs:
            count, start = len(entries), 0
            while start < count:
                if not entries[start]:
                    start += 1
                    continue
                room_entries, room_bytes = RUN_ENTRIES_MAX - len(step.entries), step.room_bytes
                some = entries if count <= room_entries and not start else entries[start : start + room_entries]
                sizes = list(map(len, some))
                total = sum(sizes)
                if total > room_bytes:
                    taken = bisect_left(list(accumulate(sizes)), room_bytes) + 1
                    some, sizes = some[:taken], sizes[:taken]
                    total = sum(sizes)
                begin = start
                start += len(some)
                while not sizes[-1]:
                    del sizes[-1], some[-1]
                indexed.append(IndexedRun(ledger_id, first_entry_id + begin, step.meta.log_id, step.end, sizes))
                step.add(ledger_id, some, sizes, total)
                if len(step.entries) >= RUN_ENTRIES_MAX or step.room_bytes <= 0:
                    self._append(step.meta, step.pieces(headers), step.end)
                    self._hand_over()
                    if step.end >= self._log_bytes_max:
                        self.seal()
                    step = _Step(self._writable())
        if step.entries:
            self._append(step.meta, step.pieces(headers), step.end)
        return indexed

    def sync(self) -> list[tuple[int, int]]:
        """Make everything written durable; returns (log id, end) of the current log for the index."""
        if self._writer is None or self.current is None:
            return []
        self._writer.fsync()
        self._unsynced_bytes = 0
        return [(self.current.log_id, self.current.end)]

    def seal(self) -> None:
        """End the current log with its map; the next write begins another."""
        if self._writer is None or self.current is None:
            return
        meta, file = self.current, self._writer
        assert meta.ledgers is not None
        file.write_at(meta.end, (pack_seal(meta.end, meta.ledgers),))
        file.fsync()
        file.close()
        self._writer = None
        self.current = None

    def _append(self, meta: EntryLogMeta, parts: list[bytes], end: int) -> None:
        assert self._writer is not None
        self._writer.write_at(meta.end, parts)  # joined by the kernel, while other threads have the interpreter
        self._unsynced_bytes += end - meta.end
        meta.end = end
        if self._unsynced_bytes >= _SYNC_BYTES:
            self._writer.fsync()
            self._unsynced_bytes = 0

    def _writable(self) -> EntryLogMeta:
        if self.current is not None and self.current.end >= self._log_bytes_max:
            self.seal()
        if self.current is not None:
            return self.current
        log_id = self._next_id
        assert log_id <= LOG_ID_MAX, "entry log ids are used up"
        path = self._path(log_id)
        file = self._disk.open_append(path + ".tmp")
        file.truncate(0)
        file.write_at(0, (pack_header(log_id),))
        file.fsync()
        self._disk.rename(path + ".tmp", path)
        self._disk.fsync_dir(self._directory)
        self._next_id += 1
        self._writer = file
        self.current = self.metas[log_id] = EntryLogMeta(log_id, HEADER_BYTES)
        return self.current

    # ---- Reading

    def read(self, log_id: int, offset: int, size_bytes: int) -> bytes | None:
        """Bytes of a log, fewer at its end; None when the log is gone."""
        file = self._readers.get(log_id) or self._open_reader(log_id)
        if file is None:
            return None
        data = file.read_at(offset, size_bytes)
        return data if log_id in self.metas else None  # a log that was deleted meanwhile may have been shorter already

    def _open_reader(self, log_id: int) -> DiskFile | None:
        with self._readers_lock:
            if (file := self._readers.get(log_id)) is not None:
                return file
            try:
                file = self._disk.open_read(self._path(log_id))
            except FileNotFoundError:
                return None
            if len(self._readers) >= _OPEN_READERS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[log_id] = file
            return file

    def scan(self, meta: EntryLogMeta) -> Iterator[list[ScannedRecord]]:
        """All records below the log's end, some MiB at a time. Raises CorruptionError at the first damage."""
        offset = HEADER_BYTES
        size = _SCAN_BYTES
        while offset < meta.end:
            data = self.read(meta.log_id, offset, min(size, meta.end - offset)) or b""
            records, consumed, valid = scan_records(data, offset)
            if not valid or (not consumed and (len(data) < size or offset + len(data) >= meta.end)):
                raise CorruptionError(f"entry log {meta.log_id} is damaged at offset {offset + consumed}")
            size = _SCAN_BYTES if consumed else size * 4  # one entry may be longer than a step
            offset += consumed
            yield records

    # ---- Maintenance

    def ledgers_of(self, meta: EntryLogMeta) -> dict[int, int] | None:
        """Bytes by ledger; None when the log is damaged. Scans (and seals) a log that an earlier process left unsealed."""
        if meta.ledgers is None and not meta.damaged:
            try:
                self._recover(meta)
            except StorageError as error:
                meta.damaged = True
                _logger.warning("entry log is kept: log=%d error=%s", meta.log_id, error)
        return meta.ledgers

    def delete(self, log_id: int) -> None:
        """Remove a log for which nothing in the index is left."""
        assert self.current is None or self.current.log_id != log_id, "the current log is never deleted"
        meta = self.metas.pop(log_id, None)  # before the first byte goes: what is read from here on is not believed
        try:
            self._disk.unlink(self._path(log_id))
        except StorageError:
            if meta is not None:
                self.metas[log_id] = meta
            raise
        with self._readers_lock:
            self._readers.pop(log_id, None)  # closed once no reader holds it

    def close(self) -> None:
        """Close all files as they are."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for file in self._readers.values():
            file.close()
        self._readers.clear()

    @property
    def size_bytes(self) -> int:
        return sum(meta.end for meta in list(self.metas.values()))

    def _recover(self, meta: EntryLogMeta) -> None:
        ledgers: dict[int, int] = {}
        for records in self.scan(meta):
            for record in records:
                size = RECORD_HEADER_BYTES + len(record.entry)
                ledgers[record.ledger_id] = ledgers.get(record.ledger_id, 0) + size
        file = self._disk.open_append(self._path(meta.log_id))
        try:
            file.truncate(meta.end)  # what follows was never indexed
            file.write_at(meta.end, (pack_seal(meta.end, ledgers),))
            file.fsync()
        finally:
            file.close()
        meta.ledgers = ledgers

    def _inspect(self, log_id: int, indexed_end: int) -> EntryLogMeta:
        file = self._disk.open_read(self._path(log_id))
        try:
            size = file.size_bytes()
            try:
                check_header(file.read_at(0, HEADER_BYTES), log_id)
            except CorruptionError as error:
                _logger.warning("entry log is kept: log=%d error=%s", log_id, error)
                return EntryLogMeta(log_id, max(indexed_end, HEADER_BYTES), None, damaged=True)
            trailer = unpack_trailer(file.read_at(max(0, size - TRAILER_BYTES), TRAILER_BYTES), size)
            ledgers = None if trailer is None else _read_map(file, trailer, size)
            if trailer is None or ledgers is None:
                return EntryLogMeta(log_id, indexed_end, None)
            return EntryLogMeta(log_id, trailer.map_offset, ledgers)
        finally:
            file.close()

    def _path(self, log_id: int) -> str:
        return os.path.join(self._directory, f"{log_id:08x}{SUFFIX}")


def _read_map(file: DiskFile, trailer: Trailer, file_bytes: int) -> dict[int, int] | None:
    return unpack_map(file.read_at(trailer.map_offset, file_bytes - TRAILER_BYTES - trailer.map_offset), trailer)


def _log_id(name: str) -> int:
    try:
        return int(name.removesuffix(SUFFIX), 16)
    except ValueError:
        raise CorruptionError(f"entry log {name} has a strange name; remove it if it is not magnetar's") from None
