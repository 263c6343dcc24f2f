"""What is done to all subscriptions of a namespace at once: clear backlogs, unsubscribe."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response

from magnetar.admin.answers import done
from magnetar.admin.call import Call
from magnetar.admin.operation import documented
from magnetar.admin.routes.bundles import bundle_topics
from magnetar.admin.routes.paths import NAMESPACE
from magnetar.admin.routing import Route
from magnetar.admin.topic_access import as_persistent
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.naming import PERSISTENT
from magnetar.broker.topics.persistent import PersistentTopic


async def _persistent_topics(call: Call) -> AsyncIterator[PersistentTopic]:
    name = call.namespace
    await call.broker.namespaces.policies(name)
    for topic in await bundle_topics(call, await call.admin.partitioned.topics_of(name, (PERSISTENT,))):
        try:
            yield as_persistent(await call.broker.topics.get(topic, create=False))
        except TopicNotFoundError:
            continue  # deleted meanwhile


@documented()
async def clear_backlog(call: Call) -> Response:
    """Of one subscription's name, or of all."""
    wanted = call.subscription if "subscription" in call.params else None
    async for topic in _persistent_topics(call):
        for subscription in topic.subscriptions.all:
            if wanted is None or subscription.name == wanted:
                await subscription.clear_backlog()
    return done()


@documented()
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
        ("POST", "/clearBacklog", clear_backlog),
        ("POST", "/clearBacklog/{subscription}", clear_backlog),
        ("POST", "/unsubscribe/{subscription}", unsubscribe),
    )
)
