"""Token buckets and what is built on them, over any course of time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch.throttle import DispatchThrottle, Sent
from magnetar.broker.namespaces.policies import DELETE_MODES, InactivePolicy
from magnetar.broker.rate_limits import RateLimit, RateMeter, SubscribeRate, TokenBucket, meter_for
from magnetar.broker.topics.policy_rules import CONSUMERS_MAX, Inactivity, SubscribeLimiter, TopicState, needed

STEPS = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), min_size=1, max_size=60)


@given(amount=st.integers(1, 100), period_s=st.integers(1, 10), steps=STEPS)
def test_who_asks_first_stays_within_the_rate(amount: int, period_s: int, steps: list[tuple[float, int]]) -> None:
    """In any stretch of time: one period's worth, what refilled, and the last step, which may be larger than what was there."""
    bucket = TokenBucket(amount, period_s, 0.0)
    now_s, taken = 0.0, 0
    for wait_s, wanted in steps:
        now_s += wait_s
        if bucket.available(now_s) >= 1:
            assert taken <= amount + now_s * amount / period_s + 1e-6
            bucket.take(wanted, now_s)
            taken += wanted
        bucket.validate()


@given(amount=st.integers(1, 100), period_s=st.integers(1, 10), debt=st.integers(1, 1000), early=st.floats(0.01, 0.99))
def test_the_delay_is_exact(amount: int, period_s: int, debt: int, early: float) -> None:
    bucket = TokenBucket(amount, period_s, 0.0)
    bucket.take(amount + debt, 0.0)
    delay_s = bucket.delay_s(0.0)
    assert delay_s == pytest.approx((debt + 1) * period_s / amount)
    assert bucket.available(delay_s * early) < 1
    assert bucket.available(delay_s * (1 + 1e-9) + 1e-9) >= 1 - 1e-6


@given(steps=STEPS)
def test_time_that_goes_back_gives_nothing(steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(10, 1, 1000.0)
    bucket.take(10, 1000.0)
    for wait_s, _ in steps:
        assert bucket.available(1000.0 - wait_s) == 0


def test_a_new_rate_holds_from_now_on() -> None:
    bucket = TokenBucket(100, 1, 0.0)
    bucket.set_rate(10, 1, 0.0)
    assert bucket.available(0.0) == 10
    bucket.take(20, 0.0)
    bucket.set_rate(100, 1, 0.0)
    assert bucket.delay_s(0.0) == pytest.approx(0.11)


def test_an_unchanged_limit_keeps_its_meter() -> None:
    limit = RateLimit(messages=5)
    meter = meter_for(limit, None, 0.0)
    assert meter is not None
    assert meter_for(RateLimit(messages=5), meter, 1.0) is meter
    assert meter_for(RateLimit(messages=6), meter, 1.0) is not meter
    assert meter_for(RateLimit(messages=-1, size_bytes=0), meter, 1.0) is None


def test_a_relative_limit_adds_the_publish_rate() -> None:
    meter = RateMeter(RateLimit(messages=10, period_s=2, relative_to_publish_rate=True), 0.0)
    meter.publish_rate_is(100.0, 1e6, 0.0)
    meter.take(1000, 0, 0.0)
    assert meter.delay_s(0.0) == pytest.approx((1000 - 10 + 1) / (10 / 2 + 100))
    absolute = RateMeter(RateLimit(messages=10), 0.0)
    absolute.publish_rate_is(100.0, 0.0, 0.0)
    assert absolute.available(5.0) == (10, math.inf)


class Reader:
    """A subscription with an endless backlog of equal batches; sends what it is granted."""

    def __init__(self, batch: int, entry_bytes: int) -> None:
        self.batch = batch
        self.entry_bytes = entry_bytes
        self.entries = 0

    def sent(self) -> Sent:
        return Sent(self.entries, self.entries * self.batch, self.entries * self.entry_bytes)


@given(
    batch=st.integers(1, 200),
    entry_bytes=st.integers(1, 5000),
    messages=st.integers(0, 500),
    size_bytes=st.integers(0, 100_000),
    readers=st.integers(1, 3),
)
def test_dispatch_keeps_to_the_rate(batch: int, entry_bytes: int, messages: int, size_bytes: int, readers: int) -> None:
    """Ten seconds of subscriptions that take all they are granted: never above the rate by more than one entry each, never idle."""
    limit = RateLimit(messages=messages, size_bytes=size_bytes)
    meter = meter_for(limit, None, 0.0)
    if meter is None:
        return
    sources = [Reader(batch, entry_bytes) for _ in range(readers)]
    throttles = [DispatchThrottle([meter], source.sent) for source in sources]
    now_s, end_s = 0.0, 10.0
    while now_s <= end_s:
        for source, throttle in zip(sources, throttles, strict=True):
            entries, room = throttle.grant(100, 5_000_000, now_s)
            while entries and now_s <= end_s:
                source.entries += min(entries, max(1, room // entry_bytes))
                throttle.settle(now_s)
                entries, room = throttle.grant(100, 5_000_000, now_s)
        now_s += max(throttles[0].delay_s(now_s), 0.01)
    sent = sum(source.entries for source in sources)
    allowed = []
    if messages:
        allowed.append((messages * (end_s + 1)) / batch)
    if size_bytes:
        allowed.append((size_bytes * (end_s + 1)) / entry_bytes)
    assert sent <= min(allowed) + 1
    assert sent >= min(allowed) * 0.85 - 2


@given(calls=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3)), max_size=80), rate=st.integers(1, 5))
def test_each_consumer_has_its_own_subscribe_rate(calls: list[tuple[str, float]], rate: int) -> None:
    limiter = SubscribeLimiter()
    limiter.set_rate(SubscribeRate(rate, 10))
    now_s = 0.0
    admitted = dict.fromkeys("abc", 0)
    for consumer, wait_s in calls:
        now_s += wait_s
        if limiter.admit(consumer, now_s):
            admitted[consumer] += 1
        assert admitted[consumer] <= rate + now_s * rate / 10 + 1e-6


