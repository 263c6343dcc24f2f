"""What clusters ask each other about a scalable topic: how far a cluster's segments are, and how far a subscription may go there.

Any broker answers: it reads the layout, and asks the brokers of the segments. Nothing is kept between two requests, so that each of them
may be lost or repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from magnetar.broker.config import ReplicatedSubscriptionsConfig
from magnetar.broker.errors import NotAllowedError, TopicNotFoundError
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import TopicName
from magnetar.broker.scalable.layout import SegmentLayout
from magnetar.broker.scalable.records import ScalableRecords
from magnetar.broker.scalable.segments import Segments, segment_name
from magnetar.broker.scalable.snapshots import Vector, projected, vector_as_json, vector_from_json, vector_of
from magnetar.broker.scalable.subscriptions import ScalableSubscriptions
from magnetar.client.errors import RequestRefusedError
from magnetar.managed_ledger.position import EARLIEST, Position

OK: Final = 200


@dataclass(frozen=True, slots=True)
class ReplicationRules:
    """What the policies say of a topic. `clusters`: the others that it is replicated to."""

    clusters: tuple[str, ...]
    config: ReplicatedSubscriptionsConfig


@dataclass(frozen=True, slots=True)
class OtherClusters:
    """The others as this cluster asks them. `call(cluster, method, path, body)`: their admin API, see `AdminCaller.call`."""

    local: str
    rules: Callable[[TopicName], Awaitable[ReplicationRules]]
    call: Callable[[str, str, str, object], Awaitable[object]]

    async def places(self, cluster: str, topic: TopicName, asked: Vector | None) -> tuple[Vector, bool]:
        """Where the active segments end there; or, of places that it told before (`asked`), the same again. And whether everything before
        them, and in all ancestors, is stored here. Raises ClientError, also for an answer that is not one."""
        body = None if asked is None else vector_as_json(asked)
        document = await self.call(cluster, "POST", f"{self._path(topic)}/places", body)
        try:
            if not isinstance(document, Mapping):
                raise ValueError("expected places, and whether they have arrived")
            return vector_from_json(document.get("places")), document.get("arrived") is True
        except ValueError as error:
            raise RequestRefusedError(OK, f"cluster {cluster} told no valid places of {topic}: {error}") from None

    async def tell(self, cluster: str, topic: TopicName, subscription: str, kind: str, safe: Vector) -> None:
        """The subscription has acknowledged everything before these places of that cluster. Raises ClientError."""
        path = f"{self._path(topic)}/subscriptions/{quote(subscription, safe='')}?type={kind}"
        await self.call(cluster, "POST", path, vector_as_json(safe))

    def _path(self, topic: TopicName) -> str:
        name = quote(topic.local_name, safe="")
        return f"scalable/{topic.namespace_name}/{name}/clusters/{quote(self.local, safe='')}"


class ClusterRequests:
    """The answers."""

    def __init__(
        self,
        records: ScalableRecords,
        segments: Segments,
        subscriptions: ScalableSubscriptions,
        namespaces: NamespaceRegistry,
    ) -> None:
        self._records = records
        self._subscriptions = subscriptions
        self._segments = segments
        self._namespaces = namespaces

    async def replicate(self, topic: TopicName, subscription: str, kind: str) -> None:
        """A client asks that its place follows a subscription to other clusters. Where that is switched off, nothing happens."""
        if (await self._namespaces.effective_of(topic)).replicated_subscriptions.enabled:
            await self._subscriptions.record(topic, subscription, kind)
            await self._records.set_replicated(topic, subscription, True)

    async def places(self, topic: TopicName, cluster: str, asked: Vector | None) -> tuple[Vector, bool]:
        """See `OtherClusters.places`; `cluster` asks. Raises TopicNotFoundError, NotAllowedError."""
        layout = await self._layout(topic, cluster)
        if asked is None:
            ends = {
                each.id: (await self._segments.places(segment_name(topic, each))).readable for each in layout.active
            }
            asked = vector_of(layout, ends)
        return asked, await self._arrived(topic, cluster, layout, asked)

    async def _arrived(self, topic: TopicName, cluster: str, layout: SegmentLayout, vector: Vector) -> bool:
        wanted: dict[int, Position] = {}
        """By segment; a sealed one has arrived when all of it has."""
        for place in vector:
            if place.segment_id in layout.segments:
                own = Position(*place.position)
                wanted[place.segment_id] = max(own, wanted.get(place.segment_id, own))
        ancestors = {each for segment_id in wanted for each in layout.ancestors(segment_id)}
        for segment_id in sorted({*wanted, *ancestors}):
            segment = layout.segments[segment_id]
            try:
                found = await self._segments.places(segment_name(topic, segment))
            except TopicNotFoundError:
                if segment.active:
                    raise
                continue  # deleted since, when everything was sent
            sent = found.sent.get(cluster)
            if sent is None and segment.active:
                return False  # its replicator has not begun
            upto = found.end if segment_id in ancestors else wanted[segment_id]
            if sent is not None and sent < upto:
                return False
        return True

    async def follow(self, topic: TopicName, cluster: str, subscription: str, kind: str, safe: Vector) -> None:
        """`cluster` has told how far a subscription may go here; one that is missing is made with these places, and is replicated as well.

        Raises TopicNotFoundError, NotAllowedError.
        """
        layout = await self._layout(topic, cluster)
        if await self._subscriptions.record(topic, subscription, kind):
            await self._records.set_replicated(topic, subscription, True)
            layout = await self._layout(topic, cluster)
        moves = projected(safe, layout)
        for segment in sorted(layout.segments.values(), key=lambda each: each.id):
            upto: Position | None = EARLIEST
            if segment.id in moves:
                position = moves[segment.id]
                upto = None if position is None else Position(*position)
            try:
                await self._segments.follow(segment_name(topic, segment), subscription, cluster, upto)
            except TopicNotFoundError:
                if segment.active:
                    raise

    async def _layout(self, topic: TopicName, cluster: str) -> SegmentLayout:
        if not await self._namespaces.replicates_from(topic, cluster):
            raise NotAllowedError(
                f"cluster {cluster[:80]!r} does not replicate to {topic}: allow it to the tenant (`tenants update --allowed-clusters`)"
            )
        record = await self._records.get(topic)
        if record is None:
            raise TopicNotFoundError(f"Scalable topic {topic} does not exist")
        return record.layout
