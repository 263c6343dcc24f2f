"""The settings of a bookie's storage, in a process of its own or inside `magnetar standalone`: BookKeeper's key names."""

from __future__ import annotations

from magnetar.base.errors import ConfigError
from magnetar.base.settings import Settings, setting


class BookieSettings(Settings):
    """A part of the configuration of `magnetar standalone` and `magnetar bookie`."""

    # ---- Bookie
    journal_sync_data: bool = setting(
        True,
        "journalSyncData",
        "Acknowledge a message only when the disk has it. false LOSES acknowledged messages when the machine stops.",
        differs="Pulsar's standalone.conf loses acknowledged messages when the machine stops; here a receipt means that the disk has it.",
    )
    journal_max_size_mb: int = setting(
        32, "journalMaxSizeMB", "Size at which the journal starts a new file. BookKeeper: 2048.", unit="MiB", minimum=1
    )
    flush_interval_ms: int = setting(
        60_000, "flushInterval", "Longest time between checkpoints, which bound recovery.", unit="ms", minimum=10
    )
    write_cache_max_size_mb: int = setting(
        64,
        "dbStorage_writeCacheMaxSizeMb",
        "Entries kept in memory before they go to entry logs.",
        unit="MiB",
        minimum=1,
        differs="Pulsar takes a quarter of the JVM's direct memory; there is none here.",
    )
    entry_log_size_limit: int = setting(
        256 * 1024 * 1024, "logSizeLimit", "Size at which an entry log is closed.", unit="bytes", minimum=1024 * 1024
    )
    gc_wait_time_ms: int = setting(
        60_000,
        "gcWaitTime",
        "How often entry logs of deleted ledgers are looked for. BookKeeper: 900000.",
        unit="ms",
        minimum=10,
        differs="Room on a small disk comes back sooner; looking costs little.",
    )
    gc_overreplicated_wait_time_ms: int = setting(
        24 * 3_600_000,
        "gcOverreplicatedLedgerWaitTime",
        "How often closed ledgers are looked for that other bookies store instead; 0: never.",
        unit="ms",
        minimum=0,
    )
    minor_compaction_threshold: float = setting(
        0.2,
        "minorCompactionThreshold",
        "Minor compaction rewrites entry logs of which less than this part is alive; 0: none.",
        minimum=0,
        maximum=1,
    )
    minor_compaction_interval_s: float = setting(
        600.0,
        "minorCompactionInterval",
        "How often minor compaction runs. BookKeeper: 3600.",
        unit="s",
        minimum=0.01,
    )
    major_compaction_threshold: float = setting(
        0.8,
        "majorCompactionThreshold",
        "Major compaction rewrites entry logs of which less than this part is alive; 0: none.",
        minimum=0,
        maximum=1,
    )
    major_compaction_interval_s: float = setting(
        3600.0,
        "majorCompactionInterval",
        "How often major compaction runs. BookKeeper: 86400.",
        unit="s",
        minimum=0.01,
    )

    # ---- Bookie: disk space
    disk_usage_threshold: float = setting(
        0.95,
        "diskUsageThreshold",
        "A disk fuller than this, with less than diskFreePlenty left, makes the bookie read-only.",
        minimum=0.001,
        maximum=1,
        differs="BookKeeper's own default; standalone.conf lets the disk run fuller.",
    )
    disk_usage_lwm_threshold: float = setting(
        0.95,
        "diskUsageLwmThreshold",
        "A read-only bookie becomes writable again below this.",
        minimum=0.001,
        maximum=1,
    )
    disk_usage_warn_threshold: float = setting(
        0.9,
        "diskUsageWarnThreshold",
        "Above this major compaction waits, which needs room first; on a full disk minor compaction waits too.",
        minimum=0.001,
        maximum=1,
        differs="Major compaction needs room, and stops before the disk is full.",
    )
    disk_free_plenty_mb: int = setting(
        4096,
        "diskFreePlenty",
        "While this much is free no ratio counts: a nearly full big disk still serves. BookKeeper has no such bound (0).",
        unit="MiB",
        minimum=0,
    )
    min_usable_size_for_high_priority_writes: int = setting(
        256 * 1024 * 1024,
        "minUsableSizeForHighPriorityWrites",
        "A read-only bookie still takes what recovery writes while this much is free.",
        unit="bytes",
        minimum=0,
    )
    disk_check_interval_ms: int = setting(
        10_000, "diskCheckInterval", "How often the free space is looked at.", unit="ms", minimum=10
    )

    # ---- Bookie: reads
    read_ahead_cache_max_size_mb: int = setting(
        16,
        "dbStorage_readAheadCacheMaxSizeMb",
        "Entries read ahead that are kept in memory.",
        unit="MiB",
        minimum=0,
        differs="Pulsar takes a quarter of the JVM's direct memory; there is none here.",
    )
    read_ahead_cache_batch_size: int = setting(
        64,
        "dbStorage_readAheadCacheBatchSize",
        "Entries read ahead of one that is read from disk.",
        minimum=1,
        differs="A smaller cache is read ahead in smaller steps.",
    )

    def check_bookie(self) -> None:
        """Rules that tie several settings together. Raises ConfigError."""
        if self.minor_compaction_threshold > self.major_compaction_threshold:
            raise ConfigError("minorCompactionThreshold <= majorCompactionThreshold must hold")
        if self.disk_usage_lwm_threshold > self.disk_usage_threshold:
            raise ConfigError("diskUsageLwmThreshold <= diskUsageThreshold must hold")

    def bookie_warnings(self) -> list[str]:
        """What the operator must hear about at every start, one line each."""
        if self.journal_sync_data:
            return []
        return [
            "journalSyncData=false: ACKNOWLEDGED MESSAGES ARE LOST when the machine stops; never for data that matters"
        ]
