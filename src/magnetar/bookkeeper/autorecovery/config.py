"""Settings of auto-recovery, under BookKeeper's names in snake case. Intervals in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.base.errors import ConfigError

COPY_READ_BYTES: Final = 1024
"""What reading a copy costs beside its bytes, in the currency of the rate: small entries cost processor time, not disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryConfig:
    """BookKeeper's defaults, but for the ones that say so."""

    auditor_enabled: bool = True
    replication_worker_enabled: bool = True

    lost_bookie_recovery_delay_s: int = 0
    """How long a single lost bookie may stay away before its ledgers are copied; the value in the metadata store wins."""
    auditor_periodic_bookie_check_interval_s: float = 86_400.0
    """Between two looks for ledgers that name a bookie nobody has registered; 0: only when a bookie is lost."""
    auditor_second_look_s: float = 60.0
    """After a bookie was lost its ledgers are looked for twice: clients that had not heard may have named it in new ones meanwhile."""
    auditor_periodic_check_interval_s: float = 604_800.0
    """Between two checks of all ledgers' copies; 0: never."""
    auditor_replicas_check_interval_s: float = 0.0
    """Between two checks of which entries every bookie says it holds; 0: never."""
    auditor_placement_check_interval_s: float = 0.0
    """Between two looks for ledgers that lie elsewhere than the placement policy wants; 0: never. They are counted, not moved."""
    auditor_ledger_verification_percentage: float = 100.0
    """Of the entries between first and last that this check reads as well. BookKeeper: 0."""
    auditor_verification_rate_by_bytes: int = 4 * 1024 * 1024
    """Bytes per second that this check reads at most, an entry counting as `COPY_READ_BYTES` more; 0 or less: no limit. Ours."""

    open_ledger_rereplication_grace_period_s: float = 30.0
    """For a writer to notice that a bookie is lost and to replace it, before its ledger is taken over and closed."""
    rereplication_entry_batch_size: int = 64
    """Entries copied at a time. BookKeeper: 10."""
    replication_rate_by_bytes: int = 0
    """Bytes per second that a worker writes at most; 0 or less: no limit."""
    failed_ledger_backoff_s: float = 5.0
    """Before a ledger that could not be repaired is tried again; doubles with every failure."""
    failed_ledger_backoff_max_s: float = 300.0
    poll_interval_s: float = 10.0
    """The longest time between two looks at what is marked and who is registered, should a watch have told nothing."""
    read_timeout_s: float = 10.0
    """A bookie that has not answered a read or write by then counts as unknown."""
    password: bytes = b""
    """Of ledgers whose metadata does not hold their own."""

    def __post_init__(self) -> None:
        for name in (
            "rereplication_entry_batch_size",
            "auditor_second_look_s",
            "failed_ledger_backoff_s",
            "failed_ledger_backoff_max_s",
            "poll_interval_s",
            "read_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"auto-recovery setting {name} is {getattr(self, name)}; it must be greater than 0")
        for name in (
            "lost_bookie_recovery_delay_s",
            "auditor_periodic_bookie_check_interval_s",
            "auditor_periodic_check_interval_s",
            "auditor_replicas_check_interval_s",
            "auditor_placement_check_interval_s",
            "open_ledger_rereplication_grace_period_s",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"auto-recovery setting {name} is {getattr(self, name)}; it must not be negative")
        if not 0 <= self.auditor_ledger_verification_percentage <= 100:
            raise ConfigError("auto-recovery setting auditor_ledger_verification_percentage must be from 0 to 100")
        if self.failed_ledger_backoff_s > self.failed_ledger_backoff_max_s:
            raise ConfigError("auto-recovery setting failed_ledger_backoff_s must not be above its maximum")
