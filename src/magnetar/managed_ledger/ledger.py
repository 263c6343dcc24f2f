"""A managed ledger: an endless sequence of entries over a list of ledgers, and its cursors. One owner at a time.

The message path is `append` and its completion (in `appender`); everything else here happens per ledger or less often.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, auto

from magnetar.base.errors import MagnetarError
from magnetar.managed_ledger.appender import Appender, PendingAppend
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.cursor import ManagedCursor
from magnetar.managed_ledger.cursor_registry import CursorRegistry
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import (
    EntryNotFoundError,
    ManagedLedgerClosedError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
    WriteFailedError,
)
from magnetar.managed_ledger.handover import close_old, replace_ledger
from magnetar.managed_ledger.ledger_index import LedgerIndex, LedgerSummary
from magnetar.managed_ledger.ports import AppendDone, WritableLedger
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.managed_ledger.reads import entries_future
from magnetar.managed_ledger.recovery import take_over
from magnetar.managed_ledger.rollover import is_full, next_age_check_ms
from magnetar.managed_ledger.search import find_last_matching
from magnetar.managed_ledger.trimming import trim

log = logging.getLogger(__name__)

WRITE_FAILED_HOLD_S = 1.0
"""After entries were refused, appends are refused for this long (or until `resume_writes`): entries that were sent behind the
refused ones must not be stored before their producers have sent those again."""

CACHED_ENTRIES_KEPT = 1024
"""Entries of the current ledger that stay in memory although all cursors have read them: for redeliveries soon after."""

ROLLOVER_JITTER = 0.05
"""By how much the age limits of a ledger are stretched at most, so that ledgers created together do not all roll together."""


class State(Enum):
    OPEN = auto()
    SWITCHING = auto()
    """Between two ledgers: appends are queued."""
    WRITE_FAILED = auto()
    """No ledger to write; see `WRITE_FAILED_HOLD_S`."""
    FENCED = auto()
    TERMINATED = auto()
    CLOSED = auto()


class ManagedLedger:
    """Opened by `ManagedLedgerFactory`. `pending_add_bytes`: data of appends that are not completed."""

    __slots__ = (
        "_age_timer",
        "_appender",
        "_context",
        "_fence_listeners",
        "_hold_until_s",
        "_listeners",
        "_max_bytes",
        "_max_entries",
        "_on_closed",
        "_registry",
        "_state",
        "_switch_task",
        "_trimming",
        "_unfinished",
        "_waiting",
        "caching",
        "index",
        "last_add_time_ms",
        "name",
        "pending_add_bytes",
        "wake_scheduled",
    )

    def __init__(self, context: LedgerContext, on_closed: Callable[[ManagedLedger], None]) -> None:
        self.name = context.name
        self.index: LedgerIndex = context.index
        self.pending_add_bytes = 0
        self.caching = False
        self.wake_scheduled = False
        self.last_add_time_ms = 0
        self._context = context
        self._on_closed = on_closed
        self._registry = CursorRegistry(context)
        self._state = State.SWITCHING
        self._appender: Appender | None = None
        self._unfinished: Appender | None = None
        self._waiting: deque[PendingAppend] = deque()
        self._switch_task: asyncio.Task[None] | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []
        self._fence_listeners: list[Callable[[ManagedLedgerFencedError], None]] = []
        self._hold_until_s = 0.0
        self._max_entries = context.config.max_entries_per_ledger
        self._max_bytes = context.config.max_size_per_ledger_bytes
        self._trimming = False
        context.on_fenced = self._fence

    async def recover(self) -> None:
        """Take the managed ledger over; once, right after construction. Raises what made it impossible."""
        taken = await take_over(self._context)
        await self._registry.load_all()
        self._update_caching()
        if taken is None:
            self._state = State.TERMINATED
        else:
            self._activate(*taken)

    # ---- What is there

    @property
    def config(self) -> ManagedLedgerConfig:
        return self._context.config

    def set_config(self, config: ManagedLedgerConfig) -> None:
        """Replace the settings; limits hold from the next append on."""
        self._context.config = config
        self._max_entries = config.max_entries_per_ledger
        self._max_bytes = config.max_size_per_ledger_bytes
        self._update_caching()
        if self._appender is not None:
            self._arm_age_timer(self._appender)

    @property
    def state(self) -> State:
        return self._state

    @property
    def cursors(self) -> dict[str, ManagedCursor]:
        return self._registry.cursors

    @property
    def last_confirmed(self) -> Position:
        """The newest entry; (ledger, -1) when there is none."""
        if not len(self.index) and self._context.store.terminated_at is not None:
            return self._context.store.terminated_at
        return self.index.end()

    @property
    def first_position(self) -> Position:
        """Where the oldest entry is, or will be."""
        return self.index.first()

    def next_position(self, position: Position) -> Position:
        return self.index.next(position)

    def previous_position(self, position: Position) -> Position:
        return self.index.previous(position)

    def entries_between(self, after: Position, upto: Position) -> int:
        """Entries in (after, upto]."""
        return self.index.entries_between(after, upto)

    @property
    def entries_total(self) -> int:
        return self.index.total_entries

    @property
    def size_bytes(self) -> int:
        return sum(held.size_bytes for held in self.index)

    @property
    def current_ledger_id(self) -> int:
        """The newest ledger's id, -1 without any."""
        last = self.index.last
        return -1 if last is None else last.ledger_id

    @property
    def terminated(self) -> bool:
        return self._context.store.terminated_at is not None

    @property
    def ledgers_skipped(self) -> int:
        """How often a cursor had to pass over lost entries."""
        return self._context.ledgers_skipped

    @property
    def properties(self) -> dict[str, str]:
        """Stored with the list of ledgers."""
        return dict(self._context.store.properties)

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace them; durable on return."""
        self._check_usable()
        async with self._context.store.lock:
            try:
                await self._context.store.save(properties=properties)
            except ManagedLedgerFencedError as error:
                self._context.fence(error)
                raise

    # ---- Appending

    def append(self, data: bytes, done: AppendDone) -> None:
        """Store one entry. `done(None, ledger_id, entry_id)` runs in append order once it is durable; `done(error, -1, -1)`
        otherwise (fenced, terminated, closed, or no ledger can be written)."""
        appender = self._appender
        if appender is None:
            self._append_later(data, done)
            return
        self.pending_add_bytes += len(data)
        appender.append(data, done)
        if appender.pushed >= self._max_entries or appender.pushed_bytes >= self._max_bytes:
            self._roll_if_full()

    def add_append_listener(self, listener: Callable[[], None]) -> None:
        """`listener()` runs once after each burst of completed appends."""
        self._listeners.append(listener)

    def remove_append_listener(self, listener: Callable[[], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def add_fence_listener(self, listener: Callable[[ManagedLedgerFencedError], None]) -> None:
        """`listener(error)` runs once when another owner was seen: the topic must be closed here."""
        self._fence_listeners.append(listener)

    def resume_writes(self) -> None:
        """After appends failed: every producer that was told has been disconnected, so order is safe again."""
        self._hold_until_s = 0.0

    async def rollover(self) -> None:
        """Close the current ledger and start another, unless it is empty. Raises WriteFailedError when that fails."""
        if self._state is State.SWITCHING:
            await self._switched()
        if self._appender is not None and self._appender.pushed:
            self._begin_switch(self._appender)
            await self._switched()
            if self._state is State.WRITE_FAILED:
                raise WriteFailedError(f"{self.name}: the next ledger could not be created")

    # ---- What the appender calls

    def schedule_wake(self) -> None:
        self.wake_scheduled = True
        asyncio.get_running_loop().call_soon(self._wake)

    def append_failed(self, appender: Appender, error: MagnetarError) -> None:
        """The ledger takes no more. Whatever is pending goes to the next one, in order."""
        log.warning(
            "append failed, changing the ledger  managed_ledger=%s ledger=%d: %s",
            self.name,
            appender.handle.ledger_id,
            error,
        )
        if self._appender is appender:
            self._begin_switch(appender)

    # ---- Cursors

    async def open_cursor(
        self,
        name: str,
        *,
        initial: Position = LATEST,
        properties: Mapping[str, int] | None = None,
        cursor_properties: Mapping[str, str] | None = None,
    ) -> ManagedCursor:
        """The durable cursor of this name, created when it is missing. `initial` (for a new one) is LATEST, EARLIEST or a
        mark-delete position."""
        self._check_usable()
        cursor = await self._registry.open(name, initial, properties or {}, cursor_properties or {})
        self._update_caching()
        return cursor

    def new_non_durable_cursor(self, name: str, start: Position) -> ManagedCursor:
        """A cursor that is not stored. `start` is the first position to be read, or EARLIEST or LATEST."""
        self._check_usable()
        cursor = self._registry.new_non_durable(name, start)
        self._update_caching()
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Delete it with everything stored. Raises CursorNotFoundError."""
        self._check_usable()
        await self._registry.delete(name)
        self._update_caching()

    # ---- Reading for the control plane

    async def read_entry(self, position: Position) -> Entry:
        """Raises EntryNotFoundError, LostLedgerError."""
        ledger_id, entry_id = position
        if not 0 <= entry_id < self.index.entries_in(ledger_id):
            raise EntryNotFoundError(f"{self.name} has no entry {ledger_id}:{entry_id}")
        cached = self._context.caches.get(ledger_id)
        entry = None if cached is None else cached.entries.get(entry_id)
        if entry is not None:
            return entry
        future: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()
        self._context.reader.read(ledger_id, entry_id, entry_id, 1, entries_future(future))
        try:
            return (await future)[0]
        except MagnetarError as error:
            if ledger_id not in self.index:
                raise EntryNotFoundError(f"{self.name}: entry {ledger_id}:{entry_id} was removed") from error
            raise

    async def find_last_matching(self, predicate: Callable[[Entry], bool]) -> Position | None:
        """The last entry for which `predicate` holds; it must hold for a beginning of the managed ledger and not after."""
        return await find_last_matching(self.index, self.read_entry, predicate)

    # ---- Removing and ending

    async def trim(self) -> None:
        """Delete ledgers that all durable cursors have consumed and retention does not keep. Never the current one."""
        if self._trimming or self._state in (State.FENCED, State.CLOSED, State.SWITCHING):
            return
        self._trimming = True
        try:
            await trim(self._context, self.current_ledger_id, self.cursors.values())
        except ManagedLedgerFencedError as error:
            self._context.fence(error)
            raise
        finally:
            self._trimming = False

    async def terminate(self) -> Position:
        """Take no more entries, for good. Answers the last position. Pending appends complete first."""
        self._check_usable()
        if self._state is State.SWITCHING:
            await self._switched()
        if self.terminated:
            return self.last_confirmed
        self._check_usable()
        appender, self._appender = self._appender or self._unfinished, None
        self._state = State.TERMINATED
        self._cancel_age_timer()
        async with self._context.store.lock:
            closed = None if appender is None else await close_old(self._context, appender)
            empty = [closed.ledger_id] if closed is not None and not closed.entries else []
            end = self.index.end()
            await self._context.store.save(remove=empty, closed=closed, terminated_at=end)
        if appender is not None:
            self._fail(appender.pending, self._refusal())
        await self._context.delete_orphans(*empty)
        return end

    async def close(self) -> None:
        """Complete what is pending, store the cursors, give everything back. Others may open it then. Never raises for a
        ledger that could not be closed: the next open recovers it."""
        if self._state is State.CLOSED:
            return
        await self._switched()
        appender, self._appender = self._appender, None
        self._state = State.CLOSED
        self._cancel_age_timer()
        if appender is not None:
            await appender.drained()
            self._retire(appender)
            try:
                await appender.handle.close()
            except MagnetarError as error:
                log.info(
                    "ledger left open  managed_ledger=%s ledger=%d: %s", self.name, appender.handle.ledger_id, error
                )
        self._fail(self._waiting, self._refusal())
        try:
            await self._registry.close_all()
        except MagnetarError as error:
            log.warning("cursor not stored at close  managed_ledger=%s: %s", self.name, error)
        finally:
            self._drop_caches()
            self._on_closed(self)

    async def delete(self) -> None:
        """Delete everything: cursors, then the list, then the ledgers (a crash in between leaks space at worst)."""
        self._check_usable()
        await self._switched()
        appender, self._appender = self._appender, None
        self._state = State.CLOSED
        self._cancel_age_timer()
        if appender is not None:
            self._retire(appender)
        self._fail(self._waiting, self._refusal())
        try:
            for name in list(self.cursors):
                await self._registry.delete(name)
            async with self._context.store.lock:
                ledger_ids = self.index.ledger_ids
                await self._context.store.delete()
            await self._context.delete_orphans(*ledger_ids)
        finally:
            self._drop_caches()
            self._on_closed(self)

    # ---- Changing ledgers

    def _activate(self, handle: WritableLedger, summary: LedgerSummary) -> None:
        context = self._context
        cache = context.caches[handle.ledger_id] = context.cache.attach(handle.ledger_id)
        patience = 1.0 + ROLLOVER_JITTER * context.rng.random()
        appender = Appender(self, handle, summary, cache, context.clock.monotonic_s(), patience)
        context.reader.set_live(handle)
        self._state = State.OPEN
        self._appender = appender
        self._unfinished = None
        self._arm_age_timer(appender)
        waiting = self._waiting
        while waiting and self._appender is not None:
            appender.append(*waiting.popleft())
            self._roll_if_full()

    def _roll_if_full(self) -> None:
        appender = self._appender
        if appender is None:
            return
        if is_full(appender.pushed, appender.pushed_bytes, self._age_ms(appender), self._context.config):
            self._begin_switch(appender)

    def _begin_switch(self, old: Appender | None) -> None:
        self._appender = None
        self._unfinished = old
        self._state = State.SWITCHING
        self._cancel_age_timer()
        self._switch_task = self._context.scope.spawn(self._switch(old), f"switch ledger of {self.name}")

    async def _switch(self, old: Appender | None) -> None:
        context = self._context
        try:
            async with context.store.lock:
                handle, summary = await replace_ledger(context, old)
        except ManagedLedgerFencedError as error:
            context.fence(error)
        except MagnetarError as error:
            self._writes_failed(old, error)
        else:
            if old is not None:
                self._waiting.extendleft(reversed(old.pending))
                old.pending.clear()
            self._drop_consumed_caches()
            self._activate(handle, summary)
            context.scope.spawn(self._trim_quietly(), f"trim {self.name}")

    async def _switched(self) -> None:
        """Until no switch is under way."""
        while self._switch_task is not None and not self._switch_task.done():
            await asyncio.wait({self._switch_task})

    def _writes_failed(self, old: Appender | None, error: MagnetarError) -> None:
        log.error("no ledger to write  managed_ledger=%s: %s", self.name, error)
        self._state = State.WRITE_FAILED
        self._hold_until_s = self._context.clock.monotonic_s() + WRITE_FAILED_HOLD_S
        failure = WriteFailedError(f"{self.name}: the entry could not be stored: {error}")
        failure.__cause__ = error
        if old is not None:
            self._fail(old.pending, failure)
        self._fail(self._waiting, failure)

    def _append_later(self, data: bytes, done: AppendDone) -> None:
        if self._state is State.WRITE_FAILED and self._context.clock.monotonic_s() >= self._hold_until_s:
            self._begin_switch(self._unfinished)
        if self._state is State.SWITCHING:
            self.pending_add_bytes += len(data)
            self._waiting.append((data, done))
        else:
            done(self._refusal(), -1, -1)

    def _refusal(self) -> MagnetarError:
        if self._state is State.FENCED:
            return self._context.fenced_by or ManagedLedgerFencedError(f"{self.name} has another owner")
        if self._state is State.TERMINATED:
            return ManagedLedgerTerminatedError(f"{self.name} is terminated")
        if self._state is State.CLOSED:
            return ManagedLedgerClosedError(f"{self.name} is closed here")
        return WriteFailedError(f"{self.name}: an earlier entry could not be stored")

    def _fail(self, appends: deque[PendingAppend], error: MagnetarError) -> None:
        """Answer all with the error, in order. What they append in turn is refused, or comes behind them."""
        failed = list(appends)
        appends.clear()
        for data, done in failed:
            self.pending_add_bytes -= len(data)
            done(error, -1, -1)

    def _retire(self, appender: Appender) -> None:
        appender.retire()
        self._fail(appender.pending, self._refusal())

    def _fence(self, error: ManagedLedgerFencedError) -> None:
        if self._state is State.CLOSED:
            return
        log.warning("fenced  managed_ledger=%s: %s", self.name, error)
        appender, self._appender = self._appender or self._unfinished, None
        self._state = State.FENCED
        self._cancel_age_timer()
        if appender is not None:
            self._retire(appender)
        self._fail(self._waiting, error)
        for listener in list(self._fence_listeners):
            listener(error)

    # ---- Time

    def _age_ms(self, appender: Appender) -> float:
        return (self._context.clock.monotonic_s() - appender.created_s) * 1000 / appender.patience

    def _arm_age_timer(self, appender: Appender) -> None:
        self._cancel_age_timer()
        wait_ms = next_age_check_ms(
            appender.pushed, appender.pushed_bytes, self._age_ms(appender), self._context.config
        )
        self._age_timer = asyncio.get_running_loop().call_later(wait_ms * appender.patience / 1000, self._on_age)

    def _on_age(self) -> None:
        self._age_timer = None
        self._roll_if_full()
        if self._appender is not None:
            self._arm_age_timer(self._appender)

    def _cancel_age_timer(self) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
            self._age_timer = None

    # ---- After a burst

    def _wake(self) -> None:
        self.wake_scheduled = False
        self.last_add_time_ms = self._context.clock.now_ms()
        for listener in tuple(self._listeners):
            listener()
        appender = self._appender
        if appender is not None and len(appender.cache.entries) > 2 * CACHED_ENTRIES_KEPT:
            self._drop_consumed(appender)

    def _drop_consumed(self, appender: Appender) -> None:
        ledger_id = appender.handle.ledger_id
        slowest = min((cursor.read_position for cursor in self.cursors.values()), default=LATEST)
        if slowest.ledger_id >= ledger_id:
            kept_from = appender.summary.entries if slowest.ledger_id > ledger_id else slowest.entry_id
            appender.cache.drop_before(kept_from - CACHED_ENTRIES_KEPT)

    def _drop_consumed_caches(self) -> None:
        """Entries of closed ledgers that every cursor has read."""
        slowest = min((cursor.read_position for cursor in self.cursors.values()), default=LATEST)
        caches = self._context.caches
        for ledger_id in [held for held in caches if held < slowest.ledger_id or not caches[held].entries]:
            caches.pop(ledger_id).detach()

    def _update_caching(self) -> None:
        self.caching = self._context.config.cache_entries and bool(self.cursors)

    def _drop_caches(self) -> None:
        for cache in self._context.caches.values():
            cache.detach()
        self._context.caches.clear()

    async def _trim_quietly(self) -> None:
        try:
            await self.trim()
        except MagnetarError as error:
            log.warning("trim failed, next one after the next ledger  managed_ledger=%s: %s", self.name, error)

    def _check_usable(self) -> None:
        if self._state in (State.FENCED, State.CLOSED):
            raise self._refusal()


__all__ = ["EARLIEST", "LATEST", "ManagedLedger", "Position", "State"]
