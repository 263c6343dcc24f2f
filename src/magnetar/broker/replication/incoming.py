"""Other clusters' updates: a subscription's cursor follows them, or comes into being."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from magnetar.base.errors import MagnetarError
from magnetar.broker.namespaces.errors import AlreadyExistsError
from magnetar.broker.replication.ports import ReplicationContext, Subscriptions
from magnetar.broker.replication.replicated_subscription import CreateSubscription, decide
from magnetar.broker.replication.subscription_side import SubscriptionSide
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.markers import SubscriptionUpdate

logger = logging.getLogger(__name__)


class Incoming:
    """`apply` is called in the order of the log."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        context: ReplicationContext,
        sides: Mapping[str, SubscriptionSide],
        topic_name: str,
    ) -> None:
        self._subscriptions = subscriptions
        self._context = context
        self._sides = sides
        self._topic_name = topic_name
        self._moved: set[str] = set()
        self._creating: dict[str, list[SubscriptionUpdate]] = {}
        """Updates of subscriptions that are being created, which follow when they are."""

    def apply(self, update: SubscriptionUpdate) -> None:
        name = update.subscription
        if name in self._creating:
            self._creating[name].append(update)
            return
        subscription = self._subscriptions.find(name)
        mark_delete = None if subscription is None else subscription.cursor.mark_delete_position
        decision = decide(update, self._context.cluster, mark_delete)
        if isinstance(decision, CreateSubscription):
            self._creating[name] = [update]
            self._context.spawn(self._create(decision), f"create {name} of {self._topic_name}")
        elif decision is not None and subscription is not None:
            self._move(subscription, decision.position)

    def _move(self, subscription: Subscription, position: Position) -> None:
        if not subscription.durable:
            return
        self._context.counters.updates_applied += 1
        side = self._sides.get(subscription.name)

        def move() -> None:
            subscription.cursor.acknowledge_cumulative(position)
            subscription.acknowledged_elsewhere()

        if side is None:
            move()
        else:
            side.follow(move)
        self._moved.add(subscription.name)

    async def _create(self, decision: CreateSubscription) -> None:
        name = decision.subscription
        try:
            await self._subscriptions.create(name, decision.position, {}, replicated=True)
            del self._creating[name][0]  # what it says is where it begins
            self._context.counters.updates_applied += 1
            logger.info("subscription created by an update topic=%s subscription=%s", self._topic_name, name)
        except AlreadyExistsError:
            logger.info("subscription came before its update topic=%s subscription=%s", self._topic_name, name)
        except MagnetarError as error:
            del self._creating[name][0]  # or it would be tried again at once; the next update tells more
            logger.warning(
                "subscription not created by an update topic=%s subscription=%s error=%s", self._topic_name, name, error
            )
        for update in self._creating.pop(name):
            self.apply(update)

    @property
    def creating(self) -> bool:
        """Is something that was applied not there yet?"""
        return bool(self._creating)

    async def flush(self) -> None:
        """Until what was applied is durable. Raises why it could not be stored; the next call tries again."""
        for name in list(self._moved):
            subscription = self._subscriptions.find(name)
            if subscription is not None:
                await subscription.cursor.flush()
            self._moved.discard(name)
