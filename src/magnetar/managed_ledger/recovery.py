"""Taking a managed ledger over: load its list, fence and end the previous owner's last ledger, start a new one, save."""

from __future__ import annotations

import logging

from magnetar.base.errors import LedgerError, MetadataError
from magnetar.bookkeeper.errors import NoSuchLedgerError, NotEnoughBookiesError
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.errors import ManagedLedgerFencedError, ManagedLedgerNotFoundError
from magnetar.managed_ledger.handover import create_ledger
from magnetar.managed_ledger.ledger_index import LedgerSummary
from magnetar.managed_ledger.ports import WritableLedger

log = logging.getLogger(__name__)


async def take_over(context: LedgerContext) -> tuple[WritableLedger, LedgerSummary] | LedgerError | None:
    """The new ledger to write and its summary; None when the managed ledger is terminated; the error when no bookie takes a new ledger but
    there are entries to read.

    The order is Pulsar's: recovery-open (which fences) first, then the list by compare-and-set, then deletions.
    """
    store = context.store
    async with store.lock:
        if not await store.load() and not context.config.create_if_missing:
            raise ManagedLedgerNotFoundError(f"managed ledger {context.name} does not exist")
        recovered = await _recover_last(context)
        empty = [held.ledger_id for held in context.index if not held.entries and held is not context.index.last]
        if recovered is not None and not recovered.entries:
            empty.append(recovered.ledger_id)
        if store.terminated_at is not None:
            if empty or recovered is not None:
                await store.save(remove=empty, closed=recovered)
            await context.delete_orphans(*empty)
            return None
        try:
            handle = await create_ledger(context)
        except NotEnoughBookiesError as error:
            if not context.index.total_entries and (recovered is None or not recovered.entries):
                raise  # nothing could be read: whoever opens it shall hear the reason at once
            log.warning("opened for reading  managed_ledger=%s: %s", context.name, error)
            if empty or recovered is not None:
                await store.save(remove=empty, closed=recovered)
            await context.delete_orphans(*empty)
            return error
        summary = LedgerSummary(handle.ledger_id)
        try:
            await store.save(add=summary, remove=empty, closed=recovered)
        except ManagedLedgerFencedError:
            await context.delete_orphans(handle.ledger_id)
            raise
        except MetadataError:
            log.error("ledger left behind  managed_ledger=%s ledger=%d", context.name, handle.ledger_id)
            raise
        await context.delete_orphans(*empty)
        return handle, summary


async def _recover_last(context: LedgerContext) -> LedgerSummary | None:
    """The last ledger's final summary (0 entries: drop it), None when there is no ledger."""
    last = context.index.last
    if last is None:
        return None
    try:
        reader = await context.client.open_ledger(last.ledger_id, recover=True)
    except NoSuchLedgerError as error:
        log.error("last ledger does not exist  managed_ledger=%s ledger=%d: %s", context.name, last.ledger_id, error)
        return LedgerSummary(last.ledger_id)
    entries = reader.last_add_confirmed + 1
    if entries:
        context.reader.keep(reader)
    return LedgerSummary(
        last.ledger_id, entries, reader.length, last.timestamp_ms or context.clock.now_ms(), last.extra
    )
