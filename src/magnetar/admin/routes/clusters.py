"""Clusters: their addresses, kept for tools and for namespaces that name them."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call, parse_json
from magnetar.admin.errors import BadRequestError, NotFoundError
from magnetar.admin.routes.paths import ADMIN
from magnetar.admin.routing import Route
from magnetar.base.errors import BadVersionError
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.naming import entity_name
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST

CLUSTERS = f"{ADMIN}/clusters"
CLUSTER = f"{CLUSTERS}/{{cluster}}"


def _path(call: Call) -> str:
    return paths.cluster_path(entity_name(call.params["cluster"], "cluster"))


async def _document(call: Call) -> dict[str, Any]:
    value = await call.json()
    if not isinstance(value, dict):
        raise BadRequestError('expected the cluster\'s data: {"serviceUrl": "http://...", ...}')
    return value


async def names(call: Call) -> Response:
    return as_json(await call.broker.metadata.children(paths.CLUSTERS_PATH))


async def get(call: Call) -> Response:
    node = await call.broker.metadata.get(_path(call))
    if node is None:
        raise NotFoundError("Cluster does not exist")
    return as_json(parse_json(node.value))


async def create(call: Call) -> Response:
    path, document = _path(call), await _document(call)
    try:
        await call.broker.metadata.put(path, json.dumps(document).encode(), MUST_NOT_EXIST)
    except BadVersionError:
        raise AlreadyExistsError("Cluster already exists") from None
    return done()


async def update(call: Call) -> Response:
    path, document = _path(call), await _document(call)
    if not await call.broker.metadata.exists(path):
        raise NotFoundError("Cluster does not exist")
    await call.broker.metadata.put(path, json.dumps(document).encode())
    return done()


async def delete(call: Call) -> Response:
    """Not the cluster that this broker belongs to: its namespaces name it."""
    path = _path(call)
    if not await call.broker.metadata.exists(path):
        raise NotFoundError("Cluster does not exist")
    if call.params["cluster"] == call.broker.config.cluster:
        raise PreconditionFailedError("Cluster not empty: this broker belongs to it")
    await call.broker.metadata.delete(path)
    return done()


ROUTES = (
    Route("GET", CLUSTERS, names),
    Route("GET", CLUSTER, get),
    Route("PUT", CLUSTER, create),
    Route("POST", CLUSTER, update),
    Route("DELETE", CLUSTER, delete),
)
