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
from magnetar.managed_ledger.ledger_index import LedgerIndex

from .dispatch_fakes import DispatchHarness, channel, got, ids

KEY_SHARED = SubscriptionType.Key_Shared
KEYS = [f"key-{number}" for number in range(200)]


def core(harness: DispatchHarness) -> KeySharedDispatcher:
    dispatcher = harness.subscription.dispatch.dispatcher
    assert isinstance(dispatcher, KeySharedDispatcher)
    return dispatcher


def numbers(harness: DispatchHarness, consumer: Consumer) -> list[int]:
    return [harness.ledger.place(entry.position) for entry in got(consumer)]


def publish_all(harness: DispatchHarness, rounds: int = 1) -> None:
    for _ in range(rounds):
        for key in KEYS:
            harness.publish(1, key)
    harness.loop.run()


def keys_of(entries: list[Entry]) -> set[int]:
    return {metadata_of(entry).slot for entry in entries}


@pytest.mark.parametrize("hashing", [True, False])
def test_a_key_has_one_consumer_and_all_have_keys(hashing: bool) -> None:
    harness = DispatchHarness(key_shared_consistent_hashing=hashing)
    consumers = [harness.consumer(KEY_SHARED, 10_000) for _ in range(4)]
    publish_all(harness, 3)
    slots = [keys_of(got(consumer)) for consumer in consumers]
    assert all(slots)
    assert sum(map(len, slots)) == len(set.union(*slots))
    for consumer in consumers:
        assert numbers(harness, consumer) == sorted(numbers(harness, consumer))
    assert sum(len(got(consumer)) for consumer in consumers) == 600


def test_two_consumers_of_one_name() -> None:
    harness = DispatchHarness()
    one, two = (harness.consumer(KEY_SHARED, 10_000, "same") for _ in range(2))
    publish_all(harness)
    assert got(one)
    assert got(two)
    harness.leave(one)
    assert len(got(two)) == 200


def test_a_newcomer_waits_for_slots_that_drain_and_for_those_only() -> None:
    harness = DispatchHarness()
    old = harness.consumer(KEY_SHARED, 10_000)
    publish_all(harness)
    half = got(old)[:100]
    harness.ack(old, *got(old)[100:])
    new = harness.consumer(KEY_SHARED, 10_000)
    draining = set(core(harness).lanes.draining)
    assert draining
    assert draining <= keys_of(half)
    publish_all(harness)
    arrived = keys_of(got(new))
    assert arrived
    assert not arrived & draining
    waiting = core(harness).waiting_count
    assert waiting == sum(1 for key in got_all(harness)[200:] if metadata_of(key).slot in draining)
    first = next(entry for entry in half if metadata_of(entry).slot in draining)
    harness.ack(old, first)
    assert metadata_of(first).slot in keys_of(got(new))
    harness.ack(old, *half)
    assert core(harness).waiting_count == 0
    assert len(got(old)) + len(got(new)) == 400


def got_all(harness: DispatchHarness) -> list[Entry]:
    return harness.ledger.entries


def test_a_crash_hands_unacknowledged_over_in_order() -> None:
    harness = DispatchHarness()
    consumers = [harness.consumer(KEY_SHARED, 10_000) for _ in range(3)]
    publish_all(harness, 5)
    dead, *alive = consumers
    lost = set(numbers(harness, dead))
    before = {consumer: len(got(consumer)) for consumer in alive}
    harness.leave(dead)
    publish_all(harness)
    redelivered: set[int] = set()
    for consumer in alive:
        new = numbers(harness, consumer)[before[consumer] :]
        assert new == sorted(new)
        redelivered |= lost & set(new)
    assert redelivered == lost
    assert not core(harness).lanes.draining
    core(harness).validate()


def test_an_entry_read_again_while_its_slot_begins_to_drain_waits() -> None:
    harness = DispatchHarness()
    old = harness.consumer(KEY_SHARED, 10_000)
    publish_all(harness, 2)
    harness.cursor.late = True
    harness.subscription.redeliver(old, [entry.position for entry in got(old)[:50]])
    harness.loop.run()
    assert harness.cursor.pending is not None
    new = harness.consumer(KEY_SHARED, 10_000)
    harness.cursor.late = False
    harness.cursor.finish_read()
    harness.loop.run()
    assert got(new) == []
    assert core(harness).waiting_count > 0
    core(harness).validate()
    harness.ack(old, *got(old)[200:], *[entry for entry in got(old)[50:]])
    assert core(harness).waiting_count == 0
    assert len(got(new)) > 0
    assert numbers(harness, new) == sorted(numbers(harness, new))


