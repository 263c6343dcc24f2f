"""Exclusive and Failover: order, permits, rewinds, who is active."""

from __future__ import annotations

import pytest

from magnetar.broker.dispatch.single_active import TELL_DELAY_MAX_MS, partition_index, ring_distance
from magnetar.broker.errors import ConsumerBusyError
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.broker.subscriptions.stats import subscription_stats
from magnetar.managed_ledger.errors import CursorClosedError
from magnetar.managed_ledger.ledger_index import LedgerIndex

from .dispatch_fakes import TOPIC, DispatchHarness, channel, got, ids

EXCLUSIVE = SubscriptionType.Exclusive
FAILOVER = SubscriptionType.Failover


def test_delivers_in_order_within_permits() -> None:
    harness = DispatchHarness()
    harness.publish(250)
    consumer = harness.consumer(EXCLUSIVE, 120)
    assert ids(got(consumer)) == list(range(120))
    assert consumer.permits == 0
    harness.flow(consumer, 500)
    assert ids(got(consumer)) == list(range(250))
    assert consumer.permits == 370


def test_new_entries_wake_the_pump() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(EXCLUSIVE, 10)
    harness.publish(3)
    harness.loop.run()
    assert ids(got(consumer)) == [0, 1, 2]
    assert harness.cursor.reads <= 2


def test_batches_cost_their_messages_and_permits_may_go_negative() -> None:
    harness = DispatchHarness()
    harness.publish(10, batch=4)
    consumer = harness.consumer(EXCLUSIVE, 10)
    assert ids(got(consumer)) == [0, 1, 2]
    assert consumer.permits == -2
    harness.flow(consumer, 2)
    assert len(got(consumer)) == 3
    harness.flow(consumer, 1)
    assert ids(got(consumer)) == [0, 1, 2, 3]


def test_partly_acknowledged_batch_costs_what_is_left() -> None:
    harness = DispatchHarness()
    harness.publish(1, batch=4)
    harness.cursor.batches[0] = 0b1010
    consumer = harness.consumer(EXCLUSIVE, 10)
    assert channel(consumer).got[0][2] == [0b1010]
    assert consumer.permits == 8


def test_second_exclusive_consumer_is_refused() -> None:
    harness = DispatchHarness()
    harness.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusyError):
        harness.consumer(EXCLUSIVE)
    with pytest.raises(ConsumerBusyError):
        harness.consumer(SubscriptionType.Shared)


def test_redelivery_is_a_rewind_without_counts() -> None:
    harness = DispatchHarness()
    harness.publish(5)
    consumer = harness.consumer(EXCLUSIVE, 100)
    harness.ack(consumer, *got(consumer)[:2], got(consumer)[3])
    harness.subscription.redeliver(consumer, [(1, 4)], 7)
    harness.loop.run()
    assert ids(got(consumer)) == [0, 1, 2, 3, 4, 2, 4]
    assert {count for _, count, _ in channel(consumer).got} == {0}
    assert channel(consumer).epochs[-2:] == [7, 7]


def test_rewind_during_a_read_drops_what_it_brings() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(EXCLUSIVE, 100)
    harness.cursor.late = True
    harness.publish(3)
    harness.loop.run()
    harness.subscription.redeliver(consumer, None)
    harness.cursor.finish_read()
    harness.loop.run()
    assert got(consumer) == []
    harness.cursor.finish_read()
    harness.loop.run()
    assert ids(got(consumer)) == [0, 1, 2]


def test_consumer_removed_inside_a_delivery_gets_nothing_more() -> None:
    """Of entries that are delivered one by one; a run of them is one delivery."""
    harness = DispatchHarness()
    harness.publish(5)
    consumer = harness.consumer(EXCLUSIVE)
    consumer.consumer_epoch = 1
    channel(consumer).on_deliver = lambda entry: harness.subscription.remove_consumer(consumer)
    harness.flow(consumer, 10)
    assert ids(got(consumer)) == [0]
    assert ids(got(harness.consumer(EXCLUSIVE, 10))) == [0, 1, 2, 3, 4]


