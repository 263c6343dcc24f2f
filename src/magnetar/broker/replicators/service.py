"""Services that the replicators of a broker's topics share: the other clusters, and the preparation of topics there."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from magnetar.broker.naming import PERSISTENT, SCALABLE, SEGMENT, SYSTEM_NAMESPACE, SYSTEM_TOPIC_PREFIX, TopicName
from magnetar.broker.replicators.remote_clusters import RemoteClusters, TopicMismatchError
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.types import SchemaId, unpack_version
from magnetar.client.errors import RequestRefusedError
from magnetar.wire.pulsar.client_commands import SchemaDefinition

if TYPE_CHECKING:
    from magnetar.client.client import RemoteClient

logger = logging.getLogger(__name__)

_EXISTS: Final = (409, 412)
"""Status codes of servers for a topic that exists already."""


@dataclass(frozen=True, slots=True)
class ReplicationService:
    """`partitions(topic)`: of a partitioned topic here, 0 for a plain one. `ancestors_sent(segment, cluster)`: whether a segment's turn has
    come, since everything in its ancestors is in that cluster."""

    clusters: RemoteClusters
    schemas: SchemaRegistry
    partitions: Callable[[TopicName], Awaitable[int]]
    ancestors_sent: Callable[[TopicName, str], Awaitable[bool]]

    def concerns(self, topic: TopicName) -> bool:
        """True if the topic may be replicated."""
        own = topic.local_name.startswith(SYSTEM_TOPIC_PREFIX) or str(topic.namespace_name) == SYSTEM_NAMESPACE
        return topic.domain in (PERSISTENT, SEGMENT) and not own

    async def schema_of(self, topic: TopicName, version: bytes) -> SchemaDefinition | None:
        """The schema of that version; None when it is not kept any more. Raises LedgerError, MetadataError."""
        number = unpack_version(version)
        stored = await self.schemas.version(SchemaId.of(topic), number) if number is not None else None
        if stored is None:
            return None
        return SchemaDefinition(int(stored.schema.type), stored.schema.data, stored.schema.properties)

    async def prepare(self, client: RemoteClient, cluster: str, topic: TopicName) -> None:
        """Give the topic its partitions in the other cluster, which cannot know their number by itself. Raises ClientError."""
        whole = topic.partitioned_name
        there = await client.partitions(str(whole))
        here = await self.partitions(whole)
        if not here and there:
            raise TopicMismatchError(f"{whole} has no partitions here and {there} in {cluster}; delete one of the two")
        if there < here and self.clusters.config.create_topic_to_remote_cluster_for_replication:
            await self._partition(client, cluster, whole, here)

    async def _partition(self, client: RemoteClient, cluster: str, topic: TopicName, here: int) -> None:
        admin = await self.clusters.admin(cluster)
        path = f"{_admin_path(topic)}/partitions"
        try:
            await admin.call("PUT", f"{path}?createLocalTopicOnly=true", here)
        except RequestRefusedError as error:
            if error.code not in _EXISTS:
                raise
            there = await client.partitions(str(topic))
            if not there:
                raise TopicMismatchError(
                    f"{topic} has {here} partitions here and none in {cluster}; delete one of the two"
                ) from None
            if there < here:
                await admin.call("POST", f"{path}?updateLocalTopicOnly=true", here)
        logger.info("partitions made topic=%s cluster=%s partitions=%d", topic, cluster, here)

    async def create(self, cluster: str, topic: TopicName) -> None:
        """Create a topic that the other cluster does not create by itself. Raises ClientError."""
        admin = await self.clusters.admin(cluster)
        try:
            await admin.call("PUT", _admin_path(topic))
        except RequestRefusedError as error:
            if error.code not in _EXISTS:
                raise


def _admin_path(topic: TopicName) -> str:
    domain = "scalable" if topic.domain == SCALABLE else topic.domain
    return f"{domain}/{topic.tenant}/{topic.namespace}/{quote(topic.local_name, safe='')}"
