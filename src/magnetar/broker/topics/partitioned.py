"""Partitioned topics and whole namespaces as units: what concerns several topics at once. Control plane only."""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.base.errors import NodeNotFoundError
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.namespaces.errors import (
    AlreadyExistsError,
    NamespaceNotFoundError,
    NotOwnedError,
    PreconditionFailedError,
)
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.namespaces.registry import NamespaceRegistry, check_partitions
from magnetar.broker.naming import DOMAINS, NON_PERSISTENT, PARTITION_SUFFIX, PERSISTENT, NamespaceName, TopicName
from magnetar.broker.peers import RemoteTopics
from magnetar.broker.schemas.types import SchemaId
from magnetar.broker.topics.registry import TopicRegistry
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore


class PartitionedTopics:
    """Creates and deletes partitioned topics with their partitions, and lists what a namespace holds."""

    def __init__(
        self,
        metadata: MetadataStore,
        namespaces: NamespaceRegistry,
        lookup: Lookup,
        topics: TopicRegistry,
        remote: RemoteTopics,
    ) -> None:
        """`remote`: topics that other brokers serve."""
        self._metadata = metadata
        self._namespaces = namespaces
        self._lookup = lookup
        self._topics = topics
        self._remote = remote

    # ---- One partitioned topic

    async def create(self, topic: TopicName, partitions: int, properties: dict[str, str]) -> None:
        """Raises AlreadyExistsError, PreconditionFailedError, NamespaceNotFoundError."""
        if topic.partition >= 0:
            raise PreconditionFailedError(f"Partitioned Topic Name should not contain '{PARTITION_SUFFIX}'")
        check_partitions(partitions)
        await self._namespaces.effective(topic.namespace_name)
        if await self._lookup.stored(topic):
            raise AlreadyExistsError("This topic already exists")
        await self._lookup.check_not_scalable(topic)
        await self._lookup.check_room(topic, partitions)
        try:
            await self._topics.create_partitioned(topic, partitions, properties)
        except AlreadyExistsError:
            await self.create_missing(topic)  # whoever began it may have been cut short, and comes again
            raise
        await self.create_missing(topic)

    async def grow(self, topic: TopicName, partitions: int) -> None:
        """More partitions, each with the subscriptions that the topic has: else their first messages would be missed."""
        await self._lookup.check_not_scalable(topic)
        before = await self._namespaces.partitions(topic)
        names = await self.subscriptions(topic) if before else []
        await self._lookup.check_room(topic, partitions - before)
        await self._namespaces.grow_partitioned(topic, partitions)
        await self.create_missing(topic)
        for name in names if topic.persistent else []:
            for index in range(before, partitions):
                await self._subscribe_from_the_start(topic.partition_name(index), name)

    async def _subscribe_from_the_start(self, part: TopicName, name: str) -> None:
        try:
            loaded = await self._topics.get(part, create=True)
            await loaded.ensure_subscription(name, EARLIEST)
        except NotOwnedError as error:
            await self._remote.subscribe_from_the_start(await self.owner(part, error), part, name)

    async def owner(self, topic: TopicName, error: NotOwnedError) -> BrokerAddress:
        """Whoever serves a topic that this broker does not."""
        return error.owner or (await self._lookup.find(topic)).address

    async def create_missing(self, topic: TopicName) -> None:
        """Register the partitions that are not stored yet, without loading them."""
        await self._namespaces.register_partitions(topic)

    async def delete(self, topic: TopicName, *, force: bool) -> None:
        """The partitions, then the topic. Raises TopicNotFoundError, or PreconditionFailedError before anything is deleted."""
        count = await self._namespaces.partitions(topic)
        if not count:
            raise TopicNotFoundError(f"Partitioned Topic not found: {topic} has zero partitions")
        await self._lookup.check_not_scalable(topic)  # it is being migrated
        parts = [topic.partition_name(index) for index in range(count)]
        for part in parts:
            loaded = self._topics.get_loaded(part)
            if loaded is not None and loaded.in_use and not force:
                raise PreconditionFailedError("Topic has active producers/subscriptions")
        for part in parts:
            await self._delete_if_there(part, force)
        await self._namespaces.delete_partitioned(topic)
        if topic.persistent:
            await self._topics.schemas.delete(SchemaId.of(topic), force=True)
        await self._namespaces.topic_policies.delete(topic)

    async def _delete_if_there(self, topic: TopicName, force: bool) -> None:
        try:
            await self._topics.delete(topic, force=force)
        except NotOwnedError as error:
            await self._delete_there(await self.owner(topic, error), topic, force)
        except TopicNotFoundError:
            return

    async def _delete_there(self, owner: BrokerAddress, topic: TopicName, force: bool) -> None:
        try:
            await self._remote.delete(owner, topic, force)
        except TopicNotFoundError:
            return

    async def parts(self, topic: TopicName) -> list[TopicName]:
        """The partitions of a partitioned topic, else the topic itself."""
        count = await self._namespaces.partitions(topic) if topic.partition < 0 else 0
        return [topic.partition_name(index) for index in range(count)] or [topic]

    async def is_unused(self, part: TopicName) -> bool:
        """Whether a persistent partition is registered and was never loaded by anybody: it holds nothing."""
        path = paths.managed_ledger_path(part.tenant, part.namespace, part.domain, part.local_name)
        node = await self._metadata.get(path)
        return node is not None and not node.value

    async def subscriptions(self, topic: TopicName) -> list[str]:
        """Names over all partitions, in order of first sight. Raises TopicNotFoundError."""
        names: dict[str, None] = {}
        for part in await self.parts(topic):
            loaded = part == topic or self._topics.get_loaded(part) is not None
            if not loaded and (not part.persistent or await self.is_unused(part)):
                continue
            names.update(dict.fromkeys(await self._subscriptions_of(part)))
        return list(names)

    async def _subscriptions_of(self, part: TopicName) -> list[str]:
        try:
            return (await self._topics.get(part, create=False)).subscription_names
        except NotOwnedError as error:
            return await self._remote.subscriptions(await self.owner(part, error), part)

    # ---- A namespace

    async def topics_of(self, name: NamespaceName, domains: tuple[str, ...] = DOMAINS) -> list[TopicName]:
        """Topics that hold or pass on messages, partitions separately."""
        return list(_parsed(await self.names_of(name, domains)))

    async def names_of(self, name: NamespaceName, domains: tuple[str, ...] = DOMAINS) -> list[str]:
        """The same as complete names: of a million topics no object is made."""
        found: list[str] = []
        if PERSISTENT in domains:
            found += await self._namespaces.persistent_topics(name)
        if NON_PERSISTENT in domains:
            found += self._topics.loaded_non_persistent(name)
        return found

    async def delete_namespace(self, name: NamespaceName, *, force: bool) -> None:
        """Raises AlreadyExistsError unless it is empty or `force` is given, NamespaceNotFoundError."""
        await self._namespaces.policies(name)
        partitioned = [
            topic for domain in DOMAINS for topic in _parsed(await self._namespaces.partitioned_topics(name, domain))
        ]
        if not force and (partitioned or await self.topics_of(name)):
            raise AlreadyExistsError("Cannot delete non empty namespace")
        for topic in partitioned:
            await self.delete(topic, force=True)
        for topic in await self.topics_of(name):
            await self._delete_if_there(topic, force=True)
        await self._topics.schemas.delete_namespace(name)
        try:
            await self._namespaces.delete_namespace(name)
        except NodeNotFoundError:
            raise NamespaceNotFoundError("Namespace does not exist") from None


def _parsed(names: list[str]) -> Iterator[TopicName]:
    return (TopicName.parse(name) for name in names)
