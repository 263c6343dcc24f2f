"""What the replicators of a broker's topics share: the other clusters, and what must be true there before a topic can be sent to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from magnetar.broker.naming import SYSTEM_NAMESPACE, TopicName
from magnetar.broker.replicators.errors import TopicMismatchError
from magnetar.broker.replicators.remote_clusters import RemoteClusters
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.types import SchemaId, unpack_version
from magnetar.client.client import RemoteClient
from magnetar.wire.pulsar.client_commands import SchemaDefinition

SYSTEM_TOPIC_PREFIX = "__"
"""Topics of the server's own: each cluster keeps its own."""


@dataclass(frozen=True, slots=True)
class ReplicationService:
    """`partitions(topic)`: of a partitioned topic here, 0 for a plain one."""

    clusters: RemoteClusters
    schemas: SchemaRegistry
    partitions: Callable[[TopicName], Awaitable[int]]

    def concerns(self, topic: TopicName) -> bool:
        """Is it a topic that may be replicated?"""
        own = topic.local_name.startswith(SYSTEM_TOPIC_PREFIX) or str(topic.namespace_name) == SYSTEM_NAMESPACE
        return topic.persistent and not own

    async def schema_of(self, topic: TopicName, version: bytes) -> SchemaDefinition | None:
        """What messages of that version carry; None when it is not kept any more. Raises LedgerError, MetadataError."""
        number = unpack_version(version)
        stored = await self.schemas.version(SchemaId.of(topic), number) if number is not None else None
        if stored is None:
            return None
        return SchemaDefinition(int(stored.schema.type), stored.schema.data, stored.schema.properties)

    async def prepare(self, client: RemoteClient, topic: TopicName) -> None:
        """The topic can be published to there. Raises ClientError."""
        whole = topic.partitioned_name
        there = await client.partitions(str(whole))
        here = await self.partitions(whole)
        if not here and there:
            raise TopicMismatchError(f"{whole} has no partitions here and {there} there; delete one of the two")
