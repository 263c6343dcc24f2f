"""From the configuration file's settings to what the bookie takes."""

from __future__ import annotations

from pathlib import Path

from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.settings import BookieSettings

_MIB = 1024 * 1024


def bookie_config(config: BookieSettings, data_dir: Path, bookie_id: str, instance_id: str = "") -> BookieConfig:
    """Raises ConfigError."""
    return BookieConfig(
        data_dir=data_dir,
        bookie_id=bookie_id,
        instance_id=instance_id,
        unsafe_no_fsync=not config.journal_sync_data,
        journal_file_bytes=config.journal_max_size_mb * _MIB,
        write_cache_bytes=config.write_cache_max_size_mb * _MIB,
        read_cache_bytes=config.read_ahead_cache_max_size_mb * _MIB,
        read_ahead_entries=config.read_ahead_cache_batch_size,
        flush_interval_s=config.flush_interval_ms / 1000,
        entry_log_bytes=config.entry_log_size_limit,
        gc_interval_s=config.gc_wait_time_ms / 1000,
        gc_overreplicated_interval_s=config.gc_overreplicated_wait_time_ms / 1000,
        minor_compaction_ratio=config.minor_compaction_threshold,
        minor_compaction_interval_s=config.minor_compaction_interval_s,
        major_compaction_ratio=config.major_compaction_threshold,
        major_compaction_interval_s=config.major_compaction_interval_s,
        disk_usage_max_ratio=config.disk_usage_threshold,
        disk_usage_low_ratio=config.disk_usage_lwm_threshold,
        disk_usage_warn_ratio=config.disk_usage_warn_threshold,
        disk_free_plenty_bytes=config.disk_free_plenty_mb * _MIB,
        disk_free_reserve_bytes=config.min_usable_size_for_high_priority_writes,
        disk_check_interval_s=config.disk_check_interval_ms / 1000,
    )
