"""Changes of ledger: taking a managed ledger over from its previous owner, and going from a full ledger to the next.

Both end the old ledger (drained and closed, or fenced and recovered), create the new one and save the list.
"""

from __future__ import annotations

import logging

from magnetar.base.errors import LedgerError, MetadataError
from magnetar.bookkeeper.errors import NoSuchLedgerError, NotEnoughBookiesError
from magnetar.managed_ledger.appender import Appender
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.errors import ManagedLedgerFencedError, ManagedLedgerNotFoundError
from magnetar.managed_ledger.ledger_index import LedgerSummary
from magnetar.managed_ledger.ports import WritableLedger

log = logging.getLogger(__name__)


async def create_ledger(context: LedgerContext) -> WritableLedger:
    config = context.config
    return await context.client.create_ledger(
        ensemble_size=config.ensemble_size,
        write_quorum=config.write_quorum,
        ack_quorum=config.ack_quorum,
        custom_metadata=context.custom_metadata(),
    )


async def close_old(context: LedgerContext, old: Appender) -> LedgerSummary:
    """End the ledger and answer its final summary. Entries that turn out to be stored are completed; the rest stay pending.

    Raises ManagedLedgerFencedError, LedgerError or MetadataError; repeating the call is allowed then.
    """
    await old.drained()
    old.retire()
    try:
        await old.handle.close()
    except LedgerError as error:
        # Somebody else fenced or closed it, or its metadata could not be written. If the list is still ours, recovery decides
        # where the ledger ends: entries that were under way may be stored, and then count as appended.
        log.warning("ledger not closed, recovering it  managed_ledger=%s ledger=%d: %s", context.name, _id(old), error)
        await context.store.verify_owner()
        await _recover(context, old)
    else:
        old.settle(old.handle.last_add_confirmed)
        context.reader.keep(old.handle)
    held = old.summary
    return LedgerSummary(held.ledger_id, held.entries, held.size_bytes, context.clock.now_ms(), held.extra)


async def replace_ledger(context: LedgerContext, old: Appender | None) -> tuple[WritableLedger, LedgerSummary]:
    """Close `old` and put a new ledger at the end of the list. The list's lock must be held.

    An old ledger without entries is taken out of the list, and deleted once that is stored.
    """
    closed = None if old is None else await close_old(context, old)
    handle = await create_ledger(context)
    summary = LedgerSummary(handle.ledger_id)
    empty = [] if closed is None or closed.entries else [closed.ledger_id]
    try:
        await context.store.save(add=summary, remove=empty, closed=closed)
    except ManagedLedgerFencedError:
        await context.delete_orphans(handle.ledger_id)
        raise
    except MetadataError:
        log.error(
            "ledger left behind, the list could not be saved  managed_ledger=%s ledger=%d",
            context.name,
            handle.ledger_id,
        )
        raise
    if empty:
        await context.delete_orphans(*empty)
    return handle, summary


async def _recover(context: LedgerContext, old: Appender) -> None:
    try:
        reader = await context.client.open_ledger(_id(old), recover=True)
    except NoSuchLedgerError as error:
        log.error(
            "ledger is gone while being written  managed_ledger=%s ledger=%d entries=%d: %s",
            context.name,
            _id(old),
            old.summary.entries,
            error,
        )
        return
    if reader.last_add_confirmed + 1 < old.summary.entries:
        log.error(
            "recovery lost acknowledged entries  managed_ledger=%s ledger=%d acknowledged=%d recovered=%d",
            context.name,
            _id(old),
            old.summary.entries,
            reader.last_add_confirmed + 1,
        )
    old.settle(reader.last_add_confirmed)
    context.reader.keep(reader)


def _id(appender: Appender) -> int:
    return appender.handle.ledger_id


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
