"""Clusters: where they are and how replicators prove to them who they are."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call, parse_json
from magnetar.admin.documents.cluster import ClusterData
from magnetar.admin.errors import BadRequestError, NotFoundError
from magnetar.admin.operation import documented
from magnetar.admin.routing import ADMIN, Route
from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.naming import NamespaceName, entity_name
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

CLUSTERS = f"{ADMIN}/clusters"
CLUSTER = f"{CLUSTERS}/{{cluster}}"
ADDRESSES = {
    "serviceUrl": "http://pulsar.example.com:8080",
    "serviceUrlTls": "https://pulsar.example.com:8443",
    "brokerServiceUrl": "pulsar://pulsar.example.com:6650",
    "brokerServiceUrlTls": "pulsar+ssl://pulsar.example.com:6651",
}
"""An example of each address that a cluster may have."""


def cluster_name(call: Call) -> str:
    """The cluster's name in the path. Raises InvalidTopicNameError."""
    return entity_name(call.params["cluster"], "cluster")


def _path(call: Call) -> str:
    return paths.cluster_path(cluster_name(call))


async def cluster_document(call: Call) -> dict[str, Any]:
    """The stored record. Raises NotFoundError."""
    node = await call.broker.metadata.get(_path(call))
    if node is None:
        raise NotFoundError("Cluster does not exist")
    document = parse_json(node.value or b"{}")
    return document if isinstance(document, dict) else {}


async def store_cluster(call: Call, document: dict[str, Any]) -> None:
    await call.broker.metadata.put(_path(call), json.dumps(document).encode())


async def _document(call: Call) -> dict[str, Any]:
    value = await call.json()
    if not isinstance(value, dict):
        raise BadRequestError('expected the cluster\'s data: {"serviceUrl": "http://...", ...}')
    try:
        msgspec.convert(value, ClusterData)
    except msgspec.ValidationError as error:
        raise BadRequestError(str(error)) from None
    for field, example in ADDRESSES.items():
        if address := value.get(field):  # Pulsar's command line sends an empty one for what was not said
            _check_address(field, address, example)
    return value


def _check_address(field: str, address: str, example: str) -> None:
    """Refused here, where somebody reads it: replicators could only say so in their logs. Hosts may be several, with commas."""
    scheme, _, hosts = address.partition("://")
    try:
        usable = all(urlsplit(f"//{host}").hostname for host in hosts.split(","))
    except ValueError:  # brackets that do not fit
        usable = False
    if not usable or not example.startswith(f"{scheme}://"):
        raise BadRequestError(f"{field} {address!r} is not a valid address; expected one like {example}")


@documented("Names of the clusters.", answer=list[str])
async def names(call: Call) -> Response:
    return as_json(await call.broker.metadata.children(paths.CLUSTERS_PATH))


@documented("A cluster's addresses.", answer=ClusterData)
async def get(call: Call) -> Response:
    return as_json(await cluster_document(call))


@documented("Make a cluster known.", body=ClusterData)
async def create(call: Call) -> Response:
    path, document = _path(call), await _document(call)
    try:
        await call.broker.metadata.put(path, json.dumps(document).encode(), MUST_NOT_EXIST)
    except BadVersionError:
        raise AlreadyExistsError("Cluster already exists") from None
    return done()


@documented("Change a cluster's addresses.", body=ClusterData)
async def update(call: Call) -> Response:
    path, document = _path(call), await _document(call)
    if not await call.broker.metadata.exists(path):
        raise NotFoundError("Cluster does not exist")
    await store_cluster(call, document)
    return done()


@documented()
async def delete(call: Call) -> Response:
    """Not the cluster that this broker belongs to, nor one that a namespace is replicated to."""
    path = _path(call)
    if not await call.broker.metadata.exists(path):
        raise NotFoundError("Cluster does not exist")
    if call.params["cluster"] == call.broker.config.settings.cluster_name:
        raise PreconditionFailedError("Cluster not empty: this broker belongs to it")
    user = await _namespace_with(call, call.params["cluster"])
    if user:
        raise PreconditionFailedError(f"Cluster not empty: {user} is replicated to it; remove it from there first")
    await _delete_tree(call.broker.metadata, path)
    return done()


async def _namespace_with(call: Call, cluster: str) -> str:
    """One that is replicated to the cluster, empty when there is none."""
    namespaces = call.broker.namespaces
    for tenant in await namespaces.tenants():
        for name in await namespaces.namespaces(tenant):
            document = await namespaces.policies(NamespaceName.parse(name))
            if cluster in (document.get("replication_clusters") or ()):
                return name
    return ""


async def _delete_tree(metadata: MetadataStore, path: str) -> None:
    """Failure domains and isolation policies go with the cluster."""
    for name in await metadata.children(path):
        await _delete_tree(metadata, f"{path}/{name}")
    try:
        await metadata.delete(path)
    except NodeNotFoundError:
        return


ROUTES = (
    Route("GET", CLUSTERS, Access.AUTHENTICATED, names),
    Route("GET", CLUSTER, Access.SUPERUSER, get),
    Route("PUT", CLUSTER, Access.SUPERUSER, create),
    Route("POST", CLUSTER, Access.SUPERUSER, update),
    Route("DELETE", CLUSTER, Access.SUPERUSER, delete),
)
