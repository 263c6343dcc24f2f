"""Compaction of one topic: its cursor `__compaction`, the compacted ledger that counts, and the compaction under way.

The mark-delete of the cursor is the horizon, its property `CompactedTopicLedger` the ledger: stored together, so that a crash
leaves the old pair or the new one. Ledgers that may be left over are named in the cursor's own properties before they are
written to, and deleted by the next load (a crash just before the naming leaves the metadata of an empty ledger).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError, client_text
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.broker.compaction import raw_message
from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.compaction.compactor import COMPACTED_TO, CompactionResult, Compactor, discard
from magnetar.broker.compaction.errors import CompactedDataError, CompactionRunningError
from magnetar.broker.compaction.latest_keys import last_index_of
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.naming import COMPACTION_CURSOR
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.ledger_index import size_after
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.managed_ledger.reads import resolve_durable

logger = logging.getLogger(__name__)

CURSOR_NAME: Final = COMPACTION_CURSOR
LEDGER_PROPERTY: Final = "CompactedTopicLedger"
LEFTOVERS_PROPERTY: Final = "magnetar.compaction.ledgers"

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[Any]]


@dataclass(frozen=True, slots=True)
class CompactionService:
    """Dependencies of all topics of a broker. One topic is compacted at a time, the others wait for `turn`."""

    client: BookKeeperClient
    spawn: Spawn
    clock: Clock
    retain_null_key: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Readable(Protocol):
    """The readable part of a topic with transactions."""

    @property
    def readable_end(self) -> Position:
        """The last position that is decided."""
        ...

    def hides(self, entry: Entry, /) -> bool:
        """True if this entry, whose transaction is decided, is never delivered."""
        ...


class Status(Enum):
    """Pulsar's LongRunningProcessStatus; not stored, as there."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(slots=True)
class CompactionCounters:
    """Pulsar's CompactionStats, of the last compaction here."""

    removed_events: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0
    removed_total: int = 0
    succeeded_total: int = 0
    failed_total: int = 0

    def as_stats(self) -> Mapping[str, int]:
        return {
            "lastCompactionRemovedEventCount": self.removed_events,
            "lastCompactionSucceedTimestamp": self.succeeded_ms,
            "lastCompactionFailedTimestamp": self.failed_ms,
            "lastCompactionDurationTimeInMills": self.duration_ms,
        }

    def as_metrics(self) -> tuple[int, int, int, int]:
        """Removed, succeeded and failed since the topic was loaded; ms that the last one took."""
        return self.removed_total, self.succeeded_total, self.failed_total, self.duration_ms


