"""Key_Shared: every key goes to one consumer at a time, in order, and whoever cannot take its entries stalls its own keys alone.

**Order.** A slot (16-bit hash of the key) has one owner. When it moves while its former owner holds entries of it, the slot
drains first (see `lanes`). A consumer for whom something waits gets nothing past it, so within a slot everything goes out in log
order, redeliveries included: they are older than what waits behind them.

**Look-ahead.** Entries for a consumer without permits, or of a draining or unowned slot, do not stop the others: dispatch goes on
reading and remembers only *where* such entries are (10 bytes each, `waiting`). Their data is in memory while there is room (`kept`), and
is read again from the entry cache or the ledger else, when the consumer can take them. A consumer may therefore be frozen at any
backlog while the rest go on.

**Bound.** At most `waiting_max` positions are remembered a subscription. Beyond, a slot is *skipped*: only the position of its first
unremembered entry is kept, at most one number per slot, whatever the backlog. When the consumer has caught up with what is
remembered, a scan from there over the unacknowledged entries finds the rest: it walks the acknowledgement state without reading
what is acknowledged, and reads the others, delivering those of skipped slots. One scan serves all consumers that stand at its
place. The price of the bound is that a scan also reads unacknowledged entries of consumers that still are stuck.

A position below the cursor's read position is in exactly one state: acknowledged, held by a consumer, delayed, waiting, in the
pump's hands, or skipped (at or after its slot's number).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from magnetar.broker.dispatch import why
from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.dispatch.dispatcher import Where
from magnetar.broker.dispatch.entry_metadata import NOT_PLAIN, EntryMetadata, held_values, metadata_of
from magnetar.broker.dispatch.kept import KeptEntries
from magnetar.broker.dispatch.lanes import KeyRanges, Lane, Lanes, Parking
from magnetar.broker.dispatch.ports import EntrySource, Kept
from magnetar.broker.dispatch.position_key import ENTRY_BITS, ENTRY_MASK, key_of
from magnetar.broker.dispatch.receiver import HELD_SLOT_MASK, Receiver
from magnetar.broker.dispatch.sharing import Deliveries, SharingDispatcher
from magnetar.broker.dispatch.waiting import SLOT_BITS, SLOT_MASK
from magnetar.broker.reasons import Standing
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position

SCAN_WALK_MAX: Final = 1000
"""Positions a scan looks at in one turn; then the other subscriptions have theirs."""


class Log(Protocol):
    """The part of a managed ledger that a scan walks along."""

    @property
    def last_confirmed(self) -> Position: ...

    def next_position(self, position: Position, /) -> Position: ...


class _Scan(NamedTuple):
    start: int
    end: int
    finished: bool
    """True if it reached the cursor's read position."""


