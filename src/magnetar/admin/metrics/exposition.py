"""Everything `/metrics` says, as a stream: memory and pauses stay small with many topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from math import isfinite

from magnetar.admin.context import AdminContext
from magnetar.admin.metrics.families import Row, labels, parsed_labels, parsed_samples, table
from magnetar.admin.metrics.process import process_text
from magnetar.admin.metrics.server import (
    COORDINATOR_COLUMNS,
    bookie_families,
    broker_families,
    coordinator_row,
    ledger_client_families,
    load_balance_families,
    namespace_families,
)
from magnetar.admin.metrics.topics import (
    BLOCKED_COLUMNS,
    REPLICATOR_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    TOPIC_COLUMNS,
    blocked_values,
    replicator_values,
    subscription_values,
    topic_values,
)
from magnetar.admin.pacing import Pace
from magnetar.broker.topics.persistent import PersistentTopic

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Gathered:
    """What the metrics are made of: finished lines, and tables with a row for each topic, subscription and the like."""

    lines: list[str]
    tables: list[tuple[Sequence[str], list[Row]]]


async def gather(admin: AdminContext, pace: Pace) -> Gathered:
    """As of now, or over some moments where there are many topics."""
    broker = admin.broker
    cluster = broker.config.settings.cluster_name
    lines = [
        *broker_families(broker, cluster),
        *ledger_client_families(broker.ledger_client, cluster),
        *load_balance_families(broker, cluster),
    ]
    bookie = admin.storage.bookie_statistics()
    if bookie is not None:
        lines += bookie_families(bookie, cluster=cluster)
    topic_rows: list[Row] = []
    subscription_rows: list[Row] = []
    blocked_rows: list[Row] = []
    replicator_rows: list[Row] = []
    topics_count: dict[str, int] = {}
    for topic in broker.topics.loaded:
        namespace, name = str(topic.name.namespace_name), str(topic.name)
        topics_count[namespace] = topics_count.get(namespace, 0) + 1
        topic_rows.append((labels(cluster=cluster, namespace=namespace, topic=name), topic_values(topic)))
        if isinstance(topic, PersistentTopic):
            for subscription in topic.subscriptions.all:
                about = labels(cluster=cluster, namespace=namespace, topic=name, subscription=subscription.name)
                subscription_rows.append((about, subscription_values(subscription)))
                for code, weight in blocked_values(topic, subscription, broker.clock).items():
                    blocked_rows.append((f"{about[:-1]},{labels(reason=code)[1:]}", (weight,)))
                await pace.breathe()
            for remote, row in topic.replication_stats().items():
                about = labels(cluster=cluster, namespace=namespace, topic=name, remote_cluster=remote)
                replicator_rows.append((about, replicator_values(row)))
        await pace.breathe()
    lines += namespace_families(topics_count, cluster)
    coordinator_rows = [coordinator_row(each, cluster) for each in broker.transactions.loaded]
    tables = [
        (TOPIC_COLUMNS, topic_rows),
        (SUBSCRIPTION_COLUMNS, subscription_rows),
        (BLOCKED_COLUMNS, blocked_rows),
        (REPLICATOR_COLUMNS, replicator_rows),
        (COORDINATOR_COLUMNS, coordinator_rows),
    ]
    return Gathered(lines, [(columns, rows) for columns, rows in tables if rows])


async def exposition(admin: AdminContext, pace: Pace) -> AsyncIterator[str]:
    """Pieces of the text format."""
    found = await gather(admin, pace)
    yield "".join(found.lines)
    for columns, rows in found.tables:
        async for part in table(columns, rows, pace):
            yield part
    yield process_text()


async def exposition_json(admin: AdminContext, pace: Pace) -> AsyncIterator[tuple[dict[str, float], dict[str, str]]]:
    """The same numbers as metrics and dimensions: a pair for each labelled thing; NaN and infinity are left out."""
    found = await gather(admin, pace)
    single: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for name, dimensions, value in parsed_samples("".join(found.lines) + process_text()):
        if isfinite(value):
            single.setdefault(tuple(sorted(dimensions.items())), {})[name] = value
        await pace.breathe()
    for about, values in single.items():
        yield values, dict(about)
    for columns, rows in found.tables:
        for label_text, numbers in rows:
            row = {name: float(value) for name, value in zip(columns, numbers, strict=True) if isfinite(value)}
            yield row, parsed_labels(label_text)
            await pace.breathe()
