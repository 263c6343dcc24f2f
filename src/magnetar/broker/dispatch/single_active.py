"""Exclusive and Failover: one consumer is served at a time, in the order of the log.

Which one (Failover): among the consumers with the highest priority (lowest number), the one that joined first; for a partition
the one at `partition index % consumers` of those consumers sorted by name, so that partitions spread over them.

What an active consumer did not acknowledge is not tracked one by one: when it leaves or asks for redelivery, the cursor goes
back to its mark-delete position and everything unacknowledged behind it is sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.dispatch.permits import messages_left
from magnetar.broker.dispatch.ports import EntrySource, MarkersRead
from magnetar.broker.dispatch.receiver import Receiver
from magnetar.managed_ledger.entry import Entry

R = TypeVar("R", bound=Receiver)

PARTITION_SUFFIX: Final = "-partition-"


def partition_index(topic_name: str) -> int:
    """The N of `...-partition-N`, -1 for a topic that is no partition."""
    _, found, number = topic_name.rpartition(PARTITION_SUFFIX)
    return int(number) if found and number.isascii() and number.isdigit() else -1


def choose_active(consumers: Sequence[R], partition: int) -> R | None:
    """The consumer to serve among `consumers` (in the order of their joins). None without any."""
    if not consumers:
        return None
    best = min(consumer.priority_level for consumer in consumers)
    candidates = [consumer for consumer in consumers if consumer.priority_level == best]
    if partition < 0:
        return candidates[0]
    candidates.sort(key=lambda consumer: consumer.name)
    return candidates[partition % len(candidates)]


class SingleActiveDispatcher:
    """Hands entries to the active consumer while it has permits."""

    __slots__ = ("_average_messages", "_charges_hidden", "_leftover", "_rewinds", "_source", "active", "markers_read")

    def __init__(self, source: EntrySource, *, charges_hidden: bool = False) -> None:
        """`charges_hidden`: messages that an ack set hides cost permits, too. Clients give those back when they skip them; without
        the charge a consumer that reads nearly empty batches could be sent any number of them."""
        self._source = source
        self._charges_hidden = charges_hidden
        self.active: Receiver | None = None
        self.markers_read: MarkersRead | None = None
        self._leftover: list[Entry] = []
        """Read, but the permits ran out: sent first, before anything else is read."""
        self._average_messages = 1.0
        """Messages an entry, smoothed: how many entries to read for the permits that are there."""
        self._rewinds = 0
        """A delivery may lead to a rewind (the connection broke): what follows of that read is then read again."""

    def take_replay(self, limit: int, now_ms: int) -> list[int]:
        return []

    def take_back(self, keys: Sequence[int]) -> None:
        """Nothing is ever replayed here."""

    def dispatch_replayed(self, entries: list[Entry], keys: Sequence[int], now_ms: int) -> None:
        """Nothing is ever replayed here."""

    def wanted(self, limit: int, now_ms: int) -> int:
        """Entries to read now. What an earlier read left over is sent first."""
        consumer = self.active
        if consumer is None or consumer.permits <= 0 or not consumer.channel.writable:
            return 0
        if self._leftover:
            entries = self._leftover
            self._leftover = []
            self.dispatch(entries, now_ms)
            if self._leftover or consumer.permits <= 0:
                return 0
        return min(limit, int(consumer.permits / self._average_messages) or 1)

    def dispatch(self, entries: list[Entry], now_ms: int) -> None:
        """Send `entries` in order; those beyond the permits are left over."""
        consumer = self.active
        if consumer is None:
            self._leftover.extend(entries)
            return
        source = self._source
        channel = consumer.channel
        markers: list[Entry] = []
        rewinds = self._rewinds
        consumer.last_consumed_ms = now_ms
        for index, entry in enumerate(entries):
            metadata = entry.parsed
            if metadata is None:
                metadata = metadata_of(entry)
            if metadata.marker_type >= 0:
                markers.append(entry)
                continue
            if rewinds != self._rewinds:
                break
            if consumer.permits <= 0:
                self._leftover.extend(entries[index:])
                break
            messages = metadata.num_messages
            ack_set = None
            if metadata.batched:
                self._average_messages += (messages - self._average_messages) * 0.1
                ack_set = source.ack_set_of(entry.position)
                if ack_set is not None:
                    messages = messages_left(ack_set)
            consumer.permits -= metadata.num_messages if self._charges_hidden else messages
            consumer.messages_out += messages
            consumer.entries_out += 1
            consumer.bytes_out += len(entry.data)
            channel.deliver(entry, 0, ack_set, consumer.consumer_epoch)
        if markers:
            source.acknowledge([marker.position for marker in markers])
            if self.markers_read is not None:
                self.markers_read(markers)

    def rewound(self) -> None:
        """The source went back: what was left over will be read again."""
        self._rewinds += 1
        self._leftover.clear()

    def leftover_changed(self) -> None:
        """Entries were acknowledged without being delivered: do not deliver those."""
        acknowledged = self._source.is_acknowledged
        self._leftover = [entry for entry in self._leftover if not acknowledged(entry.position)]

    @property
    def more(self) -> bool:
        return False

    def next_due_ms(self) -> int | None:
        """Delayed messages are delivered at once here, as in Pulsar."""
        return None

    @property
    def leftover(self) -> bool:
        """Are entries read and waiting for permits?"""
        return bool(self._leftover)
