"""When a ledger is full. Pure."""

from __future__ import annotations

from magnetar.managed_ledger.config import ManagedLedgerConfig


def is_full(entries: int, size_bytes: int, age_ms: float, config: ManagedLedgerConfig) -> bool:
    """Whether the ledger takes no more: it is large (but not before its minimum age), or it is old and holds something."""
    if not entries:
        return False
    if age_ms >= config.max_rollover_age_ms:
        return True
    large = entries >= config.max_entries_per_ledger or size_bytes >= config.max_size_per_ledger_bytes
    return large and age_ms >= config.min_rollover_age_ms


def next_age_check_ms(entries: int, size_bytes: int, age_ms: float, config: ManagedLedgerConfig) -> float:
    """How long until time alone can make the ledger full; at least 1. For the timer of ledgers that get no appends."""
    large = entries >= config.max_entries_per_ledger or size_bytes >= config.max_size_per_ledger_bytes
    due_ms: float = config.min_rollover_age_ms if large else config.max_rollover_age_ms
    if due_ms <= age_ms:  # old but empty: look again after another full period
        due_ms = age_ms + config.max_rollover_age_ms
    return max(1.0, due_ms - age_ms)
