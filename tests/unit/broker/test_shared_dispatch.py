"""Shared: round robin, priorities, redelivery, limits, delayed messages."""

from __future__ import annotations

import pytest

from magnetar.broker.errors import ConsumerBusyError, NotAllowedError
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.broker.subscriptions.stats import subscription_stats
from magnetar.managed_ledger.errors import CursorClosedError
from magnetar.managed_ledger.ledger_index import LedgerIndex
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

from .dispatch_fakes import DispatchHarness, channel, got, ids

SHARED = SubscriptionType.Shared


def test_round_robin() -> None:
    harness = DispatchHarness()
    consumers = [harness.consumer(SHARED, 100) for _ in range(3)]
    harness.publish(9)
    harness.loop.run()
    assert [ids(got(consumer)) for consumer in consumers] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_lower_levels_get_what_upper_ones_cannot_take() -> None:
    harness = DispatchHarness()
    low = harness.consumer(SHARED, 100, priority=1)
    high = harness.consumer(SHARED, 3)
    harness.publish(5)
    harness.loop.run()
    assert ids(got(high)) == [0, 1, 2]
    assert ids(got(low)) == [3, 4]


def test_nothing_is_lost_when_permits_end_inside_a_read() -> None:
    harness = DispatchHarness()
    harness.publish(50, batch=10)
    consumer = harness.consumer(SHARED, 25)
    assert ids(got(consumer)) == [0, 1, 2]
    for _ in range(30):
        harness.flow(consumer, 20)
    assert ids(got(consumer)) == list(range(50))
    assert consumer.permits == 25 + 600 - 500


def test_what_a_leaving_consumer_held_goes_to_others_first() -> None:
    harness = DispatchHarness()
    leaver = harness.consumer(SHARED, 3)
    harness.publish(6)
    harness.loop.run()
    harness.ack(leaver, got(leaver)[1])
    harness.leave(leaver)
    other = harness.consumer(SHARED, 10)
    assert ids(got(other)) == [0, 2, 3, 4, 5]
    assert [count for _, count, _ in channel(other).got] == [1, 1, 0, 0, 0]
    assert harness.subscription.unacked_messages == 5


def test_negative_acknowledgement_counts_and_keeps_the_rest() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 100)
    harness.publish(4)
    harness.loop.run()
    for expected in (1, 2):
        harness.subscription.redeliver(consumer, [(1, 2)])
        harness.loop.run()
        assert channel(consumer).got[-1][0].entry_id == 2
        assert channel(consumer).got[-1][1] == expected
    assert consumer.unacked_messages == 4
    harness.subscription.redeliver(consumer, None)
    harness.loop.run()
    assert ids(got(consumer)) == [0, 1, 2, 3, 2, 2, 0, 1, 2, 3]
    assert consumer.messages_redelivered == 6


def test_ids_held_by_others_are_not_taken_from_them() -> None:
    harness = DispatchHarness()
    one = harness.consumer(SHARED, 1)
    two = harness.consumer(SHARED, 100)
    harness.publish(2)
    harness.loop.run()
    harness.subscription.redeliver(two, [(entry.ledger_id, entry.entry_id) for entry in got(one)])
    harness.loop.run()
    assert len(got(one)) == 1
    assert len(got(two)) == 1


def test_acknowledged_meanwhile_is_not_redelivered() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 2)
    harness.publish(2)
    harness.loop.run()
    harness.subscription.redeliver(consumer, None)
    harness.ack(consumer, got(consumer)[0])
    harness.flow(consumer, 10)
    assert ids(got(consumer)) == [0, 1, 1]


def test_acknowledgement_by_another_consumer_counts() -> None:
    harness = DispatchHarness()
    one = harness.consumer(SHARED, 1)
    two = harness.consumer(SHARED, 1)
    harness.publish(2)
    harness.loop.run()
    harness.ack(two, *got(one))
    assert one.unacked_messages == 0
    assert two.unacked_messages == 1
    assert harness.subscription.unacked_messages == 1


