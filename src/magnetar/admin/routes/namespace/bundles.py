"""Bundles, the parts of a namespace's hash range that brokers take over: list, split, unload, delete."""

from __future__ import annotations

from itertools import pairwise
from urllib.parse import quote

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import TopicHashPositions
from magnetar.admin.documents.policies import StoredBundles
from magnetar.admin.operation import FORCE, documented
from magnetar.admin.redirects import credentials_of
from magnetar.admin.routing import ADMIN, NAMESPACE, Route
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.load_balance.splitting import TopicLoad, boundary
from magnetar.broker.load_manager.bundle_loads import edges, topic_loads
from magnetar.broker.namespaces.errors import AlreadyExistsError, NotOwnedError, PreconditionFailedError
from magnetar.broker.namespaces.records import BundleName, bundle_of
from magnetar.broker.namespaces.registry import bundle_place
from magnetar.broker.naming import NON_PERSISTENT, TopicName
from magnetar.broker.peers import raise_for
from magnetar.broker.settings.load_balance import FLOW_OR_QPS, RANGE, SPLITS
from magnetar.hashing.bundles import LAST_BOUNDARY
from magnetar.hashing.crc import crc32


@documented(answer=StoredBundles)
async def names(call: Call) -> Response:
    """Boundaries of the bundles, the last one inclusive."""
    name = call.namespace
    await call.broker.namespaces.policies(name)
    boundaries = await call.broker.namespaces.boundaries(name)
    return as_json({"boundaries": boundaries, "numBundles": len(boundaries) - 1})


async def bundle_topics(call: Call, topics: list[TopicName]) -> list[TopicName]:
    """Those of the path's bundle; all without one. Raises PreconditionFailedError for a bundle that does not exist."""
    bundle = call.params.get("bundle")
    if bundle is None:
        return topics
    boundaries = await call.broker.namespaces.boundaries(call.namespace)
    bundle_place(bundle, boundaries, str(call.namespace))
    return [topic for topic in topics if bundle_of(topic, boundaries) == bundle]


async def _bundles(call: Call) -> list[BundleName]:
    """The path's bundle, or every bundle of the namespace. Raises PreconditionFailedError for one that does not exist."""
    name = call.namespace
    await call.broker.namespaces.policies(name)
    boundaries = await call.broker.namespaces.stored_boundaries(name)
    if "bundle" in call.params:
        bundle_place(call.params["bundle"], boundaries, str(name))
        return [BundleName(name, call.params["bundle"])]
    return [BundleName(name, f"{low}_{high}") for low, high in pairwise(boundaries)]


@documented(answer=TopicHashPositions, query={"topics": str}, heavy=True)
async def hash_positions(call: Call) -> Response:
    """Where the bundle's topics stand in the hash range; `topics` names some of them, separated by commas."""
    wanted = [part for part in call.query("topics").split(",") if part]
    every = [TopicName.parse(text) for text in wanted] or await call.admin.partitioned.topics_of(call.namespace)
    await call.broker.namespaces.policies(call.namespace)
    found = {str(topic): crc32(str(topic).encode()) for topic in await bundle_topics(call, every)}
    return as_json({"namespace": str(call.namespace), "bundle": call.params["bundle"], "topicHashPositions": found})


@documented(answer=list[str], heavy=True)
async def non_persistent_topics(call: Call) -> Response:
    """The bundle's non-persistent topics that are loaded."""
    await call.broker.namespaces.policies(call.namespace)
    every = await call.admin.partitioned.topics_of(call.namespace, (NON_PERSISTENT,))
    return as_json([str(topic) for topic in await bundle_topics(call, every)])


