"""What the controller of a scalable topic does to its segments, wherever they are served: here directly, elsewhere over the admin API.

A segment is an ordinary persistent topic, except that nobody brings it into being by connecting to it. All of this may be repeated.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from magnetar.broker.errors import (
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from magnetar.broker.namespaces.errors import AlreadyExistsError, NotOwnedError
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.naming import SEGMENT, TopicName, is_internal_cursor
from magnetar.broker.peers import PeerAnswer, Peers, raise_for
from magnetar.broker.scalable.layout import Segment
from magnetar.broker.scalable.records import ScalableRecords
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import TopicRegistry
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.wire.pulsar.client_commands import MANAGED_METADATA

logger = logging.getLogger(__name__)

T = TypeVar("T")

SEGMENTS_TARGET = "/admin/v2/segments"
LEGACY = "legacy"
"""In place of a descriptor: the topic is a former partition."""

SCALABLE_TARGET = "/admin/v2/scalable"


def segment_name(topic: TopicName, segment: Segment) -> TopicName:
    """The topic that holds the segment's messages; of a segment that was a partition the partition."""
    return segment_named(topic, segment.legacy_topic or segment.descriptor)


def segment_named(topic: TopicName, descriptor: str) -> TopicName:
    """The same by the last part of its name, `0000-7fff-1`, or by the complete name of a former partition."""
    if "://" in descriptor:
        return TopicName.parse(descriptor)
    return TopicName(SEGMENT, topic.tenant, topic.namespace, f"{topic.local_name}/{descriptor}")


