"""Deduplication of one topic: of its producers where the policies say so, and always of what other clusters send again after a cut.

Its durable half is the cursor `pulsar.dedup`: snapshots, and replay of what came after the last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.replicators.names import sequence_name
from magnetar.broker.topics.deduplication import CURSOR_NAME, SEQUENCE_ID_MAX, Deduplicator, packed
from magnetar.broker.topics.publish import PublishOp
from magnetar.broker.topics.publishers import Publishers
from magnetar.broker.topics.replicated_publish import place_of, source_of
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import LATEST, Position
from magnetar.managed_ledger.reads import read_page
from magnetar.wire.pulsar.headers import parse_metadata


class DedupCursor:
    """Owns the cursor; `advanced` is called for each stored run and takes a snapshot every `snapshot_entries`."""

    def __init__(self, cursor: ManagedCursor, dedup: Deduplicator, snapshot_entries: int) -> None:
        self._cursor = cursor
        self._dedup = dedup
        self._snapshot_entries = snapshot_entries
        self._since_snapshot = 0
        self._snapshot_s: float | None = None
        self._last: Position | None = None

    @classmethod
    async def recover(
        cls, ledger: ManagedLedger, producers_max: int, snapshot_entries: int, producers: bool
    ) -> tuple[DedupCursor, Deduplicator]:
        """Open or create the cursor, restore its snapshot and replay the entries behind it.

        `producers`: those of this cluster are deduplicated, and not only what other clusters send.
        """
        dedup = Deduplicator(producers_max)
        cursor = await ledger.open_cursor(CURSOR_NAME, initial=LATEST)
        dedup.restore(dict(cursor.properties))
        if not producers:
            dedup.forget_producers()
        recovered = cls(cursor, dedup, snapshot_entries)
        cursor.rewind()
        while entries := await read_page(cursor):
            for entry in entries:
                recovered._replay(entry, producers)
        recovered.snapshot()
        return recovered, dedup

    def _replay(self, entry: Entry, producers: bool) -> None:
        metadata = parse_metadata(entry.data)
        self._last = entry.position
        self._since_snapshot += 1
        if metadata.HasField("marker_type"):
            return
        place = place_of(metadata) if metadata.replicated_from else None
        if place is not None:
            name = sequence_name(source_of(metadata))
            self._dedup.keep_place(name)
            self._dedup.persist(name, packed(*place))
            return
        if not producers:
            return
        if metadata.num_chunks_from_msg > 1 and metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            return
        name = metadata.producer_name
        if metadata.replicated_from:
            name = sequence_name(metadata.replicated_from, name)
        last = max(metadata.sequence_id, metadata.highest_sequence_id)
        if last <= SEQUENCE_ID_MAX:  # what was stored while deduplication was off was not looked at
            self._dedup.persist(name, last)

    def advanced(self, op: PublishOp) -> None:
        self._last = Position(op.ledger_id, op.entry_id + op.entries - 1)
        self._since_snapshot += op.entries
        if self._since_snapshot >= self._snapshot_entries:
            self.snapshot()

    def snapshot_if_older(self, interval_s: float, now_s: float) -> None:
        """A snapshot for what came since the one before, when that is `interval_s` old (asked for the first time: begins now)."""
        if self._snapshot_s is None or now_s - self._snapshot_s >= interval_s:
            self._snapshot_s = now_s
            self.snapshot()

    @property
    def cursor(self) -> ManagedCursor:
        return self._cursor

    async def store(self) -> None:
        """A snapshot, durable on return, whether or not anything came since the last."""
        self._cursor.acknowledge_cumulative(self._last or self._cursor.mark_delete_position, self._dedup.snapshot())
        await self._cursor.flush()

    def snapshot(self) -> None:
        """Move the cursor to the last stored entry, with the watermarks in its properties."""
        if self._last is not None and self._since_snapshot:
            self._since_snapshot = 0
            self._cursor.acknowledge_cumulative(self._last, self._dedup.snapshot())


logger = logging.getLogger(__name__)

SOURCES_PROPERTY: Final = "magnetar.replicated.from."
"""Of the cursor, one for each cluster that sends here: the instance of that cluster's metadata, empty when it did not say."""

