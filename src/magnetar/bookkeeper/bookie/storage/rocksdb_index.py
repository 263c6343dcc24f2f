"""The index in RocksDB. Keys sort as (kind, ledger id, entry id); numbers are unsigned big-endian.

A key names the first entry of a run, whose value says where all of it lies. Runs of a ledger never overlap: what is written over a part of
one divides it, in the same batch. So the run of an entry is the one with the highest key that is not above it.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice
from struct import Struct
from typing import Any, Final

import rocksdict

from magnetar.base.errors import CorruptionError, DiskFullError, DiskIOError, StartupError, StorageError
from magnetar.bookkeeper.bookie.storage.entry_log_format import Location
from magnetar.bookkeeper.bookie.storage.index import RUN_ENTRIES_MAX, IndexedRun
from magnetar.bookkeeper.bookie.storage.interpreter import hand_over

_ENTRY_KEY = Struct(">cQQ")
_STATE_KEY = Struct(">cQ")
_OFFSET = Struct(">Q")
_SINGLE = Struct(">III")
"""Log id, offset, length of the entry: all that earlier versions wrote."""
_EVEN = Struct(">cIIII")
"""Log id, offset, length of each entry, how many of them."""
_UNEVEN = Struct(">cII")
"""Log id, offset; the lengths follow."""
_EVEN_KIND: Final = b"e"
_UNEVEN_KIND: Final = b"u"
_EVEN_WITH_GAPS_KIND: Final = b"h"
"""As an even one, then a bit for each id, beginning with the lowest bit of the first byte: the entry is here."""
_UNEVEN_WITH_GAPS_KIND: Final = b"g"
"""As an uneven one; 0 is the length of what is not here."""
_UNEVEN_KINDS: Final = (_UNEVEN_KIND, _UNEVEN_WITH_GAPS_KIND)
_ENTRY: Final = b"e"
_STATE: Final = b"l"
_LOG_END: Final = b"o"
_ENTRY_ID_MAX: Final = 2**64 - 1

_BYTES_PER_WRITE: Final = 8192
_WRITES_PER_SYNC: Final = 16
"""Writes and syncs hold the interpreter: in these steps, each a fraction of a millisecond, with the event loop served in between."""

_LEDGERS_REMEMBERED_MAX: Final = 10_000
"""Ledgers whose last entry is known without a look at the database."""

_WRITE_BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
_WRITE_BUFFER_DISK_PART: Final = 64
"""RocksDB's log grows as large as its write buffer: on a small disk that is one part in so many of it."""


