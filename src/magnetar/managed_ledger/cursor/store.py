"""Where one durable cursor is stored: its znode, and the cursor ledger which takes a new entry with every change.

The newest complete state in the cursor ledger counts; the znode names that ledger and holds a mark-delete to fall back on. After
`cursor_ledger_max_entries` or `cursor_ledger_max_age_ms` the state moves to a new ledger: create, append, save the znode, delete
the old one, in that order, so that a crash finds a complete state at any moment.

**A former owner confirms nothing and deletes nothing.** The compare-and-set of the znode alone does not stop one: until the new owner
writes the znode for the first time, it has the version that the former one knows. So after each write of the znode the list of
ledgers is looked at, which a new owner changes before it reads any cursor. If it is still ours, the new owner will read what was
written. Otherwise it may have read the state before: what came since is not stored, and the cursor ledger of that state is still needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from magnetar.base.errors import BadVersionError, MagnetarError
from magnetar.base.tasks import FATAL
from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.cursor.codec import encode_entries, parse_node, write_node
from magnetar.managed_ledger.errors import CursorClosedError, ManagedLedgerFencedError
from magnetar.managed_ledger.ports import DurableDone, WritableLedger
from magnetar.managed_ledger.stored_value import plain_value
from magnetar.metadata.lost_answers import delete_or_look, put_or_look
from magnetar.metadata.paths import cursor_path
from magnetar.metadata.store import MUST_NOT_EXIST
from magnetar.wire.pulsar.MLDataFormats_pb2 import ManagedCursorInfo

log = logging.getLogger(__name__)

NODE_BYTES_MAX = 512 * 1024
"""A state that makes the znode larger stays in the cursor ledger (ZooKeeper refuses 1 MiB)."""

NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})

IN_NODE = -1
"""The cursor ledger's id when the znode holds the whole state."""


PropertyChange = Callable[[Mapping[str, str]], Mapping[str, str]]
"""The properties of a cursor as they are -> as they are to be."""


class StoredState:
    """The state of a cursor that is to be stored: changed by the cursor, read by its store."""

    __slots__ = ("acks", "last_active_ms", "properties")

    def __init__(self, acks: AckRanges, properties: dict[str, int], last_active_ms: int) -> None:
        self.acks = acks
        self.properties = properties
        self.last_active_ms = last_active_ms


