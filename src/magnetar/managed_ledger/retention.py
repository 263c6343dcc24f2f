"""Which ledgers may be deleted. Pure; the rules are Pulsar's (ManagedLedgerImpl, trimming of consumed ledgers)."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.ledger_index import LedgerIndex, LedgerSummary
from magnetar.managed_ledger.position import Position


def consumed_before(index: LedgerIndex, current_ledger_id: int, slowest: Position | None) -> int:
    """The ledger id below which everything is consumed. `slowest` is the least durable mark-delete, None without cursors."""
    if slowest is None:
        return current_ledger_id + 1
    summary = index.get(slowest.ledger_id)
    finished = summary is not None and slowest.entry_id >= summary.entries - 1
    if finished and slowest.ledger_id != current_ledger_id:
        return slowest.ledger_id + 1
    return slowest.ledger_id


def deletable(
    index: LedgerIndex, current_ledger_id: int, slowest: Position | None, now_ms: int, config: ManagedLedgerConfig
) -> list[int]:
    """Ledgers that go, oldest first: consumed by everyone, never the current one, and expired or over the retained size.

    The first ledger that is neither ends the list, so what stays is always without a gap.
    """
    limit = consumed_before(index, current_ledger_id, slowest)
    candidates = [summary for summary in index if summary.ledger_id < limit and summary.ledger_id != current_ledger_id]
    return _oldest_to_drop(candidates, sum(summary.size_bytes for summary in index), now_ms, config)


def _oldest_to_drop(
    candidates: Iterable[LedgerSummary], total_bytes: int, now_ms: int, config: ManagedLedgerConfig
) -> list[int]:
    chosen: list[int] = []
    left_bytes = total_bytes
    for summary in candidates:
        left_bytes -= summary.size_bytes
        expired = config.retention_time_ms >= 0 and now_ms - summary.timestamp_ms > config.retention_time_ms
        over_size = config.retention_size_bytes >= 0 and left_bytes >= config.retention_size_bytes
        if not (expired or over_size):
            break
        chosen.append(summary.ledger_id)
    return chosen