class RocksdbIndex:
    """One database with two key spaces."""

    def __init__(self, path: str) -> None:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_max_background_jobs(2)
        options.set_write_buffer_size(_write_buffer_bytes(path))
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(1024 * 1024)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        # A damaged log must not silently lose the locations behind the damage: only a torn tail is tolerated.
        options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(rocksdict.Cache(16 * 1024 * 1024))
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        try:
            self._db: Any = rocksdict.Rdict(path, options)
        except Exception as error:
            raise StartupError(f"cannot open the index {path}: {error}") from error
        self._synced = rocksdict.WriteOptions()
        self._synced.sync = True
        self._last_of: dict[int, int] = {}
        """The last entry of some ledgers, or a higher one. Only of those who write."""

    def locations(self, ledger_id: int, first_entry_id: int, count: int) -> list[Location]:
        found: list[Location] = []
        wanted = first_entry_id
        for run in self._runs_from(ledger_id, first_entry_id):
            start = wanted - run.first_entry_id
            sizes = run.sizes
            if start < 0 or start >= len(sizes) or not sizes[start]:
                break
            stop = start + count - len(found)
            gap = sizes.index(0, start, stop) if 0 in sizes[start:stop] else stop
            found += run.part(start, gap).locations()
            if len(found) >= count or gap < stop:
                break
            wanted = run.first_entry_id + len(run.sizes)
        return found

    def last_entry_id(self, ledger_id: int) -> int:
        for run in self._runs_from(ledger_id, _ENTRY_ID_MAX):
            return run.first_entry_id + len(run.sizes) - 1
        return -1

    def entry_ids(self, ledger_id: int, first_entry_id: int, count: int) -> list[int]:
        found: list[int] = []
        for run in self._runs_from(ledger_id, first_entry_id):
            ids: Iterable[int] = range(run.first_entry_id, run.first_entry_id + len(run.sizes))
            if 0 in run.sizes:
                ids = compress(ids, run.sizes)
            wanted = (entry_id for entry_id in ids if entry_id >= first_entry_id)
            found += islice(wanted, count - len(found))
            if len(found) >= count:
                break
        return found

    def _runs_from(self, ledger_id: int, entry_id: int) -> Iterator[IndexedRun]:
        """Ascending; first the one with this entry or, if there is none, the last one before it."""
        try:
            iterator = self._db.iter()
            iterator.seek_for_prev(_ENTRY_KEY.pack(_ENTRY, ledger_id, entry_id))
            found = iterator.valid() and _is_of(iterator.key(), ledger_id)
            if not found:
                iterator.status()
                iterator.seek(_ENTRY_KEY.pack(_ENTRY, ledger_id, entry_id))
            while iterator.valid() and _is_of(key := iterator.key(), ledger_id):
                yield _unpack_run(ledger_id, int.from_bytes(key[-8:], "big"), iterator.value())
                iterator.next()
            iterator.status()
        except StorageError:
            raise
        except Exception as error:
            raise _typed(error) from error

    def write(
        self,
        runs: Iterable[IndexedRun],
        states: Sequence[tuple[int, bytes]],
        log_ends: Sequence[tuple[int, int]] = (),
    ) -> None:
        if len(self._last_of) > _LEDGERS_REMEMBERED_MAX:
            self._last_of.clear()
        last_of, pack_key = self._last_of, _ENTRY_KEY.pack
        batch = rocksdict.WriteBatch(raw_mode=True)
        # First: a process that is killed between two of these writes must not find entries behind the end of their log, which is cut
        # off there at the next start.
        for log_id, offset in log_ends:
            batch.put(_STATE_KEY.pack(_LOG_END, log_id), _OFFSET.pack(offset))
        size_bytes = writes = 0
        for run in runs:
            ledger_id, first = run.ledger_id, run.first_entry_id
            last = last_of.get(ledger_id)
            if last is None:
                last = last_of[ledger_id] = self.last_entry_id(ledger_id)
            end = first + len(run.sizes)
            if first > last:
                key, value = pack_key(_ENTRY, ledger_id, first), _pack_run(run)
                batch.put(key, value)
                last_of[ledger_id] = end - 1
                size_bytes += len(key) + len(value)
            else:
                batch = self._written(batch)  # first what may be divided now
                for part in run.unbroken() if self._has_in_gaps(run) else (run,):
                    batch = self._written(batch)
                    self._put_over(batch, part)
                size_bytes = _BYTES_PER_WRITE
                last_of[ledger_id] = max(last, end - 1)
            if size_bytes >= _BYTES_PER_WRITE:
                writes += 1
                self._write(batch, self._synced if writes % _WRITES_PER_SYNC == 0 else None)
                batch = rocksdict.WriteBatch(raw_mode=True)
                size_bytes = 0
                hand_over()
        for ledger_id, state in states:
            batch.put(_STATE_KEY.pack(_STATE, ledger_id), state)
        self._write(batch, self._synced)

    def _written(self, batch: Any) -> Any:
        """Write the batch if there is something in it; answers one to go on with."""
        if batch.is_empty():
            return batch
        self._write(batch, None)
        return rocksdict.WriteBatch(raw_mode=True)

    def _has_in_gaps(self, run: IndexedRun) -> bool:
        """There is an entry where the run has none: the run must not be put over it."""
        if 0 not in run.sizes:
            return False
        first, end = run.first_entry_id, run.first_entry_id + len(run.sizes)
        for old in self._runs_from(run.ledger_id, first):
            if old.first_entry_id >= end:
                return False
            if any(first <= entry_id < end and not run.sizes[entry_id - first] for entry_id, _ in old.placed()):
                return True
        return False

    def _put_over(self, batch: Any, run: IndexedRun) -> None:
        """The run in the place of what the database has of its entries; of runs that it covers in part the rest stays."""
        ledger_id, first, end = run.ledger_id, run.first_entry_id, run.first_entry_id + len(run.sizes)
        for old in self._runs_from(ledger_id, first):
            if old.first_entry_id >= end:
                break
            old_count = len(old.sizes)
            if old.first_entry_id + old_count <= first:
                continue
            batch.delete(_ENTRY_KEY.pack(_ENTRY, ledger_id, old.first_entry_id))
            if old.first_entry_id < first:
                _put(batch, old.part(0, first - old.first_entry_id))
            if old.first_entry_id + old_count > end:
                _put(batch, old.part(end - old.first_entry_id, old_count))
        _put(batch, run)

    def delete_ledger(self, ledger_id: int, tombstone: bytes | None) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        first, last = _ENTRY_KEY.pack(_ENTRY, ledger_id, 0), _ENTRY_KEY.pack(_ENTRY, ledger_id, _ENTRY_ID_MAX)
        batch.delete_range(first, last)
        self._last_of.pop(ledger_id, None)
        key = _STATE_KEY.pack(_STATE, ledger_id)
        if tombstone is None:
            batch.delete(key)
        else:
            batch.put(key, tombstone)
        self._write(batch, None)

    def states(self) -> list[tuple[int, bytes]]:
        return self._all(_STATE)

    def log_ends(self) -> dict[int, int]:
        return {log_id: _OFFSET.unpack(value)[0] for log_id, value in self._all(_LOG_END)}

    def forget_log(self, log_id: int) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        batch.delete(_STATE_KEY.pack(_LOG_END, log_id))
        self._write(batch, None)

    def sync(self) -> None:
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise _typed(error) from error

    def close(self) -> None:
        self._db.close()

    def _all(self, kind: bytes) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        try:
            iterator = self._db.iter()
            iterator.seek(_STATE_KEY.pack(kind, 0))
            while iterator.valid():
                key = iterator.key()
                if key[:1] != kind:
                    break
                found.append((_STATE_KEY.unpack(key)[1], iterator.value()))
                iterator.next()
            iterator.status()
        except Exception as error:
            raise _typed(error) from error
        return found

    def _write(self, batch: Any, options: Any) -> None:
        try:
            self._db.write(batch, options)
        except Exception as error:
            raise _typed(error) from error


