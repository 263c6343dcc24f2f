"""Writing an ensemble change into a ledger's metadata: compare-and-set until it is there or cannot be."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.base.errors import BadVersionError, MetadataError
from magnetar.bookkeeper.client.ensemble_change import Change, Conflict
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.errors import LedgerClosedError, LedgerFencedError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata

METADATA_PATIENCE_S: Final = 30.0
"""A metadata store that cannot be reached for longer fails the ensemble change and with it the writer."""

_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 1.0


async def write_change(
    manager: LedgerManager, ledger_id: int, metadata: LedgerMetadata, version: int, change: Change
) -> tuple[LedgerMetadata, int]:
    """Store the change on top of `metadata` at `version`; answers what is stored then, and its version.

    Raises LedgerClosedError, LedgerFencedError, NoSuchLedgerError, or the store's MetadataError once patience is over. An answer that
    gets lost does no harm: what is found on the next look decides.
    """
    deadline = asyncio.get_running_loop().time() + METADATA_PATIENCE_S
    pause = _RETRY_FIRST_S
    known = True
    while True:
        try:
            if not known:
                metadata, version = await manager.read(ledger_id)
                known = True
                verdict = change.conflict(metadata)
                if verdict is Conflict.CLOSED:
                    raise LedgerClosedError(
                        f"ledger {ledger_id} was closed at entry {metadata.last_entry_id} elsewhere"
                    )
                if verdict is Conflict.IN_RECOVERY:
                    raise LedgerFencedError(f"ledger {ledger_id} is being taken over by another client")
                if verdict is Conflict.DONE:
                    return metadata, version
            changed = change.apply(metadata)
            return changed, await manager.write(ledger_id, changed, version)
        except BadVersionError:
            known = False
        except MetadataError as error:
            # The write may or may not have been stored.
            known = False
            if not error.retriable or asyncio.get_running_loop().time() + pause > deadline:
                raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_MAX_S)
