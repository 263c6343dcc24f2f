"""Settings of one managed ledger; a topic's policies turn into one of these. Sizes in bytes, times in ms."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.base.errors import InvalidArgumentError

FOREVER = -1
"""As `retention_time_ms` or `retention_size_bytes`: this one alone never removes anything."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerConfig:
    """Immutable; `ManagedLedger.set_config` replaces it while running.

    A ledger is full at `max_entries_per_ledger` or `max_size_per_ledger_bytes` once it is `min_rollover_age_ms` old, and at
    `max_rollover_age_ms` in any case. Consumed ledgers go when they are older than `retention_time_ms` or when the rest is at
    least `retention_size_bytes`; 0 and 0 keep nothing, and keeping for ever takes `FOREVER` in both.
    """

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    max_entries_per_ledger: int = 50_000
    max_size_per_ledger_bytes: int = 2048 * 1024 * 1024
    max_rollover_age_ms: int = 4 * 3600 * 1000
    min_rollover_age_ms: int = 600_000
    retention_time_ms: int = 0
    retention_size_bytes: int = 0
    cursor_persist_interval_ms: int = 100
    cursor_ledger_max_entries: int = 50_000
    cursor_ledger_max_age_ms: int = 4 * 3600 * 1000
    max_ranges_in_metadata_store: int = 1000
    auto_skip_non_recoverable_data: bool = False
    cache_entries: bool = True
    create_if_missing: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise InvalidArgumentError(
                f"need 1 <= ack_quorum {self.ack_quorum} <= write_quorum {self.write_quorum}"
                f" <= ensemble_size {self.ensemble_size}"
            )
        for name in (
            "max_entries_per_ledger",
            "max_size_per_ledger_bytes",
            "max_rollover_age_ms",
            "cursor_ledger_max_entries",
        ):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("retention_time_ms", "retention_size_bytes"):
            if getattr(self, name) < FOREVER:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}; use -1 for ever, 0 for none")


def is_full(entries: int, size_bytes: int, age_ms: float, config: ManagedLedgerConfig) -> bool:
    """True if the ledger takes no more entries: it is large (but not before its minimum age), or it is old and holds something."""
    if not entries:
        return False
    if age_ms >= config.max_rollover_age_ms:
        return True
    large = entries >= config.max_entries_per_ledger or size_bytes >= config.max_size_per_ledger_bytes
    return large and age_ms >= config.min_rollover_age_ms


def next_age_check_ms(entries: int, size_bytes: int, age_ms: float, config: ManagedLedgerConfig) -> float:
    """Milliseconds until age alone can make the ledger full, at least 1; for the timer of ledgers without appends."""
    large = entries >= config.max_entries_per_ledger or size_bytes >= config.max_size_per_ledger_bytes
    due_ms: float = config.min_rollover_age_ms if large else config.max_rollover_age_ms
    if due_ms <= age_ms:  # old but empty: look again after another full period
        due_ms = age_ms + config.max_rollover_age_ms
    return max(1.0, due_ms - age_ms)
