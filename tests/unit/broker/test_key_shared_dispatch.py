"""Key_Shared: order per key, draining slots, look-ahead past stuck consumers at any backlog."""

from __future__ import annotations

import pytest

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.errors import ConsumerAssignError, ConsumerBusyError
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.broker.subscriptions.stats import subscription_stats
from magnetar.managed_ledger.entry import Entry

from .dispatch_fakes import World, channel, got, ids

KEY_SHARED = SubscriptionType.Key_Shared
KEYS = [f"key-{number}" for number in range(200)]


def core(world: World) -> KeySharedDispatcher:
    dispatcher = world.subscription.dispatch.dispatcher
    assert isinstance(dispatcher, KeySharedDispatcher)
    return dispatcher


def numbers(world: World, consumer: Consumer) -> list[int]:
    return [world.ledger.place(entry.position) for entry in got(consumer)]


def publish_all(world: World, rounds: int = 1) -> None:
    for _ in range(rounds):
        for key in KEYS:
            world.publish(1, key)
    world.loop.run()


def keys_of(entries: list[Entry]) -> set[int]:
    return {metadata_of(entry).slot for entry in entries}


@pytest.mark.parametrize("hashing", [True, False])
def test_a_key_has_one_consumer_and_all_have_keys(hashing: bool) -> None:
    world = World(key_shared_consistent_hashing=hashing)
    consumers = [world.consumer(KEY_SHARED, 10_000) for _ in range(4)]
    publish_all(world, 3)
    slots = [keys_of(got(consumer)) for consumer in consumers]
    assert all(slots)
    assert sum(map(len, slots)) == len(set.union(*slots))
    for consumer in consumers:
        assert numbers(world, consumer) == sorted(numbers(world, consumer))
    assert sum(len(got(consumer)) for consumer in consumers) == 600


def test_two_consumers_of_one_name() -> None:
    world = World()
    one, two = (world.consumer(KEY_SHARED, 10_000, "same") for _ in range(2))
    publish_all(world)
    assert got(one)
    assert got(two)
    world.leave(one)
    assert len(got(two)) == 200


def test_a_newcomer_waits_for_slots_that_drain_and_for_those_only() -> None:
    world = World()
    old = world.consumer(KEY_SHARED, 10_000)
    publish_all(world)
    half = got(old)[:100]
    world.ack(old, *got(old)[100:])
    new = world.consumer(KEY_SHARED, 10_000)
    draining = set(core(world).lanes.draining)
    assert draining
    assert draining <= keys_of(half)
    publish_all(world)
    arrived = keys_of(got(new))
    assert arrived
    assert not arrived & draining
    waiting = core(world).waiting_count
    assert waiting == sum(1 for key in got_all(world)[200:] if metadata_of(key).slot in draining)
    first = next(entry for entry in half if metadata_of(entry).slot in draining)
    world.ack(old, first)
    assert metadata_of(first).slot in keys_of(got(new))
    world.ack(old, *half)
    assert core(world).waiting_count == 0
    assert len(got(old)) + len(got(new)) == 400


def got_all(world: World) -> list[Entry]:
    return world.ledger.entries


def test_a_crash_hands_unacknowledged_over_in_order() -> None:
    world = World()
    consumers = [world.consumer(KEY_SHARED, 10_000) for _ in range(3)]
    publish_all(world, 5)
    dead, *alive = consumers
    lost = set(numbers(world, dead))
    before = {consumer: len(got(consumer)) for consumer in alive}
    world.leave(dead)
    publish_all(world)
    redelivered: set[int] = set()
    for consumer in alive:
        new = numbers(world, consumer)[before[consumer] :]
        assert new == sorted(new)
        redelivered |= lost & set(new)
    assert redelivered == lost
    assert not core(world).lanes.draining
    core(world).validate()


