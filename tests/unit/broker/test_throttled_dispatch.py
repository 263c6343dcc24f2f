"""Dispatch rates in the pump, with a clock that moves only when the test says so."""

from __future__ import annotations

from itertools import pairwise

import pytest

from magnetar.broker.rate_limits import UNLIMITED, RateLimit, RateMeter
from magnetar.broker.subscriptions.policies import SubscriptionType

from .dispatch_fakes import DispatchHarness, got, ids

KINDS = (SubscriptionType.Exclusive, SubscriptionType.Shared, SubscriptionType.Key_Shared)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_is_kept_second_by_second(kind: SubscriptionType) -> None:
    harness = DispatchHarness()
    harness.subscription.dispatch_limits.apply(None, RateLimit(messages=10))
    harness.publish(100)
    consumer = harness.consumer(kind, 1000)
    counts = []
    for _ in range(5):
        counts.append(len(got(consumer)))
        harness.loop.advance(1000)
    assert counts[0] == 10
    assert all(9 <= later - earlier <= 11 for earlier, later in pairwise(counts))
    assert ids(got(consumer)) == list(range(len(got(consumer))))


@pytest.mark.parametrize("kind", KINDS)
def test_one_rate_after_the_other_and_then_none(kind: SubscriptionType) -> None:
    harness = DispatchHarness()
    harness.publish(300)
    harness.subscription.dispatch_limits.apply(None, RateLimit(messages=5, period_s=60))
    consumer = harness.consumer(kind, 1000)
    assert len(got(consumer)) == 5
    harness.subscription.dispatch_limits.apply(None, RateLimit(messages=20, period_s=60))
    harness.loop.run()
    assert len(got(consumer)) == 25
    harness.subscription.dispatch_limits.apply(None, UNLIMITED)
    harness.loop.run()
    assert len(got(consumer)) == 300


def test_an_unchanged_rate_is_not_refilled() -> None:
    harness = DispatchHarness()
    harness.publish(100)
    harness.subscription.dispatch_limits.apply(None, RateLimit(messages=5, period_s=60))
    consumer = harness.consumer(SubscriptionType.Shared, 1000)
    for _ in range(5):
        harness.subscription.dispatch_limits.apply(None, RateLimit(messages=5, period_s=60))
        harness.loop.run()
    assert len(got(consumer)) == 5


def test_batches_count_as_their_messages() -> None:
    harness = DispatchHarness()
    harness.publish(100, batch=10)
    harness.subscription.dispatch_limits.apply(None, RateLimit(messages=50))
    consumer = harness.consumer(SubscriptionType.Shared, 10_000)
    assert len(got(consumer)) == 5
    harness.loop.advance(1000)
    assert 9 <= len(got(consumer)) <= 11


def test_redeliveries_and_what_was_left_over_count() -> None:
    harness = DispatchHarness()
    entries = harness.publish(20)
    consumer = harness.consumer(SubscriptionType.Shared, 20)
    assert len(got(consumer)) == 20
    harness.subscription.dispatch_limits.apply(None, RateLimit(messages=4, period_s=1))
    harness.subscription.redeliver(consumer, [(entry.ledger_id, entry.entry_id) for entry in entries])
    harness.flow(consumer, 100)
    assert len(got(consumer)) == 24
    harness.loop.advance(1000)
    assert 27 <= len(got(consumer)) <= 29


def test_a_topics_meter_is_shared() -> None:
    harnesses = [DispatchHarness() for _ in range(2)]
    meter = RateMeter(RateLimit(messages=10), harnesses[0].loop.monotonic_s())
    consumers = []
    for harness in harnesses:
        harness.publish(100)
        harness.subscription.dispatch_limits.apply(meter)
        consumers.append(harness.consumer(SubscriptionType.Exclusive, 1000))
    assert sum(len(got(consumer)) for consumer in consumers) == 10


def test_the_counters_outlive_their_consumers() -> None:
    """A consumer that comes and goes does not get the rate anew, nor does the subscription lose count."""
    harness = DispatchHarness()
    harness.publish(100)
    harness.subscription.dispatch_limits.apply(None, RateLimit(messages=5, period_s=60))
    for _ in range(3):
        consumer = harness.consumer(SubscriptionType.Exclusive, 1000)
        harness.leave(consumer)
    assert harness.subscription.sent().messages == 5


def test_a_stopped_subscription_leaves_no_timer() -> None:
    harness = DispatchHarness()
    harness.publish(100)
    harness.subscription.dispatch_limits.apply(None, RateLimit(messages=5))
    consumer = harness.consumer(SubscriptionType.Shared, 1000)
    harness.subscription._pump.stop()
    harness.loop.advance(10_000)
    assert len(got(consumer)) == 5
