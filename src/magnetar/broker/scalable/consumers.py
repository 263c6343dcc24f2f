"""The consumers of one subscription of a scalable topic, as its controller knows them: who is there, what has been drained, who reads what.

State without waiting: the controller writes to the metadata store and asks the segments' brokers. A consumer whose connection broke keeps
its segments for a grace time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.dispatch.ports import Scheduler, Timer
from magnetar.broker.scalable.assignment import Assignment, assign, readable
from magnetar.broker.scalable.layout import SegmentLayout
from magnetar.broker.scalable.records import CHECKPOINT

AssignedTo = tuple[int, tuple[int, ...]]
"""The layout's epoch, and segment ids in the order of their ranges: the whole of what a consumer reads."""


class ConsumerLink(Protocol):
    """The way to a consumer of a scalable topic. Plain calls that buffer."""

    @property
    def consumer_id(self) -> int: ...

    def assigned(self, layout: SegmentLayout, segment_ids: tuple[int, ...]) -> None:
        """This is all that it reads from now on."""
        ...

    def disconnect(self) -> None:
        """Close the connection: the client looks for the controller again."""
        ...


@dataclass(slots=True)
class ConsumerSession:
    """`link` is None while its connection is lost; `timer` then ends it."""

    name: str
    link: ConsumerLink | None = None
    timer: Timer | None = None
    told: AssignedTo | None = None


@dataclass(slots=True)
class SubscriptionConsumers:
    """`drained`: sealed segments in which this subscription has acknowledged everything; none is ever taken back, except by a seek."""

    name: str
    kind: str
    scheduler: Scheduler
    grace_s: float
    evict: Callable[[str, str], None]
    """Called with subscription and consumer when the grace time is over."""
    sessions: dict[str, ConsumerSession] = field(default_factory=dict)
    drained: set[int] = field(default_factory=set)
    assignment: Assignment = field(default_factory=dict)

    def attach(self, name: str, link: ConsumerLink) -> None:
        """A consumer has come, or come back: then its segments are still its own."""
        session = self.sessions.setdefault(name, ConsumerSession(name))
        self._cancel(session)
        session.link, session.told = link, None

    def expect(self, name: str) -> None:
        """A consumer of the controller before: it has the whole grace time to come back."""
        session = self.sessions.setdefault(name, ConsumerSession(name))
        if session.link is None and session.timer is None:
            self._start(session)

    def lost(self, link: ConsumerLink) -> None:
        """Its connection broke. A consumer that is back on another one does not notice."""
        for session in self.sessions.values():
            if session.link is link:
                session.link = None
                self._start(session)

    def named(self, consumer_id: int, link: ConsumerLink) -> str | None:
        """The consumer of that id on this link; None if it is gone, or has come back as another one."""
        for session in self.sessions.values():
            if session.link is link and link.consumer_id == consumer_id:
                return session.name
        return None

    def remove(self, name: str) -> bool:
        """Its segments go to the others with the next `rebalance`."""
        session = self.sessions.pop(name, None)
        if session is not None:
            self._cancel(session)
        return session is not None

    def to_drain(self, layout: SegmentLayout) -> list[int]:
        """Sealed segments that are read now: while one of them is not drained, its descendants are withheld."""
        if self.kind == CHECKPOINT:
            return []
        return [each.id for each in readable(layout, self.drained) if not each.active]

    def rebalance(self, layout: SegmentLayout) -> None:
        """Assign anew, and tell those whose segments or whose layout's epoch have changed."""
        every = sorted(layout.segments.values(), key=lambda each: (each.start, each.end, each.id))
        segments = every if self.kind == CHECKPOINT else readable(layout, self.drained)
        after = assign(segments, self.sessions, self.assignment)
        self.assignment = after
        for name, session in self.sessions.items():
            to_tell = (layout.epoch, after[name])
            if session.link is not None and session.told != to_tell:
                session.told = to_tell
                session.link.assigned(layout, after[name])

    def forget(self, segment_ids: set[int]) -> None:
        """These segments are in the layout no more."""
        self.drained -= segment_ids

    def close(self) -> None:
        """Another controller takes over: the clients look for it."""
        for session in self.sessions.values():
            self._cancel(session)
            if session.link is not None:
                session.link.disconnect()
        self.sessions.clear()

    def _start(self, session: ConsumerSession) -> None:
        session.timer = self.scheduler.call_later(self.grace_s, lambda: self.evict(self.name, session.name))

    def _cancel(self, session: ConsumerSession) -> None:
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
