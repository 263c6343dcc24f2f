"""What a tenant may have: so many namespaces, and these clusters."""

from __future__ import annotations

from collections.abc import Collection

from magnetar.admin.call import Call
from magnetar.admin.errors import ForbiddenError
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.namespaces.policies import Document
from magnetar.broker.naming import NamespaceName
from magnetar.metadata import paths

ALLOWED_CLUSTERS = "allowed_clusters"
"""In a namespace's document: the clusters that it may be replicated to, if they are fewer than the tenant's."""


def check_allowed(document: Document, clusters: Collection[str]) -> None:
    """Raises ForbiddenError for a cluster that the namespace may not use."""
    allowed = document.get(ALLOWED_CLUSTERS) or []
    for cluster in clusters:
        if allowed and cluster not in allowed:
            raise ForbiddenError(f"Cluster [{cluster}] is not in the list of allowed clusters of the namespace")


async def check_tenant_room(call: Call) -> None:
    """Raises PreconditionFailedError when there are `maxTenants`."""
    limit = call.broker.config.settings.max_tenants
    if limit and await call.broker.metadata.children_count(paths.POLICIES_PATH) >= limit:
        raise PreconditionFailedError(f"Exceed the maximum number of tenants: maxTenants is {limit}")


async def check_namespace_room(call: Call, tenant: str) -> None:
    """Raises PreconditionFailedError when the tenant has `maxNamespacesPerTenant`."""
    limit = call.broker.config.settings.max_namespaces_per_tenant
    if limit and await call.broker.metadata.children_count(paths.tenant_path(tenant)) >= limit:
        raise PreconditionFailedError(
            f"Exceed the maximum number of namespace in tenant :{tenant}; maxNamespacesPerTenant is {limit}"
        )


async def check_clusters(call: Call, tenant: str, clusters: Collection[str]) -> None:
    """Namespaces replicate to clusters that there are and that their tenant may use. Raises ForbiddenError.

    The cluster itself is always allowed: tenants that were made before it had its name name another one.
    """
    others = [cluster for cluster in clusters if cluster != call.broker.config.settings.cluster_name]
    if not others:
        return
    known = await call.broker.metadata.children(paths.CLUSTERS_PATH)
    allowed = (await call.broker.namespaces.tenant(tenant)).get("allowedClusters") or []
    for cluster in others:
        if cluster not in known:
            raise ForbiddenError(f"Invalid cluster id: {cluster}")
        if cluster not in allowed:
            raise ForbiddenError(
                f"Cluster [{cluster}] is not in the list of allowed clusters list for tenant [{tenant}]"
            )


async def check_clusters_unused(call: Call, tenant: str, kept: Collection[str]) -> None:
    """A tenant keeps the clusters that its namespaces are replicated to. Raises AlreadyExistsError (409)."""
    before = (await call.broker.namespaces.tenant(tenant)).get("allowedClusters") or []
    removed = set(before) - set(kept)
    if not removed:
        return
    for name in await call.broker.namespaces.namespaces(tenant):
        used = (await call.broker.namespaces.policies(NamespaceName.parse(name))).get("replication_clusters") or []
        taken = removed.intersection(used)
        if taken:
            raise AlreadyExistsError(
                f"{', '.join(sorted(taken))} is used by namespace {name}: remove it from there first"
            )
