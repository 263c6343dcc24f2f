"""What a bookie says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.bookkeeper.bookie.storage.latencies import LatencySummary


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    """Of the file system that holds a directory, and of the bookie's own files in it, in bytes."""

    path: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class BookieStatistics:
    """Counters are since the start of the process; sizes in bytes."""

    adds_total: int
    add_bytes_total: int
    adds_refused_total: int
    reads_total: int
    read_bytes_total: int
    reads_from_disk_total: int
    read_errors_total: int
    journal_commits_total: int
    journal_fsyncs_total: int
    journal_bytes_total: int
    journal_pending_bytes: int
    journal_queued: int
    journal_sync: LatencySummary
    journal_add: LatencySummary
    disk_read: LatencySummary
    journal_sequence: int
    checkpoint_sequence: int
    write_cache_bytes: int
    write_cache_entries: int
    read_cache_bytes: int
    adds_waiting: int
    flushes_total: int
    ledgers: int
    tombstones: int
    entry_logs: int
    entry_log_bytes: int
    damaged_entry_logs: int
    ledgers_deleted_total: int
    overreplicated_deleted_total: int
    entry_logs_deleted_total: int
    compacted_bytes_total: int
    garbage_collections_failed_total: int
    read_only: bool
    failed: bool
    directories: tuple[DirectoryUsage, ...]
