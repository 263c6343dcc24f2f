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
from magnetar.bookkeeper.bookie.storage.write_cache import ABSENT, GAP_ENTRIES_MAX


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
            indexed = logs.write(
                (run[0].ledger_id, run[0].entry_id, _with_gaps(run)) for run in _runs(records, GAP_ENTRIES_MAX)
            )
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
        live = [record for record in records if record.ledger_id in live_ledgers]
        return [record for run in _runs(live) for record in self._indexed(run)]

    def _indexed(self, run: list[ScannedRecord]) -> list[ScannedRecord]:
        """Of records with consecutive ids those that the index finds where they were scanned."""
        found: list[ScannedRecord] = []
        while run:
            locations = self._storage.index.locations(run[0].ledger_id, run[0].entry_id, len(run))
            for record, location in zip(run, locations, strict=False):
                if location.log_id == self._meta.log_id and location.offset == record.offset:
                    found.append(record)
            run = run[len(locations) + 1 :]  # the one behind the last location is not indexed
        return found


def _runs(records: list[ScannedRecord], gap_entries_max: int = 0) -> Iterator[list[ScannedRecord]]:
    """Records of one ledger with consecutive ids, or ascending ones of which no more are missing; each as many as possible."""
    run: list[ScannedRecord] = []
    for record in records:
        if run:
            missing = record.entry_id - run[-1].entry_id - 1
            if record.ledger_id != run[-1].ledger_id or not 0 <= missing <= gap_entries_max:
                yield run
                run = []
        run.append(record)
    if run:
        yield run


def _with_gaps(run: list[ScannedRecord]) -> list[bytes]:
    """The entries in the form of `EntryRun`."""
    entries: list[bytes] = []
    for record in run:
        entries += [ABSENT] * (record.entry_id - run[0].entry_id - len(entries))
        entries.append(record.entry)
    return entries
