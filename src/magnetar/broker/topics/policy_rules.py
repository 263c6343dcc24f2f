"""Rules that follow from a topic's policies: backlog quota, inactivity, subscribe rate. Pure; the topic acts.

What a backlog quota does above its limit:

producer_request_hold       producers are refused with a code on which clients hold their messages and come back
producer_exception          producers are refused with an error to the application
consumer_backlog_eviction   the slowest subscription's oldest backlog is dropped down to 90 % of the limit
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.base.errors import BrokerError
from magnetar.broker.errors import ProducerBlockedQuotaExceededError, ProducerBlockedQuotaExceededException
from magnetar.broker.namespaces.policies import (
    CONSUMER_BACKLOG_EVICTION,
    DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP,
    PRODUCER_REQUEST_HOLD,
    BacklogQuota,
    InactivePolicy,
)
from magnetar.broker.rate_limits import SubscribeRate, TokenBucket

EVICTION_TARGET = 0.9
"""Eviction by size stops at this part of the limit, so that the next message does not evict again."""


def size_exceeded(quota: BacklogQuota, backlog_bytes: int) -> bool:
    return 0 <= quota.limit_bytes < backlog_bytes


def age_exceeded(quota: BacklogQuota, oldest_age_s: float) -> bool:
    return 0 < quota.limit_time_s < oldest_age_s


def refusal(quota: BacklogQuota, topic: str) -> BrokerError | None:
    """What producers are told while the quota is exceeded; None when the policy evicts instead."""
    if quota.policy == CONSUMER_BACKLOG_EVICTION:
        return None
    if quota.policy == PRODUCER_REQUEST_HOLD:
        return ProducerBlockedQuotaExceededError(
            f"Cannot create producer on topic with backlog quota exceeded: {topic}"
        )
    return ProducerBlockedQuotaExceededException(
        f"Cannot create producer on topic with backlog quota exceeded: {topic}"
    )


def bytes_to_evict(quota: BacklogQuota, backlog_bytes: int) -> int:
    return max(0, backlog_bytes - int(quota.limit_bytes * EVICTION_TARGET))


@dataclass(frozen=True, slots=True)
class TopicState:
    """Use of a topic, as last seen. `retention_s`: -1 for ever."""

    connected: bool
    subscriptions: int
    backlog: bool
    retention_s: int


class Inactivity:
    """The time since which nobody has needed the topic. Looked at now and then; a visit between two looks goes unnoticed, as in Pulsar."""

    __slots__ = ("_last_active_s",)

    def __init__(self, now_s: float) -> None:
        self._last_active_s = now_s

    def abandoned(self, policy: InactivePolicy, state: TopicState, now_s: float) -> bool:
        """True if the topic should be deleted now."""
        if needed(policy.mode, state):
            self._last_active_s = now_s
            return False
        idle_s = now_s - self._last_active_s
        if not policy.delete or idle_s < policy.max_inactive_s:
            return False
        return 0 <= state.retention_s <= idle_s


def needed(mode: str, state: TopicState) -> bool:
    """True if somebody uses the topic, or will come back for it."""
    if state.connected:
        return True
    return state.backlog if mode == DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP else state.subscriptions > 0


CONSUMERS_MAX = 10_000
"""Consumers remembered for a topic; beyond it the one heard of longest ago is forgotten and may subscribe at once."""


class SubscribeLimiter:
    """The buckets of one topic's consumers."""

    def __init__(self) -> None:
        self._rate = SubscribeRate()
        self._buckets: dict[str, TokenBucket] = {}

    def set_rate(self, rate: SubscribeRate) -> None:
        """A new rate begins with full buckets; the same one changes nothing."""
        if rate != self._rate:
            self._rate = rate
            self._buckets.clear()

    def admit(self, consumer: str, now_s: float) -> bool:
        """True if this consumer may subscribe now; it is counted then."""
        rate = self._rate
        if rate.per_consumer <= 0:
            return True
        bucket = self._buckets.pop(consumer, None) or TokenBucket(rate.per_consumer, rate.period_s, now_s)
        self._buckets[consumer] = bucket  # at the end: the front is who was heard of longest ago
        if len(self._buckets) > CONSUMERS_MAX:
            del self._buckets[next(iter(self._buckets))]
        if bucket.available(now_s) < 1:
            return False
        bucket.take(1, now_s)
        return True
