"""The settings of auto-recovery, in a process of its own or inside a bookie: BookKeeper's key names."""

from __future__ import annotations

from magnetar.base.settings import Settings, setting


class CopiesCheckSettings(Settings):
    """The check of all copies: of the auditor, and of a standalone server's bookie."""

    # ---- Check of all copies
    auditor_periodic_check_interval_s: int = setting(
        604_800,
        "auditorPeriodicCheckInterval",
        "How often the auditor reads the copies of all ledgers on every bookie; 0: never.",
        unit="s",
        minimum=0,
    )
    auditor_ledger_verification_percentage: float = setting(
        100.0,
        "auditorLedgerVerificationPercentage",
        "Of the entries between the ends of a fragment that this check reads as well. BookKeeper: 0.",
        unit="%",
        minimum=0,
        maximum=100,
    )
    auditor_verification_rate_by_bytes: int = setting(
        4 * 1024 * 1024,
        "auditorVerificationRateByBytes",
        "How fast this check reads, all bookies together; an entry counts as 1 KiB more. 0: as fast as it goes.",
        unit="bytes/s",
        minimum=0,
    )


class AutorecoverySettings(CopiesCheckSettings):
    """A part of the configuration of `magnetar autorecovery` and `magnetar bookie`."""

    # ---- Auto-recovery
    lost_bookie_recovery_delay_s: int = setting(
        0,
        "lostBookieRecoveryDelay",
        "How long a bookie may be gone before its ledgers are copied; the metadata store's value wins.",
        unit="s",
        minimum=0,
    )
    auditor_periodic_bookie_check_interval_s: int = setting(
        86_400,
        "auditorPeriodicBookieCheckInterval",
        "How often the auditor compares all ledgers with the bookies there are; 0: only when one goes.",
        unit="s",
        minimum=0,
    )
    auditor_periodic_replicas_check_interval_s: int = setting(
        0,
        "auditorPeriodicReplicasCheckInterval",
        "How often the auditor asks every bookie which entries it holds, and misses none; 0: never.",
        unit="s",
        minimum=0,
    )
    auditor_periodic_placement_policy_check_interval_s: int = setting(
        0,
        "auditorPeriodicPlacementPolicyCheckInterval",
        "How often the auditor counts the ledgers that do not lie as the placement policy wants; 0: never.",
        unit="s",
        minimum=0,
    )
    open_ledger_rereplication_grace_period_ms: int = setting(
        30_000,
        "openLedgerRereplicationGracePeriod",
        "How long a writer has to replace a lost bookie itself before its ledger is closed.",
        unit="ms",
        minimum=0,
    )
    rereplication_entry_batch_size: int = setting(
        64, "rereplicationEntryBatchSize", "Entries of a ledger that are copied at a time. BookKeeper: 10.", minimum=1
    )
    replication_rate_by_bytes: int = setting(
        -1, "replicationRateByBytes", "Bytes a second that a worker copies; -1: as fast as it goes.", minimum=-1
    )
