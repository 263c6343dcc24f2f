"""Entry logs, index and checkpoint mark together: what happens off the event loop when the write cache is flushed or missed.

`flush`, `delete_ledgers`, `compact...` run on the storage thread, one at a time; `read` and `last_entry` on the read thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final

from magnetar.base.checksum import crc32c
from magnetar.base.errors import CorruptionError
from magnetar.bookkeeper.bookie.config import ENTRY_BYTES_MAX, BookieConfig
from magnetar.bookkeeper.bookie.storage.disk import Disk, read_file, write_file
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogs
from magnetar.bookkeeper.bookie.storage.entry_log_format import RECORD_HEADER_BYTES, Location, unpack_entry_record
from magnetar.bookkeeper.bookie.storage.index import Index
from magnetar.bookkeeper.bookie.storage.interpreter import hand_over
from magnetar.bookkeeper.bookie.storage.write_cache import CacheHalf

_MAGIC: Final = b"MGMARK01"
_BODY = Struct(">8sQ")
_CRC = Struct(">I")
FILE_NAME: Final = "checkpoint"


class CheckpointMark:
    """The mark file of one directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = os.path.join(directory, FILE_NAME)
        self.sequence = self._read()

    def advance(self, sequence: int) -> None:
        """Persist a higher mark; the same one is a no-op. Blocks."""
        assert sequence >= self.sequence, f"the mark would move back from {self.sequence} to {sequence}"
        if sequence == self.sequence:
            return
        body = _BODY.pack(_MAGIC, sequence)
        write_file(self._disk, self._path, body + _CRC.pack(crc32c(body)))
        self.sequence = sequence

    def _read(self) -> int:
        data = read_file(self._disk, self._path, _BODY.size + _CRC.size + 1)
        if data is None:
            return 0
        if len(data) != _BODY.size + _CRC.size or _CRC.unpack_from(data, _BODY.size)[0] != crc32c(data[: _BODY.size]):
            raise CorruptionError(f"the checkpoint mark {self._path} is damaged")
        magic, sequence = _BODY.unpack_from(data)
        if magic != _MAGIC:
            raise CorruptionError(f"{self._path} is not a checkpoint mark of this version")
        return int(sequence)


_READ_ATTEMPTS = 3
"""A location may be outdated by a compaction while it is followed; it is looked up so often before that is an error."""

_READ_SPAN_BYTES = 1024 * 1024
"""Neighbouring records read with one call."""


class LedgerStorage:
    """Owns the ledger directory."""

    def __init__(
        self, config: BookieConfig, disk: Disk, index: Index, hand_over: Callable[[], None] = hand_over
    ) -> None:
        self.index = index
        self.hand_over = hand_over
        self.mark = CheckpointMark(disk, config.ledger_path)
        self.logs = EntryLogs(disk, config.ledger_path, config.entry_log_bytes, index.log_ends(), hand_over)

    def flush(
        self,
        half: CacheHalf | None,
        states: Sequence[tuple[int, bytes]],
        mark: int | None,
        trim: Callable[[int], int] | None,
    ) -> int:
        """Make a half and the ledger states durable, then move the mark, then trim the journal. Returns the entries written."""
        indexed = self.logs.write(half.runs()) if half is not None and half.ledgers else []
        ends = self.logs.sync() if indexed else []
        if indexed or states:
            self.index.write(indexed, states, ends)
        if mark is not None:
            self.mark.advance(mark)
            if trim is not None:
                trim(mark)
        return sum(run.entries_count for run in indexed)

    def read(self, ledger_id: int, first_entry_id: int, count: int, max_bytes: int) -> list[bytes]:
        """Consecutive packed entries from `first_entry_id`, at least one unless that is missing; the rest within `max_bytes`.

        Raises StorageError when an entry is indexed but cannot be read: that is never the same as missing.
        """
        for _ in range(_READ_ATTEMPTS):
            locations = self.index.locations(ledger_id, first_entry_id, count)
            entries = self._follow(ledger_id, first_entry_id, _within(locations, max_bytes))
            if entries is not None:
                return entries
        raise CorruptionError(f"ledger {ledger_id} entry {first_entry_id}: its entry log is missing")

    def last_entry(self, ledger_id: int) -> tuple[int, bytes] | None:
        """(id, packed entry) of the highest entry in the logs."""
        entry_id = self.index.last_entry_id(ledger_id)
        if entry_id < 0:
            return None
        entries = self.read(ledger_id, entry_id, 1, 0)
        return (entry_id, entries[0]) if entries else None

    def _follow(self, ledger_id: int, first_entry_id: int, locations: list[Location]) -> list[bytes] | None:
        entries: list[bytes] = []
        entry_id = first_entry_id
        for log_id, offset, run in _runs(locations):
            if run[-1].size_bytes > ENTRY_BYTES_MAX:
                raise CorruptionError(f"ledger {ledger_id} entry {entry_id}: the index says {run[-1].size_bytes} bytes")
            size = run[-1].offset + RECORD_HEADER_BYTES + run[-1].size_bytes - offset
            data = self.logs.read(log_id, offset, size)
            if data is None:
                return entries or None
            for location in run:
                try:
                    entry = unpack_entry_record(data, location.offset - offset, location, ledger_id, entry_id)
                except CorruptionError:
                    if entries:  # the good ones first; the next read begins at the damage and reports it
                        return entries
                    raise
                entries.append(entry)
                entry_id += 1
        return entries


def _within(locations: list[Location], max_bytes: int) -> list[Location]:
    total = 0
    for number, location in enumerate(locations):
        total += location.size_bytes
        if number and total > max_bytes:
            return locations[:number]
    return locations


def _runs(locations: list[Location]) -> Iterator[tuple[int, int, list[Location]]]:
    """(log id, offset, neighbouring locations) in order."""
    run: list[Location] = []
    for location in locations:
        if run:
            last = run[-1]
            follows = (
                location.log_id == last.log_id
                and location.offset == last.offset + RECORD_HEADER_BYTES + last.size_bytes
                and location.offset + location.size_bytes - run[0].offset <= _READ_SPAN_BYTES
            )
            if not follows:
                yield run[0].log_id, run[0].offset, run
                run = []
        run.append(location)
    if run:
        yield run[0].log_id, run[0].offset, run
