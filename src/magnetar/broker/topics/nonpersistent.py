"""A non-persistent topic: what is published goes to the consumers that can take it now; nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.broker.config import BrokerConfig
from magnetar.broker.dispatch.ports import ConsumerChannel
from magnetar.broker.errors import ConsumerBusyError, NotAllowedError, SubscriptionNotFoundError
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.policies import EffectivePolicies
from magnetar.broker.naming import TopicName, subscription_name
from magnetar.broker.rate_limits import Rates
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.nonpersistent import NonPersistentSubscription
from magnetar.broker.topics.policy_rules import Inactivity, TopicState
from magnetar.broker.topics.publish_gate import PublishGate
from magnetar.broker.topics.publishers import Publishers
from magnetar.broker.topics.stats import producer_stats, sample_rates
from magnetar.broker.topics.subscribe import SubscribeRequest, check_type, new_consumer
from magnetar.broker.topics.subscription_set import TopicContext
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ports import RunDone
from magnetar.managed_ledger.position import EARLIEST, Position

UNSTORED = Position(0, 0)
"""What receipts and messages of a non-persistent topic carry as their position, as in Pulsar."""


class NonPersistentTopic:
    """Implements `Topic`."""

    terminated = False

    def __init__(
        self, name: TopicName, config: BrokerConfig, policies: EffectivePolicies, context: TopicContext
    ) -> None:
        self.name = name
        self.policies = policies
        self._context = context
        self._by_name: dict[str, NonPersistentSubscription] = {}
        self._subscriptions: list[NonPersistentSubscription] = []
        self.created_ms = context.clock.now_ms()
        self.last_publish_ms = 0
        self.rates = Rates()
        self.publishers = Publishers(topic_name=str(name), append=self._publish, clock=context.clock)
        self._gate = PublishGate(context.scheduler, context.clock, context.groups)
        self._inactivity = Inactivity(context.clock.monotonic_s())
        self.apply_policies(policies)

    def _publish(self, run: list[bytes], done: RunDone) -> None:
        self.last_publish_ms = self._context.clock.now_ms()
        for data in run:
            entry = Entry(UNSTORED.ledger_id, UNSTORED.entry_id, data)
            for subscription in self._subscriptions:
                subscription.publish(entry)
            done(None, UNSTORED.ledger_id, UNSTORED.entry_id, 1)  # each has the same place

    @property
    def in_use(self) -> bool:
        return bool(len(self.publishers.producers) or self._by_name)

    @property
    def used_without_schema(self) -> bool:
        """As for persistent topics; there are no stored messages."""
        consumers = (consumer for subscription in self._subscriptions for consumer in subscription.consumers)
        return bool(len(self.publishers.producers)) or any(not consumer.auto_consume for consumer in consumers)

    @property
    def subscriptions(self) -> list[NonPersistentSubscription]:
        return self._subscriptions

    @property
    def subscription_names(self) -> list[str]:
        return list(self._by_name)

    async def subscribe(self, request: SubscribeRequest, channel: ConsumerChannel) -> Consumer:
        subscription_name(request.subscription)
        check_type(request, self.policies.subscription_types)
        limit = self.policies.max_consumers_per_topic
        if limit and sum(len(subscription.consumers) for subscription in self._subscriptions) >= limit:
            raise ConsumerBusyError(f"Topic reached max consumers limit {limit}")
        subscription = self._by_name.get(request.subscription) or NonPersistentSubscription(
            str(self.name), request.subscription, self._context.config(self.policies)
        )
        consumer = new_consumer(request, channel, self._context.clock.now_ms())
        subscription.add_consumer(consumer)
        self._by_name[request.subscription] = subscription
        self._subscriptions = list(self._by_name.values())
        return consumer

    async def consumer_left(self, consumer: Consumer) -> None:
        """A subscription that keeps nothing goes with its last consumer."""
        if consumer.subscription is None:
            return
        name = consumer.subscription.name
        subscription = self._by_name.get(name)
        consumer.subscription.remove_consumer(consumer)
        if subscription is not None and not subscription.consumers:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._by_name.pop(name, None)
        self._subscriptions = list(self._by_name.values())

    async def unsubscribe(self, subscription: str, force: bool = False) -> None:
        known = self._by_name.get(subscription)
        if known is None:
            raise SubscriptionNotFoundError("Subscription not found")
        if len(known.consumers) > 1 and not force:
            raise PreconditionFailedError("Subscription has active connected consumers")
        known.disconnect()
        self._remove(subscription)

    async def accept_replicated(self, source: str, instance: str, log_end: tuple[int, int] | None) -> None:
        """No effect: nothing is kept that a repeat could be compared with."""

    async def ensure_subscription(self, name: str, start: Position) -> None:
        """An initial subscription would keep messages, which a non-persistent topic cannot."""
        raise NotAllowedError(f"{self.name} is not persistent: it cannot keep messages for the subscription {name}")

    async def seek(self, subscription: str, target: Position) -> None:
        raise NotAllowedError("Seek is not supported on a non-persistent topic")

    async def seek_to_time(self, subscription: str, publish_time_ms: int) -> None:
        raise NotAllowedError("Seek is not supported on a non-persistent topic")

    async def last_message(self, read_compacted: bool = False) -> tuple[Position, int]:
        return EARLIEST, 0

    def mark_delete_position(self, subscription: str) -> Position | None:
        return None

    def backlog_of(self, subscription: str) -> int:
        return 0

    def apply_policies(self, policies: EffectivePolicies) -> None:
        self.policies = policies
        self.publishers.producers.producers_max = policies.max_producers_per_topic
        self._gate.update(policies)
        self.publishers.gate = None if self._gate.open else self._gate
        if policies.encryption_required:
            self.publishers.disconnect_unencrypted()
        for subscription in self._subscriptions:
            subscription.config = self._context.config(policies)

    async def policies_changed(self, policies: EffectivePolicies) -> None:
        self.apply_policies(policies)

    def abandoned(self, now_s: float) -> bool:
        """True if the topic should be forgotten, because nobody has used it for as long as its policies say."""
        waiting = bool(self.publishers.producers.waiting)
        state = TopicState(self.in_use or waiting, len(self._by_name), backlog=False, retention_s=0)
        return self._inactivity.abandoned(self.policies.inactive, state, now_s)

    def sample_rates(self, now_s: float) -> None:
        sample_rates(self.rates, self.publishers, self._subscriptions, now_s)

    def stats(self) -> Mapping[str, object]:
        counters = self.publishers.counters
        subscriptions = {subscription.name: subscription.stats() for subscription in self._subscriptions}
        return {
            "msgRateIn": self.rates.messages_per_s,
            "msgThroughputIn": self.rates.bytes_per_s,
            "msgRateOut": sum(stats["msgRateOut"] for stats in subscriptions.values()),
            "msgThroughputOut": sum(stats["msgThroughputOut"] for stats in subscriptions.values()),
            "bytesInCounter": counters.bytes_in,
            "msgInCounter": counters.messages_in,
            "bytesOutCounter": sum(stats["bytesOutCounter"] for stats in subscriptions.values()),
            "msgOutCounter": sum(stats["msgOutCounter"] for stats in subscriptions.values()),
            "averageMsgSize": counters.bytes_in / counters.messages_in if counters.messages_in else 0.0,
            "storageSize": 0,
            "backlogSize": 0,
            "waitingPublishers": len(self.publishers.producers.waiting),
            "publishers": [producer_stats(producer) for producer in self.publishers.producers.all],
            "subscriptions": subscriptions,
            "replication": {},
            "topicCreationTimeStamp": self.created_ms,
            "lastPublishTimestamp": self.last_publish_ms,
        }

    async def close(self) -> None:
        self._gate.release()
        self.publishers.disconnect_all()
        for subscription in self._subscriptions:
            subscription.disconnect()

    async def delete(self) -> None:
        await self.close()
