"""Lookup of topics: their number of partitions, and the broker that serves them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from magnetar.base.errors import MetadataError
from magnetar.broker.errors import NotAllowedError, ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.namespaces.finder import BrokerFinder, Found
from magnetar.broker.namespaces.ownership import Ownership
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.namespaces.session_gate import SessionGate
from magnetar.broker.namespaces.topic_lists import TopicCounts
from magnetar.broker.naming import PERSISTENT, TopicName
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore

T = TypeVar("T")

AskElsewhere = Callable[[BrokerAddress, TopicName, bool], Awaitable[int]]
"""Number of partitions of a topic according to another broker; the flag says if it may be created. Raises as `Lookup.partitions`."""


class Lookup:
    """Partition counts and owners."""

    def __init__(
        self,
        metadata: MetadataStore,
        registry: NamespaceRegistry,
        ownership: Ownership,
        finder: BrokerFinder,
        gate: SessionGate,
        ask_elsewhere: AskElsewhere,
    ) -> None:
        self._gate = gate
        self._ask_elsewhere = ask_elsewhere
        self._metadata = metadata
        self._registry = registry
        self._counts = TopicCounts(metadata)
        self._ownership = ownership
        self._finder = finder

    async def partitions(self, topic: TopicName, auto_create: bool) -> int:
        """Number of partitions, 0 for a plain topic; creates a partitioned topic where the policies say so.

        Without a session another broker is asked: PARTITIONED_METADATA knows no redirect, and this may be the only one a client knows.
        Raises TopicNotFoundError when the namespace is missing, ServiceNotReadyError when there is no answer.
        """
        return await self._answered(
            lambda: self._partitions(topic, auto_create),
            lambda other: self._ask_elsewhere(other, topic, auto_create),
        )

    async def _partitions(self, topic: TopicName, auto_create: bool) -> int:
        policies = await self._registry.effective(topic.namespace_name)
        if topic.partition >= 0:
            self._check_partition(topic, await self._registry.partitions(topic.partitioned_name))
            return 0
        known = await self._registry.partitions(topic)
        if known or not auto_create:
            return known
        if not (policies.auto_topic_creation and policies.auto_topic_creation_partitioned):
            return 0
        if await self.stored(topic):
            return 0
        await self.check_not_scalable(topic)
        await self.check_room(topic, policies.default_num_partitions)
        try:
            await self._registry.create_partitioned(topic, policies.default_num_partitions)
            await self._registry.register_partitions(topic)
        except AlreadyExistsError:
            return await self._registry.partitions(topic)
        return policies.default_num_partitions

    async def find(self, topic: TopicName, authoritative: bool = False) -> Found:
        """The broker that serves the topic, or the one to ask. Raises NamespaceNotFoundError, ServiceNotReadyError."""

        async def redirect(other: BrokerAddress) -> Found:
            return Found(other, redirect=True, authoritative=False)

        return await self._answered(lambda: self._find(topic, authoritative), redirect)

    async def place(self, topic: TopicName) -> Found | None:
        """As `find`, of a topic whose bundle nobody has; None if it has an owner."""
        if self._ownership.serves_topic(topic):
            return None
        owner = await self._ownership.owner(await self._ownership.bundle_of(topic))
        return await self.find(topic) if owner is None else None

    async def _find(self, topic: TopicName, authoritative: bool) -> Found:
        await self._registry.effective(topic.namespace_name)
        return await self._finder.find(topic, authoritative)

    async def _answered(
        self, here: Callable[[], Awaitable[T]], elsewhere: Callable[[BrokerAddress], Awaitable[T]]
    ) -> T:
        """This broker's answer if it has a session; without one it waits, or asks another broker that has one."""
        while True:
            other = await self._gate.other()
            if other is not None:
                return await elsewhere(other)
            try:
                return await here()
            except (MetadataError, ServiceNotReadyError):
                if self._gate.is_open:
                    raise

    def check_session(self) -> None:
        """Raises ServiceNotReadyError while this broker has none: it serves nothing, and clients find out where to go by a lookup."""
        if not self._gate.is_open:
            raise ServiceNotReadyError("this broker has no session with the metadata store: look the topic up again")

    async def require(self, topic: TopicName) -> None:
        """Serve the topic from this broker. Raises NotOwnedError, NamespaceNotFoundError."""
        await self._registry.effective(topic.namespace_name)
        await self._ownership.require(topic)

    def close(self) -> None:
        self._counts.close()

    async def require_all(self, topics: Iterable[TopicName]) -> None:
        """The same for several."""
        for topic in topics:
            await self.require(topic)

    async def stored(self, topic: TopicName) -> bool:
        """True when the topic has a managed ledger."""
        if not topic.persistent:
            return False
        return await self._metadata.exists(
            paths.managed_ledger_path(topic.tenant, topic.namespace, topic.domain, topic.local_name)
        )

    async def check_room(self, topic: TopicName, added: int = 1) -> None:
        """Check that the namespace may have so many more topics. Raises PreconditionFailedError.

        Partitions count, topics of the server do not. `topic` is not stored yet.
        """
        namespace = topic.namespace_name
        limit = (await self._registry.effective(namespace)).max_topics_per_namespace
        if not limit or not topic.persistent:
            return
        if await self._counts.stored(namespace) + added > limit:
            raise PreconditionFailedError("Exceed maximum number of topics in namespace.")

    @staticmethod
    def _check_partition(topic: TopicName, partitions: int) -> None:
        """`partitions` is what the partitioned topic has, 0 if there is none. Raises TopicNotFoundError."""
        if partitions and topic.partition >= partitions:
            raise TopicNotFoundError(f"{topic.partitioned_name} has {partitions} partitions, no {topic.partition}")

    async def is_scalable(self, topic: TopicName) -> bool:
        """True for a classic name that is a scalable topic's, or that of a partition which has become a segment."""
        whole = topic.partitioned_name
        path = paths.scalable_topic_path(whole.tenant, whole.namespace, whole.local_name)
        return whole.domain == PERSISTENT and await self._metadata.exists(path)

    async def check_not_scalable(self, topic: TopicName) -> None:
        """Check that no scalable topic has the name of a classic one. Raises AlreadyExistsError."""
        whole = topic.partitioned_name
        if await self.is_scalable(topic):
            raise AlreadyExistsError(
                f"{whole.local_name} is a scalable topic, which only clients of Pulsar 5 can use, as "
                f"topic://{whole.namespace_name}/{whole.local_name}; choose another name for a classic topic"
            )

    async def check_creatable(self, topic: TopicName) -> None:
        """Check that a client may create this topic by using it. Raises TopicNotFoundError, NotAllowedError."""
        await self.check_not_scalable(topic)
        policies = await self._registry.effective(topic.namespace_name)
        if topic.partition >= 0:
            partitions = await self._registry.partitions(topic.partitioned_name)
            self._check_partition(topic, partitions)
            if partitions:
                return
        elif await self._registry.partitions(topic):
            # Its messages would be in no partition: nobody would ever consume them.
            raise NotAllowedError(f"Found partitioned metadata for non-partitioned topic: {topic}")
        if not policies.auto_topic_creation:
            raise TopicNotFoundError(f"Topic {topic} not found, and topics are not created automatically here")
