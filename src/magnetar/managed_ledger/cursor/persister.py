"""When a cursor's state is stored: at once when it was quiet, otherwise one write for all changes that came meanwhile.

Never more than one write is under way. Callers that want to know (`done`) make the next write start as soon as the running one
ends; others wait for `cursor_persist_interval_ms`. Large states are written at `PERSIST_BYTES_PER_S` at most, so that the cost of
acknowledging does not grow with the number of holes.
"""

from __future__ import annotations

import asyncio

from magnetar.base.errors import MagnetarError
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.cursor.store import CursorStore, StoredState
from magnetar.managed_ledger.errors import CursorClosedError, ManagedLedgerFencedError
from magnetar.managed_ledger.ports import DurableDone
from magnetar.managed_ledger.position import Position

PERSIST_BYTES_PER_S = 16 * 1024 * 1024
"""After writing a state of n bytes the next write starts n / this later: bursts of acknowledgements share it."""

RETRY_S = 1.0
"""After a failed write: the state stays in memory, and the next attempt starts this much later."""


class CursorPersister:
    """`changed` is the message path: a few attribute reads while a write is under way or planned."""

    __slots__ = (
        "_context",
        "_dirty",
        "_ended",
        "_idle",
        "_mark_under_way",
        "_not_before_s",
        "_planned",
        "_state",
        "_store",
        "_under_way",
        "_urgent",
        "_waiters",
        "stored_mark_delete",
        "writes",
    )

    def __init__(self, context: LedgerContext, store: CursorStore, state: StoredState) -> None:
        self._context = context
        self._store = store
        self._state = state
        self._dirty = False
        self._ended = False
        self._under_way: list[DurableDone] | None = None
        self._planned: asyncio.Handle | None = None
        self._urgent = False
        self._waiters: list[DurableDone] = []
        self._idle: asyncio.Event | None = None
        self._not_before_s = 0.0
        self._mark_under_way: Position = state.acks.mark_delete
        self.stored_mark_delete = self._mark_under_way
        self.writes = 0

    @property
    def clean(self) -> bool:
        """Everything is stored."""
        return not self._dirty and self._under_way is None

    def changed(self, done: DurableDone | None) -> None:
        """The state has changed; `done` wants to know when it is durable."""
        self._dirty = True
        if done is not None:
            self._waiters.append(done)
            if self._under_way is None:
                self._plan(urgent=True)
        elif self._planned is None and self._under_way is None:
            self._plan(urgent=False)

    def settled(self, done: DurableDone) -> None:
        """Call `done` once everything before is durable, although nothing has changed."""
        if self.clean:
            done(None)
        elif self._dirty:
            self.changed(done)
        else:
            assert self._under_way is not None
            self._under_way.append(done)

    async def flush(self) -> None:
        """Wait until everything so far is durable. Raises what storing it raised."""
        if self.clean:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: MagnetarError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.settled(done)
        await future

    async def end(self) -> bool:
        """No further write starts; waits for the running one. Answers whether changes are left unstored."""
        self._ended = True
        self._cancel_plan()
        if self._under_way is not None:
            self._idle = asyncio.Event()
            await self._idle.wait()
        return self._dirty

    def release(self, error: MagnetarError | None) -> None:
        """Tell those who still wait, after the cursor's last write or instead of it."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(error)

    # ---- Inside

    def _plan(self, *, urgent: bool) -> None:
        if self._ended:
            return
        if self._planned is not None:
            if not urgent or self._urgent:
                return
            self._cancel_plan()
        self._urgent = urgent
        loop = asyncio.get_running_loop()
        due_s = self._not_before_s
        if not urgent:
            due_s += self._context.config.cursor_persist_interval_ms / 1000
        delay_s = due_s - self._context.clock.monotonic_s()
        if delay_s <= 0:
            self._planned = loop.call_soon(self._write)
        else:
            self._planned = loop.call_later(delay_s, self._write)

    def _cancel_plan(self) -> None:
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None

    def _write(self) -> None:
        self._planned = None
        self._dirty = False
        self._under_way, self._waiters = self._waiters, []
        self._mark_under_way = self._state.acks.mark_delete
        self.writes += 1
        size_bytes = self._store.persist(self._state, self._written)
        self._not_before_s = self._context.clock.monotonic_s() + size_bytes / PERSIST_BYTES_PER_S

    def _written(self, error: MagnetarError | None) -> None:
        waiters = self._under_way or []
        self._under_way = None
        if error is None:
            self.stored_mark_delete = self._mark_under_way
        else:
            self._dirty = True
            self._not_before_s = self._context.clock.monotonic_s() + RETRY_S
        if isinstance(error, ManagedLedgerFencedError | CursorClosedError):
            self._ended = True
            self.release(error)
        elif self._dirty:
            self._plan(urgent=bool(self._waiters))
        for waiter in waiters:
            waiter(error)
        if self._idle is not None:
            self._idle.set()
