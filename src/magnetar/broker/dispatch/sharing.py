"""Base of the policies whose consumers hold entries one by one: redelivery, delayed messages, unacknowledged limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import ClassVar, Final

from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.dispatch.entry_metadata import EntryMetadata, metadata_of
from magnetar.broker.dispatch.ports import EntrySource, Kept, MarkersRead
from magnetar.broker.dispatch.position_key import position_of
from magnetar.broker.dispatch.receiver import HELD_SLOT_BITS, HELD_SLOT_MASK, Receiver, messages_left
from magnetar.broker.dispatch.redelivery import RedeliveryCounts
from magnetar.managed_ledger.entry import Entry

DEFAULT_AVERAGE = 1.0
FAR_FUTURE_MS = 2**62
"""Every delayed message is due by then."""

AVERAGE_WEIGHT = 0.1
"""Share of the newest batch in the smoothed number of messages an entry."""


_DATA: Final = attrgetter("data")


class Deliveries:
    """What the entries of one read bring to each consumer: decided entry by entry, handed over in runs.

    Nothing is written before everything is decided and booked, so whatever a channel does finds books that are right.
    """

    __slots__ = ("runs", "special")

    def __init__(self) -> None:
        self.runs: dict[Receiver, list[Entry]] = {}
        self.special: dict[Entry, tuple[int, list[int] | None]] = {}
        """Redelivery count and ack set of those that have one."""


class SharingDispatcher:
    """The part of a `Dispatcher` that Shared and Key_Shared have in common.

    Subclasses decide who gets an entry and where one that must wait does so (`requeue`).
    """

    holds_entries: ClassVar[bool] = True
    keyed: ClassVar[bool] = False

    __slots__ = (
        "_freed",
        "average_messages",
        "blocked_on_unacked",
        "consumers",
        "counts",
        "delayed",
        "delaying",
        "markers_read",
        "max_unacked",
        "source",
        "taken_total",
        "unacked_messages",
    )

    def __init__(self, source: EntrySource, delayed: DelayedIndex | None, max_unacked: int) -> None:
        self.source = source
        self.delayed = delayed
        """None where nothing is ever held back."""
        self.delaying = True
        """False when delayed delivery is off: what the index holds is due at once, and nothing new gets in."""
        self.markers_read: MarkersRead | None = None
        self.consumers: list[Receiver] = []
        """Consumers in the order in which they joined."""
        self.counts = RedeliveryCounts()
        self.max_unacked = max_unacked
        """Bound of `unacked_messages` over all consumers, 0 = none: dispatch stops there until half are settled."""
        self.unacked_messages = 0
        self._freed = False
        """True if a consumer may take more again since somebody else acknowledged what it held; until the next turn."""
        self.blocked_on_unacked = False
        self.average_messages = DEFAULT_AVERAGE
        self.taken_total = 0
        """How often entries were taken from a consumer."""

    def pass_markers(self, markers: Sequence[Entry]) -> None:
        """Acknowledge markers: no consumer is given these."""
        self.source.acknowledge([marker.position for marker in markers])
        if self.markers_read is not None:
            self.markers_read(markers)

    # ---- What subclasses decide

    def requeue(self, waiting: Iterable[tuple[int, int]]) -> None:
        """Pairs of position key and slot that must be delivered again."""
        raise NotImplementedError

    def taken_back(self, held: Mapping[int, int]) -> None:
        """Settle and requeue what a consumer held: its values by position key, as in `Receiver.held`."""
        raise NotImplementedError

    def settled(self, key: int, slot: int) -> None:
        """A held entry of `slot` was acknowledged or taken back."""
        raise NotImplementedError

    def settled_all(self, values: Sequence[int]) -> None:
        """Entries of these values, as in `Receiver.held`, were acknowledged."""
        raise NotImplementedError

    @property
    def waiting_count(self) -> int:
        """Entries that wait to be delivered again, or for the first time after having been passed over."""
        raise NotImplementedError

    @property
    def kept(self) -> Kept | None:
        return None

    @property
    def unblocked(self) -> bool:
        return self._freed

    @property
    def more(self) -> bool:
        return False

    def rewound(self) -> None:
        """Everything unacknowledged will be read again: forget what was read, remembered and counted."""
        self.counts.by_key.clear()
        if self.delayed is not None:
            self.delayed.clear()

    # ---- Consumers

    @property
    def active_consumer(self) -> Receiver | None:
        return None

    def key_ranges_of(self, consumer: Receiver) -> list[tuple[int, int]]:
        return []

    def draining_of(self, consumer: Receiver) -> Mapping[int, int]:
        return {}

    def configure(self, max_unacked: int, delaying: bool) -> None:
        self.max_unacked = max_unacked
        self.delaying = delaying
        self.blocked_on_unacked = self.unacked_messages >= max_unacked > 0

    def close(self) -> None:
        """No effect: there are no timers."""

    def remove(self, consumer: Receiver) -> None:
        self.consumers.remove(consumer)
        self.take_all_from(consumer)

    def redeliver(self, consumer: Receiver, keys: Sequence[int]) -> None:
        if keys:
            self.take_from(consumer, keys)
        else:
            self.take_all_from(consumer)

    def requeue_entry(self, key: int, slot: int) -> None:
        """Deliver the entry again; of a batch that a consumer holds in part, all that is left."""
        holder = self.holder_of(key)
        if holder is not None:
            self.take_from(holder, [key])
        else:
            self.counts.increment(key)
            self.requeue([(key, slot)])

    def take_all_from(self, consumer: Receiver) -> None:
        """Deliver again all it holds."""
        self._released(consumer.unacked_messages)
        self._redeliver(consumer.drop_all())

    def take_from(self, consumer: Receiver, keys: Iterable[int]) -> None:
        """Deliver again those of `keys` that it holds."""
        taken: dict[int, int] = {}
        for key in keys:
            value = consumer.held.get(key)
            if value is not None:
                self._released(consumer.settle(key))
                taken[key] = value
        self._redeliver(taken)

    def _redeliver(self, taken: Mapping[int, int]) -> None:
        """In one turn of the loop whatever their number, so nothing is created or called for a single one of them."""
        self.taken_total += 1
        self.counts.increment_all(taken.keys())
        self.taken_back(taken)

    # ---- Acknowledgements

    def acknowledged(self, consumer: Receiver, key: int, left: int = 0) -> None:
        """An entry was acknowledged but for `left` of its messages. Whoever holds it, holds it no longer."""
        value = consumer.held.get(key)
        if value is None:
            holder = self.holder_of(key)
            if holder is None:
                if not left:
                    self.counts.forget(key)
                return
            consumer = holder
            value = consumer.held[key]
            was_blocked = consumer.blocked_on_unacked
            settled = consumer.settle(key, left)
            self._freed = self._freed or (was_blocked and not consumer.blocked_on_unacked)
        else:
            settled = consumer.settle(key, left)
        if settled:
            self._released(settled)
        if not left:
            if self.counts.by_key:
                self.counts.forget(key)
            self.settled(key, value & HELD_SLOT_MASK)

    def acknowledged_all(self, consumer: Receiver, keys: Sequence[int]) -> None:
        """`acknowledged` for entries that were acknowledged as a whole."""
        unknown: list[int] = []
        values, messages = consumer.settle_all(keys, unknown)
        if values:
            self._released(messages)
            if self.counts.by_key:
                for key in keys:
                    self.counts.forget(key)
            self.settled_all(values)
        for key in unknown:
            self.acknowledged(consumer, key)

    def holder_of(self, key: int) -> Receiver | None:
        """The consumer that holds an entry."""
        for consumer in self.consumers:
            if key in consumer.held:
                return consumer
        return None

    def acknowledged_elsewhere(self) -> None:
        """Take acknowledged entries from the consumers that hold them."""
        acknowledged = self.source.is_acknowledged
        for consumer in self.consumers:
            for key in [key for key in consumer.held if acknowledged(position_of(key))]:
                self.acknowledged(consumer, key)

    # ---- Deliveries

    def assign(self, deliveries: Deliveries, consumer: Receiver, entry: Entry, key: int, slot: int) -> None:
        """Give an entry to a consumer. What is plain is done in the loops of subclasses."""
        metadata: EntryMetadata = entry.parsed or metadata_of(entry)
        messages = metadata.num_messages
        ack_set = None
        if metadata.batched:
            self.average_messages += (messages - self.average_messages) * AVERAGE_WEIGHT
            ack_set = self.source.ack_set_of(entry.position)
            if ack_set is not None:
                messages = messages_left(ack_set)
        consumer.hold(key, messages << HELD_SLOT_BITS | slot, messages)
        self.count_sent(messages)
        redeliveries = self.counts.by_key.get(key, 0)
        if redeliveries or ack_set is not None:
            deliveries.special[entry] = redeliveries, ack_set
            if redeliveries:
                consumer.messages_redelivered += messages
        run = deliveries.runs.get(consumer)
        if run is None:
            run = deliveries.runs[consumer] = []
        run.append(entry)

    def assign_plain(self, deliveries: Deliveries, consumer: Receiver, entry: Entry, key: int, value: int) -> None:
        """`assign` for an entry of one message that was not delivered before."""
        consumer.hold(key, value, 1)
        self.count_sent(1)
        run = deliveries.runs.get(consumer)
        if run is None:
            run = deliveries.runs[consumer] = []
        run.append(entry)

    def count_sent(self, messages: int) -> None:
        """`messages` were given to consumers and are now held."""
        self.unacked_messages += messages
        if self.unacked_messages >= self.max_unacked > 0:
            self.blocked_on_unacked = True

    def hand_over(self, deliveries: Deliveries, now_ms: int) -> None:
        """Each consumer's entries, those that follow one another and are nothing special in one call."""
        runs, special, taken = deliveries.runs, deliveries.special, self.taken_total
        for consumer, run in runs.items():
            if run:
                consumer.last_consumed_ms = now_ms
                consumer.entries_out += len(run)
                consumer.bytes_out += sum(map(len, map(_DATA, run)))
        for consumer, run in runs.items():
            if special or consumer.consumer_epoch is not None or taken != self.taken_total:
                self._hand_over_singly(consumer, run, special, taken)
            elif run:
                consumer.channel.deliver_run(run)

    def _hand_over_singly(
        self, consumer: Receiver, run: list[Entry], special: Mapping[Entry, tuple[int, list[int] | None]], taken: int
    ) -> None:
        channel, epoch = consumer.channel, consumer.consumer_epoch
        for entry in run:
            redeliveries, ack_set = special.get(entry, (0, None))
            if taken == self.taken_total or entry.ledger_id << 32 | entry.entry_id in consumer.held:
                channel.deliver(entry, redeliveries, ack_set, epoch)
            else:  # a delivery before this one led to its being taken back
                messages = metadata_of(entry).num_messages if ack_set is None else messages_left(ack_set)
                consumer.permits += messages
                consumer.messages_out -= messages
                consumer.entries_out -= 1
                consumer.bytes_out -= len(entry.data)

    def _released(self, messages: int) -> None:
        self.unacked_messages -= messages
        if self.blocked_on_unacked and self.unacked_messages <= self.max_unacked // 2:
            self.blocked_on_unacked = False

    # ---- Delayed messages

    def hold_back(self, metadata: EntryMetadata, key: int, now_ms: int) -> bool:
        """True if this new entry is of a delayed message that is not due: the index has it now."""
        delayed = self.delayed
        if delayed is None:
            return False
        if delayed.owns(key):
            return True
        if metadata.deliver_at_ms <= now_ms or not self.delaying:
            return False
        delayed.add(metadata.deliver_at_ms, key, metadata.slot)
        return True

    def came_due_twice(self, metadata: EntryMetadata, key: int) -> bool:
        """Stored indexes may name a message twice after a restart; somebody who holds it already has it."""
        return metadata.deliver_at_ms > 0 and self.holder_of(key) is not None

    def take_due(self, delayed: DelayedIndex, now_ms: int, limit: int) -> list[tuple[int, int]]:
        """Position keys and slots of messages in the index that are due."""
        return delayed.take_due(now_ms if self.delaying else FAR_FUTURE_MS, limit)

    def next_due_ms(self) -> int | None:
        if self.delayed is None or not self.consumers:
            return None
        due_ms = self.delayed.next_due_ms()
        return due_ms if self.delaying or due_ms is None else 0

    def validate(self) -> None:
        """Assert that the sums fit."""
        assert self.unacked_messages == sum(consumer.unacked_messages for consumer in self.consumers)
        seen: set[int] = set()
        for consumer in self.consumers:
            consumer.validate()
            assert not seen & consumer.held.keys(), "an entry is held twice"
            seen |= consumer.held.keys()