def test_the_same_id_many_times_in_one_acknowledgement() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 100)
    harness.publish(2, batch=10)
    harness.loop.run()
    done: list[object] = []
    harness.subscription.acknowledge(consumer, 0, [(1, 0, None, 0)] * 68, done.append)
    assert done == [None]
    assert consumer.unacked_messages == 10
    assert harness.subscription.unacked_messages == 10
    assert consumer.messages_acked == 10


def test_batch_indexes_settle_messages_one_by_one() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 100)
    harness.publish(1, batch=4)
    harness.loop.run()
    for _ in range(2):
        harness.ack(consumer, got(consumer)[0], ack_set=[0b1110], batch=4)
        assert consumer.unacked_messages == 3
    harness.ack(consumer, got(consumer)[0], ack_set=[0b1011], batch=4)
    assert consumer.unacked_messages == 2
    harness.subscription.redeliver(consumer, [(1, 0)])
    permits = consumer.permits
    harness.loop.run()
    assert channel(consumer).got[-1][1:] == (1, [0b1010])
    assert consumer.permits == permits - 2
    assert consumer.unacked_messages == 2
    harness.ack(consumer, got(consumer)[0], ack_set=[0b0101], batch=4)
    assert consumer.unacked_messages == 0
    assert harness.cursor.mark_delete == 0


def test_batch_size_untold_as_by_the_cpp_client() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 100)
    harness.publish(1, batch=70)
    harness.loop.run()
    everything = (1 << 70) - 2
    harness.ack(consumer, got(consumer)[0], ack_set=[everything & (1 << 64) - 1, everything >> 64])
    assert consumer.unacked_messages == 69


def test_positions_never_written_are_ignored() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 100)
    harness.publish(1)
    harness.loop.run()
    done: list[object] = []
    harness.subscription.acknowledge(consumer, 0, [(1, 99, None, 0), (7, 0, None, 0)], done.append)
    assert done == [None]
    assert consumer.unacked_messages == 1
    harness.subscription.acknowledge(consumer, 0, [], done.append)
    assert done == [None, None]


def test_cumulative_acknowledgement_is_refused() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 100)
    harness.publish(3)
    harness.loop.run()
    done: list[object] = []
    harness.subscription.acknowledge(consumer, 1, [(1, 2, None, 0)], done.append)
    assert isinstance(done[0], NotAllowedError)
    assert harness.subscription.backlog_entries == 3


def test_consumer_limit_blocks_until_half_is_settled() -> None:
    harness = DispatchHarness(max_unacked_per_consumer=10)
    consumer = harness.consumer(SHARED, 100)
    harness.publish(30)
    harness.loop.run()
    assert len(got(consumer)) == 10
    assert consumer.blocked_on_unacked
    harness.ack(consumer, *got(consumer)[:4])
    assert len(got(consumer)) == 10
    harness.ack(consumer, got(consumer)[4])
    assert len(got(consumer)) == 15
    assert consumer.permits == 85


@pytest.mark.parametrize("kind", [SHARED, SubscriptionType.Key_Shared])
def test_a_consumer_at_its_limit_goes_on_when_another_acknowledges_for_it(kind: SubscriptionType) -> None:
    """As an application does that acknowledges over another connection than the one that the messages came to."""
    harness = DispatchHarness(max_unacked_per_consumer=4)
    one, two = harness.consumer(kind, 100), harness.consumer(kind, 0 if kind is SHARED else 100)
    harness.publish(12, "key")
    harness.loop.run()
    holder, other = (one, two) if got(one) else (two, one)
    assert len(got(holder)) == 4
    harness.ack(other, *got(holder))
    assert len(got(holder)) == 8
    assert not got(other)