def test_negative_acknowledgements_keep_the_order_of_the_key() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(KEY_SHARED, 3)
    harness.publish(10, "a")
    harness.loop.run()
    assert numbers(harness, consumer) == [0, 1, 2]
    harness.subscription.redeliver(consumer, None)
    harness.loop.run()
    harness.flow(consumer, 5)
    assert numbers(harness, consumer) == [0, 1, 2, 0, 1, 2, 3, 4]
    assert [count for _, count, _ in channel(consumer).got][3:] == [1, 1, 1, 0, 0]


def test_sticky_ranges_overlap_is_refused() -> None:
    harness = DispatchHarness()
    harness.consumer(KEY_SHARED, 10, sticky=[(0, 100)])
    with pytest.raises(ConsumerAssignError, match="overlaps"):
        harness.consumer(KEY_SHARED, 10, sticky=[(50, 200)])
    with pytest.raises(ConsumerAssignError):
        harness.consumer(KEY_SHARED, 10, sticky=[])
    with pytest.raises(ConsumerAssignError):
        harness.consumer(KEY_SHARED, 10, sticky=[(60_000, 70_000)])
    with pytest.raises(ConsumerBusyError):
        harness.consumer(KEY_SHARED, 10)
    assert len(harness.subscription.consumers) == 1
    harness.consumer(KEY_SHARED, 10, sticky=[(101, 200)])
    core(harness).validate()


def test_a_gap_between_sticky_ranges_stalls_its_keys_alone() -> None:
    harness = DispatchHarness()
    low = harness.consumer(KEY_SHARED, 10_000, sticky=[(0, 29_999)])
    publish_all(harness, 2)
    covered = [e for e in harness.ledger.entries if metadata_of(e).slot < 30_000]
    assert got(low) == covered
    high = harness.consumer(KEY_SHARED, 10_000, sticky=[(30_000, 65_535)])
    assert got(high) == [e for e in harness.ledger.entries if metadata_of(e).slot >= 30_000]


def test_batches_and_permits() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(KEY_SHARED, 10)
    harness.publish(10, "a", batch=4)
    harness.loop.run()
    assert len(got(consumer)) == 3
    assert consumer.permits == -2
    harness.flow(consumer, 3)
    assert len(got(consumer)) == 4
    harness.subscription.redeliver(consumer, [(1, 1)])
    harness.flow(consumer, 3 + 5)
    assert ids(got(consumer))[4:] == [1, 4]


def test_zero_queue_consumers_do_not_read_far_ahead() -> None:
    harness = DispatchHarness()
    consumers = [harness.consumer(KEY_SHARED, 0) for _ in range(2)]
    publish_all(harness)
    harness.flow(consumers[0], 1)
    assert len(got(consumers[0])) == 1
    assert core(harness).waiting_count < 50


def test_delayed_messages_come_due_at_their_owner() -> None:
    harness = DispatchHarness()
    consumers = [harness.consumer(KEY_SHARED, 100) for _ in range(3)]
    due = harness.loop.now_ms() + 2000
    for key in KEYS[:20]:
        harness.publish(1, key, deliver_at_time=due)
        harness.publish(1, key)
    harness.loop.run()
    assert sum(len(got(consumer)) for consumer in consumers) == 20
    harness.loop.advance(2100)
    assert sum(len(got(consumer)) for consumer in consumers) == 40
    slots = [keys_of(got(consumer)) for consumer in consumers]
    assert sum(map(len, slots)) == len(set.union(*slots))


