"""Rates and their limits: measured ones, what a policy allows, and token buckets that keep to it. Pure; the time is passed in.

A bucket starts full, holds one period's worth and refills evenly. Taking more than it holds leaves a debt that has to be refilled
first: whoever asks before he acts and takes afterwards stays within the rate on average, whatever the size of one step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RateLimit:
    """So many messages and bytes in `period_s`; 0 or less leaves that side free, as in Pulsar."""

    messages: int = 0
    size_bytes: int = 0
    period_s: int = 1
    relative_to_publish_rate: bool = False
    """The rate at which the topic is published to comes on top."""

    @property
    def unlimited(self) -> bool:
        return self.messages <= 0 and self.size_bytes <= 0


UNLIMITED = RateLimit()


@dataclass(frozen=True, slots=True)
class SubscribeRate:
    """The number of times one consumer may subscribe in a period; `per_consumer` 0 or less is unlimited."""

    per_consumer: int = 0
    period_s: int = 30


class TokenBucket:
    """`amount` tokens in `period_s`. Times are monotonic seconds; one that goes back counts as no time."""

    __slots__ = ("_capacity", "_per_s", "_tokens", "_updated_s")

    def __init__(self, amount: float, period_s: float, now_s: float) -> None:
        assert amount > 0, "a rate must be positive"
        assert period_s > 0
        self._capacity = float(amount)
        self._per_s = amount / period_s
        self._tokens = self._capacity
        self._updated_s = now_s

    def set_rate(self, amount: float, period_s: float, now_s: float) -> None:
        """Another rate from now on; what is there stays, as far as it fits."""
        self._refill(now_s)
        self._capacity = float(amount)
        self._per_s = amount / period_s
        self._tokens = min(self._tokens, self._capacity)

    def available(self, now_s: float) -> float:
        """Tokens there now; below zero while a debt is open."""
        self._refill(now_s)
        return self._tokens

    def take(self, amount: float, now_s: float) -> None:
        """Always succeeds: what is missing becomes debt."""
        self._refill(now_s)
        self._tokens -= amount

    def delay_s(self, now_s: float) -> float:
        """Seconds until there is a whole token (or the bucket is full, if it holds less); 0 when there is one now."""
        missing = min(1.0, self._capacity) - self.available(now_s)
        return missing / self._per_s if missing > 0 else 0.0

    def _refill(self, now_s: float) -> None:
        elapsed_s = now_s - self._updated_s
        if elapsed_s > 0:
            self._updated_s = now_s
            self._tokens = min(self._capacity, self._tokens + elapsed_s * self._per_s)

    def validate(self) -> None:
        """Never more than one period's worth."""
        assert self._tokens <= self._capacity


class RateMeter:
    """Both sides of one limit."""

    __slots__ = ("_bytes", "_messages", "limit")

    def __init__(self, limit: RateLimit, now_s: float) -> None:
        self.limit = limit
        period_s = limit.period_s
        self._messages = TokenBucket(limit.messages, period_s, now_s) if limit.messages > 0 else None
        self._bytes = TokenBucket(limit.size_bytes, period_s, now_s) if limit.size_bytes > 0 else None

    def publish_rate_is(self, messages_per_s: float, bytes_per_s: float, now_s: float) -> None:
        """The rates of publishing were sampled; only a relative limit minds."""
        limit = self.limit
        if not limit.relative_to_publish_rate:
            return
        period_s = limit.period_s
        if self._messages is not None:
            self._messages.set_rate(limit.messages + messages_per_s * period_s, period_s, now_s)
        if self._bytes is not None:
            self._bytes.set_rate(limit.size_bytes + bytes_per_s * period_s, period_s, now_s)

    def available(self, now_s: float) -> tuple[float, float]:
        """Messages and bytes that may go now; infinite where there is no limit."""
        return (
            self._messages.available(now_s) if self._messages is not None else math.inf,
            self._bytes.available(now_s) if self._bytes is not None else math.inf,
        )

    def take(self, messages: int, size_bytes: int, now_s: float) -> None:
        if self._messages is not None:
            self._messages.take(messages, now_s)
        if self._bytes is not None:
            self._bytes.take(size_bytes, now_s)

    def delay_s(self, now_s: float) -> float:
        """Seconds until something may pass on both sides, 0 when it may now."""
        messages_s = self._messages.delay_s(now_s) if self._messages is not None else 0.0
        return max(messages_s, self._bytes.delay_s(now_s)) if self._bytes is not None else messages_s


def meter_for(limit: RateLimit, former: RateMeter | None, now_s: float) -> RateMeter | None:
    """The meter of a limit, None for no limit. An unchanged limit keeps its meter: setting it again must not refill it."""
    if limit.unlimited:
        return None
    return former if former is not None and former.limit == limit else RateMeter(limit, now_s)


class GroupMeters:
    """Meters of resource groups: one for all topics of this broker that belong to a group."""

    __slots__ = ("_meters",)

    def __init__(self) -> None:
        self._meters: dict[tuple[str, str], RateMeter | None] = {}

    def meter(self, group: str, side: str, limit: RateLimit, now_s: float) -> RateMeter | None:
        """None without a limit. `side`: publish or dispatch."""
        if limit.unlimited:
            self._meters.pop((group, side), None)
            return None
        key = (group, side)
        self._meters[key] = meter = meter_for(limit, self._meters.get(key), now_s)
        return meter


def longest_delay_s(meters: Sequence[RateMeter], now_s: float) -> float:
    """Seconds until all of them let something through."""
    return max((meter.delay_s(now_s) for meter in meters), default=0.0)


class Rates:
    """Rates per second of the last sampling interval, from counters that only grow.

    The upkeep loop samples them, so that the message path only counts.
    """

    __slots__ = ("_bytes", "_entries", "_messages", "_sampled_s", "bytes_per_s", "entries_per_s", "messages_per_s")

    def __init__(self) -> None:
        self._messages = self._bytes = self._entries = 0
        self._sampled_s: float | None = None
        self.messages_per_s = 0.0
        self.bytes_per_s = 0.0
        self.entries_per_s = 0.0

    def sample(self, messages: int, size_bytes: int, now_s: float, entries: int = 0) -> None:
        """The counters as they are at `now_s` (monotonic)."""
        if self._sampled_s is not None and now_s > self._sampled_s:
            elapsed_s = now_s - self._sampled_s
            self.messages_per_s = (messages - self._messages) / elapsed_s
            self.bytes_per_s = (size_bytes - self._bytes) / elapsed_s
            self.entries_per_s = (entries - self._entries) / elapsed_s
        self._messages, self._bytes, self._entries, self._sampled_s = messages, size_bytes, entries, now_s
