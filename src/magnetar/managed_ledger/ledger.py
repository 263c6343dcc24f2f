"""A managed ledger: an endless sequence of entries over a list of ledgers, and its cursors. One owner at a time.

The message path is `append` and its completion (in `appender`); everything else here happens per ledger or less often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import FATAL
from magnetar.managed_ledger.append_pipeline import AppendPipeline, State
from magnetar.managed_ledger.appender import Appender
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.cursor.registry import CursorRegistry
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import (
    EntryNotFoundError,
    ManagedLedgerFencedError,
)
from magnetar.managed_ledger.handover import close_old, take_over
from magnetar.managed_ledger.ledger_index import LedgerIndex
from magnetar.managed_ledger.ports import AppendDone
from magnetar.managed_ledger.position import LATEST, Position
from magnetar.managed_ledger.reads import resolve
from magnetar.managed_ledger.retention import consumed_before, deletable

log = logging.getLogger(__name__)


CACHED_ENTRIES_KEPT = 1024
"""Entries of the current ledger that stay in memory although all cursors have read them: for redeliveries soon after."""


class ManagedLedger:
    """Opened by `ManagedLedgerFactory`. `last_add_time_ms`: wall time of the newest append completed here, 0 before the first."""

    __slots__ = (
        "_context",
        "_fence_listeners",
        "_listeners",
        "_on_closed",
        "_pipeline",
        "_registry",
        "_trimming",
        "append_run",
        "hidden",
        "index",
        "last_add_time_ms",
        "name",
        "reads",
    )

    def __init__(self, context: LedgerContext, on_closed: Callable[[ManagedLedger], None]) -> None:
        self.name = context.name
        self.index: LedgerIndex = context.index
        self.reads = context.reads
        self.hidden = context.hidden
        self.last_add_time_ms = 0
        self._context = context
        self._on_closed = on_closed
        self._registry = CursorRegistry(context)
        self._pipeline = AppendPipeline(context, self._after_burst, self._after_switch)
        self.append_run = self._pipeline.append
        """`append_run(entries, done)`: as `append`. `done(error, ledger_id, first_entry_id, count)` comes in pieces where a run goes to two
        ledgers or only its beginning could be stored, each the answer to the next `count` entries."""
        self._listeners: list[Callable[[], None]] = []
        self._fence_listeners: list[Callable[[ManagedLedgerFencedError], None]] = []
        self._trimming = False
        context.on_fenced = self._fence

    async def recover(self) -> None:
        """Take the managed ledger over; once, right after construction. Raises what made it impossible."""
        taken = await take_over(self._context)
        await self._registry.load_all()
        self._update_caching()
        if taken is None:
            await self._pipeline.end(State.TERMINATED)
        elif isinstance(taken, MagnetarError):
            self._pipeline.begin_without_ledger(taken)
        else:
            self._pipeline.activate(*taken)

    # ---- What is there

    @property
    def config(self) -> ManagedLedgerConfig:
        return self._context.config

    def set_config(self, config: ManagedLedgerConfig) -> None:
        """Replace the settings; limits hold from the next append on."""
        self._context.config = config
        self._update_caching()
        self._pipeline.set_limits(config)

    @property
    def state(self) -> State:
        return self._pipeline.state

    @property
    def pending_add_bytes(self) -> int:
        """Data of appends that are not completed."""
        return self._pipeline.pending_add_bytes

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
        """The position of the oldest entry, or of the first one to come."""
        return self.index.first() if len(self.index) else self.index.next(self.last_confirmed)

    def next_position(self, position: Position) -> Position:
        return self.index.next(position)

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
    def properties(self) -> dict[str, str]:
        """Stored with the list of ledgers."""
        return dict(self._context.store.properties)

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace them; durable on return."""
        self._check_usable()
        context = self._context
        async with context.store.lock:
            self._check_usable()
            try:
                await context.store.save(properties=properties)
            except ManagedLedgerFencedError as error:
                context.fence(error)
                raise

    # ---- Appending

    def append(self, data: bytes, done: AppendDone) -> None:
        """Store one entry. `done(None, ledger_id, entry_id)` runs in append order once it is durable; `done(error, -1, -1)`
        otherwise (fenced, terminated, closed, or no ledger can be written)."""
        self.append_run([data], lambda error, ledger_id, entry_id, count: done(error, ledger_id, entry_id))

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
        """Take appends again after some failed: every producer that was told has been disconnected, so order is safe."""
        self._pipeline.resume_writes()

    async def rollover(self) -> None:
        """Close the current ledger and start another, unless it is empty. Raises WriteFailedError when that fails."""
        self._check_usable()
        await self._pipeline.rollover()

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

    def discard_cursor(self, name: str) -> None:
        """Forget a cursor that is not durable, when its reader has gone; any other name is ignored."""
        self._registry.discard_non_durable(name)
        self._update_caching()

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
        self._context.reader.read(ledger_id, entry_id, entry_id, 1, resolve(future))
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
        """Delete ledgers that all durable cursors have consumed and retention does not keep. Never the current one,
        but all of a terminated one."""
        if self._trimming or self.state in (State.FENCED, State.CLOSED, State.SWITCHING):
            return
        self._trimming = True
        try:
            await trim(self._context, self._never_trimmed, self.cursors.values())
        except ManagedLedgerFencedError as error:
            self._context.fence(error)
            raise
        finally:
            self._trimming = False

    def _never_trimmed(self) -> int:
        """The current ledger's id; that of no ledger where no more entries are taken."""
        return LATEST.ledger_id if self.terminated else self.current_ledger_id

    async def terminate(self) -> Position:
        """Take no more entries, for good. Returns the last position. Pending appends complete first."""
        self._check_usable()
        if self.terminated:
            return self.last_confirmed
        pipeline, context = self._pipeline, self._context
        appender = await pipeline.end(State.TERMINATED)
        try:
            async with context.store.lock:
                closed = None if appender is None else await close_old(context, appender)
                empty = [closed.ledger_id] if closed is not None and not closed.entries else []
                end = self.index.end()
                await context.store.save(remove=empty, closed=closed, terminated_at=end)
        except ManagedLedgerFencedError as error:
            context.fence(error)
            raise
        except MagnetarError:
            pipeline.undo_end(appender)
            raise
        if appender is not None:
            pipeline.retire(appender)
        await context.delete_orphans(*empty)
        return end

    async def close(self) -> None:
        """Complete what is pending, store the cursors, give everything back; another broker may open it then.

        Does not raise when something could not be stored: the next open recovers the ledger, and cursors from what they stored.
        """
        if self.state is State.CLOSED:
            return
        appender = await self._pipeline.end(State.CLOSED)
        if appender is not None:
            await appender.drained()
            self._pipeline.retire(appender)
            try:
                await appender.handle.close()
            except MagnetarError as error:
                log.info(
                    "ledger left open  managed_ledger=%s ledger=%d: %s", self.name, appender.handle.ledger_id, error
                )
        try:
            await self._registry.close_all()
        except MagnetarError as error:
            log.warning("cursor not stored at close  managed_ledger=%s: %s", self.name, error)
        finally:
            await self._give_back()

    async def delete(self) -> None:
        """Delete everything: cursors, then the list, then the ledgers (a crash in between leaks space at worst)."""
        self._check_usable()
        appender = await self._pipeline.end(State.CLOSED)
        if appender is not None:
            self._pipeline.retire(appender)
        try:
            for name in list(self.cursors):
                await self._registry.delete(name)
            async with self._context.store.lock:
                ledger_ids = self.index.ledger_ids
                self._context.closed = True
                await self._context.store.delete()
            await self._context.delete_orphans(*ledger_ids)
        finally:
            await self._give_back()

    # ---- After a burst, after a change of ledgers

    def _after_burst(self) -> None:
        self.last_add_time_ms = self._context.clock.now_ms()
        for listener in tuple(self._listeners):
            listener()
        appender = self._pipeline.appender
        if appender is not None and len(appender.cache.entries) > 2 * CACHED_ENTRIES_KEPT:
            self._drop_consumed(appender)

    def _after_switch(self) -> None:
        self._drop_consumed_caches()
        self._context.scope.spawn(self._trim_quietly(), f"trim {self.name}", FATAL)

    def _drop_consumed(self, appender: Appender) -> None:
        ledger_id = appender.handle.ledger_id
        slowest = min((cursor.read_position for cursor in self.cursors.values()), default=LATEST)
        if slowest.ledger_id >= ledger_id:
            kept_from = appender.summary.entries if slowest.ledger_id > ledger_id else slowest.entry_id
            appender.cache.drop_before(kept_from - CACHED_ENTRIES_KEPT)

    def _drop_consumed_caches(self) -> None:
        """Entries of closed ledgers that every cursor has read."""
        slowest = min((cursor.read_position.ledger_id for cursor in self.cursors.values()), default=LATEST.ledger_id)
        caches, current = self._context.caches, self.current_ledger_id
        for ledger_id in [held for held in caches if held != current and (held < slowest or not caches[held].entries)]:
            caches.pop(ledger_id).detach()

    def _update_caching(self) -> None:
        self._pipeline.caching = self._context.config.cache_entries and bool(self.cursors)

    async def _give_back(self) -> None:
        """What calls back here forgets to: no circle is left that only a collection of garbage would find."""
        context = self._context
        context.closed = True
        async with context.store.lock:  # a trim that is saving the list ends first
            for cache in context.caches.values():
                cache.detach()
            context.caches.clear()
        context.on_fenced = _ignore_fence
        self._pipeline.forget_owner()
        self._listeners.clear()
        self._fence_listeners.clear()
        self._on_closed(self)

    async def _trim_quietly(self) -> None:
        try:
            await self.trim()
        except MagnetarError as error:
            log.warning("trim failed, next one after the next ledger  managed_ledger=%s: %s", self.name, error)

    def _fence(self, error: ManagedLedgerFencedError) -> None:
        if self.state is State.CLOSED:
            return
        log.warning("fenced  managed_ledger=%s: %s", self.name, error)
        self._pipeline.fence(error)
        for listener in list(self._fence_listeners):
            listener(error)

    def _check_usable(self) -> None:
        if self.state in (State.FENCED, State.CLOSED):
            raise self._pipeline.refusal()


