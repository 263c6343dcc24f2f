"""Whether ledgers lie where the placement policy wants them (BookKeeper replication/AuditorPlacementPolicyCheckTask)."""

from __future__ import annotations

from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


def misplaced_segments(metadata: LedgerMetadata, bookies: BookieDirectory) -> list[int]:
    """First entry ids of the segments whose bookies the policy would not have put together; of closed ledgers only.

    An open one's writer may be about to replace a bookie.
    """
    if metadata.state is not LedgerState.CLOSED:
        return []
    return [
        segment.first_entry_id
        for segment in metadata.segments
        if not bookies.adheres(segment.ensemble, metadata.write_quorum)
    ]
