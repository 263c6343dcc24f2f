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
    recoveries: int = 0
    recovered_entries: int = 0
    """Entries behind the LAC that recoveries found and copied."""
    speculative_reads: int = 0
    digest_mismatches: int = 0
    """Answers with damaged or foreign entries, each followed by a try of the next replica."""

    def changed(self, duration_s: float, replaced: int) -> None:
        """One ensemble change ended well."""
        self.ensemble_changes += 1
        self.bookies_replaced += replaced
        self.ensemble_change_s_total += duration_s
        self.ensemble_change_s_last = duration_s
        self.ensemble_change_s_max = max(self.ensemble_change_s_max, duration_s)
