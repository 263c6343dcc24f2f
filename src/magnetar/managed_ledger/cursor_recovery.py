"""Loading a cursor. In order: znode, then the last complete state of its ledger; a lost ledger falls back on the znode's
mark-delete, which is older, so messages may come again but none is skipped."""

from __future__ import annotations

import logging

from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.errors import NoSuchEntryError, NoSuchLedgerError
from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.cursor_codec import (
    CursorState,
    decode_entries,
    decode_node,
    parse_entry,
    parts_of,
    restore,
)
from magnetar.managed_ledger.cursor_store import IN_NODE, CursorStore, StoredState
from magnetar.managed_ledger.errors import CursorStateError
from magnetar.managed_ledger.ledger_index import LedgerIndex
from magnetar.managed_ledger.ports import ReadableLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.reads import read_payloads
from magnetar.wire.pulsar.MLDataFormats_pb2 import PositionInfo

log = logging.getLogger(__name__)

STATE_BYTES_PER_READ = 32 * 1024 * 1024
"""Bytes asked of a cursor ledger at once; a state in more parts takes several reads."""


async def recover_state(context: LedgerContext, store: CursorStore) -> StoredState | None:
    """The cursor's stored state against the ledgers that exist; None when there is no such cursor."""
    info = await store.load()
    if info is None:
        return None
    state = None if store.ledger_id == IN_NODE else await _from_ledger(context, store)
    if state is None:
        state = decode_node(info) or CursorState(context.index.before_first())
        if store.ledger_id != IN_NODE:
            state = CursorState(state.mark_delete, state.properties)
    state.mark_delete = existing_mark_delete(context.index, state.mark_delete)
    acks = _restored(context, state)
    cursor_properties = {item.name: item.value for item in info.cursorProperties}
    return StoredState(acks, state.properties, cursor_properties, info.lastActive or context.clock.now_ms())


def existing_mark_delete(index: LedgerIndex, stored: Position) -> Position:
    """A stored mark-delete, moved to where the list of ledgers allows: never beyond the end, never inside a gap."""
    end = index.end()
    if stored > end:
        return end
    held = index.get(stored.ledger_id)
    if held is not None:
        return Position(stored.ledger_id, max(-1, min(stored.entry_id, held.entries - 1)))
    following = index.ledger_after(stored.ledger_id)
    if following is not None and stored.entry_id < 0:
        return Position(following, -1)
    return stored


def _restored(context: LedgerContext, state: CursorState) -> AckRanges:
    return restore(state, context.index, context.index.ledger_ids)


async def _from_ledger(context: LedgerContext, store: CursorStore) -> CursorState | None:
    """The newest complete state; None when the ledger is lost, empty or unreadable for good."""
    try:
        ledger = await context.client.open_ledger(store.ledger_id, recover=True)
        try:
            return await _newest_state(ledger)
        finally:
            await ledger.close()
    except (NoSuchLedgerError, NoSuchEntryError, CursorStateError, InvalidArgumentError) as error:
        log.error(
            "cursor ledger lost, going back to the mark-delete of the znode  managed_ledger=%s cursor=%s ledger=%d: %s",
            context.name,
            store.name,
            store.ledger_id,
            error,
        )
        return None


async def _newest_state(ledger: ReadableLedger) -> CursorState:
    """Read from the end. A group of parts that a crash cut short is passed over; the state before it is complete."""
    last = ledger.last_add_confirmed
    while last >= 0:
        entry = await _read(ledger, last, last)
        part, parts = parts_of(entry[0])
        first = last - part
        if first < 0:
            raise CursorStateError(f"cursor ledger {ledger.ledger_id} begins in the middle of a state")
        if part == parts - 1:
            return decode_entries(await _read(ledger, first, last - 1) + entry if part else entry)
        last = first - 1
    raise CursorStateError(f"cursor ledger {ledger.ledger_id} holds no complete state")


async def _read(ledger: ReadableLedger, first: int, last: int) -> list[PositionInfo]:
    return [parse_entry(payload) for payload in await read_payloads(ledger, first, last, STATE_BYTES_PER_READ)]
