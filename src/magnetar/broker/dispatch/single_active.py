"""Exclusive and Failover: one consumer is served at a time, in the order of the log.

Which one (Failover), among the consumers with the highest priority (lowest number): for a partition the one at `partition index %
consumers` of those consumers sorted by name, so that partitions spread over them. For a topic without partitions the one whose points
on a ring of hashes follow that of the topic's name, so that many topics spread over the same consumers
(AbstractDispatcherSingleActiveConsumer of Pulsar 4.2).

What an active consumer did not acknowledge is not tracked one by one: when it leaves or asks for redelivery, the cursor goes
back to its mark-delete position and everything unacknowledged behind it is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, Final, TypeVar

from magnetar.broker.dispatch import why
from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.dispatch.dispatcher import Where
from magnetar.broker.dispatch.entry_metadata import NOT_PLAIN, held_values, metadata_of
from magnetar.broker.dispatch.ports import EntrySource, Kept, MarkersRead, Scheduler, Timer
from magnetar.broker.dispatch.position_key import position_of
from magnetar.broker.dispatch.receiver import Receiver, messages_left
from magnetar.broker.reasons import NOTHING_HELD_UP, Code, Standing, because
from magnetar.hashing.murmur3 import POSITIVE_SPACE, murmur3_positive
from magnetar.hashing.sticky import StickyRanges
from magnetar.managed_ledger.entry import Entry

R = TypeVar("R", bound=Receiver)

PARTITION_SUFFIX: Final = "-partition-"


def partition_index(topic_name: str) -> int:
    """The N of `...-partition-N`, -1 for a topic that is not a partition."""
    _, found, number = topic_name.rpartition(PARTITION_SUFFIX)
    return int(number) if found and number.isascii() and number.isdigit() else -1


RING_POINTS: Final = 100
"""Points of each consumer on the ring."""


def choose_active(consumers: Sequence[R], partition: int, topic_name: str) -> R | None:
    """The consumer to serve among `consumers`, None without any. `partition`: -1 to choose by the ring."""
    if not consumers:
        return None
    best = min(consumer.priority_level for consumer in consumers)
    candidates = sorted(
        (consumer for consumer in consumers if consumer.priority_level == best), key=lambda consumer: consumer.name
    )
    if partition >= 0:
        return candidates[partition % len(candidates)]
    return min(reversed(candidates), key=lambda consumer: ring_distance(consumer.name, topic_name))


@lru_cache(maxsize=10_000)
def ring_distance(consumer_name: str, topic_name: str) -> int:
    """From the topic's place on the ring upwards to the consumer's next point."""
    place = murmur3_positive(topic_name)
    return min((murmur3_positive(f"{consumer_name}{point}") - place) % POSITIVE_SPACE for point in range(RING_POINTS))


TELL_DELAY_MAX_MS: Final = 250
"""News about the active consumer waits for `activeConsumerFailoverDelayTimeMillis`, and no longer than this."""


class SingleActiveDispatcher:
    """Hands entries to the active consumer while it has permits, and moves from one active consumer to the next.

    A replaced consumer that is still connected may have acknowledgements on the way: the switch waits `delay_ms` for them,
    so that they are not delivered twice. When it has left, the next one is served at once.
    """

    holds_entries: ClassVar[bool] = False
    keyed: ClassVar[bool] = False

    __slots__ = (
        "_active",
        "_announces",
        "_average_messages",
        "_charges_hidden",
        "_chosen",
        "_consumers",
        "_delay_ms",
        "_leftover",
        "_partition",
        "_ranges",
        "_rewind",
        "_rewinds",
        "_scheduler",
        "_source",
        "_telling",
        "_timer",
        "_topic_name",
        "markers_read",
    )

    def __init__(
        self,
        source: EntrySource,
        scheduler: Scheduler,
        rewind: Callable[[], None],
        topic_name: str,
        *,
        announces: bool,
        delay_ms: int = 0,
        charges_hidden: bool = False,
        always_by_ring: bool = False,
    ) -> None:
        """`rewind`: makes the pump begin anew at the mark-delete position. `announces`: consumers are told which of them is active.

        `charges_hidden`: messages that an ack set hides cost permits, too. Clients give those back when they skip them; without
        the charge a consumer that reads nearly empty batches could be sent any number of them."""
        self._source = source
        self._scheduler = scheduler
        self._rewind = rewind
        self._topic_name = topic_name
        self._partition = -1 if always_by_ring else partition_index(topic_name)
        self._announces = announces
        self._delay_ms = delay_ms
        self._charges_hidden = charges_hidden
        self._consumers: list[Receiver] = []
        """Consumers in the order in which they joined."""
        self._chosen: Receiver | None = None
        self._active: Receiver | None = None
        """The consumer that is served: the chosen one, None while the switch to it waits."""
        self._timer: Timer | None = None
        self._telling = False
        self.markers_read: MarkersRead | None = None
        self._leftover: list[Entry] = []
        """Read, but the permits ran out: sent first, before anything else is read."""
        self._average_messages = 1.0
        """Messages an entry, smoothed: how many entries to read for the permits that are there."""
        self._ranges: StickyRanges | None = None
        """The slots whose messages the consumer wants, None for all."""
        self._rewinds = 0
        """A delivery may lead to a rewind (the connection broke): what follows of that read is then read again."""

    # ---- Consumers

    def add(self, consumer: Receiver, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """`ranges`: a reader's `keyHashRange`. Failover ignores them, as in Pulsar."""
        if ranges and not self._announces:
            wanted = StickyRanges()
            wanted.add(consumer.name, ranges)
            self._ranges = wanted
        self._consumers.append(consumer)
        self._choose()

    def remove(self, consumer: Receiver) -> None:
        self._consumers.remove(consumer)
        self._ranges = None
        self._choose()

    @property
    def active_consumer(self) -> Receiver | None:
        return self._chosen

    def _choose(self) -> None:
        """Choose the active consumer anew, after one joined or left."""
        previous = self._chosen
        chosen = self._chosen = choose_active(self._consumers, self._partition, self._topic_name)
        if chosen is not previous:
            self.close()
            if self._delay_ms > 0 and previous is not None and previous in self._consumers:
                self._timer = self._scheduler.call_later(self._delay_ms / 1000, self._activate)
            else:
                self._activate()
        for consumer in self._consumers:
            consumer.is_active = consumer is chosen
        self._tell_soon()

    def _activate(self) -> None:
        self._timer = None
        self._active = self._chosen
        self._rewind()

    def close(self) -> None:
        """Serve nobody until another consumer is chosen."""
        self._active = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_soon(self) -> None:
        """Tell consumers after the caller has answered SUBSCRIBE: a client does not expect news about a consumer before that, and
        the Go client loses what comes right behind the answer. Pulsar waits for the whole delay."""
        if self._announces and not self._telling:
            self._telling = True
            if self._delay_ms > 0:
                self._scheduler.call_later(min(self._delay_ms, TELL_DELAY_MAX_MS) / 1000, self._tell)
            else:
                self._scheduler.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        for consumer in list(self._consumers):
            if consumer.notified_active != consumer.is_active:
                consumer.notified_active = consumer.is_active
                consumer.channel.active_changed(consumer.is_active)

    def key_ranges_of(self, consumer: Receiver) -> list[tuple[int, int]]:
        return []

    def draining_of(self, consumer: Receiver) -> Mapping[int, int]:
        return {}

    def configure(self, max_unacked: int, delaying: bool) -> None:
        """No effect: nothing is held or delayed."""

    # ---- What the pump asks

    def take_replay(self, limit: int, now_ms: int) -> list[int]:
        return []

    @property
    def kept(self) -> Kept | None:
        return None

    def take_back(self, keys: Sequence[int]) -> None:
        """No effect: nothing is replayed."""

    def dispatch_replayed(self, entries: list[Entry], keys: Sequence[int], now_ms: int) -> None:
        """No effect: nothing is replayed."""

    def wanted(self, limit: int, now_ms: int) -> int:
        """As many entries as the permits allow; those that an earlier read left over are sent first."""
        consumer = self._active
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
        consumer = self._active
        if consumer is None:
            self._leftover.extend(entries)
            return
        if self._ranges is not None:
            owner = self._ranges.owner
            entries = [entry for entry in entries if _is_marker(entry) or owner(metadata_of(entry).slot) is not None]
        source = self._source
        channel = consumer.channel
        markers: list[Entry] = []
        run: list[Entry] = []
        left: list[Entry] = []
        rewinds = self._rewinds
        consumer.last_consumed_ms = now_ms
        one_by_one = consumer.consumer_epoch is not None
        for index, value in enumerate(held_values(entries, False)):
            entry = entries[index]
            metadata = metadata_of(entry) if value == NOT_PLAIN else None
            if metadata is not None and metadata.marker_type >= 0:
                markers.append(entry)
                continue
            if rewinds != self._rewinds:
                break
            if consumer.permits <= 0:
                left = entries[index:]
                break
            messages = charged = 1
            ack_set = None
            if metadata is not None:
                messages = charged = metadata.num_messages
                if metadata.batched:
                    self._average_messages += (messages - self._average_messages) * 0.1
                    ack_set = source.ack_set_of(entry.position)
                    if ack_set is not None:
                        messages = messages_left(ack_set)
                        charged = charged if self._charges_hidden else messages
            consumer.permits -= charged
            consumer.messages_out += messages
            consumer.entries_out += 1
            consumer.bytes_out += len(entry.data)
            if ack_set is None and not one_by_one:
                run.append(entry)
                continue
            if run:
                channel.deliver_run(run)
                run = []
            channel.deliver(entry, 0, ack_set, consumer.consumer_epoch)
        if run:
            channel.deliver_run(run)
        if left and rewinds == self._rewinds:
            self._leftover.extend(left)
        if markers:
            source.acknowledge([marker.position for marker in markers])
            if self.markers_read is not None:
                self.markers_read(markers)

    def rewound(self) -> None:
        """The source went back: what was left over will be read again."""
        self._rewinds += 1
        self._leftover.clear()

    def leftover_changed(self) -> None:
        acknowledged = self._source.is_acknowledged
        self._leftover = [entry for entry in self._leftover if not acknowledged(entry.position)]

    @property
    def more(self) -> bool:
        return False

    def next_due_ms(self) -> int | None:
        """Delayed messages are delivered at once here, as in Pulsar."""
        return None

    # ---- Acknowledgements and redelivery

    def acknowledged(self, consumer: Receiver, key: int, left: int = 0) -> None:
        """No effect: only the cursor knows what is acknowledged."""

    def acknowledged_all(self, consumer: Receiver, keys: Sequence[int]) -> None:
        """No effect: only the cursor knows what is acknowledged."""

    def acknowledged_elsewhere(self) -> None:
        """No effect: only the cursor knows what is acknowledged."""

    def redeliver(self, consumer: Receiver, keys: Sequence[int]) -> None:
        """Deliver everything again from the first unacknowledged entry on, as Pulsar does."""
        if consumer is self._chosen:
            self._rewind()

    def requeue_entry(self, key: int, slot: int) -> None:
        self._rewind()

    @property
    def leftover(self) -> bool:
        return bool(self._leftover)

    # ---- Statistics

    @property
    def delayed(self) -> DelayedIndex | None:
        return None

    @property
    def unacked_messages(self) -> int:
        return 0

    @property
    def blocked_on_unacked(self) -> bool:
        return False

    @property
    def unblocked(self) -> bool:
        return False

    @property
    def waiting_count(self) -> int:
        return 0

    def where(self, key: int, slot: int) -> Where:
        """Everything that was read went to the active consumer, but for what is left over."""
        position = position_of(key)
        left = any(entry.position == position for entry in self._leftover)
        read = position < self._source.read_position and not left
        return Where(self._active if read else None)

    def standing(self, has_more: bool) -> Standing:
        if not (has_more or self._leftover):
            return NOTHING_HELD_UP
        if self._active is None:
            if self._chosen is None:
                return Standing(False, [])
            return Standing(
                False, [because(Code.FAILOVER_SWITCHING, **self._chosen.described(), delay_ms=self._delay_ms)]
            )
        held_up = why.held_up(self._active)
        return Standing(False, [held_up]) if held_up is not None else NOTHING_HELD_UP

    def validate(self) -> None:
        """Assert that nobody is served but a consumer that is here."""
        assert self._active is None or self._active in self._consumers


def _is_marker(entry: Entry) -> bool:
    return metadata_of(entry).marker_type >= 0
