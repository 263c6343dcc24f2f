"""The cursors of one open managed ledger: load, open, create, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from magnetar.base.errors import InvalidArgumentError
from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.cursor import ManagedCursor, mark_delete_for
from magnetar.managed_ledger.cursor_recovery import existing_mark_delete, recover_state
from magnetar.managed_ledger.cursor_store import CursorStore, StoredState
from magnetar.managed_ledger.errors import CursorNotFoundError
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.metadata.paths import decode

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
        store = CursorStore(context, name)
        # Registered under the list's lock and before it is stored: no trim can remove ledgers between the choice of the
        # position and the moment from which the cursor holds them.
        async with context.store.lock:
            acks = AckRanges(context.index, _initial_mark_delete(context, initial))
            state = StoredState(acks, dict(properties), dict(cursor_properties), context.clock.now_ms())
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
        cursor = ManagedCursor(context, name, StoredState(acks, {}, {}, context.clock.now_ms()), None)
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