def test_full_transport_stops_delivery_until_it_drains() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(EXCLUSIVE, 100)
    channel(consumer).writable = False
    harness.publish(3)
    harness.loop.run()
    assert got(consumer) == []
    channel(consumer).writable = True
    harness.subscription.channel_writable(consumer)
    harness.loop.run()
    assert len(got(consumer)) == 3


def test_markers_are_acknowledged_silently_and_cost_nothing() -> None:
    harness = DispatchHarness()
    harness.publish(1)
    harness.publish(2, marker_type=10)
    harness.publish(1)
    consumer = harness.consumer(EXCLUSIVE, 2)
    assert ids(got(consumer)) == [0, 3]
    assert harness.cursor.acked == {1, 2}


def test_failed_reads_are_repeated_with_growing_pauses() -> None:
    harness = DispatchHarness()
    harness.cursor.fail_next = CursorClosedError("broken for a moment")
    harness.publish(2)
    consumer = harness.consumer(EXCLUSIVE, 10)
    assert got(consumer) == []
    harness.loop.advance(90)
    assert got(consumer) == []
    harness.loop.advance(20)
    assert len(got(consumer)) == 2


def test_cumulative_acknowledgement_inside_a_batch() -> None:
    harness = DispatchHarness()
    harness.publish(3, batch=5)
    consumer = harness.consumer(EXCLUSIVE, 100)
    done: list[object] = []
    harness.subscription.acknowledge(consumer, 1, [(1, 1, [0b11000], 5)], done.append)
    assert done == [None]
    assert harness.cursor.mark_delete == 0
    assert harness.cursor.batches == {1: 0b11000}


def test_cumulative_inside_a_batch_without_batch_index_acks() -> None:
    harness = DispatchHarness(batch_index_ack_enabled=False)
    harness.publish(3, batch=5)
    consumer = harness.consumer(EXCLUSIVE, 100)
    harness.subscription.acknowledge(consumer, 1, [(1, 1, [0b11000], 5)])
    assert harness.cursor.mark_delete == 0
    assert harness.cursor.batches == {}
    done: list[object] = []
    harness.subscription.acknowledge(consumer, 0, [(1, 1, [0b1], 5)], done.append)
    assert done == [None]
    assert harness.cursor.batches == {}


# ---- Failover


@pytest.mark.parametrize(
    ("name", "index"),
    [("persistent://a/b/c", -1), ("persistent://a/b/c-partition-12", 12), ("x-partition-", -1), ("x-partition-a", -1)],
)
def test_partition_index(name: str, index: int) -> None:
    assert partition_index(name) == index


def test_one_is_active_and_everybody_is_told_once() -> None:
    harness = DispatchHarness()
    harness.publish(4)
    by_distance = sorted("az", key=lambda name: ring_distance(name, TOPIC))
    first = harness.consumer(FAILOVER, 2, by_distance[0])
    second = harness.consumer(FAILOVER, 10, by_distance[1])
    harness.loop.advance(TELL_DELAY_MAX_MS)
    assert channel(first).active == [True]
    assert channel(second).active == [False]
    assert ids(got(first)) == [0, 1]
    assert got(second) == []
    harness.ack(first, got(first)[0])
    harness.leave(first)
    harness.loop.advance(TELL_DELAY_MAX_MS)
    assert channel(second).active == [False, True]
    assert ids(got(second)) == [1, 2, 3]
    assert subscription_stats(harness.subscription, LedgerIndex())["activeConsumerName"] == by_distance[1]


def test_news_about_activity_does_not_come_right_behind_the_answer_to_subscribe() -> None:
    """The Go client makes the consumer known to its connection only after it has seen the answer, and drops news about strangers."""
    harness = DispatchHarness(failover_delay_ms=1000)
    consumer = harness.consumer(FAILOVER)
    channel(consumer).active.clear()
    joined = harness.subscription.consumers[0]
    assert joined is consumer
    harness.subscription.remove_consumer(consumer)
    consumer.notified_active = None
    harness.subscription.add_consumer(consumer)
    harness.loop.advance(TELL_DELAY_MAX_MS - 1)
    assert channel(consumer).active == []
    harness.loop.advance(1)
    assert channel(consumer).active == [True]


