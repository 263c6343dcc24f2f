"""The part of a subscription's backlog that may go out now: the topic's dispatch rate and the subscription's own (pure).

Asked before each read and told afterwards, by the subscription's own counters, what really went out: replayed, delayed and left over
messages count when they are sent, a batch as the messages it still holds. An entry's size is not known before it is read, so the
number of entries to read comes from the smoothed size of those before; the first read takes one. What a read exceeds the rate by is
a debt of the buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnetar.broker.rate_limits import RateMeter, longest_delay_s
from magnetar.broker.reasons import Code, Reason, because

AVERAGE_WEIGHT = 0.3
"""Share of the newest turn in the smoothed size of an entry."""


class Sent(NamedTuple):
    """Totals that a subscription has sent since it was loaded. They only grow."""

    entries: int
    messages: int
    size_bytes: int


class DispatchThrottle:
    """Exists only while a rate is set: without one the pump looks at a None."""

    __slots__ = ("_average_bytes", "_average_messages", "_meters", "_seen", "_sent")

    def __init__(self, meters: Sequence[RateMeter], sent: Callable[[], Sent]) -> None:
        """`meters`: the topic's is shared with its other subscriptions."""
        self._meters = tuple(meters)
        self._sent = sent
        self._seen = sent()
        self._average_messages = 0.0
        self._average_bytes = 0.0

    def grant(self, entries: int, size_bytes: int, now_s: float) -> tuple[int, int]:
        """The part of `entries` and `size_bytes` that may be read now; 0 entries when nothing may."""
        self.settle(now_s)
        for meter in self._meters:
            messages, room = meter.available(now_s)
            if messages < 1 or room < 1:
                return 0, 0
            if not self._average_messages:
                entries = 1
                continue
            wanted = entries
            entries = max(1, int(min(wanted, messages / self._average_messages, room / self._average_bytes)))
            size_bytes = int(min(size_bytes, room))
        return entries, size_bytes

    def settle(self, now_s: float) -> None:
        """Count what went out since the last time."""
        sent, seen = self._sent(), self._seen
        entries = sent.entries - seen.entries
        if entries <= 0:
            return
        self._seen = sent
        messages, size_bytes = sent.messages - seen.messages, sent.size_bytes - seen.size_bytes
        for meter in self._meters:
            meter.take(messages, size_bytes, now_s)
        weight = AVERAGE_WEIGHT if self._average_messages else 1.0
        self._average_messages += (max(messages, 1) / entries - self._average_messages) * weight
        self._average_bytes += (max(size_bytes, 1) / entries - self._average_bytes) * weight

    def standing(self, now_s: float) -> Reason:
        """Why nothing may go out: the limit that takes longest to let something through."""
        slowest = max(self._meters, key=lambda meter: meter.delay_s(now_s))
        limit = slowest.limit
        return because(
            Code.DISPATCH_RATE,
            messages=max(0, limit.messages),
            size_bytes=max(0, limit.size_bytes),
            period_s=limit.period_s,
            delay_s=round(slowest.delay_s(now_s), 3),
        )

    def delay_s(self, now_s: float) -> float:
        """Seconds until something may go out again."""
        return longest_delay_s(self._meters, now_s)
