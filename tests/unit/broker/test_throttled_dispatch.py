"""Dispatch rates in the pump, with a clock that moves only when the test says so."""

from __future__ import annotations

from itertools import pairwise

import pytest

from magnetar.broker.rate_limits import UNLIMITED, RateLimit, RateMeter
from magnetar.broker.subscriptions.policies import SubscriptionType

from .dispatch_fakes import World, got, ids

KINDS = (SubscriptionType.Exclusive, SubscriptionType.Shared, SubscriptionType.Key_Shared)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_is_kept_second_by_second(kind: SubscriptionType) -> None:
    world = World()
    world.subscription.dispatch_limits.apply(None, RateLimit(messages=10))
    world.publish(100)
    consumer = world.consumer(kind, 1000)
    counts = []
    for _ in range(5):
        counts.append(len(got(consumer)))
        world.loop.advance(1000)
    assert counts[0] == 10
    assert all(9 <= later - earlier <= 11 for earlier, later in pairwise(counts))
    assert ids(got(consumer)) == list(range(len(got(consumer))))


@pytest.mark.parametrize("kind", KINDS)
def test_one_rate_after_the_other_and_then_none(kind: SubscriptionType) -> None:
    world = World()
    world.publish(300)
    world.subscription.dispatch_limits.apply(None, RateLimit(messages=5, period_s=60))
    consumer = world.consumer(kind, 1000)
    assert len(got(consumer)) == 5
    world.subscription.dispatch_limits.apply(None, RateLimit(messages=20, period_s=60))
    world.loop.run()
    assert len(got(consumer)) == 25
    world.subscription.dispatch_limits.apply(None, UNLIMITED)
    world.loop.run()
    assert len(got(consumer)) == 300


def test_an_unchanged_rate_is_not_refilled() -> None:
    world = World()
    world.publish(100)
    world.subscription.dispatch_limits.apply(None, RateLimit(messages=5, period_s=60))
    consumer = world.consumer(SubscriptionType.Shared, 1000)
    for _ in range(5):
        world.subscription.dispatch_limits.apply(None, RateLimit(messages=5, period_s=60))
        world.loop.run()
    assert len(got(consumer)) == 5


def test_batches_count_as_their_messages() -> None:
    world = World()
    world.publish(100, batch=10)
    world.subscription.dispatch_limits.apply(None, RateLimit(messages=50))
    consumer = world.consumer(SubscriptionType.Shared, 10_000)
    assert len(got(consumer)) == 5
    world.loop.advance(1000)
    assert 9 <= len(got(consumer)) <= 11


def test_redeliveries_and_what_was_left_over_count() -> None:
    world = World()
    entries = world.publish(20)
    consumer = world.consumer(SubscriptionType.Shared, 20)
    assert len(got(consumer)) == 20
    world.subscription.dispatch_limits.apply(None, RateLimit(messages=4, period_s=1))
    world.subscription.redeliver(consumer, [(entry.ledger_id, entry.entry_id) for entry in entries])
    world.flow(consumer, 100)
    assert len(got(consumer)) == 24
    world.loop.advance(1000)
    assert 27 <= len(got(consumer)) <= 29


def test_a_topics_meter_is_shared() -> None:
    worlds = [World() for _ in range(2)]
    meter = RateMeter(RateLimit(messages=10), worlds[0].loop.monotonic_s())
    consumers = []
    for world in worlds:
        world.publish(100)
        world.subscription.dispatch_limits.apply(meter)
        consumers.append(world.consumer(SubscriptionType.Exclusive, 1000))
    assert sum(len(got(consumer)) for consumer in consumers) == 10


def test_the_counters_outlive_their_consumers() -> None:
    """A consumer that comes and goes does not get the rate anew, nor does the subscription lose count."""
    world = World()
    world.publish(100)
    world.subscription.dispatch_limits.apply(None, RateLimit(messages=5, period_s=60))
    for _ in range(3):
        consumer = world.consumer(SubscriptionType.Exclusive, 1000)
        world.leave(consumer)
    assert world.subscription.sent().messages == 5


def test_a_stopped_subscription_leaves_no_timer() -> None:
    world = World()
    world.publish(100)
    world.subscription.dispatch_limits.apply(None, RateLimit(messages=5))
    consumer = world.consumer(SubscriptionType.Shared, 1000)
    world.subscription._pump.stop()
    world.loop.advance(10_000)
    assert len(got(consumer)) == 5
