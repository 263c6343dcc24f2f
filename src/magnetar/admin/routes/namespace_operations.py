"""What is done to all topics of a namespace at once: unload, clear backlogs, unsubscribe."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

from starlette.responses import Response

from magnetar.admin.answers import done
from magnetar.admin.call import Call
from magnetar.admin.routes.paths import NAMESPACE
from magnetar.admin.routing import Route
from magnetar.admin.topic_access import as_persistent
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.namespaces.bundles import bundle_of
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.naming import PERSISTENT, TopicName
from magnetar.broker.topics.persistent import PersistentTopic


async def _in_bundle(call: Call, topics: list[TopicName]) -> list[TopicName]:
    """Those of the path's bundle; all without one. Raises PreconditionFailedError for a bundle that does not exist."""
    bundle = call.params.get("bundle")
    if bundle is None:
        return topics
    boundaries = await call.broker.namespaces.boundaries(call.namespace)
    if bundle not in {f"{low}_{high}" for low, high in pairwise(boundaries)}:
        raise PreconditionFailedError(f"{bundle} is no bundle of {call.namespace}")
    return [topic for topic in topics if bundle_of(topic, boundaries) == bundle]


async def _persistent_topics(call: Call) -> AsyncIterator[PersistentTopic]:
    name = call.namespace
    await call.broker.namespaces.policies(name)
    for topic in await _in_bundle(call, await call.admin.partitioned.topics_of(name, (PERSISTENT,))):
        try:
            yield as_persistent(await call.broker.topics.get(topic, create=False))
        except TopicNotFoundError:
            continue  # deleted meanwhile


async def unload(call: Call) -> Response:
    """Close the loaded topics; clients reconnect by themselves."""
    name = call.namespace
    await call.broker.namespaces.policies(name)
    loaded = [topic.name for topic in call.broker.topics.loaded if topic.name.namespace_name == name]
    for topic in await _in_bundle(call, loaded):
        try:
            await call.broker.topics.unload(topic)
        except TopicNotFoundError:
            continue  # a non-persistent one that went by itself
    return done()


async def clear_backlog(call: Call) -> Response:
    """Of one subscription's name, or of all."""
    wanted = call.subscription if "subscription" in call.params else None
    async for topic in _persistent_topics(call):
        for subscription in topic.subscriptions.all:
            if wanted is None or subscription.name == wanted:
                await subscription.clear_backlog()
    return done()


async def unsubscribe(call: Call) -> Response:
    """Delete a subscription wherever it exists. Raises PreconditionFailedError at a topic where consumers are connected."""
    wanted = call.subscription
    async for topic in _persistent_topics(call):
        if wanted in topic.subscription_names:
            if topic.subscriptions.get(wanted).consumers:
                raise PreconditionFailedError("Subscription has active connected consumers")
            await topic.unsubscribe(wanted)
    return done()


ROUTES = tuple(
    Route(method, f"{NAMESPACE}{bundle}{path}", handler)
    for bundle in ("", "/{bundle}")
    for method, path, handler in (
        ("PUT", "/unload", unload),
        ("POST", "/clearBacklog", clear_backlog),
        ("POST", "/clearBacklog/{subscription}", clear_backlog),
        ("POST", "/unsubscribe/{subscription}", unsubscribe),
    )
)
