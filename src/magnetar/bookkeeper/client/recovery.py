"""Taking over a ledger whose writer is gone: fence, find the end, copy the tail, close (BookKeeper LedgerRecoveryOp).

Safety rests on four rules. Every read here fences, so that no bookie counted as "has not got it" can take the old writer's entry
afterwards (BookKeeper issue 2614). Only explicit negatives count towards "does not exist" (1067, 2908). Bookies are asked at the
places which the metadata named when the recovery began. What replaces a failed bookie is written together with the close and
never before: metadata in recovery gets no segment.
"""

from __future__ import annotations

from magnetar.base.errors import BadVersionError
from magnetar.bookkeeper.client.context import ClientContext
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.client.tail_recovery import RecoveredTail, TailRecovery
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


async def recover(source: LedgerSource, version: int, context: ClientContext) -> LedgerMetadata:
    """Close the ledger of `source` (metadata at `version`) and answer its final metadata. Several clients may do so at once.

    Raises LedgerRecoveryError when too few bookies answered, NoSuchLedgerError when it was deleted meanwhile.
    """
    manager = context.manager
    version = await _mark(source, version, manager)
    if source.metadata.state is LedgerState.CLOSED:
        return source.metadata
    context.statistics.recoveries += 1
    found = await TailRecovery(source, context).run()
    return await _close(source, version, manager, found)


async def _mark(source: LedgerSource, version: int, manager: LedgerManager) -> int:
    """OPEN to IN_RECOVERY, so that the old writer can no longer change the ensemble. Answers the version."""
    while source.metadata.state is LedgerState.OPEN:
        marked = source.metadata.in_recovery()
        try:
            version = await manager.write(source.ledger_id, marked, version)
            source.metadata = marked
        except BadVersionError:
            source.metadata, version = await manager.read(source.ledger_id)
    return version


async def _close(source: LedgerSource, version: int, manager: LedgerManager, found: RecoveredTail) -> LedgerMetadata:
    """IN_RECOVERY to CLOSED, together with the bookies that were replaced on the way."""
    metadata = source.metadata
    while metadata.state is not LedgerState.CLOSED:
        closed = metadata
        for change in found.changes:
            closed = change.apply(closed)
        closed = closed.closed(found.last_entry_id, found.length)
        try:
            await manager.write(source.ledger_id, closed, version)
            metadata = closed
        except BadVersionError:
            # Another recovery, or the writer itself, was faster: if it closed the ledger, its result is the result.
            metadata, version = await manager.read(source.ledger_id)
    return metadata
