"""State and services that the handlers of one broker share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from magnetar.base.checksum import crc32c_extend
from magnetar.base.clock import Clock
from magnetar.base.tasks import TaskScope
from magnetar.broker.auth.authorize import Security
from magnetar.broker.config import BrokerConfig
from magnetar.broker.connection.publishing import PublishBudget
from magnetar.broker.connection.requests import RequestTurns
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.namespaces.topic_lists import in_turns
from magnetar.broker.naming import SYSTEM_TOPIC_PREFIX, TopicName
from magnetar.broker.peers import NonPersistentTopics
from magnetar.broker.refused_clients import RecentRefusals
from magnetar.broker.scalable.service import ScalableTopics
from magnetar.broker.schemas.admission import SchemaAdmission
from magnetar.broker.topics.registry import AnyTopic, TopicRegistry
from magnetar.broker.tracing.traces import Traces
from magnetar.broker.transactions.coordinators import ASSIGN_TOPIC, Coordinators
from magnetar.broker.transactions.types import Participants
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.commands import UNASSIGNED, AssignedUrls

ANSWERS_KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of answers kept over all namespaces: the least recently used go first. A longer answer is never kept."""

COORDINATORS_KEPT_S = 0.5
"""How long what was looked up of the coordinators is answered again."""


@dataclass(frozen=True, slots=True)
class ListAnswer:
    """`topics` as `commands.topics_of_namespace` takes them. `digest` is what clients show to ask whether something has changed."""

    digest: str
    topics: bytes


class ListAnswers:
    """Answers to GET_TOPICS_OF_NAMESPACE, encoded once for all who ask while the list stays the same.

    One per broker. One list is encoded at a time, in turns with everything else.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[Sequence[str], list[str], ListAnswer]] = OrderedDict()
        self._kept_bytes = 0
        self._encoding = asyncio.Lock()

    async def of(self, key: str, stored: Sequence[str], others: list[str]) -> ListAnswer:
        """The answer that lists `stored` (the same object while it is the same list), and then `others`."""
        answer = self._known(key, stored, others)
        if answer is None:
            async with self._encoding:
                answer = self._known(key, stored, others)
                if answer is None:
                    answer = await _encoded([*stored, *others])
                    self._keep(key, stored, others, answer)
        return answer

    def _known(self, key: str, stored: Sequence[str], others: list[str]) -> ListAnswer | None:
        kept = self._kept.get(key)
        if kept is None or kept[0] is not stored or kept[1] != others:
            return None
        self._kept.move_to_end(key)
        return kept[2]

    def _keep(self, key: str, stored: Sequence[str], others: list[str], answer: ListAnswer) -> None:
        before = self._kept.pop(key, None)
        self._kept_bytes -= len(before[2].topics) if before is not None else 0
        if len(answer.topics) > ANSWERS_KEPT_BYTES_MAX:
            return
        self._kept[key] = (stored, others, answer)
        self._kept_bytes += len(answer.topics)
        while self._kept_bytes > ANSWERS_KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1][2].topics)


async def _encoded(topics: list[str]) -> ListAnswer:
    visible = await in_turns(topics, _visible)
    encoded = await in_turns(visible, lambda some: [commands.topic_list(some)])
    joined = await in_turns(sorted(visible), lambda some: [",".join(some).encode()])
    return ListAnswer(topics_hash(joined), b"".join(encoded))


def _visible(topics: Sequence[str]) -> list[str]:
    return [topic for topic in topics if not topic.rsplit("/", 1)[1].startswith(SYSTEM_TOPIC_PREFIX)]


def topics_hash(joined: Sequence[bytes]) -> str:
    """CRC32C of the names joined by commas, as Guava prints it: hex, lowest byte first. `joined`: the names, sorted, or parts of that."""
    digest = 0
    for number, part in enumerate(joined):
        digest = crc32c_extend(digest, b"," + part if number else part)
    return digest.to_bytes(4, "little").hex()


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


class Destinations:
    """New brokers of topics that are being closed here: their clients are told, and need not look them up again."""

    def __init__(self) -> None:
        self._addresses: dict[TopicName, BrokerAddress] = {}

    def set(self, topics: Iterable[TopicName], address: BrokerAddress) -> None:
        self._addresses.update(dict.fromkeys(topics, address))

    def clear(self, topics: Iterable[TopicName]) -> None:
        for topic in topics:
            self._addresses.pop(topic, None)

    def of(self, topic: AnyTopic | None) -> AssignedUrls:
        """The topic's new broker; empty texts while it is unknown."""
        address = self._addresses.get(topic.name) if topic is not None else None
        return UNASSIGNED if address is None else (address.service_url, address.service_url_tls)


class CoordinatorAddresses:
    """The broker of each transaction coordinator, looked up once for all who ask within `COORDINATORS_KEPT_S`. One per broker."""

    def __init__(self) -> None:
        self._looking = asyncio.Lock()
        self._looked_at_s = float("-inf")
        self._found: Sequence[BrokerAddress] = ()

    async def of(self, context: BrokerContext) -> Sequence[BrokerAddress]:
        """In the order of their numbers. Raises MagnetarError."""
        async with self._looking:
            if context.clock.monotonic_s() - self._looked_at_s >= COORDINATORS_KEPT_S:
                count = await context.transactions.recounted()
                names = [ASSIGN_TOPIC.partition_name(number) for number in range(count)]
                self._found = [(await context.lookup.find(name)).address for name in names]
                self._looked_at_s = context.clock.monotonic_s()
            return self._found


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
    scalable: ScalableTopics
    traces: Traces
    refused: RecentRefusals = field(default_factory=RecentRefusals)
    counters: ConnectionCounters = field(default_factory=ConnectionCounters)
    list_answers: ListAnswers = field(default_factory=ListAnswers)
    coordinators: CoordinatorAddresses = field(default_factory=CoordinatorAddresses)

    async def coordinator_addresses(self) -> Sequence[BrokerAddress]:
        return await self.coordinators.of(self)
