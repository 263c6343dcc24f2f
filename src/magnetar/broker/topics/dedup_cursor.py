"""The durable half of deduplication: snapshots in the cursor `pulsar.dedup`, replay of what came after the last one."""

from __future__ import annotations

from magnetar.broker.replicators.names import sequence_name
from magnetar.broker.topics.deduplication import CURSOR_NAME, SEQUENCE_ID_MAX, Deduplicator, packed
from magnetar.broker.topics.publish import PublishOp
from magnetar.broker.topics.replicated_publish import place_of
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import LATEST, Position
from magnetar.managed_ledger.reads import read_page
from magnetar.wire.pulsar.headers import parse_metadata


class DedupCursor:
    """Owns the cursor; `advanced` is called for each stored entry and takes a snapshot every `snapshot_entries`."""

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
            name = sequence_name(metadata.replicated_from)
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
        self._last = Position(op.ledger_id, op.entry_id)
        self._since_snapshot += 1
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
