"""A log in memory with the cursor's contract, a scheduler with virtual time, and consumers that record what they get.

Used where a test must own every schedule (reads that end late, acks inside deliveries); the real cursor has its own tests.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import Any

from magnetar.base.errors import MagnetarError
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.policies import KeySharedMode, SubscriptionType
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.hidden_entries import HiddenEntries
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.wire.pulsar.batches import BATCHED_MESSAGE_BYTES_MIN
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

TOPIC = "persistent://public/default/t"


def payload(key: str | None = None, batch: int | None = None, sequence: int = 0, **fields: Any) -> bytes:
    """An entry as stored, without checksum and broker metadata."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=sequence, publish_time=fields.pop("publish_time", 1), **fields
    )
    if key is not None:
        metadata.partition_key = key
    if batch is not None:
        metadata.num_messages_in_batch = batch
    encoded = metadata.SerializeToString()
    return len(encoded).to_bytes(4, "big") + encoded + b"body" + bytes(BATCHED_MESSAGE_BYTES_MIN * (batch or 0))


class FakeScheduler:
    """Clock and event loop in one; time moves only in `advance`."""

    def __init__(self) -> None:
        self.time_ms = 1_000_000
        self.ready: deque[Callable[[], object]] = deque()
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._numbers = count()

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_s(self) -> float:
        return self.time_ms / 1000

    def call_soon(self, callback: Callable[[], object], /) -> None:
        self.ready.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], object], /) -> FakeTimer:
        timer = FakeTimer(callback)
        heappush(self._timers, (self.time_ms + delay_s * 1000, next(self._numbers), timer))
        return timer

    def run(self, steps: int = 100_000) -> None:
        """Until nothing is ready."""
        while self.ready:
            steps -= 1
            assert steps > 0, "the scheduler never comes to rest"
            self.ready.popleft()()

    def advance(self, delay_ms: int) -> None:
        self.run()
        end = self.time_ms + delay_ms
        while self._timers and self._timers[0][0] <= end:
            at, _, timer = heappop(self._timers)
            self.time_ms = max(self.time_ms, int(at))
            if not timer.cancelled:
                timer.callback()
                self.run()
        self.time_ms = end


class FakeTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLedger:
    """Entries in ledgers of `per_ledger`."""

    def __init__(self, per_ledger: int = 1000) -> None:
        self.per_ledger = per_ledger
        self.hidden = HiddenEntries()
        self.entries: list[Entry] = []
        self._listeners: list[Callable[[], None]] = []

    def append(self, data: bytes) -> Entry:
        number = len(self.entries)
        entry = Entry(number // self.per_ledger + 1, number % self.per_ledger, data)
        self.entries.append(entry)
        for listener in self._listeners:
            listener()
        return entry

    def add_append_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def remove_append_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)

    @property
    def last_confirmed(self) -> Position:
        return self.entries[-1].position if self.entries else EARLIEST

    @property
    def index(self) -> FakeLedger:
        """The real one keeps its ledgers there."""
        return self

    def entries_in(self, ledger_id: int) -> int:
        return (
            min(max(len(self.entries) - (ledger_id - 1) * self.per_ledger, 0), self.per_ledger) if ledger_id > 0 else 0
        )

    def place(self, position: Position) -> int:
        """Place in `entries` of a position (entry id -1 and one past the end are allowed)."""
        return (position[0] - 1) * self.per_ledger + position[1]

    def at(self, index: int) -> Position:
        return Position(index // self.per_ledger + 1, index % self.per_ledger)

    def next_position(self, position: Position) -> Position:
        return self.at(self.place(position) + 1) if position[0] > 0 else self.at(0)

    def previous(self, position: Position) -> Position:
        return self.at(self.place(position) - 1) if self.place(position) > 0 else Position(1, -1)

    async def find_last_matching(self, predicate: Callable[[Entry], bool]) -> Position | None:
        found = [entry for entry in self.entries if predicate(entry)]
        return found[-1].position if found else None

    async def read_entry(self, position: Position) -> Entry:
        return self.entries[self.place(position)]


class FakeCursor:
    """The contract of a managed cursor. `late`: reads end when `finish_read` is called."""

    durable = True

    gate = None

    def __init__(self, ledger: FakeLedger) -> None:
        self.name = "sub"
        self.ledger = ledger
        self.acked: set[int] = set()
        self.batches: dict[int, int] = {}
        self.next_index = 0
        self.mark_delete = -1
        self.late = False
        self.fail_next: MagnetarError | None = None
        self.cursor_properties: dict[str, str] = {}
        self.properties: dict[str, int] = {}
        self.pending: Callable[[], None] | None = None
        self.reads = 0
        self.replayed = 0
        self.closed = False
        self._epoch = 0

    def touch(self) -> None:
        """Nothing to store."""

    @property
    def mark_delete_position(self) -> Position:
        return self.ledger.at(self.mark_delete) if self.mark_delete >= 0 else Position(1, -1)

    @property
    def read_position(self) -> Position:
        return self.ledger.at(max(self.next_index, self.mark_delete + 1))

    @property
    def has_more(self) -> bool:
        return max(self.next_index, self.mark_delete + 1) < len(self.ledger.entries)

    @property
    def backlog_entries(self) -> int:
        return len(self.ledger.entries) - 1 - self.mark_delete - len(self.acked)

    def read(self, max_entries: int, max_bytes: int, done: Callable[[MagnetarError | None, list[Entry]], None]) -> None:
        assert self.pending is None, "two reads at a time"
        epoch = self._epoch
        self.reads += 1

        def finish() -> None:
            error, self.fail_next = self.fail_next, None
            if error is not None or epoch != self._epoch:
                done(error, [])
                return
            found: list[Entry] = []
            index = max(self.next_index, self.mark_delete + 1)
            while index < len(self.ledger.entries) and len(found) < max_entries:
                if index not in self.acked:
                    found.append(self.ledger.entries[index])
                index += 1
            self.next_index = index
            done(None, found)

        self._finish(finish)

    def replay(
        self,
        positions: Sequence[Position],
        done: Callable[[MagnetarError | None, list[Entry]], None],
        kept: Mapping[tuple[int, int], Entry] | None = None,
    ) -> None:
        assert all(entry is self.ledger.entries[self.ledger.place(Position(*p))] for p, entry in (kept or {}).items())
        assert self.pending is None, "two reads at a time"
        assert list(positions) == sorted(set(positions))
        self.replayed += len(positions)

        def finish() -> None:
            error, self.fail_next = self.fail_next, None
            if error is not None:
                done(error, [])
                return
            done(None, [self.ledger.entries[self.ledger.place(p)] for p in positions if not self.is_acknowledged(p)])

        self._finish(finish)

    def _finish(self, finish: Callable[[], None]) -> None:
        if self.late:
            self.pending = finish
        else:
            finish()

    def finish_read(self) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            pending()

    def rewind(self) -> None:
        self._epoch += 1
        self.next_index = self.mark_delete + 1

    async def reset(self, position: Position) -> None:
        index = 0 if position <= EARLIEST else self.ledger.place(position)
        self.mark_delete = (len(self.ledger.entries) if position == LATEST else index) - 1
        self.acked.clear()
        self.batches.clear()
        self.rewind()

    def is_acknowledged(self, position: Position) -> bool:
        index = self.ledger.place(position)
        return index <= self.mark_delete or index in self.acked

    def ack_set_of(self, position: Position) -> list[int] | None:
        left = self.batches.get(self.ledger.place(position))
        return None if left is None else [left & (1 << 64) - 1, *([left >> 64] if left >> 64 else [])]

    def acknowledge(
        self, positions: Sequence[Position], done: Callable[[MagnetarError | None], None] | None = None
    ) -> None:
        for position in positions:
            index = self.ledger.place(position)
            if self.mark_delete < index < len(self.ledger.entries):
                self.acked.add(index)
                self.batches.pop(index, None)
        self._advance()
        if done is not None:
            done(None)

    def acknowledge_cumulative(
        self,
        position: Position,
        properties: Mapping[str, int] | None = None,
        done: Callable[[MagnetarError | None], None] | None = None,
    ) -> None:
        index = min(self.ledger.place(position), len(self.ledger.entries) - 1)
        if index > self.mark_delete:
            self.mark_delete = index
            self.acked = {acked for acked in self.acked if acked > index}
        self._advance()
        if done is not None:
            done(None)

    def acknowledge_batch(
        self,
        position: Position,
        ack_set: Sequence[int],
        batch_size: int,
        done: Callable[[MagnetarError | None], None] | None = None,
    ) -> bool:
        index = self.ledger.place(position)
        words = sum((word & (1 << 64) - 1) << (64 * place) for place, word in enumerate(ack_set))
        left = self.batches.get(index, (1 << batch_size) - 1) & words
        if left:
            self.batches[index] = left
        else:
            self.acknowledge([position])
        if done is not None:
            done(None)
        return not left

    def _advance(self) -> None:
        while self.mark_delete + 1 in self.acked:
            self.mark_delete += 1
            self.acked.remove(self.mark_delete)

    @property
    def acks(self) -> Any:
        return SimpleNamespace(range_count=lambda: len(self.acked))

    async def close(self) -> None:
        self.closed = True


class FakeChannel:
    """Records deliveries; `on_deliver` lets a test look at each, `on_delivered` react inside the call, behind all that it brings."""

    def __init__(self) -> None:
        self.writable = True
        self.got: list[tuple[Entry, int, list[int] | None]] = []
        self.epochs: list[int | None] = []
        self.active: list[bool] = []
        self.closed = False
        self.ended = 0
        self.on_deliver: Callable[[Entry], None] | None = None
        self.on_delivered: Callable[[], None] | None = None

    def deliver(
        self, entry: Entry, redelivery_count: int, ack_set: list[int] | None, consumer_epoch: int | None
    ) -> None:
        self._record(entry, redelivery_count, ack_set, consumer_epoch)
        if self.on_delivered is not None:
            self.on_delivered()

    def deliver_run(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._record(entry, 0, None, None)
        if self.on_delivered is not None:
            self.on_delivered()

    def _record(self, entry: Entry, redelivery_count: int, ack_set: list[int] | None, epoch: int | None) -> None:
        self.got.append((entry, redelivery_count, ack_set))
        self.epochs.append(epoch)
        if self.on_deliver is not None:
            self.on_deliver(entry)

    def active_changed(self, is_active: bool) -> None:
        self.active.append(is_active)

    def close(self) -> None:
        self.closed = True

    def end_of_topic(self) -> None:
        self.ended += 1


class DispatchHarness:
    """A subscription on the fakes."""

    def __init__(self, topic_name: str = TOPIC, per_ledger: int = 1000, **config: Any) -> None:
        self.loop = FakeScheduler()
        self.ledger = FakeLedger(per_ledger)
        self.cursor = FakeCursor(self.ledger)
        self.subscription = Subscription(
            topic_name=topic_name,
            name="sub",
            ledger=self.ledger,  # type: ignore[arg-type]  # the fake has the part of the contract that is used
            cursor=self.cursor,  # type: ignore[arg-type]  # as above
            clock=self.loop,
            scheduler=self.loop,
            config=SubscriptionConfig(**config),
            rng=random.Random(1),
        )
        self._ids = count(1)

    def publish(self, number: int = 1, key: str | None = None, **fields: Any) -> list[Entry]:
        return [self.ledger.append(payload(key, **fields)) for _ in range(number)]

    def consumer(
        self,
        kind: SubscriptionType,
        permits: int = 0,
        name: str | None = None,
        priority: int = 0,
        sticky: Sequence[tuple[int, int]] | None = None,
    ) -> Consumer:
        """Subscribe, grant, and let everything run."""
        consumer = self.make(kind, name, priority, sticky)
        self.subscription.add_consumer(consumer)
        if permits:
            self.subscription.flow(consumer, permits)
        self.loop.run()
        return consumer

    def make(
        self,
        kind: SubscriptionType,
        name: str | None = None,
        priority: int = 0,
        sticky: Sequence[tuple[int, int]] | None = None,
    ) -> Consumer:
        """A consumer that is not subscribed yet."""
        number = next(self._ids)
        return Consumer(
            consumer_id=number,
            name=name or f"c{number}",
            type=kind,
            channel=FakeChannel(),
            priority_level=priority,
            key_shared_mode=KeySharedMode.AUTO_SPLIT if sticky is None else KeySharedMode.STICKY,
            sticky_ranges=sticky or (),
        )

    def flow(self, consumer: Consumer, permits: int) -> None:
        self.subscription.flow(consumer, permits)
        self.loop.run()

    def ack(self, consumer: Consumer, *entries: Entry, ack_set: Sequence[int] | None = None, batch: int = 0) -> None:
        ids = [(entry.ledger_id, entry.entry_id, ack_set, batch) for entry in entries]
        self.subscription.acknowledge(consumer, 0, ids)
        self.loop.run()

    def leave(self, consumer: Consumer) -> None:
        self.subscription.remove_consumer(consumer)
        self.loop.run()


def channel(consumer: Consumer) -> FakeChannel:
    assert isinstance(consumer.channel, FakeChannel)
    return consumer.channel


def got(consumer: Consumer) -> list[Entry]:
    """The entries a consumer was sent, in order."""
    return [entry for entry, _, _ in channel(consumer).got]


def ids(entries: Sequence[Entry]) -> list[int]:
    return [entry.entry_id for entry in entries]
