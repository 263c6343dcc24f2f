"""A bookie's index over the simulated disk: a checksummed log of changes, replayed when it is opened. Contract: `bookie.index.Index`.

A torn record ends the replay, as a write-ahead log's does. RocksDB finds rotten bytes by its own checksums, which is not simulated: bit
rot spares this file.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final

from magnetar.bookkeeper.bookie.storage.disk import Disk, DiskFile
from magnetar.bookkeeper.bookie.storage.entry_log_format import Location
from magnetar.bookkeeper.bookie.storage.index import IndexedRun

FILE_NAME: Final = "index.sim"
_HEAD = Struct(">II")


class SimIndex:
    """Everything in memory; a record per call in the file. What `delete_ledger` and `forget_log` did is durable with the next sync."""

    def __init__(self, disk: Disk, directory: str) -> None:
        path = os.path.join(directory, FILE_NAME)
        self._entries: dict[int, dict[int, tuple[int, int, int]]] = {}
        self._states: dict[int, bytes] = {}
        self._log_ends: dict[int, int] = {}
        self._file: DiskFile = disk.open_append(path)
        self._end = self._replay()
        self._file.truncate(self._end)
        self._file.fsync()
        disk.fsync_dir(directory)

    def locations(self, ledger_id: int, first_entry_id: int, count: int) -> list[Location]:
        entries = self._entries.get(ledger_id, {})
        found: list[Location] = []
        while len(found) < count and (location := entries.get(first_entry_id + len(found))) is not None:
            found.append(Location(*location))
        return found

    def last_entry_id(self, ledger_id: int) -> int:
        return max(self._entries.get(ledger_id, ()), default=-1)

    def entry_ids(self, ledger_id: int, first_entry_id: int, count: int) -> list[int]:
        return sorted(one for one in self._entries.get(ledger_id, ()) if one >= first_entry_id)[:count]

    def write(
        self,
        runs: Iterable[IndexedRun],
        states: Sequence[tuple[int, bytes]],
        log_ends: Sequence[tuple[int, int]] = (),
    ) -> None:
        entries = [(run.ledger_id, entry_id, tuple(location)) for run in runs for entry_id, location in run.placed()]
        self._append(("write", entries, list(states), list(log_ends)))
        self._file.fsync()

    def delete_ledger(self, ledger_id: int, tombstone: bytes | None) -> None:
        self._append(("delete", ledger_id, tombstone))

    def states(self) -> list[tuple[int, bytes]]:
        return sorted(self._states.items())

    def log_ends(self) -> dict[int, int]:
        return dict(self._log_ends)

    def forget_log(self, log_id: int) -> None:
        self._append(("forget", log_id))

    def sync(self) -> None:
        self._file.fsync()

    def close(self) -> None:
        self._file.fsync()

    def ids(self) -> list[tuple[int, int]]:
        """(ledger id, entry id) of everything indexed."""
        return [(ledger_id, entry_id) for ledger_id, entries in sorted(self._entries.items()) for entry_id in entries]

    def _append(self, record: tuple[Any, ...]) -> None:
        body = pickle.dumps(record)
        self._file.write_at(self._end, (_HEAD.pack(len(body), zlib.crc32(body)) + body,))
        self._end += _HEAD.size + len(body)
        self._apply(record)

    def _apply(self, record: tuple[Any, ...]) -> None:
        kind, *values = record
        if kind == "write":
            entries, states, log_ends = values
            for ledger_id, entry_id, location in entries:
                self._entries.setdefault(ledger_id, {})[entry_id] = location
            self._states.update(states)
            self._log_ends.update(log_ends)
        elif kind == "delete":
            ledger_id, tombstone = values
            self._entries.pop(ledger_id, None)
            if tombstone is None:
                self._states.pop(ledger_id, None)
            else:
                self._states[ledger_id] = tombstone
        else:
            self._log_ends.pop(values[0], None)

    def _replay(self) -> int:
        data = self._file.read_at(0, self._file.size_bytes())
        offset = 0
        while offset + _HEAD.size <= len(data):
            size, checksum = _HEAD.unpack_from(data, offset)
            body = data[offset + _HEAD.size : offset + _HEAD.size + size]
            if size == 0 or len(body) < size or zlib.crc32(body) != checksum:
                break
            self._apply(pickle.loads(body))
            offset += _HEAD.size + size
        return offset