@pytest.mark.parametrize("waiting_max", [0, 500, 1_000_000])
def test_a_frozen_consumer_stalls_its_own_keys_alone_at_any_backlog(waiting_max: int) -> None:
    harness = DispatchHarness(key_shared_waiting_max=waiting_max, per_ledger=5000)
    frozen, *others = (harness.consumer(KEY_SHARED, 1000) for _ in range(4))
    for consumer in others:

        def answer(entry: Entry, consumer: Consumer = consumer) -> None:
            harness.subscription.acknowledge(consumer, 0, [(entry.ledger_id, entry.entry_id, None, 0)])
            harness.subscription.flow(consumer, 1)

        channel(consumer).on_deliver = answer
    publish_all(harness, 150)
    stuck = keys_of(got(frozen))
    assert len(got(frozen)) == 1000
    expected = [e for e in harness.ledger.entries if metadata_of(e).slot not in stuck]
    assert sum(len(got(consumer)) for consumer in others) == len(expected)
    assert core(harness).waiting_count == min(waiting_max, 30_000 - len(expected) - 1000)
    core(harness).validate()
    # It thaws: everything comes, in order, none twice; what is new meanwhile waits its turn.
    publish_all(harness)
    while len(got(frozen)) < 30_200 - len(expected) - 200 + len(stuck):
        before = len(got(frozen))
        harness.ack(frozen, *got(frozen)[-2000:])
        harness.flow(frozen, 2000)
        assert len(got(frozen)) > before
    harness.ack(frozen, *got(frozen))
    harness.flow(frozen, 2000)
    mine = [harness.ledger.place(e.position) for e in harness.ledger.entries if metadata_of(e).slot in stuck]
    assert numbers(harness, frozen) == mine
    assert harness.subscription.backlog_entries == 0
    assert core(harness).waiting_count == 0
    assert not any(lane.skipped for lane in core(harness).lanes.all)
    core(harness).validate()


def test_skipped_keys_follow_a_consumer_that_leaves() -> None:
    harness = DispatchHarness(key_shared_waiting_max=10)
    frozen, other = harness.consumer(KEY_SHARED, 5), harness.consumer(KEY_SHARED, 100_000)
    publish_all(harness, 20)
    harness.ack(other, *got(other))
    assert core(harness).waiting_count == 10
    harness.leave(frozen)
    assert len(set(numbers(harness, other))) == 4000
    harness.ack(other, *got(other))
    assert harness.subscription.backlog_entries == 0
    last_of: dict[int, int] = {}
    for entry in got(other):
        slot = metadata_of(entry).slot
        number = harness.ledger.place(entry.position)
        assert last_of.get(slot, -1) < number
        last_of[slot] = number


def test_skipped_keys_and_a_newcomer() -> None:
    harness = DispatchHarness(key_shared_waiting_max=10)
    frozen, other = harness.consumer(KEY_SHARED, 5), harness.consumer(KEY_SHARED, 100_000)
    publish_all(harness, 20)
    harness.ack(other, *got(other))
    new = harness.consumer(KEY_SHARED, 100_000)
    draining = set(core(harness).lanes.draining)
    assert not keys_of(got(new)) & draining
    assert len(got(new)) > 100
    harness.ack(frozen, *got(frozen))
    harness.leave(frozen)
    delivered = [n for consumer in (frozen, other, new) for n in numbers(harness, consumer)]
    assert sorted(delivered) == list(range(4000))
    core(harness).validate()


def test_type_of_waiting_entries_acknowledged_meanwhile_are_dropped() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(KEY_SHARED, 1)
    other = harness.consumer(KEY_SHARED, 1)
    publish_all(harness)
    assert core(harness).waiting_count > 0
    harness.subscription.acknowledge(consumer, 0, [(1, number, None, 0) for number in range(200)])
    harness.flow(consumer, 1000)
    harness.flow(other, 1000)
    assert len(got(consumer)) + len(got(other)) == 2
    assert core(harness).waiting_count == 0


def test_stats_show_who_owns_which_slots() -> None:
    harness = DispatchHarness(key_shared_consistent_hashing=False)
    harness.consumer(KEY_SHARED, 1)
    harness.consumer(KEY_SHARED, 1)
    stats = subscription_stats(harness.subscription, LedgerIndex())
    assert sorted(consumer["keyHashRanges"] for consumer in stats["consumers"]) == [["[0, 32767]"], ["[32768, 65535]"]]
    assert stats["keySharedMode"] == "AUTO_SPLIT"
