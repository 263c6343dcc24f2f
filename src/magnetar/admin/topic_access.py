"""From a name in a path to the topics it stands for."""

from __future__ import annotations

from magnetar.admin.call import Call
from magnetar.broker.errors import NotAllowedError, TopicNotFoundError
from magnetar.broker.naming import TopicName
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.ports import BacklogHolder
from magnetar.broker.topics.registry import AnyTopic


async def single(call: Call) -> AnyTopic:
    """The one topic of the path, loaded. Raises TopicNotFoundError, for a partitioned topic as well."""
    name = call.topic
    try:
        return await call.broker.topics.get(name, create=False)
    except TopicNotFoundError:
        if name.partition < 0 and await call.broker.namespaces.partitions(name):
            raise TopicNotFoundError(f"{name} is a partitioned topic: name one of its partitions") from None
        raise


async def single_persistent(call: Call) -> PersistentTopic:
    """Raises TopicNotFoundError, or NotAllowedError for a non-persistent topic."""
    return as_persistent(await single(call))


async def every_persistent(call: Call) -> list[PersistentTopic]:
    """The topic of the path, or all its partitions."""
    parts: list[TopicName] = await call.admin.partitioned.parts(call.topic)
    return [as_persistent(await call.broker.topics.get(part, create=False)) for part in parts]


async def every_subscription(call: Call) -> list[Subscription]:
    """The subscription of the path on each partition. Raises SubscriptionNotFoundError unless all have it."""
    return [topic.subscriptions.get(call.subscription) for topic in await every_persistent(call)]


async def every_backlog(call: Call) -> list[BacklogHolder]:
    """The same, where the name may be a replicator's cursor, `pulsar.repl.<cluster>`."""
    return [topic.backlog_holder(call.subscription) for topic in await every_persistent(call)]


def as_persistent(topic: AnyTopic) -> PersistentTopic:
    if not isinstance(topic, PersistentTopic):
        raise NotAllowedError(f"{topic.name} is not persistent: nothing of it is stored")
    return topic
