"""Ports of replicated subscriptions: what they need of a topic and of its broker."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from magnetar.base.clock import Clock
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.position import Position

Links = Callable[[], Mapping[str, bool]]
"""The remote clusters of the topic now, each with whether its replicator is connected."""


class Subscriptions(Protocol):
    """The subscriptions of a topic, readers' included."""

    @property
    def all(self) -> list[Subscription]: ...

    def find(self, name: str) -> Subscription | None: ...

    async def create(
        self, name: str, start: Position, properties: dict[str, str], replicated: bool = False
    ) -> Subscription:
        """`start` is its mark-delete position. Raises AlreadyExistsError."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicationContext:
    """The same for all topics of a broker."""

    cluster: str
    clock: Clock
    rng: random.Random
    spawn: Callable[[Coroutine[Any, Any, Any], str], object]
    counters: SnapshotCounters


class SnapshotCounters:
    """Counters over all topics of a broker, for metrics."""

    __slots__ = ("completed", "duration_ms", "pending", "timed_out", "updates_applied", "updates_told")

    def __init__(self) -> None:
        self.pending = 0
        self.completed = 0
        self.timed_out = 0
        self.duration_ms = 0.0
        """Total duration of all completed snapshots."""
        self.updates_told = 0
        self.updates_applied = 0