def test_subscribing_is_free_without_a_rate_and_the_memory_of_it_bounded() -> None:
    limiter = SubscribeLimiter()
    assert all(limiter.admit("a", 0.0) for _ in range(1000))
    limiter.set_rate(SubscribeRate(1, 10))
    assert limiter.admit("first", 0.0)
    assert not limiter.admit("first", 0.0)
    for number in range(CONSUMERS_MAX):
        assert limiter.admit(str(number), 0.0)
    assert limiter.admit("first", 0.0), "forgotten, so it begins anew"
    limiter.set_rate(SubscribeRate(0, 10))
    assert limiter.admit("0", 0.0)


STATES = st.builds(
    TopicState,
    connected=st.booleans(),
    subscriptions=st.integers(0, 2),
    backlog=st.booleans(),
    retention_s=st.sampled_from((-1, 0, 20)),
)


@given(looks=st.lists(st.tuples(STATES, st.floats(0, 30)), max_size=30), mode=st.sampled_from(DELETE_MODES))
def test_a_topic_goes_only_when_unused_for_long_enough(looks: list[tuple[TopicState, float]], mode: str) -> None:
    policy = InactivePolicy(delete=True, mode=mode, max_inactive_s=15)
    watch = Inactivity(0.0)
    now_s = unused_since_s = 0.0
    for state, wait_s in looks:
        now_s += wait_s
        if needed(mode, state):
            unused_since_s = now_s
        unused_s = now_s - unused_since_s
        expected = unused_s >= 15 and 0 <= state.retention_s <= unused_s and not needed(mode, state)
        assert watch.abandoned(policy, state, now_s) is expected
        assert not Inactivity(0.0).abandoned(InactivePolicy(delete=False), state, now_s)


def test_what_keeps_a_topic() -> None:
    idle = TopicState(connected=False, subscriptions=1, backlog=False, retention_s=0)
    assert needed("delete_when_no_subscriptions", idle)
    assert not needed("delete_when_subscriptions_caught_up", idle)
    assert needed("delete_when_subscriptions_caught_up", TopicState(False, 1, True, 0))
    assert needed("delete_when_subscriptions_caught_up", TopicState(True, 0, False, 0))