def test_subscription_limit_blocks_all_until_half_is_settled() -> None:
    harness = DispatchHarness(max_unacked_per_subscription=10)
    one = harness.consumer(SHARED, 100)
    two = harness.consumer(SHARED, 100)
    harness.publish(30)
    harness.loop.run()
    assert len(got(one)) + len(got(two)) == 10
    assert subscription_stats(harness.subscription, LedgerIndex())["blockedSubscriptionOnUnackedMsgs"] is True
    harness.ack(one, *got(one))
    assert len(got(one)) + len(got(two)) == 15
    harness.leave(two)
    harness.flow(one, 1)
    harness.subscription.dispatch.dispatcher.validate()
    assert sorted(set(ids(got(one)) + ids(got(two)))) == list(range(15))


def test_limits_can_change_while_blocked() -> None:
    harness = DispatchHarness(max_unacked_per_consumer=5)
    consumer = harness.consumer(SHARED, 100)
    harness.publish(8)
    harness.loop.run()
    assert len(got(consumer)) == 5
    harness.subscription.set_config(type(harness.subscription.config)(max_unacked_per_consumer=0))
    harness.loop.run()
    assert len(got(consumer)) == 8


def test_consumer_count_limit() -> None:
    harness = DispatchHarness(max_consumers=2)
    harness.consumer(SHARED)
    harness.consumer(SHARED)
    with pytest.raises(ConsumerBusyError, match="max consumers"):
        harness.consumer(SHARED)


def test_full_transport_of_one_leaves_the_others_alone() -> None:
    harness = DispatchHarness()
    stuck = harness.consumer(SHARED, 100)
    free = harness.consumer(SHARED, 100)
    channel(stuck).writable = False
    harness.publish(10)
    harness.loop.run()
    assert len(got(free)) == 10
    assert got(stuck) == []


def test_failed_replay_is_repeated() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 100)
    harness.publish(3)
    harness.loop.run()
    harness.cursor.fail_next = CursorClosedError("broken for a moment")
    harness.subscription.redeliver(consumer, None)
    harness.loop.run()
    assert len(got(consumer)) == 3
    harness.loop.advance(200)
    assert ids(got(consumer)) == [0, 1, 2, 0, 1, 2]


def test_a_long_redelivery_does_not_hold_new_entries_back() -> None:
    harness = DispatchHarness()
    leaver = harness.consumer(SHARED, 1000)
    harness.publish(1000)
    harness.loop.run()
    harness.leave(leaver)
    harness.publish(10)
    other = harness.consumer(SHARED, 10_000)
    places = [entry.position for entry in got(other)]
    assert len(places) == 1010
    assert places.index(Position(2, 0)) < 200


# ---- Delayed


def test_delayed_messages_wait_and_cost_no_permits() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 2)
    now = harness.loop.now_ms()
    harness.publish(1, deliver_at_time=now + 5000)
    harness.publish(1, deliver_at_time=now + 2000)
    harness.publish(2)
    harness.loop.run()
    assert ids(got(consumer)) == [2, 3]
    assert harness.subscription.delayed_messages == 2
    assert subscription_stats(harness.subscription, LedgerIndex())["msgBacklogNoDelayed"] == 2
    harness.flow(consumer, 10)
    harness.loop.advance(1990)
    assert len(got(consumer)) == 2
    harness.loop.advance(100)
    assert ids(got(consumer)) == [2, 3, 1]
    harness.loop.advance(3000)
    assert ids(got(consumer)) == [2, 3, 1, 0]
    assert [count for _, count, _ in channel(consumer).got] == [0, 0, 0, 0]


def test_an_earlier_delayed_message_shortens_the_wait() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 10)
    now = harness.loop.now_ms()
    harness.publish(1, deliver_at_time=now + 60_000)
    harness.loop.run()
    harness.publish(1, deliver_at_time=now + 1_000)
    harness.loop.advance(1_100)
    assert ids(got(consumer)) == [1]


def test_delayed_delivery_off_delivers_at_once() -> None:
    harness = DispatchHarness(delayed_delivery_enabled=False)
    consumer = harness.consumer(SHARED, 10)
    harness.publish(1, deliver_at_time=harness.loop.now_ms() + 5000)
    harness.loop.run()
    assert len(got(consumer)) == 1


