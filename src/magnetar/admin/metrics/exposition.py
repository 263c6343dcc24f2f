"""Everything `/metrics` says, as a stream: memory and pauses stay small with many topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING

from magnetar.admin.context import AdminContext
from magnetar.admin.metrics.families import Row, labels, table
from magnetar.admin.metrics.load_balance import load_balance_families
from magnetar.admin.metrics.server import (
    bookie_families,
    broker_families,
    ledger_client_families,
    namespace_families,
)
from magnetar.admin.metrics.topics import (
    REPLICATOR_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    TOPIC_COLUMNS,
    replicator_values,
    subscription_values,
    topic_values,
)
from magnetar.admin.metrics.transactions import COORDINATOR_COLUMNS, coordinator_row
from magnetar.broker.topics.persistent import PersistentTopic

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TOPICS_PER_TURN = 100
"""Topics read before other connections get their turn."""


async def exposition(admin: AdminContext) -> AsyncIterator[str]:
    """Pieces of the text format."""
    broker = admin.broker
    cluster = broker.config.cluster
    yield "".join(broker_families(broker, cluster))
    yield "".join(ledger_client_families(broker.ledger_client, cluster))
    yield "".join(load_balance_families(broker, cluster))
    bookie = admin.storage.bookie_statistics()
    if bookie is not None:
        yield "".join(bookie_families(bookie, cluster=cluster))
    topic_rows: list[Row] = []
    subscription_rows: list[Row] = []
    replicator_rows: list[Row] = []
    topics_count: dict[str, int] = {}
    for number, topic in enumerate(broker.topics.loaded):
        if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
            await asyncio.sleep(0)
        namespace, name = str(topic.name.namespace_name), str(topic.name)
        topics_count[namespace] = topics_count.get(namespace, 0) + 1
        topic_rows.append((labels(cluster=cluster, namespace=namespace, topic=name), topic_values(topic)))
        if isinstance(topic, PersistentTopic):
            for subscription in topic.subscriptions.all:
                about = labels(cluster=cluster, namespace=namespace, topic=name, subscription=subscription.name)
                subscription_rows.append((about, subscription_values(subscription)))
            for remote, row in topic.replication_stats().items():
                about = labels(cluster=cluster, namespace=namespace, topic=name, remote_cluster=remote)
                replicator_rows.append((about, replicator_values(row)))
    yield "".join(namespace_families(topics_count, cluster))
    async for part in table(TOPIC_COLUMNS, topic_rows):
        yield part
    async for part in table(SUBSCRIPTION_COLUMNS, subscription_rows):
        yield part
    async for part in table(REPLICATOR_COLUMNS, replicator_rows):
        yield part
    async for part in table(
        COORDINATOR_COLUMNS, [coordinator_row(each, cluster) for each in broker.transactions.loaded]
    ):
        yield part
    yield process_text()


def process_text() -> str:
    """`process_*` and `python_*`."""
    from prometheus_client import generate_latest

    return generate_latest(_process_registry()).decode()


@cache
def _process_registry() -> CollectorRegistry:
    """Made by the first scrape: the library takes memory and start-up time that a server without Prometheus can spare."""
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry
