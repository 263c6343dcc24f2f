"""What auto-recovery has done since the start of the process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AutoRecoveryStatistics:
    """Names ending in `_total` only rise; the others say how things are now. Sizes in bytes."""

    auditor_elected: bool = False
    bookie_audits_total: int = 0
    bookies_lost_total: int = 0
    bookies_missing: int = 0
    """Gone, and within the delay in which they may come back."""
    ledgers_marked_total: int = 0
    ledgers_checked_total: int = 0
    ledgers_unreadable_metadata_total: int = 0
    all_ledgers_checks_total: int = 0
    replicas_checks_total: int = 0
    placement_checks_total: int = 0
    ledgers_not_adhering_to_placement_policy: int = 0
    """As the last check of the placement found them."""
    audits_failed_total: int = 0
    copies_read_total: int = 0
    copies_read_bytes_total: int = 0
    """By the check of all copies."""
    copies_damaged_total: int = 0
    """Found by that check."""
    copies_check_progress_ratio: float = 0.0
    """Of the ledgers, how many the check that runs now has done; 0 while none runs."""

    ledgers_repaired_total: int = 0
    ledgers_failed_total: int = 0
    ledgers_waiting: int = 0
    """Marked, tried, and not repaired: see the log for why."""
    ledgers_deferred: int = 0
    """Open ledgers with a lost bookie, within the grace period of their writer."""
    ledgers_taken_over_total: int = 0
    fragments_copied_total: int = 0
    fragments_replaced_without_copy_total: int = 0
    entries_copied_total: int = 0
    bytes_copied_total: int = 0
    copies_rewritten_total: int = 0
    """Damaged copies that were written anew on their bookie."""
    entries_lost_total: int = 0
    """Entries that no bookie holds any more, each time this was seen."""
