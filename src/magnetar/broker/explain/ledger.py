"""Where a ledger lies: its segments and the bookies of each, what keeps it from being deleted, and which copies it lacks."""

from __future__ import annotations

from typing import Any

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.managed_ledger.ledger import ManagedLedger


async def open_segment(ledger: ManagedLedger, client: BookKeeperClient) -> dict[str, Any]:
    """The ledger that is written now, and the bookies that get its next entry."""
    ledger_id = ledger.current_ledger_id
    try:
        metadata = await client.read_metadata(ledger_id)
    except NoSuchLedgerError:
        return {"ledger": ledger_id, "ensemble": []}
    return {
        "ledger": ledger_id,
        "ensemble": list(metadata.last_segment.ensemble),
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "first_entry": metadata.last_segment.first_entry_id,
    }