def _ignore_fence(error: ManagedLedgerFencedError) -> None:
    """The managed ledger is closed already."""


async def find_last_matching(
    index: LedgerIndex, read_entry: Callable[[Position], Awaitable[Entry]], predicate: Callable[[Entry], bool]
) -> Position | None:
    """The last entry for which `predicate` holds, given that it holds for a (perhaps empty) beginning of the ledger and for
    nothing after it. None when it holds for no entry. Reads about log2(entries) entries.

    Entries that retention removes meanwhile count as matching: they are older than all that stay.
    """
    index = index.copy()
    low, high = 0, index.total_entries  # ranks below `low` match, ranks from `high` on do not
    while low < high:
        middle = (low + high) // 2
        if await _matches(index.at_rank(middle), read_entry, predicate):
            low = middle + 1
        else:
            high = middle
    return index.at_rank(low - 1) if low else None


async def _matches(
    position: Position, read_entry: Callable[[Position], Awaitable[Entry]], predicate: Callable[[Entry], bool]
) -> bool:
    try:
        return predicate(await read_entry(position))
    except EntryNotFoundError:
        return True


async def trim(context: LedgerContext, current: Callable[[], int], cursors: Collection[ManagedCursor]) -> int:
    """Delete what no durable cursor needs and retention does not keep; returns the number of deleted ledgers.

    `current` tells the ledger that is never deleted, and is asked again under the lock: while cursors are stored the topic may have gone on
    to other ledgers, and the newest of them looks consumed between two of its entries.

    A cursor counts with what it has stored, not with what it has in memory: after a crash it would come back there, and must
    find its ledgers. `cursors` is looked at again under the lock, so one created meanwhile counts too. Raises
    ManagedLedgerFencedError or MetadataError; nothing was deleted then.
    """
    durable = [cursor for cursor in cursors if cursor.durable]
    now_ms = context.clock.now_ms()
    current_ledger_id = current()
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
        chosen = deletable(context.index, current(), slowest, now_ms, context.config)
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
