"""What a client asks before it produces or consumes: how many partitions, and where."""

from __future__ import annotations

from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.namespaces.errors import AlreadyExistsError
from magnetar.broker.namespaces.ownership import Ownership
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import TopicName
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore


class Lookup:
    """Partition counts and owners."""

    def __init__(
        self, metadata: MetadataStore, registry: NamespaceRegistry, ownership: Ownership, config: BrokerConfig
    ) -> None:
        self._metadata = metadata
        self._registry = registry
        self._ownership = ownership
        self._config = config

    async def partitions(self, topic: TopicName, auto_create: bool) -> int:
        """Number of partitions, 0 for a plain topic; creates a partitioned topic where the policies say so.

        Raises TopicNotFoundError when the namespace is missing.
        """
        policies = await self._registry.effective(topic.namespace_name)
        if topic.partition >= 0:
            return 0
        known = await self._registry.partitions(topic)
        if known or not auto_create:
            return known
        if not (policies.auto_topic_creation and policies.auto_topic_creation_partitioned):
            return 0
        if await self.stored(topic):
            return 0
        try:
            await self._registry.create_partitioned(topic, policies.default_num_partitions)
        except AlreadyExistsError:
            return await self._registry.partitions(topic)
        return policies.default_num_partitions

    async def broker_of(self, topic: TopicName) -> str:
        """Service URL of the broker that serves the topic: this one. Raises TopicNotFoundError for a missing namespace."""
        await self._registry.effective(topic.namespace_name)
        await self._ownership.acquire(topic)
        return self._config.service_url

    async def stored(self, topic: TopicName) -> bool:
        """True when the topic has a managed ledger."""
        if not topic.persistent:
            return False
        return await self._metadata.exists(
            paths.managed_ledger_path(topic.tenant, topic.namespace, topic.domain, topic.local_name)
        )

    async def check_creatable(self, topic: TopicName) -> None:
        """May a client bring this topic into being by using it? Raises TopicNotFoundError when not."""
        policies = await self._registry.effective(topic.namespace_name)
        if topic.partition >= 0:
            partitions = await self._registry.partitions(topic.partitioned_name)
            if partitions:
                if topic.partition >= partitions:
                    raise TopicNotFoundError(
                        f"{topic.partitioned_name} has {partitions} partitions, no {topic.partition}"
                    )
                return
        if not policies.auto_topic_creation:
            raise TopicNotFoundError(f"Topic {topic} not found, and topics are not created automatically here")
