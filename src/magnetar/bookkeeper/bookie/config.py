"""Settings of one bookie: directories, sizes, intervals. Sizes in bytes, intervals in seconds."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from magnetar.base.errors import ConfigError
from magnetar.base.limits import BOOKIE_WRITE_CACHE_BYTES_MAX, JOURNAL_PENDING_BYTES_MAX

ENTRY_BYTES_MAX = 16 * 1024 * 1024 - 64
"""A longer entry is refused as BAD_REQUEST; a longer length field on disk is damage."""

_MIB = 1024 * 1024

HEADROOM_BYTES_MAX = 64 * _MIB
HEADROOM_PART = 5
"""One part in so many of the disk (but at most `HEADROOM_BYTES_MAX`) is not for entries of clients: fences, recovery, deletions, the
index, the metadata beside it and the next start find room there. A bookie that would reach into it is read-only."""

ENTRY_OVERHEAD_BYTES = 128
"""What the record header and the index need for an entry, besides its own bytes, when it goes from the write cache to an entry log."""

_DISK_PART = 16
_SMALL_FILE_BYTES_MIN = _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """`data_dir` holds everything unless `journal_dir` or `ledger_dir` put a part on another device."""

    data_dir: Path
    journal_dir: Path | None = None
    ledger_dir: Path | None = None
    bookie_id: str = "127.0.0.1:3181"
    instance_id: str = ""

    unsafe_no_fsync: bool = False
    """Acknowledge after write() instead of fsync: a power cut loses acknowledged entries and fences. Never for data you need."""

    boot_id: str = ""
    """Of the machine, another one after each of its starts: a bookie that did not sync refuses to start on another than it ran on."""

    journal_file_bytes: int = 32 * _MIB
    journal_batch_bytes: int = 4 * _MIB
    """A commit takes entries until it holds this much; the rest goes into the next one."""
    journal_preallocate_bytes: int = 1024 * 1024
    """A fresh journal file grows by zero-filled steps of this size: fdatasync then has no new block to record. Behind each step one
    commit does, at 1,000 entries/s one in a second: rarer than the hundredth that p99 is. Reused files are full."""
    journal_spare_files: int = 2
    """Trimmed files kept for reuse, whose blocks fdatasync need not record again; further ones are deleted."""
    journal_pending_bytes: int = JOURNAL_PENDING_BYTES_MAX

    write_cache_bytes: int = BOOKIE_WRITE_CACHE_BYTES_MAX
    """Of each of the two halves."""
    read_cache_bytes: int = 16 * _MIB
    read_ahead_entries: int = 64
    read_ahead_bytes: int = 512 * 1024
    flush_interval_s: float = 60.0
    """The longest time between two checkpoints; bounds what a restart has to replay."""

    index: str = "auto"
    """`rocksdb`, `sqlite`, or `auto`: RocksDB where it is installed. A directory keeps the index it was created with."""

    entry_log_bytes: int = 256 * _MIB
    gc_interval_s: float = 60.0
    minor_compaction_ratio: float = 0.2
    minor_compaction_interval_s: float = 600.0
    major_compaction_ratio: float = 0.8
    major_compaction_interval_s: float = 3600.0
    gc_overreplicated_interval_s: float = 24 * 3600.0
    """Between two looks for closed ledgers whose metadata names other bookies only; 0: never."""
    compaction_step_bytes: int = 4 * _MIB
    """Copied between two moments in which a flush of the write cache may run."""
    tombstone_retention_s: float = 7 * 24 * 3600.0
    """For so long a late write to a deleted ledger is refused instead of bringing the ledger back."""

    disk_check_interval_s: float = 10.0
    disk_usage_max_ratio: float = 0.95
    disk_free_plenty_bytes: int = 4 * 1024 * _MIB
    """The bookie is read-only when its disk is fuller than the ratio AND less than this is free; a nearly full big disk still serves."""
    disk_usage_low_ratio: float = 0.95
    """A read-only bookie is writable again below this (or with `disk_free_plenty_bytes` free)."""
    disk_usage_warn_ratio: float = 0.9
    """Above this, with less than plenty free, no major compaction: it needs room before it gives any."""
    disk_free_reserve_bytes: int = 256 * _MIB
    """High-priority writes (recovery) go on in read-only mode while this much is free."""

    def __post_init__(self) -> None:
        for name in (
            "journal_file_bytes",
            "journal_batch_bytes",
            "journal_pending_bytes",
            "write_cache_bytes",
            "entry_log_bytes",
            "compaction_step_bytes",
            "read_ahead_entries",
            "flush_interval_s",
            "gc_interval_s",
            "disk_check_interval_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"bookie setting {name} is {getattr(self, name)}; it must be greater than 0")
        if self.journal_batch_bytes > 32 * _MIB:
            raise ConfigError(f"bookie setting journal_batch_bytes is {self.journal_batch_bytes}; take at most 32 MiB")
        if self.index not in ("auto", "rocksdb", "sqlite"):
            raise ConfigError(f"bookie setting index is {self.index!r}; take auto, rocksdb or sqlite")
        if not 0 <= self.minor_compaction_ratio <= self.major_compaction_ratio <= 1:
            raise ConfigError(
                "0 <= minor_compaction_ratio <= major_compaction_ratio <= 1 does not hold; correct the ratios"
            )
        if not 0 < self.disk_usage_low_ratio <= self.disk_usage_max_ratio <= 1:
            raise ConfigError(
                f"bookie settings disk_usage_low_ratio {self.disk_usage_low_ratio} and disk_usage_max_ratio "
                f"{self.disk_usage_max_ratio}: take 0 < low <= max <= 1"
            )

    def fitted(self, disk_bytes: int) -> BookieConfig:
        """The same on a disk of this size: on a small one files and caches shrink, because only whole files are ever given back."""
        part = max(disk_bytes // _DISK_PART, _SMALL_FILE_BYTES_MIN)
        return replace(
            self,
            journal_file_bytes=min(self.journal_file_bytes, part),
            journal_spare_files=self.journal_spare_files if part >= self.journal_file_bytes else 0,
            journal_preallocate_bytes=min(self.journal_preallocate_bytes, part // 8),
            write_cache_bytes=min(self.write_cache_bytes, part),
            entry_log_bytes=min(self.entry_log_bytes, part),
            disk_free_reserve_bytes=min(self.disk_free_reserve_bytes, headroom_bytes(disk_bytes) // 16),
        )

    @property
    def journal_path(self) -> str:
        """Where the journal's files lie."""
        return os.path.join(self.journal_dir or self.data_dir / "journal", "current")

    @property
    def ledger_path(self) -> str:
        """Where the entry logs, the index and the checkpoint mark lie."""
        return os.path.join(self.ledger_dir or self.data_dir / "ledgers", "current")


def headroom_bytes(disk_bytes: int) -> int:
    """Of a disk of this size; see `HEADROOM_PART`."""
    return min(disk_bytes // HEADROOM_PART, HEADROOM_BYTES_MAX)
