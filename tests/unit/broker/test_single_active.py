"""Exclusive and Failover: order, permits, rewinds, who is active."""

from __future__ import annotations

import pytest

from magnetar.broker.dispatch.single_active import partition_index
from magnetar.broker.errors import ConsumerBusyError
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.broker.subscriptions.stats import subscription_stats
from magnetar.managed_ledger.errors import CursorClosedError

from .dispatch_fakes import World, channel, got, ids

EXCLUSIVE = SubscriptionType.Exclusive
FAILOVER = SubscriptionType.Failover


def test_delivers_in_order_within_permits() -> None:
    world = World()
    world.publish(250)
    consumer = world.consumer(EXCLUSIVE, 120)
    assert ids(got(consumer)) == list(range(120))
    assert consumer.permits == 0
    world.flow(consumer, 500)
    assert ids(got(consumer)) == list(range(250))
    assert consumer.permits == 370


def test_new_entries_wake_the_pump() -> None:
    world = World()
    consumer = world.consumer(EXCLUSIVE, 10)
    world.publish(3)
    world.loop.run()
    assert ids(got(consumer)) == [0, 1, 2]
    assert world.cursor.reads <= 2


def test_batches_cost_their_messages_and_permits_may_go_negative() -> None:
    world = World()
    world.publish(10, batch=4)
    consumer = world.consumer(EXCLUSIVE, 10)
    assert ids(got(consumer)) == [0, 1, 2]
    assert consumer.permits == -2
    world.flow(consumer, 2)
    assert len(got(consumer)) == 3
    world.flow(consumer, 1)
    assert ids(got(consumer)) == [0, 1, 2, 3]


def test_partly_acknowledged_batch_costs_what_is_left() -> None:
    world = World()
    world.publish(1, batch=4)
    world.cursor.batches[0] = 0b1010
    consumer = world.consumer(EXCLUSIVE, 10)
    assert channel(consumer).got[0][2] == [0b1010]
    assert consumer.permits == 8


def test_second_exclusive_consumer_is_refused() -> None:
    world = World()
    world.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusyError):
        world.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusyError):
        world.consumer(SubscriptionType.Shared)


def test_redelivery_is_a_rewind_without_counts() -> None:
    world = World()
    world.publish(5)
    consumer = world.consumer(EXCLUSIVE, 100)
    world.ack(consumer, *got(consumer)[:2], got(consumer)[3])
    world.subscription.redeliver(consumer, [(1, 4)], 7)
    world.loop.run()
    assert ids(got(consumer)) == [0, 1, 2, 3, 4, 2, 4]
    assert {count for _, count, _ in channel(consumer).got} == {0}
    assert channel(consumer).epochs[-2:] == [7, 7]


def test_rewind_during_a_read_drops_what_it_brings() -> None:
    world = World()
    consumer = world.consumer(EXCLUSIVE, 100)
    world.cursor.late = True
    world.publish(3)
    world.loop.run()
    world.subscription.redeliver(consumer, None)
    world.cursor.finish_read()
    world.loop.run()
    assert got(consumer) == []
    world.cursor.finish_read()
    world.loop.run()
    assert ids(got(consumer)) == [0, 1, 2]


def test_consumer_removed_inside_a_delivery_gets_nothing_more() -> None:
    world = World()
    world.publish(5)
    consumer = world.consumer(EXCLUSIVE)
    channel(consumer).on_deliver = lambda entry: world.subscription.remove_consumer(consumer)
    world.flow(consumer, 10)
    assert ids(got(consumer)) == [0]
    assert ids(got(world.consumer(EXCLUSIVE, 10))) == [0, 1, 2, 3, 4]


def test_full_transport_stops_delivery_until_it_drains() -> None:
    world = World()
    consumer = world.consumer(EXCLUSIVE, 100)
    channel(consumer).writable = False
    world.publish(3)
    world.loop.run()
    assert got(consumer) == []
    channel(consumer).writable = True
    world.subscription.channel_writable(consumer)
    world.loop.run()
    assert len(got(consumer)) == 3


def test_markers_are_acknowledged_silently_and_cost_nothing() -> None:
    world = World()
    world.publish(1)
    world.publish(2, marker_type=10)
    world.publish(1)
    consumer = world.consumer(EXCLUSIVE, 2)
    assert ids(got(consumer)) == [0, 3]
    assert world.cursor.acked == {1, 2}


def test_failed_reads_are_repeated_with_growing_pauses() -> None:
    world = World()
    world.cursor.fail_next = CursorClosedError("broken for a moment")
    world.publish(2)
    consumer = world.consumer(EXCLUSIVE, 10)
    assert got(consumer) == []
    world.loop.advance(90)
    assert got(consumer) == []
    world.loop.advance(20)
    assert len(got(consumer)) == 2


def test_cumulative_acknowledgement_inside_a_batch() -> None:
    world = World()
    world.publish(3, batch=5)
    consumer = world.consumer(EXCLUSIVE, 100)
    done: list[object] = []
    world.subscription.acknowledge(consumer, 1, [(1, 1, [0b11000], 5)], done.append)
    assert done == [None]
    assert world.cursor.mark_delete == 0
    assert world.cursor.batches == {1: 0b11000}


