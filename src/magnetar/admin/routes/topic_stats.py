"""What topics say about themselves: stats, the sum over partitions, and the ledgers and cursors below."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.internal_stats import internal_stats
from magnetar.admin.operation import documented
from magnetar.admin.partitioned_stats import merged, without
from magnetar.admin.routes.paths import both_domains
from magnetar.admin.topic_access import every_persistent, single, single_persistent
from magnetar.admin.topic_documents import (
    InternalStats,
    PartitionedInternalStats,
    PartitionedTopicStats,
    ResetPosition,
    TopicStats,
)
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.naming import TopicName
from magnetar.broker.topics.nonpersistent import NonPersistentTopic
from magnetar.managed_ledger.position import EARLIEST
from magnetar.managed_ledger.sizes import size_after

EXCLUDED = {
    "getPreciseBacklog": bool,
    "subscriptionBacklogSize": bool,
    "getEarliestTimeInBacklog": bool,
    "excludePublishers": bool,
    "excludeConsumers": bool,
}
"""Pulsar's switches; backlogs are precise here whatever the first three say."""


@documented("Rates, sizes, producers and subscriptions.", answer=TopicStats, query=EXCLUDED)
async def stats(call: Call) -> Response:
    topic = await single(call)
    return as_json(_shown(call, dict(topic.stats())))


def _shown(call: Call, document: dict[str, Any]) -> dict[str, Any]:
    document["ownerBroker"] = call.broker.ownership.broker_id
    return without(document, publishers=call.flag("excludePublishers"), consumers=call.flag("excludeConsumers"))


@documented(answer=PartitionedTopicStats, query={**EXCLUDED, "perPartition": bool})
async def partitioned_stats(call: Call) -> Response:
    """`perPartition` (default true) adds each partition's own document."""
    name, broker = call.topic, call.broker
    count = await broker.namespaces.partitions(name)
    if not count:
        raise TopicNotFoundError(f"Partitioned Topic not found: {name} has zero partitions")
    parts = [name.partition_name(index) for index in range(count)]
    documents = {str(part): _shown(call, await _stats_of(call, part)) for part in parts}
    document = merged(list(documents.values()))
    document["metadata"] = {
        "partitions": count,
        "deleted": False,
        "properties": await broker.namespaces.partitioned_properties(name),
    }
    document["partitions"] = documents if call.flag("perPartition", default=True) else {}
    return as_json(document)


async def _stats_of(call: Call, part: TopicName) -> dict[str, Any]:
    """A non-persistent partition that nobody uses has nothing to say."""
    broker = call.broker
    if not part.persistent and broker.topics.get_loaded(part) is None:
        return {"publishers": [], "subscriptions": {}, "replication": {}}
    topic = await broker.topics.get(part, create=True)
    return dict(topic.stats())


@documented("Ledgers and cursors.", answer=InternalStats)
async def internal(call: Call) -> Response:
    topic = await single(call)
    if isinstance(topic, NonPersistentTopic):
        return as_json({"entriesAddedCounter": topic.publishers.counters.entries_in, "ledgers": [], "cursors": {}})
    return as_json(internal_stats(await single_persistent(call)))


@documented(answer=PartitionedInternalStats)
async def partitioned_internal(call: Call) -> Response:
    """`internalStats` of every partition."""
    name, broker = call.topic, call.broker
    count = await broker.namespaces.partitions(name)
    if not count:
        raise TopicNotFoundError(f"Partitioned Topic not found: {name} has zero partitions")
    topics = await every_persistent(call)
    return as_json(
        {
            "metadata": {"partitions": count, "deleted": False},
            "partitions": {str(topic.name): internal_stats(topic) for topic in topics},
        }
    )


@documented(body=ResetPosition | None, answer=int)
async def backlog_size(call: Call) -> Response:
    """Bytes behind the body's message."""
    position, _ = await call.position()
    topic = await single_persistent(call)
    return as_json(size_after(topic.ledger.index, EARLIEST if position is None else position))


ROUTES = (
    *both_domains("GET", "/{topic}/partitioned-internalStats", partitioned_internal),
    *both_domains("PUT", "/{topic}/backlogSize", backlog_size),
    *both_domains("GET", "/{topic}/stats", stats),
    *both_domains("GET", "/{topic}/partitioned-stats", partitioned_stats),
    *both_domains("GET", "/{topic}/internalStats", internal),
)
