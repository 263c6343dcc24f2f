"""A classic topic becomes a scalable one without copying (PIP-475): its partitions are the first segments, sealed, and keep their messages.

The record says what is to happen before anything is touched (`PendingChange.migration`), and shows the partitions until then as they were.
The topic's controller ends it like a split: new segments with every subscription's place at their beginning, the end of the partitions,
the new layout. A broker that dies in between leaves that to whoever controls the topic next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.base.clock import Clock
from magnetar.broker.errors import NotAllowedError, ServiceNotReadyError, TopicNotFoundError, TopicTerminatedError
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import PERSISTENT, SCALABLE, SYSTEM_NAMESPACE, SYSTEM_TOPIC_PREFIX, TopicName
from magnetar.broker.scalable.layout import SEGMENTS_PER_TOPIC_MAX, SegmentLayout
from magnetar.broker.scalable.records import PendingChange, ScalableRecords, TopicRecord
from magnetar.broker.scalable.segments import Segments, is_managed, segment_name

MIGRATION_TIMEOUT_S: Final = 60.0
"""How long a caller waits for a migration to end; then it goes on without the caller."""


def classic_name(topic: TopicName) -> TopicName:
    """The classic topic of the same name, which a scalable one excludes."""
    return TopicName(PERSISTENT, topic.tenant, topic.namespace, topic.local_name)


def scalable_name(name: TopicName) -> TopicName:
    """The scalable topic that a partition, a segment or a classic topic belongs to, or would belong to."""
    whole = name.partitioned_name
    return TopicName(SCALABLE, whole.tenant, whole.namespace, whole.local_name)


def synthetic_layout(topic: TopicName, partitions: int) -> SegmentLayout:
    """A classic topic as clients of scalable ones see it."""
    return SegmentLayout.of_classic([str(topic.partition_name(index)) for index in range(partitions)] or [str(topic)])


async def retire_classic(namespaces: NamespaceRegistry, topic: TopicName) -> None:
    """See `ControllerContext.retire_classic`."""
    classic = classic_name(topic)
    await namespaces.topic_policies.copy(classic, topic)
    if await namespaces.partitions(classic):
        await namespaces.delete_partitioned(classic)


class Migrations:
    """One for each broker. `find_controller` takes a topic over where nobody controls it, and has ended by then what was begun;
    `changed` calls its listener with every change of a topic, and answers what ends that."""

    def __init__(
        self,
        records: ScalableRecords,
        segments: Segments,
        namespaces: NamespaceRegistry,
        lookup: Lookup,
        clock: Clock,
        find_controller: Callable[[TopicName], Awaitable[BrokerAddress]],
        changed: Callable[[TopicName, Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._records = records
        self._segments = segments
        self._namespaces = namespaces
        self._lookup = lookup
        self._clock = clock
        self._find_controller = find_controller
        self._changed = changed

    async def migrate(self, topic: TopicName, force: bool) -> None:
        """Returns when the new segments take messages. A call that was cut off may be repeated.

        Raises TopicNotFoundError, AlreadyExistsError for a scalable topic, and while classic clients are connected unless `force`,
        PreconditionFailedError for a topic that cannot be migrated now, ServiceNotReadyError when it takes longer.
        """
        record = await self._records.get(topic)
        if record is None:
            await self._begin(topic, force)
        elif not record.migrating:
            raise AlreadyExistsError(f"{topic} is a scalable topic already")
        news = asyncio.Event()
        end = self._changed(topic, news.set)
        try:
            async with asyncio.timeout(MIGRATION_TIMEOUT_S):
                while True:
                    news.clear()
                    if await self._ended(topic):
                        return
                    await news.wait()
        except TimeoutError:
            raise ServiceNotReadyError(
                f"the migration of {topic} has begun and takes longer than {MIGRATION_TIMEOUT_S:.0f} s; it goes on by itself: "
                "`scalable-topics get-metadata` says when it has ended"
            ) from None
        finally:
            end()

    async def _ended(self, topic: TopicName) -> bool:
        try:
            await self._find_controller(topic)
            record = await self._records.get(topic)
        except TopicNotFoundError:
            record = None
        if record is None:
            raise PreconditionFailedError(
                f"{classic_name(topic)} cannot be migrated now: a transaction is open in it, so it cannot be sealed; try again"
            )
        return not record.migrating

    async def _begin(self, topic: TopicName, force: bool) -> None:
        """Write down that it is to be done."""
        classic = classic_name(topic)
        if classic.partition >= 0:
            raise PreconditionFailedError(f"{classic} is a partition: name the whole topic")
        if str(topic.namespace_name) == SYSTEM_NAMESPACE or topic.local_name.startswith(SYSTEM_TOPIC_PREFIX):
            raise PreconditionFailedError(f"{classic} is a topic of the server's own, which stays a classic one")
        partitions = await self._namespaces.partitions(classic)
        if not partitions and not await self._lookup.stored(classic):
            await self._namespaces.policies(topic.namespace_name)
            raise TopicNotFoundError(f"Topic {classic} does not exist")
        if partitions > SEGMENTS_PER_TOPIC_MAX:
            raise PreconditionFailedError(
                f"{classic} has {partitions} partitions; a scalable topic has at most {SEGMENTS_PER_TOPIC_MAX} segments"
            )
        policies = await self._namespaces.effective_of(classic)
        if len(policies.replication_clusters) > 1:
            raise PreconditionFailedError(
                f"{classic} is replicated to other clusters, and scalable topics are not: end its replication first "
                "(`topics remove-replication-clusters`, or `namespaces set-clusters`)"
            )
        layout = synthetic_layout(classic, partitions)
        if partitions:
            await self._namespaces.register_partitions(classic)
        if not force:
            await self._check_clients(topic, layout)
        properties = await self._namespaces.partitioned_properties(classic) if partitions else {}
        pending = PendingChange(tuple(sorted(layout.segments)), self._clock.now_ms(), migration=True)
        try:
            await self._records.create(topic, TopicRecord(layout, properties, pending=pending))
        except AlreadyExistsError:
            record = await self._records.get(topic)
            if record is None or not record.migrating:
                raise

    async def _check_clients(self, topic: TopicName, layout: SegmentLayout) -> None:
        for segment in layout.segments.values():
            name = segment_name(topic, segment)
            count = (await self._segments.stats(name))["classicClients"]
            if count:
                raise AlreadyExistsError(
                    f"{name} has {count} producers and consumers of classic clients, which could not use it any more; close them, "
                    "or migrate it with force to disconnect them"
                )

    # ---- Clients of what was a partition

    async def segment_of(self, name: TopicName) -> tuple[TopicName, int] | None:
        """The scalable topic and the segment that a classic topic has become; None if it is a classic one still."""
        topic = scalable_name(name)
        record = await self._records.get(topic)
        for segment in record.layout.segments.values() if record is not None else ():
            if segment.legacy_topic == str(name):
                return topic, segment.id
        return None

    async def refuse_producer(self, name: TopicName) -> None:
        """A terminated topic takes no producers. Raises TopicTerminatedError, which says what became of a topic that was migrated."""
        found = await self.segment_of(name) if name.domain == PERSISTENT else None
        if found is not None:
            raise TopicTerminatedError(f"Topic {name} has been already terminated: {_successor(found[0])}")
        raise TopicTerminatedError(f"Topic {name} has been already terminated")

    async def check_consumer(
        self, name: TopicName, subscription: str, consumer: str, metadata: dict[str, str]
    ) -> TopicName | None:
        """The scalable topic that a terminated classic one has become, None if it has not.

        Raises NotAllowedError for a consumer of a classic client: it would wait for messages that go elsewhere. Stream consumers of
        5.0.0-M1 do not mark themselves, but their controller knows them.
        """
        found = await self.segment_of(name)
        if found is None:
            return None
        topic, segment_id = found
        if is_managed(metadata):
            return topic
        registered = await self._records.consumers(topic, subscription)
        if consumer.endswith(f"-seg-{segment_id}") and consumer.removesuffix(f"-seg-{segment_id}") in registered:
            return topic
        raise NotAllowedError(f"{name} takes no consumers of classic clients any more: {_successor(topic)}")


def _successor(topic: TopicName) -> str:
    return f"it has become the scalable topic {topic}, which clients of Pulsar 5 open by that name"