def test_an_entry_read_again_while_its_slot_begins_to_drain_waits() -> None:
    world = World()
    old = world.consumer(KEY_SHARED, 10_000)
    publish_all(world, 2)
    world.cursor.late = True
    world.subscription.redeliver(old, [entry.position for entry in got(old)[:50]])
    world.loop.run()
    assert world.cursor.pending is not None
    new = world.consumer(KEY_SHARED, 10_000)
    world.cursor.late = False
    world.cursor.finish_read()
    world.loop.run()
    assert got(new) == []
    assert core(world).waiting_count > 0
    core(world).validate()
    world.ack(old, *got(old)[200:], *[entry for entry in got(old)[50:]])
    assert core(world).waiting_count == 0
    assert len(got(new)) > 0
    assert numbers(world, new) == sorted(numbers(world, new))


def test_negative_acknowledgements_keep_the_order_of_the_key() -> None:
    world = World()
    consumer = world.consumer(KEY_SHARED, 3)
    world.publish(10, "a")
    world.loop.run()
    assert numbers(world, consumer) == [0, 1, 2]
    world.subscription.redeliver(consumer, None)
    world.loop.run()
    world.flow(consumer, 5)
    assert numbers(world, consumer) == [0, 1, 2, 0, 1, 2, 3, 4]
    assert [count for _, count, _ in channel(consumer).got][3:] == [1, 1, 1, 0, 0]


def test_sticky_ranges_overlap_is_refused() -> None:
    world = World()
    world.consumer(KEY_SHARED, 10, sticky=[(0, 100)])
    with pytest.raises(ConsumerAssignError, match="overlaps"):
        world.consumer(KEY_SHARED, 10, sticky=[(50, 200)])
    with pytest.raises(ConsumerAssignError):
        world.consumer(KEY_SHARED, 10, sticky=[])
    with pytest.raises(ConsumerAssignError):
        world.consumer(KEY_SHARED, 10, sticky=[(60_000, 70_000)])
    with pytest.raises(ConsumerBusyError):
        world.consumer(KEY_SHARED, 10)
    assert len(world.subscription.consumers) == 1
    world.consumer(KEY_SHARED, 10, sticky=[(101, 200)])
    core(world).validate()


def test_a_gap_between_sticky_ranges_stalls_its_keys_alone() -> None:
    world = World()
    low = world.consumer(KEY_SHARED, 10_000, sticky=[(0, 29_999)])
    publish_all(world, 2)
    covered = [e for e in world.ledger.entries if metadata_of(e).slot < 30_000]
    assert got(low) == covered
    high = world.consumer(KEY_SHARED, 10_000, sticky=[(30_000, 65_535)])
    assert got(high) == [e for e in world.ledger.entries if metadata_of(e).slot >= 30_000]


def test_batches_and_permits() -> None:
    world = World()
    consumer = world.consumer(KEY_SHARED, 10)
    world.publish(10, "a", batch=4)
    world.loop.run()
    assert len(got(consumer)) == 3
    assert consumer.permits == -2
    world.flow(consumer, 3)
    assert len(got(consumer)) == 4
    world.subscription.redeliver(consumer, [(1, 1)])
    world.flow(consumer, 3 + 5)
    assert ids(got(consumer))[4:] == [1, 4]


def test_zero_queue_consumers_do_not_read_far_ahead() -> None:
    world = World()
    consumers = [world.consumer(KEY_SHARED, 0) for _ in range(2)]
    publish_all(world)
    world.flow(consumers[0], 1)
    assert len(got(consumers[0])) == 1
    assert core(world).waiting_count < 50


def test_delayed_messages_come_due_at_their_owner() -> None:
    world = World()
    consumers = [world.consumer(KEY_SHARED, 100) for _ in range(3)]
    due = world.loop.now_ms() + 2000
    for key in KEYS[:20]:
        world.publish(1, key, deliver_at_time=due)
        world.publish(1, key)
    world.loop.run()
    assert sum(len(got(consumer)) for consumer in consumers) == 20
    world.loop.advance(2100)
    assert sum(len(got(consumer)) for consumer in consumers) == 40
    slots = [keys_of(got(consumer)) for consumer in consumers]
    assert sum(map(len, slots)) == len(set.union(*slots))


