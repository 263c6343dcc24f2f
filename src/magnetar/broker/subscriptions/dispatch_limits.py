"""The dispatch rates of one subscription, and the meters that keep them."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.base.clock import Clock
from magnetar.broker.dispatch.pump import Pump
from magnetar.broker.dispatch.throttle import DispatchThrottle, Sent
from magnetar.broker.rate_limits import UNLIMITED, RateLimit, RateMeter, meter_for


class DispatchLimits:
    """The topic's rate, shared with its other subscriptions, and the subscription's own."""

    __slots__ = ("_clock", "_meter", "_pump", "_sent", "_topic_meter")

    def __init__(self, pump: Pump, clock: Clock, sent: Callable[[], Sent]) -> None:
        """`sent`: everything that the subscription has sent so far."""
        self._pump = pump
        self._clock = clock
        self._sent = sent
        self._topic_meter: RateMeter | None = None
        self._meter: RateMeter | None = None

    def apply(self, topic_meter: RateMeter | None, own: RateLimit = UNLIMITED) -> None:
        """Rates from now on. The same ones again change nothing."""
        meter = meter_for(own, self._meter, self._clock.monotonic_s())
        if meter is self._meter and topic_meter is self._topic_meter:
            return
        self._meter, self._topic_meter = meter, topic_meter
        meters = [known for known in (topic_meter, meter) if known is not None]
        self._pump.limit(DispatchThrottle(meters, self._sent) if meters else None)

    def publish_rate_is(self, messages_per_s: float, bytes_per_s: float, now_s: float) -> None:
        """For a rate of its own that is relative to it."""
        if self._meter is not None:
            self._meter.publish_rate_is(messages_per_s, bytes_per_s, now_s)
