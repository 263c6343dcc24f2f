"""Compaction: the live entries of a mostly dead entry log move to the current one, then the old file goes.

Order, per step: append copies, fsync the log, point the index to them (only entries that the index still finds at the old place), durably;
after the last step delete the old file. A crash anywhere leaves the old file, or copies that nothing points to.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from magnetar.base.errors import CorruptionError
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogMeta
from magnetar.bookkeeper.bookie.storage.entry_log_format import ScannedRecord
from magnetar.bookkeeper.bookie.storage.storage import LedgerStorage


class LogCompaction:
    """One log's compaction in steps, so that flushes of the write cache can run in between. Runs on the storage thread."""

    def __init__(self, storage: LedgerStorage, meta: EntryLogMeta, step_bytes: int) -> None:
        self._storage = storage
        self._meta = meta
        self._step_bytes = step_bytes
        self._records: Iterator[list[ScannedRecord]] = storage.logs.scan(meta)
        self._left: list[ScannedRecord] = []
        self.copied_bytes = 0

    def step(self, live_ledgers: Container[int]) -> bool:
        """Move about `step_bytes`; False when the old file is gone (or, being damaged, stays for good)."""
        try:
            records = self._next_records(live_ledgers)
        except CorruptionError:
            self._meta.damaged = True
            raise
        if records is None:
            self._storage.logs.delete(self._meta.log_id)
            self._storage.index.forget_log(self._meta.log_id)
            self._storage.index.sync()
            return False
        if records:
            logs = self._storage.logs
            indexed = logs.write((record.ledger_id, record.entry_id, record.entry) for record in records)
            self._storage.index.write(indexed, (), logs.sync())
            self.copied_bytes += sum(len(record.entry) for record in records)
        return True

    def _next_records(self, live_ledgers: Container[int]) -> list[ScannedRecord] | None:
        """Records the index still points to; [] when there were none in this stretch, None at the end of the log."""
        if not self._left:
            stretch = next(self._records, None)
            if stretch is None:
                return None
            self._left = stretch
        size = 0
        taken = 0
        for record in self._left:
            size += len(record.entry)
            taken += 1
            if size >= self._step_bytes:
                break
        records, self._left = self._left[:taken], self._left[taken:]
        return [record for record in records if record.ledger_id in live_ledgers and self._is_indexed(record)]

    def _is_indexed(self, record: ScannedRecord) -> bool:
        found = self._storage.index.locations(record.ledger_id, record.entry_id, 1)
        return bool(found) and found[0].log_id == self._meta.log_id and found[0].offset == record.offset
