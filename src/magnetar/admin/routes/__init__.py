"""One file per noun, each with its rows in `ROUTES`; handlers take a `Call` and answer a response."""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.admin.routes import (
    brokers,
    clusters,
    lookup,
    messages,
    metrics,
    namespace_operations,
    namespace_policies,
    namespaces,
    partitions,
    permissions,
    schemas,
    subscriptions,
    tenants,
    topic_policies,
    topic_stats,
    topics,
)
from magnetar.admin.routing import Route


def all_routes() -> Iterator[Route]:
    """Every row of every noun."""
    for module in (
        brokers,
        clusters,
        lookup,
        messages,
        metrics,
        namespace_operations,
        namespace_policies,
        namespaces,
        partitions,
        permissions,
        schemas,
        subscriptions,
        tenants,
        topic_policies,
        topic_stats,
        topics,
    ):
        yield from module.ROUTES