def _write_buffer_bytes(path: str) -> int:
    disk_bytes = shutil.disk_usage(os.path.dirname(path)).total
    return max(64 * 1024, min(_WRITE_BUFFER_BYTES_MAX, disk_bytes // _WRITE_BUFFER_DISK_PART))


def _is_of(key: bytes, ledger_id: int) -> bool:
    return len(key) == _ENTRY_KEY.size and _ENTRY_KEY.unpack(key)[:2] == (_ENTRY, ledger_id)


def _put(batch: Any, run: IndexedRun) -> None:
    batch.put(_ENTRY_KEY.pack(_ENTRY, run.ledger_id, run.first_entry_id), _pack_run(run))


def _pack_run(run: IndexedRun) -> bytes:
    log_id, offset, sizes = run.log_id, run.offset, run.sizes
    size, count = sizes[0], len(sizes)
    assert count <= RUN_ENTRIES_MAX, "whoever looks for one entry reads all lengths"
    if count == 1:
        return _SINGLE.pack(log_id, offset, size)
    gaps, even = sizes.count(0), sizes.count(size)
    if even == count:
        return _EVEN.pack(_EVEN_KIND, log_id, offset, size, count)
    if gaps and even + gaps == count:
        bits = int("".join(["1" if one else "0" for one in reversed(sizes)]), 2)
        return _EVEN.pack(_EVEN_WITH_GAPS_KIND, log_id, offset, size, count) + bits.to_bytes((count + 7) // 8, "little")
    kind = _UNEVEN_WITH_GAPS_KIND if gaps else _UNEVEN_KIND
    return _UNEVEN.pack(kind, log_id, offset) + struct.pack(f">{count}I", *sizes)


def _unpack_run(ledger_id: int, first_entry_id: int, value: bytes) -> IndexedRun:
    length, kind = len(value), value[:1]
    if length == _SINGLE.size:
        log_id, offset, size = _SINGLE.unpack(value)
        return IndexedRun(ledger_id, first_entry_id, log_id, offset, [size])
    if length == _EVEN.size and kind == _EVEN_KIND:
        _, log_id, offset, size, count = _EVEN.unpack(value)
        if 0 < count <= RUN_ENTRIES_MAX:
            return IndexedRun(ledger_id, first_entry_id, log_id, offset, [size] * count)
    if length > _EVEN.size and kind == _EVEN_WITH_GAPS_KIND:
        _, log_id, offset, size, count = _EVEN.unpack_from(value)
        if 0 < count <= RUN_ENTRIES_MAX and length == _EVEN.size + (count + 7) // 8:
            bits = int.from_bytes(value[_EVEN.size :], "little")
            sizes = [size if bits >> number & 1 else 0 for number in range(count)]
            return IndexedRun(ledger_id, first_entry_id, log_id, offset, sizes)
    count, odd = divmod(length - _UNEVEN.size, 4)
    if kind in _UNEVEN_KINDS and not odd and 0 < count <= RUN_ENTRIES_MAX:
        _, log_id, offset = _UNEVEN.unpack_from(value)
        return IndexedRun(ledger_id, first_entry_id, log_id, offset, list(struct.unpack_from(f">{count}I", value, 9)))
    raise CorruptionError("the index holds a location of the wrong length")


def _typed(error: Exception) -> StorageError:
    text = str(error)
    if "Corruption" in text:
        return CorruptionError(f"index: {text}")
    if "No space" in text or "NoSpace" in text:
        return DiskFullError(f"index: {text}")
    return DiskIOError(f"index: {text}")
