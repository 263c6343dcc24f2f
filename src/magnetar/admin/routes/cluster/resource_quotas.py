"""What a bundle is expected to use: kept for load managers, the default for bundles without a quota of their own."""

from __future__ import annotations

import json

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import ResourceQuota
from magnetar.admin.operation import documented
from magnetar.admin.routes.namespace.bundles import bundle_topics
from magnetar.admin.routing import ADMIN, Route
from magnetar.base.errors import NodeNotFoundError
from magnetar.broker.auth.decide import Access
from magnetar.metadata import paths

QUOTAS = f"{ADMIN}/resource-quotas"
OF_BUNDLE = f"{QUOTAS}/{{tenant}}/{{namespace}}/{{bundle}}"


async def _path(call: Call) -> str:
    """Raises NamespaceNotFoundError, PreconditionFailedError for what is not a bundle."""
    if "bundle" not in call.params:
        return paths.resource_quota_path()
    name = call.namespace
    await call.broker.namespaces.policies(name)
    await bundle_topics(call, [])
    return paths.resource_quota_path(name.tenant, name.namespace, call.params["bundle"])


@documented(answer=ResourceQuota)
async def get(call: Call) -> Response:
    """A bundle's own, else the default."""
    for path in (await _path(call), paths.resource_quota_path()):
        node = await call.broker.metadata.get(path)
        if node is not None:
            return as_json(json.loads(node.value))
    return as_json(msgspec.to_builtins(ResourceQuota()))


@documented("Set a quota.", body=ResourceQuota)
async def put(call: Call) -> Response:
    path, body = await _path(call), await call.body_as(ResourceQuota)
    await call.broker.metadata.put(path, msgspec.json.encode(body))
    return done()


@documented()
async def delete(call: Call) -> Response:
    """Back to the default."""
    try:
        await call.broker.metadata.delete(await _path(call))
    except NodeNotFoundError:
        pass
    return done()


ROUTES = (
    Route("GET", QUOTAS, Access.SUPERUSER, get),
    Route("POST", QUOTAS, Access.SUPERUSER, put),
    Route("GET", OF_BUNDLE, Access.SUPERUSER, get),
    Route("POST", OF_BUNDLE, Access.SUPERUSER, put),
    Route("DELETE", OF_BUNDLE, Access.SUPERUSER, delete),
)
