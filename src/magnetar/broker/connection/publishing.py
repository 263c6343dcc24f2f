"""How much of what clients publish may wait for the disk at a time: over all connections, and of each principal beside others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.base import limits


class Publisher:
    """What one principal (a role, or an address without authentication) has published that waits for the disk."""

    __slots__ = ("connections", "key", "pending", "pending_bytes", "pending_max", "sample_left", "sample_s", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.connections = 0
        self.pending = 0
        self.pending_bytes = 0
        self.pending_max = limits.PUBLISHES_BESIDE_OTHERS_MIN
        """Entries that may wait while others publish as well."""
        self.sample_left = 0
        """Entries in front of the one whose time is taken, and itself; 0 while no time is taken."""
        self.sample_s = 0.0
        self.waiting: list[Callable[[], None]] = []
        """Connections that do not read until half of what may wait is done."""


class PublishBudget:
    """One per broker: decides which connections pause until published entries are durable.

    Over all connections `limit_bytes` may wait. It keeps the bookie's own bound (`limits.JOURNAL_PENDING_BYTES_MAX`) out of reach, at which
    entries would be refused.

    Entries become durable in the order in which they came, so one principal with thousands of entries under way makes everybody else wait
    behind them. While more than one principal publishes, each may have only as many under way as the disk needs to be busy: the number
    grows while an entry takes up to twice the shortest time seen (one commit that is under way, and its own), and shrinks when it takes
    longer. One that publishes alone has no bound but the connection's.
    """

    def __init__(self, limit_bytes: int, now_s: Callable[[], float]) -> None:
        self.limit_bytes = limit_bytes
        self.pending_bytes = 0
        self._paused: list[Callable[[], None]] = []
        self._now_s = now_s
        self._publishers: dict[str, Publisher] = {}
        self._latest: Publisher | None = None
        self.shared = False
        """More than one principal publishes."""
        self._changed = False
        self._shortest_s = float("inf")

    # ---- Of all connections

    def pause(self, resume: Callable[[], None]) -> None:
        """Remember a connection that has stopped reading; `resume` runs once half of the limit is free."""
        self._paused.append(resume)

    def release(self, size_bytes: int) -> None:
        self.pending_bytes -= size_bytes
        if self._paused and self.pending_bytes <= self.limit_bytes // 2:
            paused, self._paused = self._paused, []
            for resume in paused:
                resume()

    # ---- Of each principal

    def enter(self, key: str) -> Publisher:
        """The publisher with this key, for one more connection."""
        publisher = self._publishers.get(key)
        if publisher is None:
            publisher = self._publishers[key] = Publisher(key)
        publisher.connections += 1
        return publisher

    def leave(self, publisher: Publisher) -> None:
        """One connection less. What it published counts until it is durable."""
        publisher.connections -= 1
        self._forget_unused(publisher)

    def _forget_unused(self, publisher: Publisher) -> None:
        if not publisher.connections and not publisher.pending:
            self._publishers.pop(publisher.key, None)
            if self._latest is publisher:
                self._latest = None

    def started(self, publisher: Publisher, count: int, size_bytes: int) -> bool:
        """Count entries. True if the principal has as many under way as it may: its connection pauses and is put into `waiting`."""
        publisher.pending += count
        publisher.pending_bytes += size_bytes
        if publisher is not self._latest:
            self._publisher_changed(publisher)
        if not self.shared:
            return False
        if publisher.sample_left == 0:
            publisher.sample_left = publisher.pending
            publisher.sample_s = self._now_s()
        return (
            publisher.pending >= publisher.pending_max
            or publisher.pending_bytes >= limits.PUBLISH_BYTES_BESIDE_OTHERS_MAX
        )

    def ended(self, publisher: Publisher, count: int, size_bytes: int) -> None:
        """The counterpart of `started`, whether the entries were stored or refused."""
        publisher.pending -= count
        publisher.pending_bytes -= size_bytes
        if publisher.sample_left:
            publisher.sample_left = max(0, publisher.sample_left - count)
            if publisher.sample_left == 0:
                self._took(publisher, self._now_s() - publisher.sample_s)
        if (
            publisher.waiting
            and publisher.pending <= publisher.pending_max // 2
            and publisher.pending_bytes <= limits.PUBLISH_BYTES_BESIDE_OTHERS_MAX // 2
        ):
            self._resume(publisher)
        if not publisher.connections:
            self._forget_unused(publisher)

    @staticmethod
    def _resume(publisher: Publisher) -> None:
        waiting, publisher.waiting = publisher.waiting, []
        for resume in waiting:
            resume()

    def _took(self, publisher: Publisher, time_s: float) -> None:
        """An entry took so long: the principal may have more under way, or has to have less."""
        self._shortest_s = min(self._shortest_s, time_s)
        if time_s > 2 * self._shortest_s + limits.PUBLISH_QUEUE_BESIDE_OTHERS_S:
            publisher.pending_max = max(publisher.pending_max * 3 // 4, limits.PUBLISHES_BESIDE_OTHERS_MIN)
        elif publisher.waiting:
            publisher.pending_max = min(publisher.pending_max * 5 // 4, limits.PUBLISHES_BESIDE_OTHERS_MAX)

    def _publisher_changed(self, publisher: Publisher) -> None:
        if self._latest is not None:
            self._changed = True
        self._latest = publisher
        if self._changed and not self.shared:
            self.shared = True
            self._measure_again()

    def _measure_again(self) -> None:
        """Begin a period: with short queues the shortest time is measured again, since disks and load change."""
        self._changed = False
        self._shortest_s = float("inf")
        for publisher in self._publishers.values():
            publisher.pending_max = limits.PUBLISHES_BESIDE_OTHERS_MIN
        asyncio.get_running_loop().call_later(limits.PUBLISH_PERIOD_S, self._period_ended)

    def _period_ended(self) -> None:
        if self._changed:
            self._measure_again()
            return
        self.shared = False
        for publisher in self._publishers.values():
            publisher.sample_left = 0
            self._resume(publisher)