class CursorStore:
    """All writes of one cursor. `lock` orders the znode's; appends to the cursor ledger are ordered by its handle."""

    def __init__(self, context: LedgerContext, name: str, cursor_properties: Mapping[str, str] = NO_PROPERTIES) -> None:
        """`cursor_properties`: those of a cursor that does not exist yet."""
        self.name = name
        self.cursor_properties = cursor_properties
        """As the znode has them: whoever reads them here reads what a crash leaves."""
        self._context = context
        self._path = cursor_path(context.name, name)
        self._lock = asyncio.Lock()
        self._version = MUST_NOT_EXIST
        self._info = ManagedCursorInfo()
        self._handle: WritableLedger | None = None
        self._entries_written = 0
        self._created_s = 0.0
        self._closed = False
        self.ledger_id = IN_NODE

    @property
    def exists(self) -> bool:
        return self._version != MUST_NOT_EXIST

    async def load(self) -> ManagedCursorInfo | None:
        """The znode's content; None when the cursor does not exist."""
        node = await self._context.metadata.get(self._path)
        if node is None:
            return None
        self._info = parse_node(plain_value(node.value, self._path))
        self._version = node.version
        self.ledger_id = self._info.cursorsLedgerId
        self.cursor_properties = {item.name: item.value for item in self._info.cursorProperties}
        return self._info

    # ---- Storing

    def persist(self, state: StoredState, done: DurableDone) -> int:
        """Store the state as it is now; answers its bytes. `done` runs once it is durable, or with an error."""
        entries = encode_entries(state.acks, state.properties)
        handle = self._handle
        if self._closed or self._context.fenced_by is not None:
            done(self._context.fenced_by or CursorClosedError(f"cursor {self.name} is closed"))
        elif handle is None or self._is_full():
            self._context.scope.spawn(self._switch_and_tell(state, done), f"cursor ledger of {self.name}", FATAL)
        else:
            self._append(handle, entries, state, done)
        return sum(map(len, entries))

    def _append(self, handle: WritableLedger, entries: list[bytes], state: StoredState, done: DurableDone) -> None:
        left = len(entries)
        failed: MagnetarError | None = None

        def appended(error: MagnetarError | None) -> None:
            nonlocal left, failed
            left -= 1
            failed = failed or error
            if left:
                return
            if failed is None:
                done(None)
                return
            log.warning(
                "cursor ledger failed, replacing it  cursor=%s ledger=%d: %s", self._path, handle.ledger_id, failed
            )
            if self._handle is handle:
                self._handle = None
            self._context.scope.spawn(self._switch_and_tell(state, done), f"cursor ledger of {self.name}", FATAL)

        self._entries_written += left
        for entry in entries:
            try:
                handle.append(entry, appended)
            except MagnetarError as error:
                appended(error)

    def _is_full(self) -> bool:
        config = self._context.config
        if self._entries_written >= config.cursor_ledger_max_entries:
            return True
        return (self._context.clock.monotonic_s() - self._created_s) * 1000 >= config.cursor_ledger_max_age_ms

    async def _switch_and_tell(self, state: StoredState, done: DurableDone) -> None:
        try:
            await self._switch(state)
        except ManagedLedgerFencedError as error:
            self._context.fence(error)
            done(error)
        except MagnetarError as error:
            await self._fall_back(state, error, done)
        except asyncio.CancelledError:
            self._closed = True
            done(CursorClosedError(f"cursor {self.name}: the broker stops"))
            raise
        else:
            done(None)

    async def _switch(self, state: StoredState, change: PropertyChange | None = None) -> None:
        """Move to a new cursor ledger that begins with the complete state."""
        context = self._context
        async with self._lock:
            self._check_open()
            properties = None if change is None else change(self.cursor_properties)
            await context.store.verify_owner()
            handle = await context.client.create_ledger(
                ensemble_size=context.config.ensemble_size,
                write_quorum=context.config.write_quorum,
                ack_quorum=context.config.ack_quorum,
                custom_metadata=context.custom_metadata(self.name),
            )
            try:
                written = await _append_all(handle, encode_entries(state.acks, state.properties))
                await self._save(handle.ledger_id, state, complete=False, cursor_properties=properties)
            except MagnetarError:
                await context.delete_orphans(handle.ledger_id)
                raise
            old, self._handle = self._handle, handle
            old_id, self.ledger_id = self.ledger_id, handle.ledger_id
            self._entries_written, self._created_s = written, context.clock.monotonic_s()
            await context.store.verify_owner()
            if old is not None:
                await _close_quietly(old)
            if old_id != IN_NODE:
                await context.delete_orphans(old_id)

    async def _fall_back(self, state: StoredState, cause: MagnetarError, done: DurableDone) -> None:
        """No cursor ledger can be written: the znode takes the state, if it is small enough."""
        try:
            async with self._lock:
                self._check_open()
                if not self._fits_node(state):
                    raise cause
                await self._save(IN_NODE, state, complete=True)
                old_id, self.ledger_id = self.ledger_id, IN_NODE
                self._handle = None
                await self._context.store.verify_owner()
                if old_id != IN_NODE:
                    await self._context.delete_orphans(old_id)
        except ManagedLedgerFencedError as error:
            self._context.fence(error)
            done(error)
        except MagnetarError as error:
            done(error)
        else:
            done(None)

    async def save_node(self, state: StoredState, change: PropertyChange | None = None) -> None:
        """Create the znode, or change the properties in it. The state's place stays as it is unless it has outgrown the znode."""
        async with self._lock:
            self._check_open()
            properties = self.cursor_properties if change is None else change(self.cursor_properties)
            if self.ledger_id != IN_NODE:
                await self._save(self.ledger_id, state, complete=False, cursor_properties=properties)
                await self._context.store.verify_owner()
                return
            if self._fits_node(state, properties):
                await self._save(IN_NODE, state, complete=True, cursor_properties=properties)
                await self._context.store.verify_owner()
                return
        await self._switch(state, change)

    # ---- Ending

    async def close(self, state: StoredState, *, changed: bool) -> None:
        """Store the state where the next open finds it quickest, and write no more."""
        async with self._lock:
            if self._closed:
                return
            self._closed = True
            handle, self._handle = self._handle, None
            if self._context.fenced_by is not None:
                return
            if self._fits_node(state) and (changed or handle is not None):
                old_id = self.ledger_id
                if handle is not None:
                    await _close_quietly(handle)
                await self._save(IN_NODE, state, complete=True)
                self.ledger_id = IN_NODE
                await self._context.store.verify_owner()
                if old_id != IN_NODE:
                    await self._context.delete_orphans(old_id)
            elif handle is not None:
                if changed:
                    await _append_all(handle, encode_entries(state.acks, state.properties))
                await _close_quietly(handle)

    async def delete(self) -> None:
        """Remove the cursor: first the znode, then its ledger."""
        async with self._lock:
            self._closed = True
            handle, self._handle = self._handle, None
            if self.exists:
                await delete_or_look(self._context.metadata, self._path)
                self._version = MUST_NOT_EXIST
                await self._context.store.verify_owner()
            if handle is not None:
                await _close_quietly(handle)
            if self.ledger_id != IN_NODE:
                await self._context.delete_orphans(self.ledger_id)

    # ---- Inside

    def _check_open(self) -> None:
        if self._context.fenced_by is not None:
            raise self._context.fenced_by
        if self._closed:
            raise CursorClosedError(f"cursor {self.name} is closed")

    def _fits_node(self, state: StoredState, cursor_properties: Mapping[str, str] | None = None) -> bool:
        limit = self._context.config.max_ranges_in_metadata_store
        size_bytes = _node_bytes(state, self.cursor_properties if cursor_properties is None else cursor_properties)
        return state.acks.range_count() <= limit and size_bytes <= NODE_BYTES_MAX

    async def _save(
        self, ledger_id: int, state: StoredState, *, complete: bool, cursor_properties: Mapping[str, str] | None = None
    ) -> None:
        """Write the znode. When the version is not the expected one and the managed ledger is still ours, nobody else's
        write can matter (a lost answer of our own): read the version again and write once more."""
        cursor_properties = self.cursor_properties if cursor_properties is None else dict(cursor_properties)
        info = ManagedCursorInfo()
        info.CopyFrom(self._info)
        value = write_node(
            info,
            ledger_id,
            state.acks,
            state.properties,
            cursor_properties,
            state.last_active_ms,
            complete=complete,
        )
        metadata = self._context.metadata
        try:
            self._version = await put_or_look(metadata, self._path, value, self._version)
        except BadVersionError:
            await self._context.store.verify_owner()
            node = await metadata.get(self._path)
            expected = MUST_NOT_EXIST if node is None else node.version
            self._version = await put_or_look(metadata, self._path, value, expected)
        self._info, self.cursor_properties = info, cursor_properties


def _node_bytes(state: StoredState, cursor_properties: Mapping[str, str]) -> int:
    names: Mapping[str, object] = {**state.properties, **cursor_properties}
    text = sum(len(name) + 16 for name in names) + sum(map(len, cursor_properties.values()))
    return text + sum(len(words) * 11 + 32 for _, words in state.acks.partial_batches())


async def _append_all(handle: WritableLedger, entries: list[bytes]) -> int:
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []
    for entry in entries:
        future: asyncio.Future[None] = loop.create_future()
        waiting.append(future)

        def done(error: MagnetarError | None, future: asyncio.Future[None] = future) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        handle.append(entry, done)
    for answer in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
    return len(entries)


async def _close_quietly(handle: WritableLedger) -> None:
    """The ledger is complete or about to be deleted; whoever opens it recovers it."""
    try:
        await handle.close()
    except MagnetarError as error:
        log.info("cursor ledger left open  ledger=%d: %s", handle.ledger_id, error)
