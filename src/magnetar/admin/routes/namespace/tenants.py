"""Tenants: who administers them and which clusters they may use."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import TenantInfo
from magnetar.admin.errors import BadRequestError, ForceNotAllowedError
from magnetar.admin.operation import FORCE, documented
from magnetar.admin.routing import ADMIN, Route
from magnetar.admin.tenancy import check_clusters_unused, check_tenant_room
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.errors import NamespaceNotFoundError, PreconditionFailedError
from magnetar.broker.naming import NamespaceName
from magnetar.broker.topics.partitioned import PartitionedTopics
from magnetar.metadata import paths

TENANTS = f"{ADMIN}/tenants"
TENANT = f"{TENANTS}/{{tenant}}"


async def _info(call: Call) -> dict[str, Any]:
    """The body, checked as Pulsar does. Raises BadRequestError, PreconditionFailedError."""
    value = await call.json()
    value = {} if value is None else value
    if not isinstance(value, dict) or not all(_texts(value.get(key)) for key in ("adminRoles", "allowedClusters")):
        raise BadRequestError('expected {"adminRoles": ["..."], "allowedClusters": ["..."]}')
    clusters = sorted({cluster for cluster in value.get("allowedClusters") or () if cluster.strip()})
    if not clusters:
        raise PreconditionFailedError("Clusters can not be empty")
    known = await call.broker.metadata.children(paths.CLUSTERS_PATH)
    missing = [cluster for cluster in clusters if cluster not in known]
    if missing:
        raise PreconditionFailedError(f"Clusters do not exist: {', '.join(missing)}")
    return {"adminRoles": sorted(set(value.get("adminRoles") or ())), "allowedClusters": clusters}


def _texts(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))


@documented("Names of the tenants.", answer=list[str])
async def names(call: Call) -> Response:
    return as_json(await call.broker.namespaces.tenants())


@documented("Administrators and clusters of a tenant.", answer=TenantInfo)
async def get(call: Call) -> Response:
    document = await call.broker.namespaces.tenant(call.tenant)
    return as_json({"adminRoles": [], "allowedClusters": []} | document)


@documented("Create a tenant.", body=TenantInfo)
async def create(call: Call) -> Response:
    tenant = call.tenant
    info = await _info(call)
    await check_tenant_room(call)
    await call.broker.namespaces.create_tenant(tenant, info)
    return done()


@documented("Change a tenant.", body=TenantInfo)
async def update(call: Call) -> Response:
    tenant = call.tenant
    info = await _info(call)
    await check_clusters_unused(call, tenant, info["allowedClusters"])
    await call.broker.namespaces.update_tenant(tenant, info)
    return done()


@documented(query=FORCE, heavy=True)
async def delete(call: Call) -> Response:
    """With `force`, its namespaces and their topics go as well."""
    tenant = call.tenant
    if call.flag("force"):
        if not call.broker.config.settings.force_delete_tenant_allowed:
            raise ForceNotAllowedError("Broker doesn't allow forced deletion of tenants")
        await call.broker.namespaces.tenant(tenant)
        await _delete_namespaces(call.admin.partitioned, await call.broker.namespaces.namespaces(tenant))
    await call.broker.namespaces.delete_tenant(tenant)
    return done()


async def _delete_namespaces(partitioned: PartitionedTopics, names: list[str]) -> None:
    for name in names:
        try:
            await partitioned.delete_namespace(NamespaceName.parse(name), force=True)
        except NamespaceNotFoundError:
            continue


ROUTES = (
    Route("GET", TENANTS, Access.SUPERUSER, names),
    Route("GET", TENANT, Access.TENANT, get),
    Route("PUT", TENANT, Access.SUPERUSER, create),
    Route("POST", TENANT, Access.SUPERUSER, update),
    Route("DELETE", TENANT, Access.SUPERUSER, delete),
)
