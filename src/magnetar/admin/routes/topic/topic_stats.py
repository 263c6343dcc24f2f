"""What topics say about themselves: stats, the sum over partitions, and the ledgers and cursors below."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, as_json_in_pieces, compact_json, in_slices, members
from magnetar.admin.call import Call
from magnetar.admin.documents.internal_stats import internal_stats
from magnetar.admin.documents.partitioned_stats import Sum, without
from magnetar.admin.documents.topics import (
    InternalStats,
    PartitionedInternalStats,
    PartitionedTopicStats,
    ResetPosition,
    TopicStats,
)
from magnetar.admin.operation import documented
from magnetar.admin.routing import both_domains
from magnetar.admin.topic_access import as_persistent, single, single_persistent, unused, with_use
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import NotAllowedError, TopicNotFoundError
from magnetar.broker.naming import TopicName
from magnetar.broker.topics.expiry import publish_time_after_ms
from magnetar.broker.topics.nonpersistent import NonPersistentTopic
from magnetar.broker.topics.registry import AnyTopic
from magnetar.managed_ledger.ledger_index import size_after
from magnetar.managed_ledger.position import EARLIEST

SWITCHES = {
    "getPreciseBacklog": bool,
    "subscriptionBacklogSize": bool,
    "getEarliestTimeInBacklog": bool,
    "excludePublishers": bool,
    "excludeConsumers": bool,
}
"""Pulsar's; backlogs are precise here, whatever the first one says, and have their size unless the second one is false."""


