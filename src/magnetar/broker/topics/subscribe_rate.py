"""Subscribe rate: how often one consumer may subscribe to a topic (pure). A consumer in a reconnect loop is refused, others are not."""

from __future__ import annotations

from magnetar.broker.rate_limits import SubscribeRate, TokenBucket

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
        """May this consumer subscribe now? It is counted when it may."""
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
