"""What policies ask of an entry before it is stored: publish rate, message size, encryption.

A topic has a gate only while one of them is set; without, publishing looks at a None. Above the publish rate the connection that
published is not read until the rate allows more: nothing is dropped, and the client's own queue fills up. Acknowledgements on that
connection wait as well, as in Pulsar. What another cluster sends was admitted there: one connection brings the messages of many topics, so
that no topic may hold it up.
"""

from __future__ import annotations

from magnetar.base.clock import Clock
from magnetar.base.errors import BrokerError
from magnetar.broker.dispatch.ports import Scheduler, Timer
from magnetar.broker.errors import MetadataRefusedError
from magnetar.broker.namespaces.errors import MessageTooLargeError
from magnetar.broker.namespaces.policies import EffectivePolicies
from magnetar.broker.rate_limits import GroupMeters, RateMeter, longest_delay_s, meter_for
from magnetar.broker.reasons import Code, Reason, because
from magnetar.broker.topics.publish import PublishOp, PublishOwner
from magnetar.wire.pulsar.headers import parse_metadata

PAUSE_MIN_S = 0.01
"""Shortest pause of a connection: a high rate is kept by bursts of this length instead of a timer for each message."""


class PublishGate:
    """One per topic. `update` before use; `open` tells when it is not needed any more."""

    def __init__(self, scheduler: Scheduler, clock: Clock, groups: GroupMeters) -> None:
        self._scheduler = scheduler
        self._groups = groups
        self._monotonic_s = clock.monotonic_s
        self._meter: RateMeter | None = None
        self._meters: tuple[RateMeter, ...] = ()
        """The topic's own, and that of its resource group."""
        self._size_max = 0
        self._encryption_required = False
        self._paused: list[PublishOwner] = []
        self._timer: Timer | None = None

    @property
    def open(self) -> bool:
        """True if everything passes."""
        return not self._meters and not self._size_max and not self._encryption_required

    def standing(self) -> list[Reason]:
        """Why producers are held back, if any are."""
        paused, now_s = len(self._paused), self._monotonic_s()
        if not self._meters or not paused:
            return []
        meter = max(self._meters, key=lambda each: each.delay_s(now_s))
        limit = meter.limit
        return [
            because(
                Code.PUBLISH_RATE,
                messages=max(0, limit.messages),
                size_bytes=max(0, limit.size_bytes),
                period_s=limit.period_s,
                producers=paused,
                delay_s=round(meter.delay_s(now_s), 3),
            )
        ]

    def update(self, policies: EffectivePolicies) -> None:
        """New policies. Who is held back by a rate that has changed goes on at once."""
        now_s = self._monotonic_s()
        self._meter = meter_for(policies.publish_rate, self._meter, now_s)
        group = policies.resource_group
        shared = self._groups.meter(group.name, "publish", group.publish_rate, now_s)
        meters = tuple(meter for meter in (self._meter, shared) if meter is not None)
        self._size_max = policies.max_message_size_bytes
        self._encryption_required = policies.encryption_required
        if meters != self._meters:
            self._meters = meters
            self.release()

    def admit(self, op: PublishOp, data: bytes, is_chunk: bool) -> bool:
        """False when the entry is refused; its error then waits for its turn in the producer's queue."""
        meters = self._meters
        if meters and not op.replicated:
            now_s = self._monotonic_s()
            for meter in meters:
                meter.take(op.num_messages, op.data_bytes, now_s)
            delay_s = longest_delay_s(meters, now_s)
            if delay_s > 0:
                self._hold(op.producer, delay_s)
        error = self.problem(op, data, is_chunk)
        if error is None:
            return True
        op.refuse(error)
        return False

    def problem(self, op: PublishOp, data: bytes, is_chunk: bool) -> BrokerError | None:
        """Why the entry is not taken, whatever the rate."""
        if self._size_max and not is_chunk and op.data_bytes > self._size_max:
            return MessageTooLargeError(f"Exceed maximum message size of the topic: {self._size_max} bytes")
        if self._encryption_required and not op.replicated and not parse_metadata(data).encryption_keys:
            return MetadataRefusedError("Messages must be encrypted")
        return None

    def _hold(self, producer: PublishOwner, delay_s: float) -> None:
        producer.pause()
        self._paused.append(producer)
        if self._timer is None:
            self._timer = self._scheduler.call_later(max(delay_s, PAUSE_MIN_S), self._due)

    def _due(self) -> None:
        self._timer = None
        delay_s = longest_delay_s(self._meters, self._monotonic_s())
        if delay_s > 0:
            self._timer = self._scheduler.call_later(max(delay_s, PAUSE_MIN_S), self._due)
        else:
            self.release()

    def release(self) -> None:
        """Let everybody go on: the rate allows it, has changed, or the topic is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        paused, self._paused = self._paused, []
        for producer in paused:
            producer.resume()