def test_without_a_delay_news_comes_after_the_answer_to_subscribe() -> None:
    harness = DispatchHarness(failover_delay_ms=0)
    consumer = harness.consumer(FAILOVER)
    channel(consumer).active.clear()
    harness.subscription.remove_consumer(consumer)
    consumer.notified_active = None
    harness.subscription.add_consumer(consumer)
    assert channel(consumer).active == []
    harness.loop.run()
    assert channel(consumer).active == [True]


def test_higher_priority_takes_over_from_the_first_unacknowledged() -> None:
    harness = DispatchHarness(failover_delay_ms=0)
    harness.publish(3)
    low = harness.consumer(FAILOVER, 10, priority=1)
    high = harness.consumer(FAILOVER, 10, priority=0)
    assert ids(got(low)) == [0, 1, 2]
    assert ids(got(high)) == [0, 1, 2]
    assert channel(low).active == [True, False]
    harness.publish(1)
    harness.loop.run()
    assert len(got(low)) == 3
    assert len(got(high)) == 4


def test_switch_waits_for_acknowledgements_of_a_connected_consumer() -> None:
    harness = DispatchHarness(failover_delay_ms=1000)
    harness.publish(3)
    low = harness.consumer(FAILOVER, 10, priority=1)
    assert len(got(low)) == 3
    high = harness.consumer(FAILOVER, 10, priority=0)
    harness.loop.advance(500)
    assert got(high) == []
    harness.ack(low, *got(low))
    harness.loop.advance(600)
    assert got(high) == []
    harness.publish(1)
    harness.loop.run()
    assert ids(got(high)) == [3]
    harness.leave(high)
    assert ids(got(low)) == [0, 1, 2, 3]


@pytest.mark.parametrize("partition", range(4))
def test_partitions_spread_over_consumers_by_name(partition: int) -> None:
    harness = DispatchHarness(topic_name=f"persistent://public/default/t-partition-{partition}")
    consumers = [harness.consumer(FAILOVER, 1, name) for name in ("c", "a", "b")]
    harness.consumer(FAILOVER, 1, "0", priority=3)
    active = harness.subscription.dispatch.dispatcher.active_consumer
    assert active is not None
    assert active.name == "abc"[partition % 3]
    assert sum(consumer.is_active for consumer in consumers) == 1


def test_topics_without_partitions_spread_over_the_same_consumers() -> None:
    """By the ring of names, as Pulsar: what is active does not depend on who came first."""
    chosen = []
    for number in range(200):
        names = ["a", "b", "c"] if number % 2 else ["c", "b", "a"]
        harness = DispatchHarness(topic_name=f"persistent://public/default/t{number // 2}")
        for name in names:
            harness.consumer(FAILOVER, 1, name)
        active = harness.subscription.dispatch.dispatcher.active_consumer
        assert active is not None
        chosen.append(active.name)
    assert chosen[::2] == chosen[1::2]
    assert all(chosen.count(name) > 20 for name in "abc")


def test_another_type_may_come_when_all_have_left() -> None:
    harness = DispatchHarness()
    harness.publish(3)
    shared = harness.consumer(SubscriptionType.Shared, 10)
    assert len(got(shared)) == 3
    harness.leave(shared)
    exclusive = harness.consumer(EXCLUSIVE, 10)
    assert ids(got(exclusive)) == [0, 1, 2]
    assert harness.subscription.unacked_messages == 0


def test_end_of_a_terminated_topic_is_told_when_all_is_acknowledged() -> None:
    harness = DispatchHarness()
    harness.publish(2)
    consumer = harness.consumer(EXCLUSIVE, 10)
    harness.subscription.topic_terminated()
    assert channel(consumer).ended == 0
    harness.ack(consumer, *got(consumer))
    assert channel(consumer).ended == 1


def test_cumulative_ids_of_foreign_ledgers_acknowledge_nothing() -> None:
    harness = DispatchHarness()
    harness.publish(3)
    consumer = harness.consumer(EXCLUSIVE, 10)
    done: list[object] = []
    for ledger, entry in ((99, 0), (1, 3), (1, -1), (0, 0)):
        harness.subscription.acknowledge(consumer, 1, [(ledger, entry, None, 0)], done.append)
    assert done == [None] * 4
    assert harness.subscription.backlog_entries == 3