@documented(query={"destinationBroker": str})
async def unload(call: Call) -> Response:
    """Close the loaded topics; clients go on by themselves, at `destinationBroker` if that is given. It must be one that is there."""
    broker, destination = call.broker, call.query("destinationBroker")
    bundles = await _bundles(call)
    if destination and destination not in await broker.cluster.brokers.live():
        raise PreconditionFailedError(f"Broker {destination} is not available")
    for bundle in bundles:
        if broker.ownership.serves(bundle):
            await broker.moves.unload(bundle, destination)
            continue
        owner = await broker.cluster.finder.owner_of(bundle)
        if owner is not None and "bundle" in call.params:
            raise NotOwnedError(bundle, owner)
        if owner is not None and owner.broker_id != broker.ownership.broker_id:
            target = f"{NAMESPACE.format(tenant=call.tenant, namespace=call.namespace.namespace)}/{bundle.range}/unload"
            query = f"?destinationBroker={quote(destination)}" if destination else ""
            raise_for(await broker.peers.call(owner, "PUT", target + query, b"", credentials_of(call)))
    return done()


@documented(query={"splitAlgorithmName": str, "unload": bool})
async def split(call: Call) -> Response:
    """Two bundles out of one: halves of its range, of its topics, or of its traffic. `unload`: both go elsewhere."""
    broker, (bundle,) = call.broker, await _bundles(call)
    algorithm = call.query("splitAlgorithmName", RANGE) or RANGE
    if algorithm not in SPLITS:
        raise PreconditionFailedError(
            f"Unsupported namespace bundle split algorithm, supported algorithms are {', '.join(SPLITS)}"
        )
    await _here(call, bundle)
    middle = boundary(algorithm, *edges(bundle), await _split_by(call, bundle, algorithm))
    if middle is None:
        raise PreconditionFailedError(f"{bundle.range} cannot be split: it is too narrow, or has too few topics")
    parts = await broker.moves.split(bundle, f"0x{middle:08x}")
    if call.flag("unload"):
        for part in parts:
            await broker.moves.unload(part)
    return done()


async def _split_by(call: Call, bundle: BundleName, algorithm: str) -> list[TopicLoad]:
    """All stored topics of the bundle where their number counts, the loaded ones with what they do where that counts."""
    if algorithm == FLOW_OR_QPS:
        return topic_loads(call.broker.topics.loaded, bundle)
    if algorithm == RANGE:
        return []
    places = [crc32(name) for name in await call.admin.partitioned.names_of(bundle.namespace)]
    low, high = edges(bundle)
    return [TopicLoad(place) for place in places if low <= place < high or place == high == LAST_BOUNDARY]


async def _here(call: Call, bundle: BundleName) -> None:
    """Take the bundle unless somebody has it. Raises NotOwnedError when another broker does."""
    ownership = call.broker.ownership
    if not ownership.serves(bundle):
        owner = await ownership.take(bundle)
        if not ownership.serves(bundle):
            raise NotOwnedError(bundle, None if owner is None else await call.broker.cluster.finder.owner_of(bundle))


@documented(query=FORCE, heavy=True)
async def delete(call: Call) -> Response:
    """Give an empty bundle up. 409 while it has topics, unless `force` deletes them."""
    (bundle,) = await _bundles(call)
    topics = await bundle_topics(call, await call.admin.partitioned.topics_of(call.namespace))
    if topics and not call.flag("force"):
        raise AlreadyExistsError("Cannot delete non empty bundle")
    await _here(call, bundle)
    for topic in topics:
        try:
            await call.broker.topics.delete(topic, force=True)
        except TopicNotFoundError:
            continue
    await call.broker.ownership.release(bundle)
    return done()


ROUTES = (
    Route("GET", f"{NAMESPACE}/{{bundle}}/topicHashPositions", Access.TENANT, hash_positions),
    Route(
        "GET", f"{ADMIN}/non-persistent/{{tenant}}/{{namespace}}/{{bundle}}", Access.NAMESPACE, non_persistent_topics
    ),
    Route("GET", f"{NAMESPACE}/bundles", Access.NAMESPACE, names),
    Route("PUT", f"{NAMESPACE}/unload", Access.SUPERUSER, unload),
    Route("PUT", f"{NAMESPACE}/{{bundle}}/unload", Access.SUPERUSER, unload),
    Route("PUT", f"{NAMESPACE}/{{bundle}}/split", Access.SUPERUSER, split),
    Route("DELETE", f"{NAMESPACE}/{{bundle}}", Access.TENANT, delete),
)
