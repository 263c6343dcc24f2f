"""When a cursor's state is stored: at once when it was quiet, otherwise one write for all changes that came meanwhile.

Never more than one write is under way. Callers that want to know (`done`) make the next write start as soon as the running one
ends; others wait for `cursor_persist_interval_ms`. Large states are written at `PERSIST_BYTES_PER_S` at most, so that the cost of
acknowledging does not grow with the number of holes.

Acknowledgements are in memory before they are stored. What moves a cursor otherwise (a reset) or changes what is said of it is stored
first, as a draft: nobody sees it before a crash would come back to it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

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


class Draft(NamedTuple):
    """A state that becomes the cursor's own once it is stored."""

    make: Callable[[], StoredState]
    """Called when its write begins: what went before is in the cursor's own state by then."""
    apply: Callable[[], None]
    """Called once it is durable, also if nobody waits for it any more."""
    mark: Position | None
    """The mark-delete that it moves to, None if it leaves that alone."""
    done: DurableDone


class CursorPersister:
    """`changed` is the message path: a few attribute reads while a write is under way or planned."""

    __slots__ = (
        "_context",
        "_dirty",
        "_draft",
        "_drafts",
        "_ended",
        "_idle",
        "_mark_under_way",
        "_not_before_s",
        "_planned",
        "_state",
        "_store",
        "_stored",
        "_uncertain",
        "_under_way",
        "_urgent",
        "_waiters",
        "writes",
    )

    def __init__(self, context: LedgerContext, store: CursorStore, state: StoredState) -> None:
        self._context = context
        self._store = store
        self._state = state
        self._dirty = False
        self._draft: Draft | None = None
        self._drafts: deque[Draft] = deque()
        self._uncertain: Position | None = None
        self._ended = False
        self._under_way: list[DurableDone] | None = None
        self._planned: asyncio.Handle | None = None
        self._urgent = False
        self._waiters: list[DurableDone] = []
        self._idle: asyncio.Event | None = None
        self._not_before_s = 0.0
        self._mark_under_way: Position = state.acks.mark_delete
        self._stored = self._mark_under_way
        self.writes = 0

    @property
    def clean(self) -> bool:
        """Everything is stored."""
        return not self._dirty and self._under_way is None

    @property
    def stored_mark_delete(self) -> Position:
        """The earliest mark-delete that a crash may come back to: while a reset is being stored, or nobody knows whether it was, either."""
        marks = [self._stored, *(draft.mark for draft in self._drafts if draft.mark is not None)]
        if self._draft is not None and self._draft.mark is not None:
            marks.append(self._draft.mark)
        if self._uncertain is not None:
            marks.append(self._uncertain)
        return min(marks)

    def store_first(
        self, make: Callable[[], StoredState], apply: Callable[[], None], mark: Position | None = None
    ) -> asyncio.Future[None]:
        """Store a draft, then `apply` it; drafts one after the other. Acknowledgements that come meanwhile are stored after it.

        The future raises what storing it raised; it was not applied then, though a crash may come back to it until the next write.
        From the call on `stored_mark_delete` counts with `mark`.
        """
        if self._ended:
            raise self._context.fenced_by or CursorClosedError(f"cursor {self._store.name} is closed")
        future, done = _awaited()
        self._drafts.append(Draft(make, apply, mark, done))
        if self._under_way is None:
            self._write_draft()
        return future

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
        future, done = _awaited()
        self.settled(done)
        await future

    async def end(self) -> bool:
        """No further write starts; waits for the running one. Answers whether changes are left unstored."""
        self._ended = True
        self._cancel_plan()
        if self._under_way is not None:
            self._idle = asyncio.Event()
            await self._idle.wait()
        self._drop_drafts(None)
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

    def _drop_drafts(self, error: MagnetarError | None) -> None:
        drafts, self._drafts = self._drafts, deque()
        for draft in drafts:
            draft.done(error or CursorClosedError(f"cursor {self._store.name} is closed"))

    def _write(self) -> None:
        self._planned = None
        self._dirty = False
        self._under_way, self._waiters = self._waiters, []
        self._persist(self._state)

    def _write_draft(self) -> None:
        """What has been acknowledged and not stored waits for the write after it."""
        self._cancel_plan()
        self._draft = self._drafts.popleft()
        self._under_way = []
        self._persist(self._draft.make())

    def _persist(self, state: StoredState) -> None:
        self._mark_under_way = state.acks.mark_delete
        self.writes += 1
        size_bytes = self._store.persist(state, self._written)
        self._not_before_s = self._context.clock.monotonic_s() + size_bytes / PERSIST_BYTES_PER_S

    def _written(self, error: MagnetarError | None) -> None:
        waiters, self._under_way = self._under_way or [], None
        draft, self._draft = self._draft, None
        if error is None:
            self._stored, self._uncertain = self._mark_under_way, None
            if draft is not None:
                draft.apply()
        else:
            if draft is not None and draft.mark is not None:
                self._uncertain = draft.mark if self._uncertain is None else min(self._uncertain, draft.mark)
            self._dirty = True
            self._not_before_s = self._context.clock.monotonic_s() + RETRY_S
        if isinstance(error, ManagedLedgerFencedError | CursorClosedError):
            self._ended = True
            self.release(error)
            self._drop_drafts(error)
        elif self._drafts and not self._ended:
            self._write_draft()
        elif self._dirty:
            self._plan(urgent=bool(self._waiters))
        for waiter in waiters:
            waiter(error)
        if draft is not None:
            draft.done(error)
        if self._idle is not None:
            self._idle.set()


def _awaited() -> tuple[asyncio.Future[None], DurableDone]:
    """A future, and the `done` that completes it."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future, done
