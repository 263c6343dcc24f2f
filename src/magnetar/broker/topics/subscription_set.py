"""The subscriptions of one persistent topic: found in its cursors when it is loaded, created by the first consumer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from magnetar.base.clock import Clock
from magnetar.broker.compaction.compacted_source import CompactedTopic
from magnetar.broker.compaction.topic_compaction import CompactionService
from magnetar.broker.dispatch.ports import ConsumerChannel, Scheduler
from magnetar.broker.dispatch.turns import DispatchTurns
from magnetar.broker.errors import (
    ConsumerBusyError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
)
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.namespaces.policies import EffectivePolicies
from magnetar.broker.naming import is_internal_cursor, subscription_name
from magnetar.broker.rate_limits import GroupMeters, RateMeter, meter_for
from magnetar.broker.replication.ports import ReplicationContext
from magnetar.broker.replicators.service import ReplicationService
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.delayed_buckets import DelayedStorage
from magnetar.broker.subscriptions.subscription import Followed, Subscription
from magnetar.broker.topics.expiry import first_published_at
from magnetar.broker.topics.subscribe import SubscribeRequest, check_request, new_consumer
from magnetar.broker.transactions.log import TransactionStorage
from magnetar.managed_ledger.cursor.cursor import REPLICATED_PROPERTY, ManagedCursor
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position


@dataclass(frozen=True, slots=True)
class TopicContext:
    """Dependencies of topics and their subscriptions; the same for all topics of a broker."""

    clock: Clock
    scheduler: Scheduler
    dispatch_turns: DispatchTurns
    rng: random.Random
    config: Callable[[EffectivePolicies], SubscriptionConfig]
    compaction: CompactionService
    replicated_subscriptions: ReplicationContext
    delayed_storage: DelayedStorage | None = None
    transactions: TransactionStorage | None = None
    replication: ReplicationService | None = None
    drained: Callable[[str, str], None] = lambda topic, subscription: None
    """Called with topic and subscription when everything in a terminated topic is acknowledged; now and then once more."""
    groups: GroupMeters = field(default_factory=GroupMeters)
    """Of this broker's resource groups."""


