"""Resource groups: rates that namespaces share. Each broker holds the topics that it serves to them."""

from __future__ import annotations

import json

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json, done, text
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import ResourceGroup
from magnetar.admin.errors import NotFoundError
from magnetar.admin.operation import TEXT, documented
from magnetar.admin.routing import ADMIN, NAMESPACE, Route
from magnetar.base.errors import NodeNotFoundError
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.policies import RESOURCE_GROUP, Document
from magnetar.broker.naming import NamespaceName, entity_name
from magnetar.metadata import paths

GROUPS = f"{ADMIN}/resourcegroups"
GROUP = f"{GROUPS}/{{resourcegroup}}"


def _name(call: Call) -> str:
    return entity_name(call.params["resourcegroup"], "resource group")


async def _stored(call: Call, name: str) -> ResourceGroup:
    node = await call.broker.metadata.get(paths.resource_group_path(name))
    if node is None:
        raise NotFoundError("ResourceGroup does not exist")
    return msgspec.json.decode(node.value, type=ResourceGroup)


@documented(answer=list[str])
async def names(call: Call) -> Response:
    """Resource groups of the cluster."""
    return as_json(await call.broker.metadata.children(paths.RESOURCE_GROUPS_PATH))


@documented("Rates of a resource group.", answer=ResourceGroup)
async def get(call: Call) -> Response:
    return as_json(msgspec.to_builtins(await _stored(call, _name(call))))


@documented(body=ResourceGroup)
async def put(call: Call) -> Response:
    """Create the group, or change those of its rates that the body has. In effect at once, for the topics of all its namespaces."""
    name, body = _name(call), await call.body_as(ResourceGroup)
    path = paths.resource_group_path(name)
    node = await call.broker.metadata.get(path)
    before = json.loads(node.value) if node is not None else {}
    given = {key: value for key, value in msgspec.to_builtins(body).items() if value is not None}
    await call.broker.metadata.put(path, json.dumps({**before, **given}).encode())
    await call.broker.defaults_changed()
    return done()


@documented("Delete a resource group that no namespace belongs to.", heavy=True)
async def delete(call: Call) -> Response:
    name = _name(call)
    await _stored(call, name)
    registry = call.broker.namespaces
    for tenant in await registry.tenants():
        for namespace in await registry.namespaces(tenant):
            if (await registry.policies(NamespaceName.parse(namespace))).get(RESOURCE_GROUP) == name:
                raise PreconditionFailedError(f"ResourceGroup {name} is in use by namespace {namespace}")
            await call.pace.breathe()
    try:
        await call.broker.metadata.delete(paths.resource_group_path(name))
    except NodeNotFoundError:
        raise NotFoundError("ResourceGroup does not exist") from None
    return done()


# ---- The group of a namespace


@documented(answer=str, media=TEXT, may_be_unset=True)
async def get_of_namespace(call: Call) -> Response:
    """Name of the namespace's resource group; 204 without one."""
    found = (await call.broker.namespaces.policies(call.namespace)).get(RESOURCE_GROUP)
    return text(found) if found else done()


@documented("Make the namespace one of a resource group.")
async def put_of_namespace(call: Call) -> Response:
    name = _name(call)
    await _stored(call, name)
    await _set(call, name)
    return done()


@documented("Take the namespace out of its resource group.")
async def delete_of_namespace(call: Call) -> Response:
    await _set(call, None)
    return done()


async def _set(call: Call, name: str | None) -> None:
    def change(document: Document) -> None:
        document.pop(RESOURCE_GROUP, None)
        if name is not None:
            document[RESOURCE_GROUP] = name

    await call.broker.namespaces.update_policies(call.namespace, change)
    await call.broker.topics.policies_changed(call.namespace)


ROUTES = (
    Route("GET", GROUPS, Access.SUPERUSER, names),
    Route("GET", GROUP, Access.SUPERUSER, get),
    Route("PUT", GROUP, Access.SUPERUSER, put),
    Route("DELETE", GROUP, Access.SUPERUSER, delete),
    Route("GET", f"{NAMESPACE}/resourcegroup", Access.TENANT, get_of_namespace),
    Route("POST", f"{NAMESPACE}/resourcegroup/{{resourcegroup}}", Access.SUPERUSER, put_of_namespace),
    Route("DELETE", f"{NAMESPACE}/resourcegroup", Access.SUPERUSER, delete_of_namespace),
)
