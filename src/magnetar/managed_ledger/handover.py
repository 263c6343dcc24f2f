"""From one ledger to the next: drain or give up the old handle, close or recover its ledger, create the new one, save the list."""

from __future__ import annotations

import logging

from magnetar.base.errors import LedgerError, MetadataError
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.managed_ledger.appender import Appender
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.errors import ManagedLedgerFencedError
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