def test_cumulative_inside_a_batch_without_batch_index_acks() -> None:
    world = World(batch_index_ack_enabled=False)
    world.publish(3, batch=5)
    consumer = world.consumer(EXCLUSIVE, 100)
    world.subscription.acknowledge(consumer, 1, [(1, 1, [0b11000], 5)])
    assert world.cursor.mark_delete == 0
    assert world.cursor.batches == {}
    done: list[object] = []
    world.subscription.acknowledge(consumer, 0, [(1, 1, [0b1], 5)], done.append)
    assert done == [None]
    assert world.cursor.batches == {}


# ---- Failover


@pytest.mark.parametrize(
    ("name", "index"),
    [("persistent://a/b/c", -1), ("persistent://a/b/c-partition-12", 12), ("x-partition-", -1), ("x-partition-a", -1)],
)
def test_partition_index(name: str, index: int) -> None:
    assert partition_index(name) == index


def test_first_to_join_is_active_and_everybody_is_told_once() -> None:
    world = World()
    world.publish(4)
    first = world.consumer(FAILOVER, 2, "z")
    second = world.consumer(FAILOVER, 10, "a")
    assert channel(first).active == [True]
    assert channel(second).active == [False]
    assert ids(got(first)) == [0, 1]
    assert got(second) == []
    world.ack(first, got(first)[0])
    world.leave(first)
    assert channel(second).active == [False, True]
    assert ids(got(second)) == [1, 2, 3]
    assert subscription_stats(world.subscription)["activeConsumerName"] == "a"


def test_news_about_activity_comes_after_the_answer_to_subscribe() -> None:
    world = World()
    consumer = world.consumer(FAILOVER)
    channel(consumer).active.clear()
    joined = world.subscription.consumers[0]
    assert joined is consumer
    world.subscription.remove_consumer(consumer)
    consumer.notified_active = None
    world.subscription.add_consumer(consumer)
    assert channel(consumer).active == []
    world.loop.run()
    assert channel(consumer).active == [True]


def test_higher_priority_takes_over_from_the_first_unacknowledged() -> None:
    world = World()
    world.publish(3)
    low = world.consumer(FAILOVER, 10, priority=1)
    high = world.consumer(FAILOVER, 10, priority=0)
    assert ids(got(low)) == [0, 1, 2]
    assert ids(got(high)) == [0, 1, 2]
    assert channel(low).active == [True, False]
    world.publish(1)
    world.loop.run()
    assert len(got(low)) == 3
    assert len(got(high)) == 4


def test_switch_waits_for_acknowledgements_of_a_connected_consumer() -> None:
    world = World(failover_delay_ms=1000)
    world.publish(3)
    low = world.consumer(FAILOVER, 10, priority=1)
    assert len(got(low)) == 3
    high = world.consumer(FAILOVER, 10, priority=0)
    world.loop.advance(500)
    assert got(high) == []
    world.ack(low, *got(low))
    world.loop.advance(600)
    assert got(high) == []
    world.publish(1)
    world.loop.run()
    assert ids(got(high)) == [3]
    world.leave(high)
    assert ids(got(low)) == [0, 1, 2, 3]


@pytest.mark.parametrize("partition", range(4))
def test_partitions_spread_over_consumers_by_name(partition: int) -> None:
    world = World(topic_name=f"persistent://public/default/t-partition-{partition}")
    consumers = [world.consumer(FAILOVER, 1, name) for name in ("c", "a", "b")]
    world.consumer(FAILOVER, 1, "0", priority=3)
    active = world.subscription.dispatch.dispatcher.active_consumer
    assert active is not None
    assert active.name == "abc"[partition % 3]
    assert sum(consumer.is_active for consumer in consumers) == 1


def test_another_type_may_come_when_all_have_left() -> None:
    world = World()
    world.publish(3)
    shared = world.consumer(SubscriptionType.Shared, 10)
    assert len(got(shared)) == 3
    world.leave(shared)
    exclusive = world.consumer(EXCLUSIVE, 10)
    assert ids(got(exclusive)) == [0, 1, 2]
    assert world.subscription.unacked_messages == 0


def test_end_of_a_terminated_topic_is_told_when_all_is_acknowledged() -> None:
    world = World()
    world.publish(2)
    consumer = world.consumer(EXCLUSIVE, 10)
    world.subscription.topic_terminated()
    assert channel(consumer).ended == 0
    world.ack(consumer, *got(consumer))
    assert channel(consumer).ended == 1


def test_cumulative_ids_of_foreign_ledgers_acknowledge_nothing() -> None:
    world = World()
    world.publish(3)
    consumer = world.consumer(EXCLUSIVE, 10)
    done: list[object] = []
    for ledger, entry in ((99, 0), (1, 3), (1, -1), (0, 0)):
        world.subscription.acknowledge(consumer, 1, [(ledger, entry, None, 0)], done.append)
    assert done == [None] * 4
    assert world.subscription.backlog_entries == 3
