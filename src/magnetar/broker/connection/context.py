"""What the handlers of one broker share."""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.base.clock import Clock
from magnetar.base.tasks import TaskScope
from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.topics.registry import TopicRegistry


class ProducerNames:
    """Names for producers that bring none: `<cluster>-<start of this broker>-<n>`, unique over restarts and brokers.

    `start` is a sequence number that the metadata store gives out once per broker start.
    """

    def __init__(self, cluster: str, start: int) -> None:
        self._prefix = f"{cluster}-{start}-"
        self._count = 0

    def next(self) -> str:
        name = f"{self._prefix}{self._count}"
        self._count += 1
        return name


@dataclass(slots=True)
class ConnectionCounters:
    """Plain ints, read at scrape time."""

    opened: int = 0
    active: int = 0
    refused_frames: int = 0
    checksum_errors: int = 0


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Passed to every session."""

    config: BrokerConfig
    clock: Clock
    scope: TaskScope
    namespaces: NamespaceRegistry
    lookup: Lookup
    topics: TopicRegistry
    producer_names: ProducerNames
    counters: ConnectionCounters = field(default_factory=ConnectionCounters)
