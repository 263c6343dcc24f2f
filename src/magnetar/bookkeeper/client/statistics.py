"""What a ledger client has been through: plain numbers, read when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ClientStatistics:
    """Counters since the client was made. Times in seconds."""

    ensemble_changes: int = 0
    """Changes whose metadata was written (several bookies may have been replaced in one)."""
    ensemble_change_failures: int = 0
    """Changes that ended with the writer failed."""
    bookies_replaced: int = 0
    ensemble_change_s_total: float = 0.0
    """Time in which a writer confirmed nothing because its ensemble was being changed: from the failed answer to the resend."""
    ensemble_change_s_max: float = 0.0
    ensemble_change_s_last: float = 0.0
    add_retries: int = 0
    """Entries sent again to an overloaded bookie for which there is no replacement."""
    explicit_lacs: int = 0
    add_quorum_timeouts: int = 0
    hedged_changes: int = 0
    """Ensemble changes that replaced a bookie which was silent while another one stored the same entry."""
    hedged_changes_under_way: int = 0
    recoveries: int = 0
    recovered_entries: int = 0
    """Entries behind the LAC that recoveries found and copied."""
    speculative_reads: int = 0
    digest_mismatches: int = 0
    """Answers with damaged or foreign entries, each followed by a try of the next replica."""
    damaged_copies: int = 0
    """Reads that met a damaged copy, or a bookie that could not read its own."""
    copies_checked: int = 0
    """Copies read by a standalone server's check of all copies."""
    copies_found_damaged: int = 0
    """Found by that check, once for every pass."""
    damage_reports: int = 0
    """Of these: ledgers of a bookie that were marked for repair."""
    damage_reports_dropped: int = 0
    """Of these: there was no room for the report. The next read or the check of all copies finds it again."""

    def changed(self, duration_s: float, replaced: int) -> None:
        """One ensemble change ended well."""
        self.ensemble_changes += 1
        self.bookies_replaced += replaced
        self.ensemble_change_s_total += duration_s
        self.ensemble_change_s_last = duration_s
        self.ensemble_change_s_max = max(self.ensemble_change_s_max, duration_s)
