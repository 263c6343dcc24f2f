"""What is done to all subscriptions of a namespace at once: clear backlogs, unsubscribe."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from starlette.responses import Response

from magnetar.admin.answers import done
from magnetar.admin.call import Call
from magnetar.admin.operation import documented
from magnetar.admin.routes.namespace.bundles import bundle_topics
from magnetar.admin.routing import NAMESPACE, Route
from magnetar.admin.topic_access import as_persistent
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.namespaces.errors import NotOwnedError, PreconditionFailedError
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.naming import PERSISTENT, TopicName
from magnetar.broker.peers import RemoteTopics
from magnetar.broker.topics.persistent import PersistentTopic


async def _topics(call: Call) -> AsyncIterator[PersistentTopic | OtherTopic]:
    """Those of the namespace, or of the path's bundle."""
    name, partitioned = call.namespace, call.admin.partitioned
    await call.broker.namespaces.policies(name)
    for topic in await bundle_topics(call, await partitioned.topics_of(name, (PERSISTENT,))):
        try:
            yield as_persistent(await call.broker.topics.get(topic, create=False))
        except NotOwnedError as error:
            yield OtherTopic(topic, await partitioned.owner(topic, error))
        except TopicNotFoundError:
            continue  # deleted meanwhile
        await call.pace.breathe()


class OtherTopic(NamedTuple):
    """A topic that another broker serves."""

    name: TopicName
    owner: BrokerAddress


@documented(heavy=True)
async def clear_backlog(call: Call) -> Response:
    """Clear the backlog of one subscription name, or of all."""
    wanted = call.subscription if "subscription" in call.params else None
    remote = RemoteTopics(call.broker.peers)
    async for topic in _topics(call):
        if isinstance(topic, OtherTopic):
            for name in await remote.subscriptions(topic.owner, topic.name):
                if wanted is None or name == wanted:
                    await remote.clear_backlog(topic.owner, topic.name, name)
            continue
        for subscription in topic.subscriptions.all:
            if wanted is None or subscription.name == wanted:
                await subscription.clear_backlog()
    return done()


@documented(heavy=True)
async def unsubscribe(call: Call) -> Response:
    """Delete a subscription wherever it exists. Raises PreconditionFailedError at a topic where consumers are connected."""
    wanted, remote = call.subscription, RemoteTopics(call.broker.peers)
    async for topic in _topics(call):
        if isinstance(topic, OtherTopic):
            if wanted in await remote.subscriptions(topic.owner, topic.name):
                await remote.unsubscribe(topic.owner, topic.name, wanted)
        elif wanted in topic.subscription_names:
            if topic.subscriptions.get(wanted).consumers:
                raise PreconditionFailedError("Subscription has active connected consumers")
            await topic.unsubscribe(wanted)
    return done()


# Over all topics at once: more than a role that may consume one subscription is trusted with (CVE-2026-105938).
ROUTES = tuple(
    Route(method, f"{NAMESPACE}{bundle}{path}", Access.TENANT, handler)
    for bundle in ("", "/{bundle}")
    for method, path, handler in (
        ("POST", "/clearBacklog", clear_backlog),
        ("POST", "/clearBacklog/{subscription}", clear_backlog),
        ("POST", "/unsubscribe/{subscription}", unsubscribe),
    )
)