UNUSED: Mapping[str, Any] = {
    **dict.fromkeys(("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "averageMsgSize"), 0.0),
    **dict.fromkeys(("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter"), 0),
    **dict.fromkeys(("storageSize", "backlogSize", "waitingPublishers", "lastPublishTimestamp"), 0),
    "publishers": [],
    "subscriptions": {},
    "replication": {},
}
"""Statistics of a partition that was never used: it need not be loaded."""

NO_LEDGERS: Mapping[str, Any] = {
    **dict.fromkeys(
        ("entriesAddedCounter", "numberOfEntries", "totalSize", "currentLedgerEntries", "currentLedgerSize"), 0
    ),
    "lastConfirmedEntry": "-1:-1",
    "state": "LedgerOpened",
    "ledgers": [],
    "cursors": {},
}
"""The same of its `internalStats`."""


@documented("Rates, sizes, producers and subscriptions.", answer=TopicStats, query=SWITCHES)
async def stats(call: Call) -> Response:
    if await unused(call, call.topic):
        return as_json(_shown(call, dict(UNUSED)))
    return as_json(_shown(call, await _read_stats(call, await single(call))))


async def _read_stats(call: Call, topic: AnyTopic) -> dict[str, Any]:
    """With what has to be read: when the oldest message without an acknowledgement was published, of each subscription if asked for."""
    if isinstance(topic, NonPersistentTopic):
        return dict(topic.stats())
    await topic.upkeep.read_oldest_backlog()
    document: dict[str, Any] = dict(topic.stats())
    if not call.flag("subscriptionBacklogSize", default=True):
        for row in document["subscriptions"].values():
            row["backlogSize"] = -1
    if call.flag("getEarliestTimeInBacklog"):
        times: list[int] = []
        for subscription in topic.subscriptions.all:
            published_ms = await publish_time_after_ms(topic.ledger, subscription.cursor.mark_delete_position)
            if subscription.name in document["subscriptions"]:
                row = document["subscriptions"][subscription.name]
                row["earliestMsgPublishTimeInBacklog"] = -1 if published_ms is None else published_ms
                times += [] if published_ms is None else [published_ms]
        document["earliestMsgPublishTimeInBacklogs"] = min(times, default=0)
    return document


def _shown(call: Call, document: dict[str, Any]) -> dict[str, Any]:
    document["ownerBroker"] = call.broker.ownership.broker_id
    return without(document, publishers=call.flag("excludePublishers"), consumers=call.flag("excludeConsumers"))


async def _metadata(call: Call) -> dict[str, Any]:
    """Raises TopicNotFoundError for a topic that is not partitioned."""
    name, namespaces = call.topic, call.broker.namespaces
    count = await namespaces.partitions(name)
    if not count:
        raise TopicNotFoundError(f"Partitioned Topic not found: {name} has zero partitions")
    properties = await namespaces.partitioned_properties(name)
    return {"partitions": count, "deleted": False} | ({"properties": properties} if properties else {})


@documented(answer=PartitionedTopicStats, query={**SWITCHES, "perPartition": bool}, heavy=True)
async def partitioned_stats(call: Call) -> Response:
    """`perPartition` (default true) adds each partition's own document."""
    metadata = await _metadata(call)
    parts = [call.topic.partition_name(index) for index in range(metadata["partitions"])]
    shown = call.flag("perPartition", default=True)
    total = Sum()

    async def partitions() -> AsyncIterator[tuple[str, object]]:
        async for part, is_unused in with_use(call, parts):
            document = _shown(call, await _stats_of(call, part, is_unused))
            if shown:
                yield str(part), document
            total.add(document)
            await call.pace.breathe()

    async def pieces() -> AsyncIterator[str]:
        yield '{"partitions":'
        async for piece in members(partitions()):
            yield piece
        yield f',"metadata":{compact_json(metadata)}'
        for key, value in total.document.items():
            yield f",{compact_json(key)}:"
            async for piece in in_slices(value, call.pace):
                yield piece
        yield "}"

    return as_json_in_pieces(pieces())


async def _stats_of(call: Call, part: TopicName, is_unused: bool) -> dict[str, Any]:
    """A partition that nobody uses has nothing to say."""
    topics = call.broker.topics
    if topics.get_loaded(part) is None and (is_unused or not part.persistent):
        return dict(UNUSED)
    return await _read_stats(call, await topics.get(part, create=True))


@documented("Ledgers and cursors.", answer=InternalStats)
async def internal(call: Call) -> Response:
    if await unused(call, call.topic):
        return as_json(NO_LEDGERS)
    topic = await single(call)
    if isinstance(topic, NonPersistentTopic):
        return as_json({"entriesAddedCounter": topic.publishers.counters.entries_in, "ledgers": [], "cursors": {}})
    return as_json(internal_stats(await single_persistent(call)))


@documented(answer=PartitionedInternalStats, heavy=True)
async def partitioned_internal(call: Call) -> Response:
    """`internalStats` of every partition."""
    metadata = await _metadata(call)
    parts = [call.topic.partition_name(index) for index in range(metadata["partitions"])]

    async def partitions() -> AsyncIterator[tuple[str, object]]:
        async for part, is_unused in with_use(call, parts):
            if is_unused:
                yield str(part), NO_LEDGERS
            else:
                yield str(part), internal_stats(as_persistent(await call.broker.topics.get(part, create=False)))
            await call.pace.breathe()

    async def pieces() -> AsyncIterator[str]:
        yield f'{{"metadata":{compact_json(metadata)},"partitions":'
        async for piece in members(partitions()):
            yield piece
        yield "}"

    if not call.topic.persistent:
        raise NotAllowedError(f"{call.topic} is not persistent: nothing of it is stored")
    return as_json_in_pieces(pieces())


@documented(body=ResetPosition | None, answer=int)
async def backlog_size(call: Call) -> Response:
    """Bytes behind the body's message."""
    position, _ = await call.position()
    topic = await single_persistent(call)
    return as_json(size_after(topic.ledger.index, EARLIEST if position is None else position))


ROUTES = (
    *both_domains("GET", "/{topic}/partitioned-internalStats", Access.LOOKUP, partitioned_internal),
    *both_domains("PUT", "/{topic}/backlogSize", Access.CONSUME, backlog_size),
    *both_domains("GET", "/{topic}/stats", Access.LOOKUP, stats),
    *both_domains("GET", "/{topic}/partitioned-stats", Access.LOOKUP, partitioned_stats),
    *both_domains("GET", "/{topic}/internalStats", Access.LOOKUP, internal),
)