class KeySharedDispatcher(SharingDispatcher):
    """Hands entries to the owners of their slots."""

    keyed: ClassVar[bool] = True

    __slots__ = (
        "_in_flight",
        "_kept",
        "_log",
        "_scan",
        "_skipping",
        "_turn",
        "_waiting_max",
        "_walked",
        "lanes",
        "waiting_total",
    )

    def __init__(
        self,
        source: EntrySource,
        log: Log,
        delayed: DelayedIndex | None,
        max_unacked: int,
        ranges: KeyRanges,
        waiting_max: int,
    ) -> None:
        super().__init__(source, delayed, max_unacked)
        self._log = log
        self.lanes = Lanes(ranges)
        self._waiting_max = waiting_max
        self.waiting_total = 0
        """Positions remembered, over all lanes, draining slots and unowned slots."""
        self._kept = KeptEntries()
        self._in_flight: list[int] = []
        """Packed items that the pump reads again now."""
        self._scan: _Scan | None = None
        """The scan whose entries the pump reads now."""
        self._skipping = False
        """True if a lane could have skipped slots."""
        self._walked = False
        """True if the last scan found acknowledged entries only."""
        self._turn = 0
        """Rotates who is asked first."""

    # ---- Consumers

    def add(self, consumer: Receiver, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self.consumers.append(consumer)
        try:
            self.lanes.add(consumer, ranges)
        except BaseException:
            self.consumers.remove(consumer)
            raise

    def remove(self, consumer: Receiver) -> None:
        super().remove(consumer)
        self.lanes.remove(consumer)
        if not self.consumers:
            self._kept.clear()

    def close(self) -> None:
        self._kept.clear()

    def key_ranges_of(self, consumer: Receiver) -> list[tuple[int, int]]:
        return self.lanes.ranges_of(consumer)

    def draining_of(self, consumer: Receiver) -> Mapping[int, int]:
        return self.lanes.draining_of(consumer)

    def requeue(self, waiting: Iterable[tuple[int, int]]) -> None:
        parking = self.lanes.parking
        for key, slot in waiting:
            parking(slot).waiting.insert(key << SLOT_BITS | slot)
            self.waiting_total += 1

    def taken_back(self, held: Mapping[int, int]) -> None:
        if self.lanes.draining:
            for value in held.values():
                self.lanes.settled(value & HELD_SLOT_MASK)
        parking = self.lanes.parking
        for key, value in held.items():
            slot = value & HELD_SLOT_MASK
            parking(slot).waiting.insert(key << SLOT_BITS | slot)
        self.waiting_total += len(held)

    def settled(self, key: int, slot: int) -> None:
        if self.lanes.draining:
            self.lanes.settled(slot)

    def settled_all(self, values: Sequence[int]) -> None:
        if self.lanes.draining:
            for value in values:
                self.lanes.settled(value & HELD_SLOT_MASK)

    @property
    def unblocked(self) -> bool:
        return self._freed or bool(self.lanes.drained)

    @property
    def waiting_count(self) -> int:
        return self.waiting_total

    @property
    def leftover(self) -> bool:
        """Always False: no entry stays read and undelivered."""
        return False

    @property
    def more(self) -> bool:
        return self._walked

    def leftover_changed(self) -> None:
        """No effect: waiting entries are read again before delivery, without those that are acknowledged by then."""

    def rewound(self) -> None:
        super().rewound()
        self.lanes.clear()
        self.waiting_total = 0
        self._kept.clear()
        self._in_flight = []
        self._scan = None
        self._skipping = False

    # ---- New entries

    def wanted(self, limit: int, now_ms: int) -> int:
        """The number of entries that should hold `limit` for consumers that can take new ones: the share of the others waits."""
        if self.blocked_on_unacked:
            return 0
        lanes = self.lanes.all
        ready = 0
        permits = 0
        for lane in lanes:
            if lane.consumer.permits > 0 and lane.can_take and not lane.waiting and not lane.skipped:
                ready += 1
                permits += lane.consumer.permits
        if not ready:
            return 0
        entries = permits * len(lanes) / (ready * self.average_messages)
        return limit if entries >= limit else int(entries) or 1

    def dispatch(self, entries: list[Entry], now_ms: int) -> None:
        """Hand out new entries; those that cannot go wait."""
        lanes = self.lanes
        starts, owners = lanes.table
        draining = lanes.draining
        counts = self.counts.by_key
        deliveries = Deliveries()
        runs: dict[Lane, list[Entry] | None] = {}
        """Of each lane that an entry is for: what its consumer gets, None once something of it waits or the consumer can take no more."""
        markers: list[Entry] = []
        for index, value in enumerate(held_values(entries, True)):
            entry = entries[index]
            key = entry.ledger_id << 32 | entry.entry_id
            if value == NOT_PLAIN:
                metadata = metadata_of(entry)
                if metadata.marker_type >= 0:
                    markers.append(entry)
                    continue
                if metadata.deliver_at_ms and self._hold_back_unless_skipped(metadata, key, now_ms):
                    continue
                slot = metadata.slot
            else:
                slot = value & HELD_SLOT_MASK
            lane = owners[bisect_right(starts, slot) - 1]
            if lane is None or (draining and slot in draining):
                self._park(lanes.parking(slot), entry, key, slot)
                continue
            try:
                run = runs[lane]
            except KeyError:
                if lane.waiting or not lane.can_take:
                    run = runs[lane] = None
                else:
                    run = runs[lane] = deliveries.runs[lane.consumer] = []
            if run is None or self.blocked_on_unacked or (lane.skipped and slot in lane.skipped):
                self._park(lane, entry, key, slot)
                if lane.waiting:
                    runs[lane] = None
                continue
            consumer = lane.consumer
            if value == NOT_PLAIN or counts:
                self.assign(deliveries, consumer, entry, key, slot)
            else:  # `assign` for what nearly every entry is
                consumer.permits -= 1
                consumer.held[key] = value
                consumer.messages_out += 1
                unacked = consumer.unacked_messages = consumer.unacked_messages + 1
                if unacked >= consumer.max_unacked > 0:
                    consumer.blocked_on_unacked = True
                self.unacked_messages += 1
                if self.unacked_messages >= self.max_unacked > 0:
                    self.blocked_on_unacked = True
                run.append(entry)
            if consumer.permits <= 0 or consumer.blocked_on_unacked:
                runs[lane] = None
        self.hand_over(deliveries, now_ms)
        if markers:
            self.pass_markers(markers)

    def _park(self, parking: Parking, entry: Entry, key: int, slot: int) -> None:
        if slot in parking.skipped:
            return
        if self.waiting_total >= self._waiting_max:
            parking.skipped[slot] = key
            self._skipping = True
            return
        parking.waiting.append(key, slot)
        self.waiting_total += 1
        self._kept.add(entry)

    def _hold_back_unless_skipped(self, metadata: EntryMetadata, key: int, now_ms: int) -> bool:
        """As `hold_back`, but the scan will find what belongs to a skipped slot, and it must not come twice."""
        slot = metadata.slot
        return slot not in self.lanes.parking(slot).skipped and self.hold_back(metadata, key, now_ms)

    # ---- Entries that waited

    def take_replay(self, limit: int, now_ms: int) -> list[int]:
        self._walked = self._freed = False
        if self.lanes.drained:
            self.lanes.release_drained()
            self._skipping = True
        if self.delayed is not None:
            self.requeue(self.take_due(self.delayed, now_ms, limit))
        if self.blocked_on_unacked or not self.lanes.all:
            return []
        if self.waiting_total:
            packed = self._take_waiting(limit)
            if packed:
                self._in_flight = packed
                return [item >> SLOT_BITS for item in packed]
        return self._take_scan(limit) if self._skipping else []

    def _take_waiting(self, limit: int) -> list[int]:
        """The first that wait for consumers that can take them, fairly shared, in log order."""
        takers = [lane for lane in self.lanes.all if lane.waiting and lane.can_take]
        if not takers:
            return []
        share = max(1, limit // len(takers))
        self._turn += 1
        taken: list[int] = []
        for index in range(len(takers)):
            lane = takers[(self._turn + index) % len(takers)]
            room = min(share, limit - len(taken), int(lane.consumer.permits / self.average_messages) or 1)
            waiting = lane.waiting
            while room > 0 and waiting:
                taken.append(waiting.pop())
                room -= 1
        self.waiting_total -= len(taken)
        taken.sort()
        return taken

    @property
    def kept(self) -> Kept | None:
        return self._kept.by_position

    def take_back(self, keys: Sequence[int]) -> None:
        in_flight, self._in_flight = self._in_flight, []
        self._scan = None
        self.requeue([(packed >> SLOT_BITS, packed & SLOT_MASK) for packed in in_flight])

    def dispatch_replayed(self, entries: list[Entry], keys: Sequence[int], now_ms: int) -> None:
        scan, self._scan = self._scan, None
        self._in_flight = []
        if scan is not None:
            self._dispatch_scanned(entries, scan, now_ms)
            return
        lanes = self.lanes
        deliveries = Deliveries()
        kept = self._kept
        if kept.by_position:
            for key in keys:
                kept.discard((key >> ENTRY_BITS, key & ENTRY_MASK))
        starts, owners = lanes.table
        counts = self.counts.by_key
        upto: dict[Lane, int] = {}
        """Of each lane that an entry is for: the key behind which its consumer may be given none."""
        for index, value in enumerate(held_values(entries, True)):
            entry = entries[index]
            key = entry.ledger_id << ENTRY_BITS | entry.entry_id
            if value == NOT_PLAIN:
                metadata = metadata_of(entry)
                if self.came_due_twice(metadata, key):
                    continue
                slot = metadata.slot
            else:
                slot = value & HELD_SLOT_MASK
            lane = owners[bisect_right(starts, slot) - 1]
            if lane is None or slot in lanes.draining:
                self._wait_again(entry, key, slot)
                continue
            if lane not in upto:
                upto[lane] = lane.goes_up_to
            consumer = lane.consumer
            if key > upto[lane] or self.blocked_on_unacked or consumer.permits <= 0 or consumer.blocked_on_unacked:
                self._wait_again(entry, key, slot)
                upto[lane] = -1
            elif value == NOT_PLAIN or counts:
                self.assign(deliveries, consumer, entry, key, slot)
            else:
                self.assign_plain(deliveries, consumer, entry, key, value)
        self.hand_over(deliveries, now_ms)

    def _wait_again(self, entry: Entry, key: int, slot: int) -> None:
        self.requeue([(key, slot)])
        self._kept.add(entry)

    # ---- Entries that were skipped

    def _take_scan(self, limit: int) -> list[int]:
        """Unacknowledged positions from where a consumer that can take entries has to look for skipped ones."""
        ready = [lane for lane in self.lanes.all if lane.skipped and not lane.waiting and lane.can_take]
        if not ready:
            self._skipping = any(parking.skipped for parking in self._parkings())
            return []
        self._turn += 1
        lane = ready[self._turn % len(ready)]
        if lane.scan_key < 0:
            lane.scan_key = min(lane.skipped.values())
        keys, scan = self._walk(lane.scan_key, limit)
        if keys:
            self._scan = scan
            return keys
        self._begin_scan(scan)
        self._end_scan(scan)
        self._walked = True
        return []

    def _walk(self, start: int, limit: int) -> tuple[list[int], _Scan]:
        acknowledged = self.source.is_acknowledged
        following = self._log.next_position
        stop = self.source.read_position
        last = self._log.last_confirmed
        # The position before may be of another state of the log; the next one after it is what counts.
        position = following(Position(start >> ENTRY_BITS, (start & ENTRY_MASK) - 1))
        keys: list[int] = []
        for _ in range(SCAN_WALK_MAX):
            if position >= stop or position > last or len(keys) >= limit:
                break
            if not acknowledged(position):
                keys.append(key_of(*position))
            position = following(position)
        return keys, _Scan(start, key_of(*position), position >= stop or position > last)

    def _begin_scan(self, scan: _Scan) -> None:
        """Every lane that stands within the scanned stretch takes part; nothing of it lies between its place and the scan."""
        for lane in self.lanes.all:
            lane.scanning = bool(lane.skipped) and not lane.waiting and scan.start <= lane.scan_key <= scan.end

    def _end_scan(self, scan: _Scan) -> None:
        for lane in self.lanes.all:
            if lane.scanning:
                lane.scanning = False
                lane.scan_key = scan.end
                if scan.finished:
                    lane.skipped = {}
                    lane.scan_key = -1

    def _dispatch_scanned(self, entries: list[Entry], scan: _Scan, now_ms: int) -> None:
        lanes = self.lanes
        deliveries = Deliveries()
        self._begin_scan(scan)
        for entry in entries:
            metadata = metadata_of(entry)
            slot = metadata.slot
            lane = lanes.owner(slot)
            if lane is None or not lane.scanning:
                continue
            key = entry.ledger_id << ENTRY_BITS | entry.entry_id
            from_key = lane.skipped.get(slot)
            if from_key is None or key < from_key:
                continue
            if metadata.deliver_at_ms and self.hold_back(metadata, key, now_ms):
                lane.skipped[slot] = key + 1
            elif lane.waiting or self.blocked_on_unacked or not lane.can_take:
                lane.scanning = False
                lane.scan_key = key
            else:
                lane.skipped[slot] = key + 1
                self.assign(deliveries, lane.consumer, entry, key, slot)
        self._end_scan(scan)
        self.hand_over(deliveries, now_ms)

    def _parkings(self) -> list[Parking]:
        return [self.lanes.unowned, *self.lanes.all, *self.lanes.draining.values()]

    def where(self, key: int, slot: int) -> Where:
        holder, redeliveries = self.holder_of(key), self.counts.by_key.get(key, 0)
        return Where(holder, redeliveries, () if holder is not None else why.of_slot(self.lanes, slot))

    def standing(self, has_more: bool) -> Standing:
        reasons = why.redelivered(self.counts)
        if not (has_more or self.waiting_total or self._skipping):
            return Standing(True, reasons)
        if self.blocked_on_unacked:
            return Standing(
                False, [why.unacked_limit(self.consumers, self.unacked_messages, self.max_unacked), *reasons]
            )
        found = why.of_lanes(self.lanes)
        takers = [lane for lane in self.lanes.all if lane.can_take]
        moving = bool(takers) and (has_more or any(lane.waiting or lane.skipped for lane in takers))
        if not takers and not found:
            found = why.those_held_up(self.consumers)
        return Standing(moving, [*found, *reasons])

    def validate(self) -> None:
        super().validate()
        self.lanes.validate()
        self._kept.validate()
        assert self.waiting_total == sum(len(parking.waiting) for parking in self._parkings())
