"""The index in RocksDB. Keys sort as (kind, ledger id, entry id); numbers are unsigned big-endian."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final

import rocksdict

from magnetar.base.errors import CorruptionError, DiskFullError, DiskIOError, StartupError, StorageError
from magnetar.bookkeeper.bookie.storage.entry_log_format import Location
from magnetar.bookkeeper.bookie.storage.index import IndexedEntry
from magnetar.bookkeeper.bookie.storage.interpreter import hand_over

_ENTRY_KEY = Struct(">cQQ")
_STATE_KEY = Struct(">cQ")
_OFFSET = Struct(">Q")
_LOCATION = Struct(">III")
_ENTRY: Final = b"e"
_STATE: Final = b"l"
_LOG_END: Final = b"o"
_ENTRY_ID_MAX: Final = 2**64 - 1

_PUTS_PER_WRITE: Final = 256
_WRITES_PER_SYNC: Final = 16
"""Writes and syncs hold the interpreter: in these steps, each a fraction of a millisecond, with the event loop served in between."""

_GETS_PER_CALL: Final = 128

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

    def locations(self, ledger_id: int, first_entry_id: int, count: int) -> list[Location]:
        found: list[Location] = []
        pack = _ENTRY_KEY.pack
        entry_id = first_entry_id
        end = min(first_entry_id + count, 2**63)
        step = 1
        while entry_id < end:
            stop = min(entry_id + step, end)
            values = self._get([pack(_ENTRY, ledger_id, number) for number in range(entry_id, stop)])
            for value in values:
                if value is None:
                    return found
                found.append(_unpack_location(value))
            entry_id = stop
            step = _GETS_PER_CALL
        return found

    def last_entry_id(self, ledger_id: int) -> int:
        try:
            iterator = self._db.iter()
            iterator.seek_for_prev(_ENTRY_KEY.pack(_ENTRY, ledger_id, _ENTRY_ID_MAX))
            key = iterator.key() if iterator.valid() else None
            iterator.status()
        except Exception as error:
            raise _typed(error) from error
        if key is None or len(key) != _ENTRY_KEY.size:
            return -1
        kind, found_ledger, entry_id = _ENTRY_KEY.unpack(key)
        return int(entry_id) if kind == _ENTRY and found_ledger == ledger_id else -1

    def entry_ids(self, ledger_id: int, first_entry_id: int, count: int) -> list[int]:
        found: list[int] = []
        prefix = _ENTRY_KEY.pack(_ENTRY, ledger_id, 0)[:-8]
        try:
            iterator = self._db.iter()
            iterator.seek(_ENTRY_KEY.pack(_ENTRY, ledger_id, first_entry_id))
            while len(found) < count and iterator.valid():
                key = iterator.key()
                if not key.startswith(prefix):
                    break
                found.append(int.from_bytes(key[-8:], "big"))
                iterator.next()
            iterator.status()
        except Exception as error:
            raise _typed(error) from error
        return found

    def write(
        self,
        entries: Iterable[IndexedEntry],
        states: Sequence[tuple[int, bytes]],
        log_ends: Sequence[tuple[int, int]] = (),
    ) -> None:
        pack_key, pack_location = _ENTRY_KEY.pack, _LOCATION.pack
        batch = rocksdict.WriteBatch(raw_mode=True)
        # First: a process that is killed between two of these writes must not find entries behind the end of their log, which is cut
        # off there at the next start.
        for log_id, offset in log_ends:
            batch.put(_STATE_KEY.pack(_LOG_END, log_id), _OFFSET.pack(offset))
        count = writes = 0
        for ledger_id, entry_id, (log_id, offset, size) in entries:
            batch.put(pack_key(_ENTRY, ledger_id, entry_id), pack_location(log_id, offset, size))
            count += 1
            if count == _PUTS_PER_WRITE:
                writes += 1
                self._write(batch, self._synced if writes % _WRITES_PER_SYNC == 0 else None)
                batch = rocksdict.WriteBatch(raw_mode=True)
                count = 0
                hand_over()
        for ledger_id, state in states:
            batch.put(_STATE_KEY.pack(_STATE, ledger_id), state)
        self._write(batch, self._synced)

    def delete_ledger(self, ledger_id: int, tombstone: bytes | None) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        first, last = _ENTRY_KEY.pack(_ENTRY, ledger_id, 0), _ENTRY_KEY.pack(_ENTRY, ledger_id, _ENTRY_ID_MAX)
        batch.delete_range(first, last)
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

    def _get(self, keys: list[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = self._db.get(keys)
        except Exception as error:
            raise _typed(error) from error
        return values

    def _write(self, batch: Any, options: Any) -> None:
        try:
            self._db.write(batch, options)
        except Exception as error:
            raise _typed(error) from error


def _write_buffer_bytes(path: str) -> int:
    disk_bytes = shutil.disk_usage(os.path.dirname(path)).total
    return max(64 * 1024, min(_WRITE_BUFFER_BYTES_MAX, disk_bytes // _WRITE_BUFFER_DISK_PART))


def _unpack_location(value: bytes) -> Location:
    if len(value) != _LOCATION.size:
        raise CorruptionError("the index holds a location of the wrong length")
    return Location(*_LOCATION.unpack(value))


def _typed(error: Exception) -> StorageError:
    text = str(error)
    if "Corruption" in text:
        return CorruptionError(f"index: {text}")
    if "No space" in text or "NoSpace" in text:
        return DiskFullError(f"index: {text}")
    return DiskIOError(f"index: {text}")
