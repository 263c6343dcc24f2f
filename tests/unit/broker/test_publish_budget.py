"""What may wait for the disk: of one principal beside others, and of one that publishes alone."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from magnetar.base import limits
from magnetar.broker.connection.publishing import PublishBudget, Publisher


class Disk:
    """Answers entries in the order in which they came; the time is the test's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.budget = PublishBudget(1 << 30, lambda: self.now_s)
        self.queue: deque[Publisher] = deque()
        self.paused: set[str] = set()

    def publish(self, publisher: Publisher, size_bytes: int = 1000) -> bool:
        """False when the principal's connection does not read."""
        if publisher.key in self.paused:
            return False
        self.queue.append(publisher)
        if self.budget.started(publisher, 1, size_bytes):
            self.paused.add(publisher.key)
            publisher.waiting.append(lambda: self.paused.discard(publisher.key))
        return True

    def commit(self, count: int, took_s: float, size_bytes: int = 1000) -> None:
        """A group of entries becomes durable."""
        self.now_s += took_s
        for _ in range(min(count, len(self.queue))):
            self.budget.ended(self.queue.popleft(), 1, size_bytes)

    def flood(self, publisher: Publisher, wanted: int) -> None:
        while publisher.pending < wanted and self.publish(publisher):
            pass


async def test_who_publishes_alone_has_no_bound_of_its_own() -> None:
    disk = Disk()
    flood = disk.budget.enter("flood")
    disk.flood(flood, 4_000)
    assert flood.pending == 4_000


async def test_beside_others_few_entries_wait_on_a_fast_disk() -> None:
    """The server is what limits: a commit is short, and each entry costs time of its own. A queue would only make everybody wait."""
    disk = Disk()
    flood, steady = disk.budget.enter("flood"), disk.budget.enter("steady")
    for _ in range(2_000):
        disk.publish(steady)
        disk.flood(flood, 4_000)
        count = len(disk.queue)
        disk.commit(count, 0.0005 + count * 25e-6)
    assert flood.pending <= 3 * limits.PUBLISHES_BESIDE_OTHERS_MIN
    assert steady.pending == 0 or disk.queue[0] is steady


async def test_beside_others_a_slow_disk_is_kept_busy() -> None:
    """A commit of one entry takes as long as one of a thousand: few under way would leave the disk idle."""
    disk = Disk()
    flood, steady = disk.budget.enter("flood"), disk.budget.enter("steady")
    done = 0
    for _ in range(200):
        disk.publish(steady)
        disk.flood(flood, 4_000)
        count = len(disk.queue)
        done += count
        disk.commit(count, 0.020 + count * 2e-6)
    assert flood.pending_max > 1_000
    assert done / disk.now_s > 20_000, "64 under way would be 3,200 a second"


async def test_few_large_entries_wait_beside_others() -> None:
    disk = Disk()
    flood, steady = disk.budget.enter("flood"), disk.budget.enter("steady")
    disk.publish(flood, 1_000_000)
    disk.publish(steady, 1_000_000)
    while disk.publish(flood, 1_000_000):
        pass
    assert flood.pending == 3
    disk.commit(4, 0.001, 1_000_000)
    assert disk.publish(flood, 1_000_000), "it goes on once they are stored"


async def test_the_bound_ends_when_the_others_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUBLISH_PERIOD_S", 0.02)
    disk = Disk()
    flood, steady = disk.budget.enter("flood"), disk.budget.enter("steady")
    disk.publish(flood)
    disk.publish(steady)
    disk.flood(flood, 4_000)
    assert flood.pending == limits.PUBLISHES_BESIDE_OTHERS_MIN
    await asyncio.sleep(0.1)
    disk.flood(flood, 4_000)
    assert flood.pending == 4_000


async def test_a_principal_without_connections_is_forgotten_once_all_it_published_is_stored() -> None:
    disk = Disk()
    first = disk.budget.enter("role")
    disk.publish(first)
    disk.budget.leave(first)
    assert disk.budget.enter("role") is first, "what waits counts on"
    disk.budget.leave(first)
    disk.commit(1, 0.001)
    assert disk.budget.enter("role") is not first
