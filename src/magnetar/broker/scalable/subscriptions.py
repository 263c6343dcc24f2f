"""The subscriptions of scalable topics: whether one more may come, its record, and its places in all segments.

Every record of a subscription is made by `record`, whoever asks for it: a stream consumer at the controller, a client or an administrator
at any broker, another cluster. The policies are asked there, before anything is written: the segments would refuse the subscription later,
and its record would stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.broker.errors import NotAllowedError, SubscriptionNotFoundError, TopicNotFoundError
from magnetar.broker.namespaces.policies import EffectivePolicies
from magnetar.broker.naming import TopicName
from magnetar.broker.scalable.migration import scalable_name
from magnetar.broker.scalable.records import CHECKPOINT, ScalableRecords
from magnetar.broker.scalable.segments import Segments, segment_name


class ScalableSubscriptions:
    """One for each broker. `policies(topic)`: those that hold for a topic and its segments."""

    def __init__(
        self,
        records: ScalableRecords,
        segments: Segments,
        policies: Callable[[TopicName], Awaitable[EffectivePolicies]],
    ) -> None:
        self._records = records
        self._segments = segments
        self._policies = policies
        self._establishing: dict[tuple[TopicName, str], asyncio.Future[None]] = {}

    # ---- Records

    async def record(self, topic: TopicName, subscription: str, kind: str, by_client: bool = False) -> bool:
        """Write a subscription down, unless it is. True if it was not.

        Raises NotAllowedError where the topic has as many as it may have, SubscriptionNotFoundError for one that a client asks for where
        subscriptions are not created automatically.
        """
        if await self._records.has_subscription(topic, subscription):
            return False
        policies = await self._policies(topic)
        most = policies.max_subscriptions_per_topic
        refused = by_client and not policies.auto_subscription_creation
        known = await self._known(topic) if most or refused else {subscription}
        if subscription not in known:
            if refused:
                raise SubscriptionNotFoundError(
                    "Subscription does not exist, and subscriptions are not created automatically"
                )
            if len(known) >= most:
                raise _too_many(most)
        await self._records.add_subscription(topic, subscription, kind)
        if most and subscription not in known and await self._is_beyond(topic, subscription, most):
            await self._records.remove_subscription(topic, subscription)
            raise _too_many(most)
        return True

    async def _known(self, topic: TopicName) -> set[str]:
        """Those that are written down, and those that segments have: of a topic that was migrated, say. Groups of checkpoint consumers have
        no place in a segment, and do not count."""
        found = {name for name, kind in (await self._records.subscriptions(topic)).items() if kind != CHECKPOINT}
        record = await self._records.get(topic)
        for segment in record.layout.active if record is not None else ():
            try:
                found.update(await self._segments.subscriptions(segment_name(topic, segment)))
            except TopicNotFoundError:
                continue  # about to be created
        return found

    async def _is_beyond(self, topic: TopicName, subscription: str, most: int) -> bool:
        """Another broker may have written one down at the same moment: the first ones stay."""
        made = await self._records.subscriptions_made(topic)
        return subscription in made and made.index(subscription) >= most

    # ---- With their places

    async def before_subscribe(self, name: TopicName, subscription: str, kind: str, earliest: bool) -> None:
        """A client is about to subscribe to a segment, or to a partition that has become one. A subscription that is new is written down,
        and gets its cursors in all segments.

        So a split knows of it, nothing that it has not read is deleted, and no segment to which the client comes later has lost anything.
        Raises as `record`.
        """
        topic = scalable_name(name)
        key = (topic, subscription)
        under_way = self._establishing.get(key)
        if under_way is not None:
            await asyncio.wait([under_way])
        try:
            if subscription in await self._segments.own.subscriptions(name):
                return
        except TopicNotFoundError:
            return  # the answer to the SUBSCRIBE says so
        done = self._establishing[key] = asyncio.get_running_loop().create_future()
        try:
            await self.record(topic, subscription, kind, by_client=True)
            await self._establish(topic, subscription, earliest, besides=name)
        finally:
            done.set_result(None)
            if self._establishing.get(key) is done:
                del self._establishing[key]

    async def create(self, topic: TopicName, subscription: str, kind: str) -> None:
        """From the next message on. Raises TopicNotFoundError, NotAllowedError."""
        if await self._records.get(topic) is None:
            raise TopicNotFoundError(f"Scalable topic {topic} does not exist")
        await self.record(topic, subscription, kind)
        await self._establish(topic, subscription, False)

    async def _establish(
        self, topic: TopicName, subscription: str, earliest: bool, besides: TopicName | None = None
    ) -> None:
        record = await self._records.get(topic)
        if record is None:
            return
        layout = record.pending.applied_to(record.layout) if record.pending is not None else record.layout
        for segment in {**layout.segments, **record.layout.segments}.values():
            name = segment_name(topic, segment)
            try:
                if name != besides:
                    await self._segments.subscribe(name, subscription, earliest)
            except TopicNotFoundError:
                continue  # sealed and deleted, or about to be created: then with this cursor

    async def after_unsubscribe(self, name: TopicName, subscription: str) -> None:
        """A client has removed the subscription from a segment: it is gone with the last one."""
        topic = scalable_name(name)
        record = await self._records.get(topic)
        if record is None:
            return
        for segment in record.layout.segments.values():
            try:
                if subscription in await self._segments.subscriptions(segment_name(topic, segment)):
                    return
            except TopicNotFoundError:
                continue
        await self._records.remove_subscription(topic, subscription)


def _too_many(most: int) -> NotAllowedError:
    return NotAllowedError(
        f"Exceed the maximum number of subscriptions of the topic: {most}; delete one, or raise maxSubscriptionsPerTopic"
    )
