"""What the handlers of one broker share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from magnetar.base.clock import Clock
from magnetar.base.tasks import TaskScope
from magnetar.broker.auth.authorize import Security
from magnetar.broker.config import BrokerConfig
from magnetar.broker.connection.list_answers import ListAnswers
from magnetar.broker.connection.requests import RequestTurns
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import TopicName
from magnetar.broker.peers import NonPersistentTopics
from magnetar.broker.schemas.admission import SchemaAdmission
from magnetar.broker.topics.registry import AnyTopic, TopicRegistry
from magnetar.broker.transactions.coordinators import Coordinators
from magnetar.broker.transactions.ports import Participants
from magnetar.wire.pulsar.commands import UNASSIGNED, AssignedUrls


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


class PublishBudget:
    """Published bytes that wait for the disk over all connections: above the limit every publishing connection pauses.

    It keeps the bookie's own bound (`limits.JOURNAL_PENDING_BYTES_MAX`) out of reach, at which entries would be refused.
    """

    __slots__ = ("_paused", "limit_bytes", "pending_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.pending_bytes = 0
        self._paused: list[Callable[[], None]] = []

    def pause(self, resume: Callable[[], None]) -> None:
        """Remember a connection that has stopped reading; `resume` runs once half of the limit is free."""
        self._paused.append(resume)

    def release(self, size_bytes: int) -> None:
        self.pending_bytes -= size_bytes
        if self._paused and self.pending_bytes <= self.limit_bytes // 2:
            paused, self._paused = self._paused, []
            for resume in paused:
                resume()


class Destinations:
    """Where topics are about to be served that are being closed here: clients are told, and need not look them up again."""

    def __init__(self) -> None:
        self._addresses: dict[TopicName, BrokerAddress] = {}

    def set(self, topics: Iterable[TopicName], address: BrokerAddress) -> None:
        self._addresses.update(dict.fromkeys(topics, address))

    def clear(self, topics: Iterable[TopicName]) -> None:
        for topic in topics:
            self._addresses.pop(topic, None)

    def of(self, topic: AnyTopic | None) -> AssignedUrls:
        """Empty texts while it is not known."""
        address = self._addresses.get(topic.name) if topic is not None else None
        return UNASSIGNED if address is None else (address.service_url, address.service_url_tls)


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Passed to every session."""

    config: BrokerConfig
    clock: Clock
    scope: TaskScope
    namespaces: NamespaceRegistry
    lookup: Lookup
    topics: TopicRegistry
    schemas: SchemaAdmission
    producer_names: ProducerNames
    budget: PublishBudget
    security: Security
    transactions: Coordinators
    participants: Participants
    destinations: Destinations
    non_persistent: NonPersistentTopics
    turns: RequestTurns
    counters: ConnectionCounters = field(default_factory=ConnectionCounters)
    list_answers: ListAnswers = field(default_factory=ListAnswers)
