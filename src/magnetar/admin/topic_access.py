"""From a name in a path to the topics it stands for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from magnetar.admin.call import Call
from magnetar.broker.errors import NotAllowedError, SubscriptionNotFoundError, TopicNotFoundError
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


async def every_persistent(call: Call, *, unused_ones: bool = False) -> list[PersistentTopic]:
    """The topic of the path, or all its partitions; those that nobody has ever used only with `unused_ones`, which loads them."""
    found: list[PersistentTopic] = []
    async for part, is_unused in with_use(call, await call.admin.partitioned.parts(call.topic)):
        if unused_ones or part == call.topic or not is_unused:
            found.append(as_persistent(await call.broker.topics.get(part, create=False)))
        await call.pace.breathe()
    return found


LOOKED_AT_TOGETHER = 8
"""Partitions whose state is read from the metadata store at a time."""


async def with_use(call: Call, parts: Sequence[TopicName]) -> AsyncIterator[tuple[TopicName, bool]]:
    """Each with whether it is `unused`."""
    for first in range(0, len(parts), LOOKED_AT_TOGETHER):
        some = parts[first : first + LOOKED_AT_TOGETHER]
        for part, is_unused in zip(some, await asyncio.gather(*(unused(call, part) for part in some)), strict=True):
            yield part, is_unused


async def unused(call: Call, part: TopicName) -> bool:
    """True if a topic is one of this broker's partitions that are only registered: nothing is in it, and nobody need load it to know.

    Raises NotOwnedError where another broker is asked about its partition.
    """
    if part.partition < 0 or not part.persistent or call.broker.topics.get_loaded(part) is not None:
        return False
    if not await call.admin.partitioned.is_unused(part):
        return False
    await call.broker.lookup.require(part)
    return True


async def every_subscription(call: Call) -> list[Subscription]:
    """The subscription of the path on each partition. Raises SubscriptionNotFoundError unless all have it."""
    name = call.subscription
    return [topic.subscriptions.get(name) for topic in await all_with_subscription(call, name)]


async def every_backlog(call: Call) -> list[BacklogHolder]:
    """The same, where the name may be a replicator's cursor, `pulsar.repl.<cluster>`."""
    name = call.cursor
    return [topic.backlog_holder(name) for topic in await all_with_subscription(call, name)]


async def all_with_subscription(call: Call, name: str) -> list[PersistentTopic]:
    """As `every_persistent`. Raises SubscriptionNotFoundError where one of them cannot have any subscription."""
    topics = await every_persistent(call)
    if len(topics) < len(await call.admin.partitioned.parts(call.topic)):
        raise SubscriptionNotFoundError(f"Subscription {name} not found")
    return topics


def as_persistent(topic: AnyTopic) -> PersistentTopic:
    if not isinstance(topic, PersistentTopic):
        raise NotAllowedError(f"{topic.name} is not persistent: nothing of it is stored")
    return topic