@pytest.mark.parametrize("waiting_max", [0, 500, 1_000_000])
def test_a_frozen_consumer_stalls_its_own_keys_alone_at_any_backlog(waiting_max: int) -> None:
    world = World(key_shared_waiting_max=waiting_max, per_ledger=5000)
    frozen, *others = (world.consumer(KEY_SHARED, 1000) for _ in range(4))
    for consumer in others:

        def answer(entry: Entry, consumer: Consumer = consumer) -> None:
            world.subscription.acknowledge(consumer, 0, [(entry.ledger_id, entry.entry_id, None, 0)])
            world.subscription.flow(consumer, 1)

        channel(consumer).on_deliver = answer
    publish_all(world, 150)
    stuck = keys_of(got(frozen))
    assert len(got(frozen)) == 1000
    expected = [e for e in world.ledger.entries if metadata_of(e).slot not in stuck]
    assert sum(len(got(consumer)) for consumer in others) == len(expected)
    assert core(world).waiting_count == min(waiting_max, 30_000 - len(expected) - 1000)
    core(world).validate()
    # It thaws: everything comes, in order, none twice; what is new meanwhile waits its turn.
    publish_all(world)
    while len(got(frozen)) < 30_200 - len(expected) - 200 + len(stuck):
        before = len(got(frozen))
        world.ack(frozen, *got(frozen)[-2000:])
        world.flow(frozen, 2000)
        assert len(got(frozen)) > before
    world.ack(frozen, *got(frozen))
    world.flow(frozen, 2000)
    mine = [world.ledger.place(e.position) for e in world.ledger.entries if metadata_of(e).slot in stuck]
    assert numbers(world, frozen) == mine
    assert world.subscription.backlog_entries == 0
    assert core(world).waiting_count == 0
    assert not any(lane.skipped for lane in core(world).lanes.all)
    core(world).validate()


def test_skipped_keys_follow_a_consumer_that_leaves() -> None:
    world = World(key_shared_waiting_max=10)
    frozen, other = world.consumer(KEY_SHARED, 5), world.consumer(KEY_SHARED, 100_000)
    publish_all(world, 20)
    world.ack(other, *got(other))
    assert core(world).waiting_count == 10
    world.leave(frozen)
    assert len(set(numbers(world, other))) == 4000
    world.ack(other, *got(other))
    assert world.subscription.backlog_entries == 0
    last_of: dict[int, int] = {}
    for entry in got(other):
        slot = metadata_of(entry).slot
        number = world.ledger.place(entry.position)
        assert last_of.get(slot, -1) < number
        last_of[slot] = number


def test_skipped_keys_and_a_newcomer() -> None:
    world = World(key_shared_waiting_max=10)
    frozen, other = world.consumer(KEY_SHARED, 5), world.consumer(KEY_SHARED, 100_000)
    publish_all(world, 20)
    world.ack(other, *got(other))
    new = world.consumer(KEY_SHARED, 100_000)
    draining = set(core(world).lanes.draining)
    assert not keys_of(got(new)) & draining
    assert len(got(new)) > 100
    world.ack(frozen, *got(frozen))
    world.leave(frozen)
    delivered = [n for consumer in (frozen, other, new) for n in numbers(world, consumer)]
    assert sorted(delivered) == list(range(4000))
    core(world).validate()


def test_type_of_waiting_entries_acknowledged_meanwhile_are_dropped() -> None:
    world = World()
    consumer = world.consumer(KEY_SHARED, 1)
    other = world.consumer(KEY_SHARED, 1)
    publish_all(world)
    assert core(world).waiting_count > 0
    world.subscription.acknowledge(consumer, 0, [(1, number, None, 0) for number in range(200)])
    world.flow(consumer, 1000)
    world.flow(other, 1000)
    assert len(got(consumer)) + len(got(other)) == 2
    assert core(world).waiting_count == 0


def test_stats_show_who_owns_which_slots() -> None:
    world = World(key_shared_consistent_hashing=False)
    world.consumer(KEY_SHARED, 1)
    world.consumer(KEY_SHARED, 1)
    stats = subscription_stats(world.subscription)
    assert sorted(consumer["keyHashRanges"] for consumer in stats["consumers"]) == [["[0, 32767]"], ["[32768, 65535]"]]
    assert stats["keySharedMode"] == "AUTO_SPLIT"