class SubscriptionSet:
    """Subscriptions by name. Creation and removal are serialized; everything on the message path goes to the subscriptions directly."""

    def __init__(
        self,
        topic_name: str,
        ledger: ManagedLedger,
        context: TopicContext,
        policies: EffectivePolicies,
        compacted: CompactedTopic,
    ) -> None:
        self._topic_name = topic_name
        self._ledger = ledger
        self._context = context
        self.policies = policies
        self._compacted = compacted
        self.dispatch_meter: RateMeter | None = None
        self.added: Callable[[Subscription], None] = _nothing
        """Called with each subscription before it reads anything."""
        self.replicated_changed: Callable[[], Awaitable[None]] = _nobody
        """Called when a subscription begins or ceases to be replicated."""
        self._followed: Followed | None = None
        self._by_name: dict[str, Subscription] = {}
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def all(self) -> list[Subscription]:
        return list(self._by_name.values())

    def follow(self, followed: Followed | None) -> None:
        """See `Subscription.follow`: of all there are and will be."""
        self._followed = followed
        for subscription in self._by_name.values():
            subscription.follow(followed)

    @property
    def consumers_count(self) -> int:
        return sum(len(subscription.consumers) for subscription in self._by_name.values())

    @property
    def changing(self) -> bool:
        """True if a subscription is being created or removed."""
        return self._lock.locked()

    def apply_policies(self, policies: EffectivePolicies) -> None:
        """New limits and rates, for all subscriptions at once."""
        self.policies = policies
        context = self._context
        self.dispatch_meter = meter_for(policies.dispatch_rate, self.dispatch_meter, context.clock.monotonic_s())
        for subscription in self._by_name.values():
            subscription.set_config(context.config(policies))
            self._limit(subscription)

    def _limit(self, subscription: Subscription) -> None:
        """A rate of the subscription's own wins over the one that all of the topic's have."""
        policies, group = self.policies, self.policies.resource_group
        now_s = self._context.clock.monotonic_s()
        shared = self._context.groups.meter(group.name, "dispatch", group.dispatch_rate, now_s)
        own = policies.subscription_rates.get(subscription.name, policies.subscription_dispatch_rate)
        subscription.dispatch_limits.apply(self.dispatch_meter, own, shared)

    def publish_rate_is(self, messages_per_s: float, bytes_per_s: float, now_s: float) -> None:
        """Adapt dispatch rates that are relative to the publish rate."""
        if self.dispatch_meter is not None:
            self.dispatch_meter.publish_rate_is(messages_per_s, bytes_per_s, now_s)
        for subscription in self._by_name.values():
            subscription.dispatch_limits.publish_rate_is(messages_per_s, bytes_per_s, now_s)

    async def expire_unused(self, unused_s: float) -> list[str]:
        """Delete durable subscriptions that have had no consumer for so long, counted from when they were loaded; their names.

        The time that the cursor stores does not serve: after a crash it may be older than the last consumer's departure.
        """
        cutoff_s = self._context.clock.monotonic_s() - unused_s
        expired: list[str] = []
        for subscription in self.all:
            async with self._lock:
                unused = not subscription.consumers and self._by_name.get(subscription.name) is subscription
                if unused and subscription.durable and subscription.last_used_s < cutoff_s:
                    await self._discard(subscription)
                    expired.append(subscription.name)
        return expired

    @property
    def slowest(self) -> Subscription | None:
        """The durable subscription that lags furthest behind."""
        durable = [subscription for subscription in self._by_name.values() if subscription.durable]
        return min(durable, key=lambda subscription: subscription.cursor.mark_delete_position, default=None)

    def find(self, name: str) -> Subscription | None:
        return self._by_name.get(name)

    def get(self, name: str) -> Subscription:
        """Raises SubscriptionNotFoundError."""
        subscription = self._by_name.get(name)
        if subscription is None:
            raise SubscriptionNotFoundError("Subscription not found")
        return subscription

    async def load(self) -> None:
        """One subscription for each durable cursor."""
        for name, cursor in list(self._ledger.cursors.items()):
            if cursor.durable and not is_internal_cursor(name):
                self._add(name, cursor)

    async def subscribe(self, request: SubscribeRequest, channel: ConsumerChannel) -> Consumer:
        """Raises what `Subscription.add_consumer` raises, NotAllowedError, SubscriptionNotFoundError, ConsumerBusyError, and
        ServiceNotReadyError once the topic is closed."""
        check_request(request, self.policies.subscription_types)
        async with self._lock:
            self._check_open()
            limit = self.policies.max_consumers_per_topic
            if limit and self.consumers_count >= limit:
                raise ConsumerBusyError(f"Topic reached max consumers limit {limit}")
            subscription = self._by_name.get(request.subscription)
            created = subscription is None
            if subscription is None:
                subscription = await self._create_for(request)
            elif subscription.durable != request.durable:
                raise NotAllowedError(
                    f"subscription {request.subscription} is {'' if subscription.durable else 'not '}durable"
                )
            was_replicated = subscription.replicated
            consumer = new_consumer(request, channel, self._context.clock.now_ms())
            try:
                subscription.add_consumer(consumer)
            except Exception:
                if created and not request.durable:
                    await self._discard(subscription)
                raise
        if request.replicated and request.durable and self.policies.replicated_subscriptions.enabled:
            if not subscription.replicated:
                await subscription.cursor.keep_property(REPLICATED_PROPERTY, 1)
            if created or not was_replicated:
                await self.replicated_changed()
        return consumer

    async def set_replicated(self, name: str, replicated: bool) -> None:
        """From now on; durable on return. Raises SubscriptionNotFoundError, NotAllowedError."""
        subscription = self.get(name)
        if not subscription.durable:
            raise NotAllowedError(f"{name} is not durable: it has no state that could be replicated")
        if replicated and not self.policies.replicated_subscriptions.enabled:
            raise NotAllowedError("replicated subscriptions are switched off: see enableReplicatedSubscriptions")
        if subscription.replicated != replicated:
            await subscription.cursor.keep_property(REPLICATED_PROPERTY, 1 if replicated else None)
            await self.replicated_changed()

    async def create(
        self, name: str, start: Position, properties: dict[str, str], replicated: bool = False
    ) -> Subscription:
        """A durable subscription without a consumer (admin call, initial subscription). Raises AlreadyExistsError, NotAllowedError."""
        subscription_name(name)
        async with self._lock:
            self._check_open()
            if name in self._by_name:
                raise AlreadyExistsError("Subscription already exists for topic")
            self._check_room()
            subscription = await self._create_durable(name, start, properties, replicated)
        if replicated:
            await self.replicated_changed()
        return subscription

    async def consumer_left(self, consumer: Consumer) -> None:
        """A reader's subscription goes with its last consumer."""
        host = consumer.subscription
        if host is None:
            return
        host.remove_consumer(consumer)
        subscription = self._by_name.get(host.name)
        if subscription is None or subscription.durable or subscription.consumers:
            return
        async with self._lock:
            if not subscription.consumers and self._by_name.get(subscription.name) is subscription:
                await self._discard(subscription)

    async def unsubscribe(self, name: str, force: bool) -> None:
        """Raises SubscriptionNotFoundError, or PreconditionFailedError while (other) consumers are connected."""
        async with self._lock:
            subscription = self.get(name)
            if len(subscription.consumers) > 1 and not force:
                raise PreconditionFailedError("Subscription has active connected consumers")
            await self._discard(subscription)

    def _check_open(self) -> None:
        if self._closed:
            raise ServiceNotReadyError(f"{self._topic_name} was closed meanwhile: look it up again")

    async def close(self) -> None:
        """Disconnect all consumers; the cursors stay. Raises the first error once all are closed."""
        self._closed = True
        async with self._lock:
            outcomes = await asyncio.gather(
                *(subscription.close() for subscription in self.all), return_exceptions=True
            )
            self._by_name.clear()
            self.added, self.replicated_changed = _nothing, _nobody
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome

    async def _create_for(self, request: SubscribeRequest) -> Subscription:
        if not request.durable:
            return await self._create_reader(request)
        if not self.policies.auto_subscription_creation:
            raise SubscriptionNotFoundError(
                "Subscription does not exist, and subscriptions are not created automatically"
            )
        self._check_room()
        start = EARLIEST if request.earliest else LATEST
        replicated = request.replicated and self.policies.replicated_subscriptions.enabled
        return await self._create_durable(request.subscription, start, request.subscription_properties, replicated)

    async def _create_durable(
        self, name: str, start: Position, properties: dict[str, str], replicated: bool
    ) -> Subscription:
        marked = {REPLICATED_PROPERTY: 1} if replicated else None
        cursor = await self._ledger.open_cursor(name, initial=start, properties=marked, cursor_properties=properties)
        return self._add(name, cursor)

    async def _create_reader(self, request: SubscribeRequest) -> Subscription:
        start = request.start if request.start is not None else LATEST
        if request.start_rollback_s:
            since_ms = self._context.clock.now_ms() - request.start_rollback_s * 1000
            start = await first_published_at(self._ledger, since_ms)
        cursor = self._ledger.new_non_durable_cursor(request.subscription, start)
        return self._add(request.subscription, cursor, start)

    def _add(self, name: str, cursor: ManagedCursor, begin: Position | None = None) -> Subscription:
        context = self._context
        subscription = Subscription(
            topic_name=self._topic_name,
            name=name,
            ledger=self._ledger,
            cursor=cursor,
            clock=context.clock,
            scheduler=context.dispatch_turns.of(self._topic_name.partition("://")[2].partition("/")[0]),
            config=context.config(self.policies),
            rng=context.rng,
            delayed_storage=context.delayed_storage,
            compacted=self._compacted,
            begin=begin,
        )
        subscription.drained = context.drained
        if self._ledger.terminated:
            subscription.topic_terminated()
        self._limit(subscription)
        if self._followed is not None:
            subscription.follow(self._followed)
        self.added(subscription)
        self._by_name[name] = subscription
        return subscription

    async def _discard(self, subscription: Subscription) -> None:
        self._by_name.pop(subscription.name, None)
        await subscription.close(deleting=True)
        await self._ledger.delete_cursor(subscription.name)

    def _check_room(self) -> None:
        """Of a segment that is asked where the subscription of the whole topic is written down: it has its place in each of them then."""
        if self._topic_name.startswith("segment://"):
            return
        limit = self.policies.max_subscriptions_per_topic
        if limit and len(self._by_name) >= limit:
            raise NotAllowedError(f"Exceed the maximum number of subscriptions of the topic: {limit}")


def _nothing(subscription: Subscription) -> None:
    """No effect: the default of `added`."""


async def _nobody() -> None:
    """No effect: the default of `replicated_changed`."""