def test_exclusive_gets_delayed_messages_at_once() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SubscriptionType.Exclusive, 10)
    harness.publish(1, deliver_at_time=harness.loop.now_ms() + 5000)
    harness.loop.run()
    assert len(got(consumer)) == 1


# ---- Control


async def test_seek_disconnects_resets_and_starts_over() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 100)
    harness.publish(10)
    harness.loop.run()
    harness.ack(consumer, *got(consumer)[:5])
    await harness.subscription.seek(Position(1, 3))
    assert channel(consumer).closed
    assert harness.subscription.consumers == []
    back = harness.consumer(SHARED, 100)
    assert ids(got(back)) == list(range(3, 10))
    assert {count for _, count, _ in channel(back).got} == {0}
    await harness.subscription.seek(EARLIEST)
    assert ids(got(harness.consumer(SHARED, 100))) == list(range(10))
    await harness.subscription.seek(LATEST)
    last = harness.consumer(SHARED, 100)
    harness.publish(1)
    harness.loop.run()
    assert ids(got(last)) == [10]


async def test_seek_by_time() -> None:
    harness = DispatchHarness()
    for time in (10, 20, 30):
        harness.publish(1, publish_time=time)
    for time, expected in ((0, [0, 1, 2]), (20, [1, 2]), (21, [2]), (31, [])):
        await harness.subscription.seek_to_time(time)
        assert ids(got(harness.consumer(SHARED, 100))) == expected


async def test_skip_clear_expire_and_peek() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 4)
    harness.publish(20)
    harness.loop.run()
    harness.ack(consumer, got(consumer)[1])
    peeked = await harness.subscription.peek(2)
    assert peeked is not None
    assert peeked.entry_id == 2
    assert await harness.subscription.peek(20) is None
    assert await harness.subscription.skip_messages(5) == 5
    assert harness.subscription.backlog_entries == 14
    assert consumer.unacked_messages == 0
    harness.flow(consumer, 2)
    assert ids(got(consumer)) == [0, 1, 2, 3, 6, 7]
    assert await harness.subscription.expire(Position(1, 9)) == 4
    assert await harness.subscription.expire(Position(1, 9)) == 0
    assert consumer.unacked_messages == 0
    await harness.subscription.clear_backlog()
    harness.flow(consumer, 10)
    assert len(got(consumer)) == 6
    assert subscription_stats(harness.subscription, LedgerIndex())["totalMsgExpired"] == 4


async def test_cleared_backlog_is_not_delivered_from_what_was_read() -> None:
    harness = DispatchHarness()
    harness.publish(50, batch=10)
    consumer = harness.consumer(SHARED, 5)
    assert len(got(consumer)) == 1
    await harness.subscription.clear_backlog()
    harness.flow(consumer, 1000)
    assert len(got(consumer)) == 1


async def test_close_disconnects_and_closes_the_cursor() -> None:
    harness = DispatchHarness()
    consumer = harness.consumer(SHARED, 4)
    await harness.subscription.close()
    await harness.subscription.close()
    assert channel(consumer).closed
    assert harness.cursor.closed
    harness.publish(1)
    harness.loop.run()
    assert got(consumer) == []


def test_stats_have_no_null_maps() -> None:
    harness = DispatchHarness()
    harness.publish(3, batch=2)
    consumer = harness.consumer(SHARED, 100)
    stats = subscription_stats(harness.subscription, LedgerIndex())
    assert stats["type"] == "Shared"
    assert stats["unackedMessages"] == 6
    assert stats["consumersAfterMarkDeletePosition"] == {}
    assert stats["subscriptionProperties"] == {}
    one = stats["consumers"][0]
    assert one["metadata"] == {}
    assert one["avgMessagesPerEntry"] == 2
    assert one["lastConsumedFlowTimestamp"] > 0
    assert one["availablePermits"] == 94
    assert consumer.bytes_out == sum(len(entry.data) for entry in got(consumer))
