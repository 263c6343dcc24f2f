"""Bundles, the parts of a namespace's hash range that brokers take over: list, split, unload, delete."""

from __future__ import annotations

from itertools import pairwise

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.operation import FORCE, documented
from magnetar.admin.policy_documents import StoredBundles
from magnetar.admin.routes.namespaces import BUNDLES_MAX
from magnetar.admin.routes.paths import NAMESPACE
from magnetar.admin.routing import Route
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.namespaces.bundles import bundle_of, halved, median
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.namespaces.policies import Document
from magnetar.broker.naming import TopicName
from magnetar.metadata import paths

RANGE, TOPIC_COUNT = "range_equally_divide", "topic_count_equally_divide"
ALGORITHMS = (RANGE, TOPIC_COUNT)


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
    _place(bundle, boundaries, str(call.namespace))
    return [topic for topic in topics if bundle_of(topic, boundaries) == bundle]


def _place(bundle: str, boundaries: list[str], namespace: str) -> int:
    """Index of a bundle's upper boundary. Raises PreconditionFailedError."""
    for place, (low, high) in enumerate(pairwise(boundaries), 1):
        if bundle == f"{low}_{high}":
            return place
    raise PreconditionFailedError(f"{bundle[:80]} is no bundle of {namespace}")


@documented(query={"destinationBroker": str})
async def unload(call: Call) -> Response:
    """Close the loaded topics; clients reconnect by themselves. `destinationBroker` must be one that is there."""
    name, broker = call.namespace, call.broker
    await broker.namespaces.policies(name)
    destination = call.query("destinationBroker")
    if destination and destination not in await broker.metadata.children(paths.BROKERS_PATH):
        raise PreconditionFailedError(f"Broker {destination} is not available")
    loaded = [topic.name for topic in broker.topics.loaded if topic.name.namespace_name == name]
    await _unload(call, await bundle_topics(call, loaded))
    return done()


async def _unload(call: Call, topics: list[TopicName]) -> None:
    for topic in topics:
        try:
            await call.broker.topics.unload(topic)
        except TopicNotFoundError:
            continue  # a non-persistent one that went by itself


@documented(query={"splitAlgorithmName": str, "unload": bool})
async def split(call: Call) -> Response:
    """Two bundles out of one: in the middle of its range, or so that half of its topics are in each. `unload` closes its topics."""
    name, broker, bundle = call.namespace, call.broker, call.params["bundle"]
    await broker.namespaces.policies(name)
    algorithm = call.query("splitAlgorithmName", RANGE) or RANGE
    if algorithm not in ALGORITHMS:
        raise PreconditionFailedError(
            f"Unsupported namespace bundle split algorithm, supported algorithms are {', '.join(ALGORITHMS)}"
        )
    topics = await bundle_topics(call, await call.admin.partitioned.topics_of(name))
    middle = median(topics, bundle) if algorithm == TOPIC_COUNT else halved(bundle)
    if middle is None:
        raise PreconditionFailedError(f"{bundle} cannot be split: it is too narrow, or has too few topics")

    def change(document: Document) -> None:
        boundaries = list(document["bundles"]["boundaries"])
        place = _place(bundle, boundaries, str(name))
        if len(boundaries) > BUNDLES_MAX:
            raise PreconditionFailedError(f"a namespace has at most {BUNDLES_MAX} bundles")
        boundaries.insert(place, middle)
        document["bundles"] = {"boundaries": boundaries, "numBundles": len(boundaries) - 1}

    await broker.namespaces.update_local_policies(name, change)
    await broker.ownership.release(name, bundle)
    if call.flag("unload"):
        await _unload(call, topics)
    return done()


@documented(query=FORCE)
async def delete(call: Call) -> Response:
    """Give an empty bundle up. 409 while it has topics, unless `force` deletes them."""
    name = call.namespace
    await call.broker.namespaces.policies(name)
    topics = await bundle_topics(call, await call.admin.partitioned.topics_of(name))
    if topics and not call.flag("force"):
        raise AlreadyExistsError("Cannot delete non empty bundle")
    for topic in topics:
        try:
            await call.broker.topics.delete(topic, force=True)
        except TopicNotFoundError:
            continue
    await call.broker.ownership.release(name, call.params["bundle"])
    return done()


ROUTES = (
    Route("GET", f"{NAMESPACE}/bundles", names),
    Route("PUT", f"{NAMESPACE}/unload", unload),
    Route("PUT", f"{NAMESPACE}/{{bundle}}/unload", unload),
    Route("PUT", f"{NAMESPACE}/{{bundle}}/split", split),
    Route("DELETE", f"{NAMESPACE}/{{bundle}}", delete),
)
