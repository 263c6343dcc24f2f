"""The cursors of one open managed ledger: load, open, create, delete.

Loading, in order: znode, then the last complete state of its ledger; a lost ledger falls back on the znode's mark-delete, which is
older, so messages may come again but none is skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.errors import NoSuchEntryError, NoSuchLedgerError
from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.cursor.codec import (
    CursorState,
    decode_entries,
    decode_node,
    parse_entry,
    parts_of,
    restore,
)
from magnetar.managed_ledger.cursor.cursor import ManagedCursor, mark_delete_for
from magnetar.managed_ledger.cursor.store import IN_NODE, CursorStore, StoredState
from magnetar.managed_ledger.errors import CursorNotFoundError, CursorStateError
from magnetar.managed_ledger.ledger_index import LedgerIndex
from magnetar.managed_ledger.ports import ReadableLedger
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.managed_ledger.reads import read_payloads
from magnetar.metadata.paths import decode
from magnetar.wire.pulsar.MLDataFormats_pb2 import PositionInfo

log = logging.getLogger(__name__)

RECOVERIES_AT_ONCE = 32
"""Cursors of one managed ledger that are loaded at the same time while it is opened; the others wait."""


class CursorRegistry:
    """`cursors` by name, durable and not; in the order in which they were opened."""

    def __init__(self, context: LedgerContext) -> None:
        self.cursors: dict[str, ManagedCursor] = {}
        self._context = context
        self._lock = asyncio.Lock()

    async def load_all(self) -> None:
        """Recover every stored cursor. Any failure fails the open: a cursor that is missing would let its messages be trimmed."""
        parts = await self._context.metadata.children(self._context.store.path)
        slots = asyncio.Semaphore(RECOVERIES_AT_ONCE)

        async def load(name: str) -> ManagedCursor | None:
            async with slots:
                return await self._recover(name)

        answers = await asyncio.gather(*(load(decode(part)) for part in parts), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                self.cursors[answer.name] = answer

    async def open(
        self,
        name: str,
        initial: Position,
        properties: Mapping[str, int],
        cursor_properties: Mapping[str, str],
    ) -> ManagedCursor:
        async with self._lock:
            held = self.cursors.get(name)
            if held is not None and not held.closed:
                if not held.durable:
                    raise InvalidArgumentError(f"{name!r} is in use by a reader; choose another cursor name")
                return held
            recovered = await self._recover(name)
            if recovered is not None:
                self.cursors[name] = recovered
                return recovered
            return await self._create(name, initial, properties, cursor_properties)

    async def _create(
        self, name: str, initial: Position, properties: Mapping[str, int], cursor_properties: Mapping[str, str]
    ) -> ManagedCursor:
        context = self._context
        store = CursorStore(context, name, dict(cursor_properties))
        # Registered under the list's lock and before it is stored: no trim can remove ledgers between the choice of the
        # position and the moment from which the cursor holds them.
        async with context.store.lock:
            acks = AckRanges(context.index, _initial_mark_delete(context, initial))
            state = StoredState(acks, dict(properties), context.clock.now_ms())
            cursor = ManagedCursor(context, name, state, store)
            self.cursors[name] = cursor
        try:
            await store.save_node(state)
        except BaseException:
            del self.cursors[name]
            raise
        return cursor

    def new_non_durable(self, name: str, start: Position) -> ManagedCursor:
        held = self.cursors.get(name)
        if held is not None and not (held.closed and not held.durable):
            if held.durable:
                raise InvalidArgumentError(f"{name!r} is a durable cursor; choose another name for the reader")
            return held
        context = self._context
        acks = AckRanges(context.index, mark_delete_for(context, start))
        cursor = ManagedCursor(context, name, StoredState(acks, {}, context.clock.now_ms()), None)
        self.cursors[name] = cursor
        return cursor

    async def delete(self, name: str) -> None:
        async with self._lock:
            cursor = self.cursors.get(name)
            if cursor is None:
                raise CursorNotFoundError(f"{self._context.name} has no cursor {name!r}")
            await cursor.delete_stored()
            del self.cursors[name]

    def discard_non_durable(self, name: str) -> None:
        """Forget a reader's cursor; any other name is ignored."""
        held = self.cursors.get(name)
        if held is not None and not held.durable:
            held.stop_reading()
            del self.cursors[name]

    async def close_all(self) -> None:
        """Close every cursor; the first error is raised once all are closed."""
        answers = await asyncio.gather(*(cursor.close() for cursor in self.cursors.values()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _recover(self, name: str) -> ManagedCursor | None:
        store = CursorStore(self._context, name)
        state = await recover_state(self._context, store)
        return None if state is None else ManagedCursor(self._context, name, state, store)


def _initial_mark_delete(context: LedgerContext, initial: Position) -> Position:
    """`initial` names a mark-delete here, unless it is EARLIEST or LATEST."""
    if initial == LATEST:
        return context.index.end()
    if initial == EARLIEST:
        return context.index.before_first()
    return max(existing_mark_delete(context.index, initial), context.index.before_first())


STATE_BYTES_PER_READ = 32 * 1024 * 1024
"""Bytes asked of a cursor ledger at once; a state in more parts takes several reads."""


async def recover_state(context: LedgerContext, store: CursorStore) -> StoredState | None:
    """The cursor's stored state against the ledgers that exist; None if the cursor does not exist."""
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
    return StoredState(acks, state.properties, info.lastActive or context.clock.now_ms())


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
