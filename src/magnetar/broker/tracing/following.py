"""What becomes of traced messages that are stored: told by comparing the state of each subscription with what was seen of it before.

A subscription calls after each turn in which entries may have been handed out, acknowledged or given back. So a delivery is seen at the end
of its turn, and nothing on the way of other messages knows of traces.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from magnetar.base.clock import Clock
from magnetar.base.limits import TRACE_SUBSCRIPTIONS_MAX, TRACES_FOLLOWED_PER_TOPIC_MAX, TRACES_FOLLOWED_S
from magnetar.broker.dispatch.position_key import key_of
from magnetar.broker.dispatch.receiver import Receiver
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.tracing.trace import Kind, Trace
from magnetar.managed_ledger.position import Position

PIPELINE_PROPERTY = "magnetar.pipeline"
"""Of a consumer: it acknowledges what a pipeline has committed. Its value names the pipeline's subscription."""


class _Seen(NamedTuple):
    holder: Receiver | None
    redeliveries: int


_NOTHING_SEEN = _Seen(None, 0)


class _Followed:
    """A stored message. `seen`: by subscription; None: done with."""

    __slots__ = ("clusters", "position", "seen", "slot", "trace", "until_s")

    def __init__(self, trace: Trace, position: Position, slot: int, until_s: float) -> None:
        self.trace = trace
        self.position = position
        self.slot = slot
        self.until_s = until_s
        self.seen: dict[str, _Seen | None] = {}
        self.clusters: set[str] = set()


class TopicFollower:
    """Of one topic. It listens to the topic's subscriptions and replicators while it follows something."""

    def __init__(self, topic: PersistentTopic, clock: Clock) -> None:
        self._subscriptions = topic.subscriptions
        self._replicators = topic.replicators
        self._clock = clock
        self._open: deque[_Followed] = deque()

    def follow(self, trace: Trace, position: Position, slot: int) -> None:
        """`slot`: of the message's key. The oldest is let go where there are too many."""
        if len(self._open) >= TRACES_FOLLOWED_PER_TOPIC_MAX:
            oldest = self._open.popleft()
            oldest.trace.note(Kind.NOT_FOLLOWED, "newer messages of the topic are traced")
        self._open.append(_Followed(trace, position, slot, self._clock.monotonic_s() + TRACES_FOLLOWED_S))
        self._subscriptions.follow(self._changed)
        self._replicators.follow(self._replicated)

    def _changed(self, subscription: Subscription, consumer: Consumer | None) -> None:
        now_s = self._clock.monotonic_s()
        while self._open and self._open[0].until_s < now_s:
            self._open.popleft().trace.note(Kind.NOT_FOLLOWED, "followed for as long as a message is")
        ended = False
        for followed in self._open:
            ended |= self._look(followed, subscription, consumer)
        if ended or not self._open:
            self._drop_ended()

    def _look(self, followed: _Followed, subscription: Subscription, consumer: Consumer | None) -> bool:
        """True if the subscription is done with it now."""
        name = subscription.name
        seen = followed.seen.get(name, _NOTHING_SEEN)
        if seen is None or (name not in followed.seen and len(followed.seen) >= TRACE_SUBSCRIPTIONS_MAX):
            return False
        if subscription.cursor.is_acknowledged(followed.position):
            followed.seen[name] = None
            self._acknowledged(followed.trace, name, consumer)
            return True
        where = subscription.dispatch.dispatcher.where(key_of(*followed.position), followed.slot)
        now = followed.seen[name] = _Seen(where.holder, where.redeliveries)
        if now == seen:
            return False
        trace, before, holder = followed.trace, seen.holder, now.holder
        if before is not None and before is not holder:
            trace.note(Kind.RETURNED, "not acknowledged", subscription=name, **_named(before))
        if holder is not None and (before is not holder or now.redeliveries != seen.redeliveries):
            times = f"redelivered, time {now.redeliveries}" if now.redeliveries else ""
            trace.note(Kind.DELIVERED, times, subscription=name, **_named(holder))
        return False

    @staticmethod
    def _acknowledged(trace: Trace, subscription: str, consumer: Consumer | None) -> None:
        if consumer is None:
            trace.note(
                Kind.SKIPPED,
                "no consumer acknowledged it: it expired, was skipped, or a transaction did",
                subscription=subscription,
            )
            return
        pipeline = consumer.metadata.get(PIPELINE_PROPERTY)
        kind = Kind.ACKNOWLEDGED if pipeline is None else Kind.VIEW_COMMITTED
        trace.note(kind, subscription=subscription, **_named(consumer))

    def _replicated(self, cluster: str) -> None:
        ended = False
        for followed in self._open:
            if cluster not in followed.clusters and self._replicators.stored_in(followed.position).get(cluster):
                followed.clusters.add(cluster)
                followed.trace.note(
                    Kind.REPLICATED, "the other cluster has it, or it is not meant for it", cluster=cluster
                )
                ended = True
        if ended:
            self._drop_ended()

    def _drop_ended(self) -> None:
        """Let go of what all are done with, and listen no more when nothing is left."""
        names = [each.name for each in self._subscriptions.all]
        clusters = set(self._replicators.links())
        for followed in list(self._open):
            done = names and all(followed.seen.get(name, _NOTHING_SEEN) is None for name in names)
            if done and clusters <= followed.clusters:
                followed.trace.complete = True
                self._open.remove(followed)
        if not self._open:
            self._subscriptions.follow(None)
            self._replicators.follow(None)


def _named(receiver: Receiver) -> dict[str, str]:
    told = receiver.described()
    return {"consumer": str(told["consumer"]), "address": str(told["address"])}
