"""Removing consumed ledgers: persist cursors, decide, save the list, and only then delete."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.cursor import ManagedCursor
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.retention import consumed_before, deletable

log = logging.getLogger(__name__)


async def trim(context: LedgerContext, current_ledger_id: int, cursors: Collection[ManagedCursor]) -> int:
    """Delete what no durable cursor needs and retention does not keep; answers how many ledgers went.

    A cursor counts with what it has stored, not with what it has in memory: after a crash it would come back there, and must
    find its ledgers. `cursors` is looked at again under the lock, so one created meanwhile counts too. Raises
    ManagedLedgerFencedError or MetadataError; nothing was deleted then.
    """
    durable = [cursor for cursor in cursors if cursor.durable]
    now_ms = context.clock.now_ms()
    hoped = deletable(
        context.index, current_ledger_id, _slowest(c.mark_delete_position for c in durable), now_ms, context.config
    )
    if not hoped:
        return 0
    for cursor in durable:
        if (
            cursor.stored_mark_delete < cursor.mark_delete_position
            and consumed_before(context.index, current_ledger_id, cursor.stored_mark_delete) <= hoped[-1]
        ):
            await cursor.flush()
    async with context.store.lock:
        if context.closed:
            return 0
        durable = [cursor for cursor in cursors if cursor.durable]
        slowest = _slowest(min(c.stored_mark_delete, c.mark_delete_position) for c in durable)
        chosen = deletable(context.index, current_ledger_id, slowest, now_ms, context.config)
        if not chosen:
            return 0
        await context.store.save(remove=chosen)
    for cursor in durable:
        cursor.ledgers_removed()
    log.info("ledgers removed  managed_ledger=%s ledgers=%s", context.name, chosen)
    await context.delete_orphans(*chosen)
    return len(chosen)


def _slowest(positions: Iterable[Position]) -> Position | None:
    return min(positions, default=None)
