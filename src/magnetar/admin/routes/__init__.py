"""One file per noun, in rooms by what the noun belongs to, each with its rows in `ROUTES`; handlers take a `Call` and answer a response."""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.admin.routes import explain, openapi, overview, pipelines, trace, transactions, websocket
from magnetar.admin.routes.cluster import (
    bookies,
    broker_stats,
    brokers,
    clusters,
    isolation,
    load_balance,
    resource_groups,
    resource_quotas,
    storage,
)
from magnetar.admin.routes.namespace import (
    bundles,
    namespace_operations,
    namespace_policies,
    namespace_properties,
    namespaces,
    permissions,
    policy_sources,
    tenants,
)
from magnetar.admin.routes.topic import (
    browse,
    lookup,
    messages,
    partitions,
    replicated_subscriptions,
    scalable,
    schemas,
    subscriptions,
    topic_internals,
    topic_policies,
    topic_stats,
    topics,
)
from magnetar.admin.routing import Route

MODULES = (
    bookies,
    broker_stats,
    brokers,
    browse,
    bundles,
    clusters,
    explain,
    isolation,
    load_balance,
    lookup,
    messages,
    namespace_operations,
    namespace_policies,
    namespace_properties,
    namespaces,
    openapi,
    overview,
    partitions,
    permissions,
    pipelines,
    policy_sources,
    replicated_subscriptions,
    resource_groups,
    resource_quotas,
    scalable,
    schemas,
    storage,
    subscriptions,
    tenants,
    topic_internals,
    topic_policies,
    topic_stats,
    topics,
    trace,
    transactions,
    websocket,
)


def all_routes() -> Iterator[Route]:
    """Every row of every noun."""
    for module in MODULES:
        yield from module.ROUTES
