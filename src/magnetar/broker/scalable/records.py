"""Scalable topics in the metadata store: Pulsar's paths, Pulsar's JSON, every change by compare-and-set.

/topics/{tenant}/{namespace}/{topic}                                the record: layout, properties, policy
/topics/{tenant}/{namespace}/{topic}/controller                     who decides, ephemeral
/topics/{tenant}/{namespace}/{topic}/subscriptions/{S}              {"type": "STREAM" | "QUEUE"}; empty: a checkpoint group.
                                                                    "replicated": true, ours: see `replicated`
/topics/{tenant}/{namespace}/{topic}/subscriptions/{S}/consumers/{C}  {}; one of a checkpoint group {"type": "CHECKPOINT"}, ours
/topics/{tenant}/{namespace}/{topic}/segments/{id}/load
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from magnetar.base.errors import BadVersionError, MetadataError, NodeNotFoundError
from magnetar.broker.errors import NotAllowedError, SubscriptionNotFoundError, TopicNotFoundError
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.naming import SCALABLE, NamespaceName, TopicName
from magnetar.broker.scalable.layout import LayoutError, SegmentLayout
from magnetar.metadata import paths
from magnetar.metadata.errors import NodeHasChildrenError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

STREAM, QUEUE, CHECKPOINT = "STREAM", "QUEUE", "CHECKPOINT"
"""Types of subscriptions."""

REPLICATED = "replicated"
"""In what is stored of a subscription: true if its place follows it to other clusters."""

_KNOWN = ("epoch", "nextSegmentId", "segments", "properties", "autoScalePolicy", "pendingChange", "segmentsToDelete")


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A split (one segment), a merge (two) or the migration of a classic topic (all) that has begun and not ended. Whoever controls the
    topic ends it."""

    segment_ids: tuple[int, ...]
    started_ms: int
    migration: bool = False

    def applied_to(self, layout: SegmentLayout) -> SegmentLayout:
        """The layout at its end: the same ids each time it is asked. Raises LayoutError."""
        if self.migration:
            return layout.migrated(self.started_ms)
        if len(self.segment_ids) == 1:
            return layout.split(self.segment_ids[0], self.started_ms)
        first, second = self.segment_ids
        return layout.merge(first, second, self.started_ms)

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"segmentIds": list(self.segment_ids), "startedAtMs": self.started_ms}
        return {**document, "migration": True} if self.migration else document

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> PendingChange | None:
        if not document:
            return None
        ids = tuple(map(int, document["segmentIds"]))
        return cls(ids, int(document["startedAtMs"]), bool(document.get("migration")))


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """`pending` and `doomed` are ours; Pulsar's brokers ignore the fields. `others`: fields of newer servers, carried over."""

    layout: SegmentLayout
    properties: Mapping[str, str] = field(default_factory=dict)
    policy: Mapping[str, Any] | None = None
    pending: PendingChange | None = None
    doomed: tuple[str, ...] = ()
    """Segments that have left the layout, and whose topics are being deleted: descriptors, or complete names of former partitions."""
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def migrating(self) -> bool:
        """True while a classic topic is being migrated: clients still use its partitions."""
        return self.pending is not None and self.pending.migration

    @property
    def deleted(self) -> bool:
        """True if somebody is deleting the topic: it is not served any more."""
        return bool(self.others.get("deleted"))

    def as_json(self) -> dict[str, Any]:
        document = {**self.others, **self.layout.as_json(), "properties": dict(self.properties)}
        if self.policy is not None:
            document["autoScalePolicy"] = dict(self.policy)
        if self.pending is not None:
            document["pendingChange"] = self.pending.as_json()
        if self.doomed:
            document["segmentsToDelete"] = list(self.doomed)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TopicRecord:
        """Raises LayoutError."""
        return cls(
            SegmentLayout.from_json(document),
            dict(document.get("properties") or {}),
            document.get("autoScalePolicy"),
            PendingChange.from_json(document.get("pendingChange")),
            tuple(map(str, document.get("segmentsToDelete") or ())),
            {key: value for key, value in document.items() if key not in _KNOWN},
        )