class TopicCompaction:
    """`current` is what readers read; None before the first compaction."""

    def __init__(self, topic: str, partition: int, ledger: ManagedLedger, service: CompactionService) -> None:
        self._topic = topic
        self._partition = partition
        self._ledger = ledger
        self._service = service
        self._task: asyncio.Task[Any] | None = None
        self._failed_at_bytes = 0
        self.readable: Readable | None = None
        """Says what may be read, where transactions decide it."""
        self.current: CompactedLedger | None = None
        self.status = Status.NOT_RUN
        self.last_error = ""
        self.counters = CompactionCounters()

    @property
    def _cursor(self) -> ManagedCursor | None:
        return self._ledger.cursors.get(CURSOR_NAME)

    @property
    def backlog_bytes(self) -> int:
        """Estimated bytes that have not been compacted yet."""
        cursor = self._cursor
        return size_after(self._ledger.index, EARLIEST if cursor is None else cursor.mark_delete_position)

    # ---- Life

    async def load(self) -> None:
        """Open the compacted ledger that the cursor names, and delete those a crash left over."""
        cursor = self._cursor
        if cursor is None:
            return
        ledger_id = cursor.properties.get(LEDGER_PROPERTY)
        if ledger_id is not None:
            try:
                self.current = await self._open(ledger_id, cursor.mark_delete_position)
            except NoSuchLedgerError:
                logger.error("compacted ledger lost, compacting anew topic=%s ledger=%d", self._topic, ledger_id)
                await cursor.reset(EARLIEST)
        await self._delete_leftovers(cursor)

    async def hold(self) -> None:
        """Create the cursor that keeps entries until they are compacted."""
        if self._cursor is None:
            await self._ledger.open_cursor(CURSOR_NAME, initial=EARLIEST)

    async def close(self) -> None:
        """Give up the compaction under way; the ledger it was writing is deleted."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def forget(self) -> None:
        """Delete the cursor and the compacted data: the topic is as if it had never been compacted."""
        await self.close()
        cursor, current = self._cursor, self.current
        if cursor is None:
            return
        ledger_ids = [*_leftovers(cursor), *([] if current is None else [current.ledger_id])]
        await self._ledger.delete_cursor(CURSOR_NAME)
        self.current = None
        self.status = Status.NOT_RUN
        await self.delete_ledgers(ledger_ids)

    def stored_ledgers(self) -> list[int]:
        """What must be deleted when the topic is: it is not in the topic's own list."""
        cursor = self._cursor
        current = [] if self.current is None else [self.current.ledger_id]
        return current if cursor is None else [*current, *_leftovers(cursor)]

    async def delete_ledgers(self, ledger_ids: list[int]) -> bool:
        """Whether all of them are gone."""
        errors = [await discard(self._service.client, ledger_id) for ledger_id in dict.fromkeys(ledger_ids)]
        failed = [str(error) for error in errors if error is not None]
        if failed:
            logger.warning("compacted ledgers not deleted topic=%s errors=%s", self._topic, failed)
        return not failed

    # ---- Compacting

    def start(self) -> None:
        """Compact in the background. Raises CompactionRunningError."""
        if self.status is Status.RUNNING:
            raise CompactionRunningError("Compaction already in progress")
        self.status = Status.RUNNING
        self.last_error = ""
        self._task = self._service.spawn(self._guarded(), f"compact {self._topic}")

    def start_if_due(self, threshold_bytes: int) -> None:
        """Compact when more than `threshold_bytes` came since the last time; after a failure, when that many came since then."""
        if threshold_bytes <= 0 or self.status is Status.RUNNING:
            return
        backlog_bytes = self.backlog_bytes
        if self.status is not Status.ERROR or backlog_bytes < self._failed_at_bytes:
            self._failed_at_bytes = 0
        if backlog_bytes - self._failed_at_bytes > threshold_bytes:
            self.start()

    async def _guarded(self) -> None:
        clock = self._service.clock
        try:
            async with self._service.turn:
                started_s = clock.monotonic_s()
                removed = await self._compact()
        except asyncio.CancelledError:
            self.status = Status.NOT_RUN
            raise
        except Exception as error:
            self._failed(error)
        else:
            self.status = Status.SUCCESS
            self.counters.removed_events = removed
            self.counters.removed_total += removed
            self.counters.succeeded_total += 1
            self.counters.succeeded_ms = clock.now_ms()
            self.counters.duration_ms = round((clock.monotonic_s() - started_s) * 1000)

    def _failed(self, error: Exception) -> None:
        unexpected = not isinstance(error, MagnetarError)
        logger.error("compaction failed topic=%s error=%s", self._topic, error, exc_info=unexpected)
        self.status = Status.ERROR
        self.last_error = "internal error; see the server's log" if unexpected else client_text(error)
        self.counters.failed_total += 1
        self.counters.failed_ms = self._service.clock.now_ms()
        self._failed_at_bytes = self.backlog_bytes

    async def _compact(self) -> int:
        """The number of messages that were removed."""
        cursor = await self._ledger.open_cursor(CURSOR_NAME, initial=EARLIEST)
        readable = self.readable
        upto = self._ledger.last_confirmed if readable is None else readable.readable_end
        if upto.entry_id < 0 or upto <= cursor.mark_delete_position:
            return 0
        compactor = Compactor(
            topic=self._topic,
            partition=self._partition,
            cursor=cursor,
            previous=self.current,
            upto=upto,
            retain_null_key=self._service.retain_null_key,
            clock=self._service.clock,
            hides=None if readable is None else readable.hides,
        )
        await compactor.find_keys()
        result = await self._written(cursor, compactor)
        await self._switch(cursor, result)
        logger.info(
            "topic compacted topic=%s ledger=%d horizon=%s messages=%d kept=%d",
            self._topic,
            result.ledger_id,
            tuple(upto),
            result.messages_seen,
            result.messages_kept,
        )
        return result.messages_removed

    async def _written(self, cursor: ManagedCursor, compactor: Compactor) -> CompactionResult:
        client = self._service.client
        made: list[LedgerWriter | MagnetarError] = []

        async def make() -> None:
            try:
                made.append(await compactor.create(client, self._ledger.config))
            except MagnetarError as error:
                made.append(error)

        making = self._service.spawn(make(), f"compacted ledger of {self._topic}")
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:  # given up while it is made: nobody would ever name it
            await asyncio.wait([making])
            for each in made:
                if not isinstance(each, MagnetarError):
                    await discard(client, each.ledger_id)
            raise
        writer = made[0]
        if isinstance(writer, MagnetarError):
            raise writer
        try:
            current = [] if self.current is None else [self.current.ledger_id]
            await _name_leftovers(cursor, [*_leftovers(cursor), *current, writer.ledger_id])
            logger.info("compacting topic=%s ledger=%d", self._topic, writer.ledger_id)
            return await compactor.write(writer)
        except BaseException:
            await discard(client, writer.ledger_id)
            raise

    async def _switch(self, cursor: ManagedCursor, result: CompactionResult) -> None:
        """The new ledger counts. The old one goes once that is durable; should it not be, the next load decides."""
        opened = await self._open(result.ledger_id, result.horizon)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        self.current = opened
        cursor.acknowledge_cumulative(result.horizon, {LEDGER_PROPERTY: result.ledger_id}, resolve_durable(stored))
        await stored
        await self._delete_leftovers(cursor)

    async def _delete_leftovers(self, cursor: ManagedCursor) -> None:
        counts = cursor.properties.get(LEDGER_PROPERTY)
        ledger_ids = _leftovers(cursor)
        if ledger_ids and await self.delete_ledgers([each for each in ledger_ids if each != counts]):
            await _name_leftovers(cursor, [])

    async def _open(self, ledger_id: int, mark_delete: Position) -> CompactedLedger:
        client = self._service.client
        compacted_to = (await client.read_metadata(ledger_id)).custom_metadata.get(COMPACTED_TO)
        horizon = mark_delete if compacted_to is None else raw_message.decode_id(compacted_to)
        return await CompactedLedger.over(await client.open_ledger(ledger_id, recover=False), horizon)

    # ---- For readers

    async def last_message(self) -> tuple[Position, int]:
        """Position of the last entry that is left, and the number of messages up to the last one left in it when it is a batch,
        else 0. (-1, -1) when nothing is left."""
        last = None if self.current is None else await self.current.last()
        if last is None:
            return EARLIEST, 0
        entry, left = last
        metadata = metadata_of(entry)
        if not metadata.batched:
            return entry.position, 0
        return entry.position, metadata.num_messages if left is None else last_index_of(left) + 1

    async def first_published_at(self, timestamp_ms: int) -> Position | None:
        """The first entry left that was published at or after a time, if it is no longer in the topic itself."""
        found = None if self.current is None else await self.current.first_published_at(timestamp_ms)
        return found if found is not None and found < self._ledger.first_position else None


def _leftovers(cursor: ManagedCursor) -> list[int]:
    text = cursor.cursor_properties.get(LEFTOVERS_PROPERTY, "")
    try:
        return [int(number) for number in text.split(",") if number]
    except ValueError:
        raise CompactedDataError(
            f"the cursor's property {LEFTOVERS_PROPERTY} is {text!r}, not a list of ledgers"
        ) from None


async def _name_leftovers(cursor: ManagedCursor, ledger_ids: list[int]) -> None:
    named = {LEFTOVERS_PROPERTY: ",".join(map(str, dict.fromkeys(ledger_ids)))} if ledger_ids else {}
    await cursor.change_cursor_properties(
        lambda held: {name: text for name, text in held.items() if name != LEFTOVERS_PROPERTY} | named
    )