class SegmentPlaces(NamedTuple):
    """Places in one segment: everything before them counts. `readable`: the end, or before what waits for a transaction; `sent`: how far
    each other cluster has it; `subscriptions`: how far each durable one has acknowledged everything, `end` where nothing is left."""

    end: Position
    readable: Position
    sent: Mapping[str, Position]
    subscriptions: Mapping[str, Position]

    def as_json(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SegmentPlaces:
        return cls(
            Position(*document["end"]),
            Position(*document["readable"]),
            {name: Position(*each) for name, each in document["sent"].items()},
            {name: Position(*each) for name, each in document["subscriptions"].items()},
        )


class OwnSegments:
    """Segments that this broker serves. Raises NotOwnedError for others."""

    def __init__(self, topics: TopicRegistry, lookup: Lookup) -> None:
        self._topics = topics
        self._lookup = lookup

    async def _get(self, name: TopicName) -> PersistentTopic:
        topic = await self._topics.get(name, create=False)
        if not isinstance(topic, PersistentTopic):
            raise NotAllowedError(f"{name} is not persistent")
        return topic

    async def create(self, name: TopicName, subscriptions: Collection[str]) -> None:
        """With cursors at its beginning; what is there already stays."""
        await self._lookup.require(name)
        try:
            await self._topics.create(name)
        except AlreadyExistsError:
            pass
        topic = await self._get(name)
        for subscription in subscriptions:
            await topic.ensure_subscription(subscription, EARLIEST)

    async def terminate(self, name: TopicName) -> None:
        """Classic clients of a former partition are disconnected as well: they are told why when they come back."""
        topic = await self._get(name)
        await topic.terminate()
        if not name.is_segment:
            for subscription in topic.subscriptions.all:
                for consumer in list(subscription.consumers):
                    if not is_managed(consumer.metadata):
                        consumer.channel.close()
                        await topic.consumer_left(consumer)

    async def delete(self, name: TopicName, force: bool) -> None:
        try:
            await self._topics.delete(name, force=force)
        except TopicNotFoundError:
            return

    async def subscriptions(self, name: TopicName) -> list[str]:
        """Durable ones."""
        found = (await self._get(name)).subscriptions.all
        return [each.name for each in found if each.durable and not is_internal_cursor(each.name)]

    async def subscribe(self, name: TopicName, subscription: str, earliest: bool) -> None:
        """Unless it is there already."""
        await (await self._get(name)).ensure_subscription(subscription, EARLIEST if earliest else LATEST)

    async def unsubscribe(self, name: TopicName, subscription: str) -> None:
        try:
            await (await self._get(name)).unsubscribe(subscription, force=True)
        except (TopicNotFoundError, SubscriptionNotFoundError):
            return

    async def backlog(self, name: TopicName, subscription: str) -> int:
        """Entries that it has not acknowledged. Raises TopicNotFoundError, SubscriptionNotFoundError."""
        return (await self._get(name)).subscriptions.get(subscription).backlog_entries

    async def unsent(self, name: TopicName) -> dict[str, int]:
        """Entries that other clusters have not got yet, by cluster."""
        return {each.remote: each.backlog_entries for each in (await self._get(name)).replicators.all}

    async def places(self, name: TopicName) -> SegmentPlaces:
        """Raises TopicNotFoundError."""
        topic = await self._get(name)
        ledger = topic.ledger
        end = ledger.next_position(ledger.last_confirmed)

        def behind(cursor: ManagedCursor) -> Position:
            return end if cursor.backlog_entries <= 0 else ledger.next_position(cursor.mark_delete_position)

        return SegmentPlaces(
            end,
            ledger.next_position(topic.transactions.readable_end()),
            {each.remote: behind(each.cursor) for each in topic.replicators.all},
            {each.name: behind(each.cursor) for each in topic.subscriptions.all if each.durable},
        )

    async def follow(self, name: TopicName, subscription: str, sender: str, upto: Position | None) -> None:
        """Another cluster has consumed everything before `upto`; None: everything, of a terminated topic. A subscription that is not there
        is made. Raises TopicNotFoundError."""
        topic = await self._get(name)
        ledger = topic.ledger
        position = ledger.last_confirmed if upto is None else ledger.index.previous(upto)
        await topic.replicated_subscriptions.follow(subscription, min(position, ledger.last_confirmed), sender)

    async def seek(self, name: TopicName, subscription: str, publish_time_ms: int) -> None:
        await (await self._get(name)).seek_to_time(subscription, publish_time_ms)

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        await (await self._get(name)).subscriptions.get(subscription).clear_backlog()

    async def stats(self, name: TopicName) -> dict[str, Any]:
        """Rates, clients, size, and the backlog by subscription."""
        topic = await self._get(name)
        return {
            **load_of(topic),
            "producers": len(topic.publishers.producers),
            "consumers": topic.subscriptions.consumers_count,
            "classicClients": classic_clients(topic),
            "storageSize": topic.ledger.size_bytes,
            "backlog": {each.name: each.backlog_entries for each in topic.subscriptions.all if each.durable},
        }


def is_managed(metadata: Mapping[str, str]) -> bool:
    """True for a producer or consumer that belongs to a client of scalable topics, which follows the topic's layout."""
    return metadata.get(MANAGED_METADATA) == "true"


def classic_clients(topic: PersistentTopic) -> int:
    """Producers and consumers of clients that do not know scalable topics."""
    producers = sum(not is_managed(each.metadata) for each in topic.publishers.producers.all)
    consumers = (each for found in topic.subscriptions.all for each in found.consumers)
    return producers + sum(not is_managed(each.metadata) for each in consumers)


def load_of(topic: PersistentTopic) -> dict[str, float]:
    """Pulsar's `SegmentLoadStats`."""
    consumed = [each.rates for each in topic.subscriptions.all]
    return {
        "msgRateIn": topic.rates.messages_per_s,
        "bytesRateIn": topic.rates.bytes_per_s,
        "msgRateOut": sum(each.messages_per_s for each in consumed),
        "bytesRateOut": sum(each.bytes_per_s for each in consumed),
    }


class Segments:
    """The same for segments of every broker of the cluster."""

    def __init__(self, own: OwnSegments, lookup: Lookup, peers: Peers) -> None:
        self.own = own
        self._lookup = lookup
        self._peers = peers

    async def create(self, name: TopicName, subscriptions: Collection[str]) -> None:
        body = json.dumps(sorted(subscriptions)).encode()
        await self._at_owner(name, lambda: self.own.create(name, subscriptions), "PUT", "", body)

    async def terminate(self, name: TopicName) -> None:
        await self._at_owner(name, lambda: self.own.terminate(name), "POST", "/terminate")

    async def delete(self, name: TopicName, force: bool) -> None:
        leaf = f"?force={str(force).lower()}"
        await self._at_owner(name, lambda: self.own.delete(name, force), "DELETE", leaf)

    async def subscriptions(self, name: TopicName) -> list[str]:
        return list(await self._asked(name, lambda: self.own.subscriptions(name), "GET", "/subscriptions"))

    async def subscribe(self, name: TopicName, subscription: str, earliest: bool) -> None:
        leaf = f"{_subscription(subscription)}?earliest={str(earliest).lower()}"
        await self._at_owner(name, lambda: self.own.subscribe(name, subscription, earliest), "PUT", leaf)

    async def unsubscribe(self, name: TopicName, subscription: str) -> None:
        here = lambda: self.own.unsubscribe(name, subscription)  # noqa: E731
        await self._at_owner(name, here, "DELETE", _subscription(subscription))

    async def backlog(self, name: TopicName, subscription: str) -> int:
        """Raises TopicNotFoundError, SubscriptionNotFoundError."""
        leaf = f"{_subscription(subscription)}/backlog"
        return int(await self._asked(name, lambda: self.own.backlog(name, subscription), "GET", leaf))

    async def unsent(self, name: TopicName) -> dict[str, int]:
        return dict(await self._asked(name, lambda: self.own.unsent(name), "GET", "/unsent"))

    async def places(self, name: TopicName) -> SegmentPlaces:
        """Raises TopicNotFoundError."""

        async def here() -> dict[str, Any]:
            return (await self.own.places(name)).as_json()

        return SegmentPlaces.from_json(await self._asked(name, here, "GET", "/places"))

    async def follow(self, name: TopicName, subscription: str, sender: str, upto: Position | None) -> None:
        leaf = f"{_subscription(subscription)}/follow?cluster={quote(sender, safe='')}"
        here = lambda: self.own.follow(name, subscription, sender, upto)  # noqa: E731
        await self._at_owner(name, here, "POST", leaf, json.dumps(upto).encode())

    async def seek(self, name: TopicName, subscription: str, publish_time_ms: int) -> None:
        leaf = f"{_subscription(subscription)}/seek?timestamp={publish_time_ms}"
        await self._at_owner(name, lambda: self.own.seek(name, subscription, publish_time_ms), "POST", leaf)

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        leaf = f"{_subscription(subscription)}/skip-all"
        await self._at_owner(name, lambda: self.own.skip_all(name, subscription), "POST", leaf)

    async def stats(self, name: TopicName) -> dict[str, Any]:
        return dict(await self._asked(name, lambda: self.own.stats(name), "GET", "/stats"))

    async def tell_drained(
        self, controller: BrokerAddress, topic: TopicName, segment_id: int, subscription: str
    ) -> None:
        """Another broker controls the topic: it shall know that the subscription has acknowledged everything in a sealed segment."""
        name = quote(topic.local_name, safe="")
        leaf = f"/segments/{segment_id}{_subscription(subscription)}/drained"
        target = f"{SCALABLE_TARGET}/{topic.namespace_name}/{name}{leaf}"
        raise_for(await self._peers.call(controller, "POST", target))

    async def _at_owner(
        self, name: TopicName, here: Callable[[], Awaitable[None]], method: str, leaf: str, body: bytes = b""
    ) -> None:
        await self._place(name)
        try:
            await here()
        except NotOwnedError as error:
            raise_for(await self._elsewhere(name, error, method, leaf, body))

    async def _asked(self, name: TopicName, here: Callable[[], Awaitable[Any]], method: str, leaf: str) -> Any:
        await self._place(name)
        try:
            return await here()
        except NotOwnedError as error:
            answer = await self._elsewhere(name, error, method, leaf)
            raise_for(answer)
            return answer.document

    async def _place(self, name: TopicName) -> None:
        """A bundle that nobody has goes where the load manager wants it, as when a client looks it up. Else the controller's broker would
        take what it is the first to ask for: all segments of a hot topic. Where no broker answers, it takes the bundle."""
        try:
            found = await self._lookup.place(name)
            if found is not None and found.redirect:
                target = segment_target(name, broker_leaf(found.authoritative))
                raise_for(await self._peers.call(found.address, "GET", target))
        except ServiceNotReadyError as error:
            logger.info("bundle of a segment not placed segment=%s error=%s", name, error)

    async def _elsewhere(
        self, name: TopicName, error: NotOwnedError, method: str, leaf: str, body: bytes = b""
    ) -> PeerAnswer:
        owner = error.owner or (await self._lookup.find(name)).address
        return await self._peers.call(owner, method, segment_target(name, leaf), body)


async def ancestors_sent(records: ScalableRecords, segments: Segments, name: TopicName, cluster: str) -> bool:
    """True if another cluster has everything that is in the ancestors of a segment: then the segment may be sent there. False for one that
    is not in the layout yet."""
    topic, segment_id = name.partitioned_name, int(name.local_name.rpartition("-")[2])
    record = await records.get(topic)
    if record is None or segment_id not in record.layout.segments:
        return False
    for ancestor in record.layout.ancestors(segment_id):
        try:
            unsent = await segments.unsent(segment_name(topic, record.layout.segments[ancestor]))
        except TopicNotFoundError:
            continue  # deleted since, when everything was sent
        if unsent.get(cluster):
            return False
    return True


def segment_target(name: TopicName, leaf: str) -> str:
    """The path of a segment's admin routes; a former partition takes the place of topic and descriptor."""
    if not name.is_segment:
        return f"{SEGMENTS_TARGET}/{name.namespace_name}/{quote(name.local_name, safe='')}/{LEGACY}{leaf}"
    topic, _, descriptor = name.local_name.rpartition("/")
    return f"{SEGMENTS_TARGET}/{name.namespace_name}/{quote(topic, safe='')}/{descriptor}{leaf}"


def broker_leaf(authoritative: bool) -> str:
    """The end of the path that asks which broker serves a segment. `authoritative`: whoever is asked takes it if nobody has it."""
    return f"/broker?authoritative={str(authoritative).lower()}"


def _subscription(name: str) -> str:
    return f"/subscription/{quote(name, safe='')}"