class ScalableRecords:
    """Reads and writes what is stored of scalable topics. `topic` is always the name in the domain `topic`."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.metadata = metadata

    async def get(self, topic: TopicName) -> TopicRecord | None:
        """None if there is no such topic, or it is being deleted."""
        found = await self._read(topic)
        return None if found is None or found[0].deleted else found[0]

    async def _read(self, topic: TopicName) -> tuple[TopicRecord, int] | None:
        node = await self.metadata.get(path_of(topic))
        if node is None or not node.value:
            return None
        try:
            return TopicRecord.from_json(json.loads(node.value)), node.version
        except (LayoutError, ValueError) as error:
            raise MetadataError(f"the record of {topic} cannot be used: {error}") from None

    async def create(self, topic: TopicName, record: TopicRecord) -> None:
        """Raises AlreadyExistsError."""
        node = await self.metadata.get(path_of(topic))
        if node is not None and node.value:
            raise AlreadyExistsError(f"{topic} already exists")
        try:
            await self.metadata.put(path_of(topic), _encode(record), node.version if node else MUST_NOT_EXIST)
        except BadVersionError:
            raise AlreadyExistsError(f"{topic} already exists") from None

    async def update(self, topic: TopicName, change: Callable[[TopicRecord], TopicRecord]) -> TopicRecord:
        """Apply `change` to the record as it is now, again if another writer came in between; the record that was stored.

        Raises TopicNotFoundError, PreconditionFailedError for a change that does not fit the layout, and what `change` raises.
        """
        while True:
            found = await self._read(topic)
            if found is None or found[0].deleted:
                raise TopicNotFoundError(f"Scalable topic {topic} does not exist")
            record, version = found
            try:
                changed = change(record)
            except LayoutError as error:
                raise PreconditionFailedError(f"{topic}: {error}") from None
            if changed == record:
                return record
            try:
                await self.metadata.put(path_of(topic), _encode(changed), version)
            except BadVersionError:
                continue
            return changed

    async def mark_deleted(self, topic: TopicName) -> TopicRecord:
        """Nobody serves the topic any more from now on. Raises TopicNotFoundError."""
        while True:
            found = await self._read(topic)
            if found is None:
                raise TopicNotFoundError(f"Scalable topic {topic} does not exist")
            record, version = found
            if record.deleted:
                return record
            marked = replace(record, others={**record.others, "deleted": True})
            try:
                await self.metadata.put(path_of(topic), _encode(marked), version)
            except BadVersionError:
                continue
            return marked

    async def remove(self, topic: TopicName) -> None:
        """The record and everything below it."""
        await self._remove_tree(path_of(topic))

    async def _remove_tree(self, path: str) -> None:
        for name in await self.metadata.children(path):
            await self._remove_tree(f"{path}/{name}")
        await self._delete(path)

    async def _delete(self, path: str) -> None:
        try:
            await self.metadata.delete(path)
        except NodeNotFoundError:
            return

    async def names(self, namespace: NamespaceName, properties: Mapping[str, str] | None = None) -> list[str]:
        """Complete names, sorted; with `properties` only those that have all of them."""
        parent = paths.scalable_topics_path(namespace.tenant, namespace.namespace)
        found = []
        for child in await self.metadata.children(parent):
            topic = TopicName(SCALABLE, namespace.tenant, namespace.namespace, paths.decode(child))
            record = await self.get(topic)
            if record is not None and (properties or {}).items() <= record.properties.items():
                found.append(str(topic))
        return sorted(found)

    # ---- Subscriptions

    async def subscriptions(self, topic: TopicName) -> dict[str, str]:
        """Types by name; a group of checkpoint consumers, which keep their place themselves, is of type CHECKPOINT."""
        parent = f"{path_of(topic)}/subscriptions"
        found = {}
        for child in await self.metadata.children(parent):
            node = await self.metadata.get(f"{parent}/{child}")
            if node is not None:
                kind = json.loads(node.value).get("type", QUEUE) if node.value else CHECKPOINT
                found[paths.decode(child)] = str(kind)
        return found

    async def has_subscription(self, topic: TopicName, subscription: str) -> bool:
        """False also for a name that only a group of checkpoint consumers has."""
        node = await self.metadata.get(subscription_path(topic, subscription))
        return node is not None and bool(node.value)

    async def subscriptions_made(self, topic: TopicName) -> list[str]:
        """In the order in which they were written down, which is the same for all brokers; without groups of checkpoint consumers."""
        found = []
        for name, kind in (await self.subscriptions(topic)).items():
            stat = await self.metadata.stat(subscription_path(topic, name))
            if kind != CHECKPOINT and stat is not None:
                found.append((stat.czxid, name))
        return [name for _, name in sorted(found)]

    async def add_subscription(self, topic: TopicName, subscription: str, kind: str) -> None:
        """Unless it is there already. Called by `ScalableSubscriptions.record` alone, which asks the policies."""
        path = subscription_path(topic, subscription)
        node = await self.metadata.get(path)
        if node is not None and node.value:
            return
        try:
            value = json.dumps({"type": kind}).encode()
            await self.metadata.put(path, value, node.version if node else MUST_NOT_EXIST)
        except BadVersionError:
            return

    async def replicated(self, topic: TopicName) -> dict[str, str]:
        """Types of the subscriptions whose places follow them to other clusters, by name."""
        found = {}
        for name in await self.subscriptions(topic):
            document = await self._subscription(topic, name)
            if document.get(REPLICATED) is True:
                found[name] = str(document.get("type", QUEUE))
        return found

    async def set_replicated(self, topic: TopicName, subscription: str, replicated: bool) -> None:
        """From now on. Raises SubscriptionNotFoundError, NotAllowedError for a group of checkpoint consumers."""
        path = subscription_path(topic, subscription)
        while True:
            node = await self.metadata.get(path)
            if node is None:
                raise SubscriptionNotFoundError(f"Subscription {subscription} not found")
            if not node.value:
                raise NotAllowedError(
                    f"{subscription} is a group of checkpoint consumers, which keep their place themselves"
                )
            document = json.loads(node.value)
            if bool(document.pop(REPLICATED, False)) is replicated:
                return
            if replicated:
                document[REPLICATED] = True
            try:
                await self.metadata.put(path, json.dumps(document).encode(), node.version)
            except BadVersionError:
                continue
            return

    async def _subscription(self, topic: TopicName, subscription: str) -> dict[str, Any]:
        node = await self.metadata.get(subscription_path(topic, subscription))
        document: dict[str, Any] = json.loads(node.value) if node is not None and node.value else {}
        return document

    async def remove_subscription(self, topic: TopicName, subscription: str) -> None:
        await self._remove_tree(subscription_path(topic, subscription))

    async def remove_group(self, topic: TopicName, group: str) -> None:
        """The last consumer of a checkpoint group has left. A subscription of the same name stays."""
        path = subscription_path(topic, group)
        node = await self.metadata.get(path)
        if node is None or node.value:
            return
        try:
            await self._delete(_consumers_path(topic, group))
            await self.metadata.delete(path, node.version)
        except (BadVersionError, NodeNotFoundError, NodeHasChildrenError):
            return  # somebody has come meanwhile

    async def consumers(self, topic: TopicName, subscription: str) -> list[str]:
        """Names of the consumers whose sessions have not ended."""
        return [paths.decode(child) for child in await self.metadata.children(_consumers_path(topic, subscription))]

    async def consumer_kinds(self, topic: TopicName, subscription: str) -> dict[str, str]:
        """The same with STREAM or CHECKPOINT: what the consumers are, which need not be the type of the subscription. Queue consumers may
        have made that; they are not known to the controller."""
        parent, record = _consumers_path(topic, subscription), await self.has_subscription(topic, subscription)
        found = {}
        for child in await self.metadata.children(parent):
            node = await self.metadata.get(f"{parent}/{child}")
            if node is not None:
                document = json.loads(node.value) if node.value else {}
                found[paths.decode(child)] = str(document.get("type", STREAM if record else CHECKPOINT))
        return found

    async def add_consumer(self, topic: TopicName, subscription: str, consumer: str, kind: str) -> None:
        value = {"type": kind} if kind == CHECKPOINT else {}
        await self.metadata.put(_consumer_path(topic, subscription, consumer), json.dumps(value).encode())

    async def remove_consumer(self, topic: TopicName, subscription: str, consumer: str) -> None:
        await self._delete(_consumer_path(topic, subscription, consumer))


def path_of(topic: TopicName) -> str:
    """The path of a topic's record."""
    return paths.scalable_topic_path(topic.tenant, topic.namespace, topic.local_name)


def controller_path(topic: TopicName) -> str:
    return f"{path_of(topic)}/controller"


def subscription_path(topic: TopicName, subscription: str) -> str:
    return f"{path_of(topic)}/subscriptions/{paths.encode(subscription)}"


def topic_of_path(path: str) -> tuple[TopicName, str] | None:
    """The topic whose record, or what is below it, lies at `path`; and the part below, `` for the record itself."""
    parts = path.split("/", 5)
    if len(parts) < 5 or path.partition("/topics/")[0]:
        return None
    return TopicName(SCALABLE, parts[2], parts[3], paths.decode(parts[4])), parts[5] if len(parts) > 5 else ""


def _consumers_path(topic: TopicName, subscription: str) -> str:
    return f"{subscription_path(topic, subscription)}/consumers"


def _consumer_path(topic: TopicName, subscription: str, consumer: str) -> str:
    return f"{_consumers_path(topic, subscription)}/{paths.encode(consumer)}"


def _encode(record: TopicRecord) -> bytes:
    return json.dumps(record.as_json(), separators=(",", ":")).encode()
