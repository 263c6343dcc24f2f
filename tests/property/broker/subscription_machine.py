"""A subscription under random joins, leaves, flows, acks, nacks, slow transports, late and failing reads; checked at every delivery."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import CursorClosedError
from tests.unit.broker.dispatch_fakes import DispatchHarness, channel

KEYS = [f"key-{number}" for number in range(6)]


class SubscriptionMachine(RuleBasedStateMachine):
    """Subclasses set the type and may add checks for `delivered`."""

    kind = SubscriptionType.Shared

    @initialize(
        waiting_max=st.sampled_from([0, 3, 1000]),
        max_consumer=st.sampled_from([0, 4, 50]),
        max_subscription=st.sampled_from([0, 9, 100]),
        hashing=st.booleans(),
        turn=st.sampled_from([2, 5, 100]),
    )
    def start(self, waiting_max: int, max_consumer: int, max_subscription: int, hashing: bool, turn: int) -> None:
        self.harness = DispatchHarness(
            per_ledger=7,
            key_shared_waiting_max=waiting_max,
            max_unacked_per_consumer=max_consumer,
            max_unacked_per_subscription=max_subscription,
            key_shared_consistent_hashing=hashing,
            entries_per_dispatch=turn,
        )
        self.inside: str = ""
        """What every consumer does inside a delivery, as a channel that fails or answers at once would."""
        self.keys: dict[int, str] = {}
        """Number of an entry in the log -> its key."""
        self.holder: dict[int, Consumer] = {}
        """Delivered and neither acknowledged nor taken back."""
        self.expected_permits: dict[int, int] = {}
        self.delivered_ever: set[int] = set()
        self.last = -1
        """The entry that was delivered last."""
        self.sequence = 0
        self.due: dict[int, int] = {}
        """Delayed messages: number -> when they are due. They take no part in the order of their key."""

    # ---- The model

    def number(self, entry: Entry) -> int:
        return self.harness.ledger.place(entry.position)

    def unacknowledged(self) -> list[int]:
        cursor = self.harness.cursor
        return [n for n in range(cursor.mark_delete + 1, len(self.harness.ledger.entries)) if n not in cursor.acked]

    def delivered(self, consumer: Consumer, entry: Entry) -> None:
        number = self.number(entry)
        assert consumer in self.harness.subscription.consumers, "delivered to a consumer that has left"
        assert number not in self.holder, "delivered while another delivery is unacknowledged"
        assert not self.harness.cursor.is_acknowledged(entry.position), "delivered after it was acknowledged"
        assert self.due.get(number, 0) <= self.harness.loop.now_ms(), "delivered before it is due"
        self.check_order(consumer, number)
        self.holder[number] = consumer
        self.delivered_ever.add(number)
        self.expected_permits[consumer.consumer_id] -= metadata_of(entry).num_messages
        self.last = number

    def react(self, consumer: Consumer) -> None:
        """Inside the call that delivered, behind all its entries."""
        if self.inside == "leave":
            self.inside = ""
            self.remove(consumer)
        elif self.inside == "acknowledge":
            self.settle(consumer, [self.last])
        elif self.inside == "flow":
            for other in self.harness.subscription.consumers:
                self.grant(other, 1)
        elif self.inside == "redeliver":
            self.inside = ""
            self.take_back(consumer, [])

    def check_order(self, consumer: Consumer, number: int) -> None:
        """Shared promises none."""

    def held_by(self, consumer: Consumer) -> list[int]:
        return sorted(n for n, holder in self.holder.items() if holder is consumer)

    def some_consumer(self, data: st.DataObject) -> Consumer:
        consumer: Consumer = data.draw(st.sampled_from(self.harness.subscription.consumers))
        return consumer

    def some_held(self, data: st.DataObject, consumer: Consumer) -> list[int]:
        held = self.held_by(consumer)
        return data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []

    def has_consumers(self) -> bool:
        return bool(self.harness.subscription.consumers)

    # ---- What may happen

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12), batch=st.sampled_from([None, None, 3]))
    def publish(self, keys: list[str], batch: int | None) -> None:
        for key in keys:
            self.keys[len(self.harness.ledger.entries)] = key
            self.sequence += 1
            self.harness.publish(1, key, batch=batch, sequence=self.sequence)

    @rule(key=st.sampled_from(KEYS), delay_ms=st.sampled_from([-100, 500, 30_000]))
    def publish_delayed(self, key: str, delay_ms: int) -> None:
        number = len(self.harness.ledger.entries)
        self.keys[number] = key
        self.due[number] = self.harness.loop.now_ms() + delay_ms
        self.harness.publish(1, key, deliver_at_time=self.due[number])

    @precondition(lambda self: len(self.harness.subscription.consumers) < 5)
    @rule(name=st.sampled_from(["a", "b", "c", "d"]), permits=st.integers(0, 15))
    def join(self, name: str, permits: int) -> None:
        consumer = self.harness.make(self.kind, name)
        self.expected_permits[consumer.consumer_id] = permits
        channel(consumer).on_deliver = lambda entry: self.delivered(consumer, entry)
        channel(consumer).on_delivered = lambda: self.react(consumer)
        self.harness.subscription.add_consumer(consumer)
        self.harness.subscription.flow(consumer, permits)

    @precondition(has_consumers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.remove(self.some_consumer(data))

    def remove(self, consumer: Consumer) -> None:
        for number in self.held_by(consumer):
            del self.holder[number]
        self.harness.subscription.remove_consumer(consumer)

    @precondition(has_consumers)
    @rule(data=st.data(), permits=st.integers(1, 20))
    def flow(self, data: st.DataObject, permits: int) -> None:
        self.grant(self.some_consumer(data), permits)

    def grant(self, consumer: Consumer, permits: int) -> None:
        self.expected_permits[consumer.consumer_id] += permits
        self.harness.subscription.flow(consumer, permits)

    @precondition(has_consumers)
    @rule(data=st.data(), times=st.integers(1, 3))
    def acknowledge(self, data: st.DataObject, times: int) -> None:
        consumer = self.some_consumer(data)
        self.settle(consumer, self.some_held(data, consumer) * times)

    @precondition(has_consumers)
    @rule(data=st.data())
    def acknowledge_all(self, data: st.DataObject) -> None:
        consumer = self.some_consumer(data)
        self.settle(consumer, self.held_by(consumer))

    def settle(self, consumer: Consumer, numbers: list[int]) -> None:
        for number in numbers:
            self.holder.pop(number, None)
        positions = [self.harness.ledger.at(number) for number in numbers]
        self.harness.subscription.acknowledge(consumer, 0, [(ledger, entry, None, 0) for ledger, entry in positions])

    @precondition(has_consumers)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        consumer = self.some_consumer(data)
        self.take_back(consumer, self.some_held(data, consumer))

    def take_back(self, consumer: Consumer, numbers: list[int]) -> None:
        """Empty `numbers`: all."""
        for number in numbers or self.held_by(consumer):
            del self.holder[number]
        self.harness.subscription.redeliver(consumer, [self.harness.ledger.at(number) for number in numbers])

    @rule(what=st.sampled_from(["", "leave", "acknowledge", "flow", "redeliver"]))
    def inside_deliveries(self, what: str) -> None:
        self.inside = what

    @precondition(has_consumers)
    @rule(data=st.data())
    def toggle_transport(self, data: st.DataObject) -> None:
        consumer = self.some_consumer(data)
        channel(consumer).writable = not channel(consumer).writable
        if channel(consumer).writable:
            self.harness.subscription.channel_writable(consumer)

    @rule(late=st.booleans())
    def reads_end_late(self, late: bool) -> None:
        self.harness.cursor.late = late

    @rule()
    def finish_read(self) -> None:
        self.harness.cursor.finish_read()

    @rule()
    def fail_a_read(self) -> None:
        self.harness.cursor.fail_next = CursorClosedError("injected")

    @rule()
    def turn(self) -> None:
        if self.harness.loop.ready:
            self.harness.loop.ready.popleft()()

    @rule()
    def rest(self) -> None:
        """Everything that can go on without a client does; then nothing deliverable may be left."""
        self.come_to_rest()
        self.check_progress()

    def come_to_rest(self) -> None:
        self.harness.cursor.fail_next = None
        for _ in range(10_000):
            self.harness.loop.advance(20_000)
            if self.harness.cursor.pending is None:
                return
            self.harness.cursor.finish_read()
        raise AssertionError("reads never end")

    # ---- What must hold

    @property
    def dispatcher(self):  # type: ignore[no-untyped-def]  # either dispatcher
        return self.harness.subscription.dispatch.dispatcher

    @invariant()
    def books_are_right(self) -> None:
        if not self.has_consumers():
            return
        self.dispatcher.validate()
        for consumer in self.harness.subscription.consumers:
            assert consumer.permits == self.expected_permits[consumer.consumer_id]
            held = [key >> 32 for key in consumer.held]
            assert len(held) == len(self.held_by(consumer))

    def can_take(self, consumer: Consumer) -> bool:
        return consumer.permits > 0 and not consumer.blocked_on_unacked and channel(consumer).writable

    def is_early(self, number: int) -> bool:
        return self.due.get(number, 0) > self.harness.loop.now_ms()

    def check_progress(self) -> None:
        if self.has_consumers() and not self.dispatcher.blocked_on_unacked:
            waiting = [n for n in self.unacknowledged() if n not in self.holder and not self.is_early(n)]
            takers = [consumer for consumer in self.harness.subscription.consumers if self.can_take(consumer)]
            assert not waiting or not takers, "somebody could take what waits"

    def teardown(self) -> None:
        """Nothing is lost: with willing consumers everything is delivered."""
        if not hasattr(self, "harness"):
            return
        self.inside = ""
        if not self.has_consumers():
            self.join("a", 1)
        for consumer in self.harness.subscription.consumers:
            channel(consumer).writable = True
        for _ in range(1000):
            for consumer in self.harness.subscription.consumers:
                self.grant(consumer, 50)
            self.come_to_rest()
            for consumer in self.harness.subscription.consumers:
                self.settle(consumer, self.held_by(consumer))
            if not self.unacknowledged():
                break
        assert not self.unacknowledged(), "entries are never delivered"
        assert len(self.delivered_ever) == len(self.harness.ledger.entries)
        self.come_to_rest()
        self.books_are_right()
        assert self.dispatcher.waiting_count == 0


class KeySharedMachine(SubscriptionMachine):
    """Per key: never at two consumers, always in order, and nobody waits for another's keys."""

    kind = SubscriptionType.Key_Shared

    def check_order(self, consumer: Consumer, number: int) -> None:
        key = self.keys[number]
        for earlier in self.unacknowledged():
            if self.keys[earlier] != key:
                continue
            holder = self.holder.get(earlier)
            assert holder is None or holder is consumer, f"{key} is at two consumers"
            if earlier < number and earlier not in self.due and number not in self.due:
                assert holder is consumer, f"{key}: {number} overtakes {earlier}"

    def check_progress(self) -> None:
        dispatcher = self.dispatcher
        if not isinstance(dispatcher, KeySharedDispatcher) or dispatcher.blocked_on_unacked:
            return
        assert not dispatcher.lanes.drained
        for number in self.unacknowledged():
            slot = metadata_of(self.harness.ledger.entries[number]).slot
            lane = dispatcher.lanes.owner(slot)
            if number in self.holder or self.is_early(number) or lane is None or slot in dispatcher.lanes.draining:
                continue
            assert not lane.can_take, f"{lane.consumer.name} could take {number}, which waits"