SOURCES_MAX: Final = 10_000
"""Clusters, and segments of theirs, that ever sent to one topic. Each is remembered for as long as the topic is there."""


class TopicDeduplication:
    """`apply` before the first entry is published."""

    def __init__(self, ledger: ManagedLedger, publishers: Publishers, config: BrokerConfig) -> None:
        self._ledger = ledger
        self._publishers = publishers
        self._config = config
        self._enabled = False
        self._cursor: DedupCursor | None = None
        self._dedup: Deduplicator | None = None
        self._switching = asyncio.Lock()

    async def apply(self, enabled: bool) -> None:
        """True if the policies enable it for producers."""
        async with self._switching:
            self._enabled = enabled
            await self._switch(bool(self.sources))

    @property
    def sources(self) -> dict[str, str]:
        """The clusters that ever sent here, each with the instance of its metadata."""
        cursor = self._ledger.cursors.get(CURSOR_NAME)
        return {} if cursor is None else _sources_of(cursor.cursor_properties)

    async def accept_from(self, source: str, instance: str, log_end: tuple[int, int] | None) -> None:
        """Another cluster is going to send. `instance` says which metadata it has: with another one its log begins anew. `log_end`: its
        last entry, None when it does not say. A place behind it was never in that log: what was remembered then does not count.

        Raises NotAllowedError above SOURCES_MAX.
        """
        async with self._switching:
            sources = self.sources
            known = sources.get(source)
            if known is None and len(sources) >= SOURCES_MAX:
                raise NotAllowedError(
                    f"{SOURCES_MAX} clusters and segments of other clusters have sent here; no more are remembered"
                )
            if known is None or (instance and known != instance):
                cursor, dedup = await self._switch(needed=True) or (None, None)
                assert cursor is not None, "asked for"
                assert dedup is not None, "asked for"
                if known:
                    dedup.forget(sequence_name(source))
                    await cursor.store()
                await cursor.cursor.change_cursor_properties(lambda held: {**held, SOURCES_PROPERTY + source: instance})
            cursor, dedup = self._cursor, self._dedup
            assert cursor is not None, "a source is known"
            assert dedup is not None, "a source is known"
            name = sequence_name(source)
            dedup.keep_place(name)
            if log_end is not None and dedup.is_behind(name, log_end):
                logger.warning("place of cluster %s forgotten: its log ends before, at %d:%d", source, *log_end)
                dedup.forget(name)
                await cursor.store()

    async def _switch(self, needed: bool) -> tuple[DedupCursor, Deduplicator] | None:
        publishers = self._publishers
        if not (self._enabled or needed):
            await self._remove()
            return None
        if self._cursor is None or self._dedup is None:
            config = self._config
            self._cursor, self._dedup = await DedupCursor.recover(
                self._ledger,
                config.settings.broker_deduplication_max_number_of_producers,
                config.settings.broker_deduplication_entries_interval,
                producers=self._enabled,
            )
            publishers.dedup_advanced = self._cursor.advanced
        elif publishers.dedup_producers and not self._enabled:
            self._dedup.forget_producers()
            await self._cursor.store()
        publishers.dedup, publishers.dedup_producers = self._dedup, self._enabled
        publishers.deduplicates = self._enabled
        return self._cursor, self._dedup

    async def _remove(self) -> None:
        if CURSOR_NAME in self._ledger.cursors:
            self._cursor, self._dedup, self._publishers.dedup = None, None, None
            self._publishers.deduplicates = False
            self._publishers.dedup_advanced = lambda op: None
            await self._ledger.delete_cursor(CURSOR_NAME)

    def snapshot(self) -> None:
        if self._cursor is not None:
            self._cursor.snapshot()

    def snapshot_if_older(self, interval_s: float, now_s: float) -> None:
        """Take a snapshot once the last one is older than `interval_s`."""
        if self._cursor is not None and interval_s > 0:
            self._cursor.snapshot_if_older(interval_s, now_s)


def _sources_of(properties: Mapping[str, str]) -> dict[str, str]:
    start = len(SOURCES_PROPERTY)
    return {key[start:]: value for key, value in properties.items() if key.startswith(SOURCES_PROPERTY)}
