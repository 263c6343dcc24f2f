"""Other clusters' updates: a subscription's cursor follows them, or comes into being.

What an update counts as consumed is everything up to a position, except for messages that its sender was never given (`replicate_to`),
and single messages behind it, by their names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.broker.namespaces.errors import AlreadyExistsError
from magnetar.broker.replication.origin_log import OriginLog
from magnetar.broker.replication.ports import ReplicationContext, Subscriptions
from magnetar.broker.replication.replicated_subscription import CreateSubscription, decide
from magnetar.broker.replication.subscription_side import SubscriptionSide
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.wire.pulsar.markers import Run, SubscriptionUpdate

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
"""Updates that wait to be applied; further ones are dropped. A later one says the same and more, but for single messages."""

PENDING_RUNS_MAX: Final = 10_000
"""Runs of single messages of one subscription that were acknowledged elsewhere and have not come here; above it the oldest are
forgotten, and consumed again after a failover."""


class Incoming:
    """`apply` is called in the order of the log."""

    def __init__(
        self,
        topic_name: str,
        ledger: ManagedLedger,
        subscriptions: Subscriptions,
        context: ReplicationContext,
        sides: Mapping[str, SubscriptionSide],
    ) -> None:
        self._topic_name = topic_name
        self._ledger = ledger
        self._subscriptions = subscriptions
        self._context = context
        self._sides = sides
        self._log = OriginLog(ledger)
        self._waiting: list[tuple[SubscriptionUpdate, str]] = []
        self._working = False
        self._alone = asyncio.Lock()
        self._closed = False
        self._moved: dict[str, None] = {}
        self._pending: dict[str, list[tuple[str, Run]]] = {}
        self._held: dict[str, Position] = {}
        """Last message by subscription that some sender never had. That it is consumed here others learn only from here."""
        self._applied: dict[tuple[str, str], Position] = {}
        """Last position applied, by subscription and sender."""

    def apply(self, update: SubscriptionUpdate, sender: str) -> None:
        if len(self._waiting) >= WAITING_MAX:
            return
        self._waiting.append((update, sender))
        self.work()

    async def applied(self, update: SubscriptionUpdate, sender: str) -> None:
        """Apply it now; durable on return. For topics that get none by `apply`. Raises what reading or storing raised."""
        async with self._alone:
            await self._apply(update, sender)
            self._forget()
            await self.flush()

    def work(self) -> None:
        """Go on with what waits, also for messages that had not come."""
        if not self._working and not self._closed and (self._waiting or self._pending):
            self._working = True
            self._context.spawn(self._work(), f"updates of {self._topic_name}")

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()

    @property
    def idle(self) -> bool:
        """True if everything that has arrived has been applied."""
        return not self._working and not self._waiting

    async def _work(self) -> None:
        try:
            while self._waiting and not self._closed:
                await self._apply(*self._waiting.pop(0))
            for name in list(self._pending):
                await self._acknowledge(name)
            self._forget()
        except MagnetarError as error:
            logger.warning("update not applied topic=%s error=%s", self._topic_name, error)
        except Exception:  # our bug, in one topic: the other topics and their clients have not deserved it
            logger.exception("update not applied topic=%s", self._topic_name)
        finally:
            self._working = False

    async def _apply(self, update: SubscriptionUpdate, sender: str) -> None:
        subscription = self._subscriptions.find(update.subscription)
        mark_delete = None if subscription is None else subscription.cursor.mark_delete_position
        decision = decide(update, self._context.cluster, mark_delete)
        if isinstance(decision, CreateSubscription):
            subscription = await self._create(decision)
        elif decision is not None and subscription is not None and subscription.durable:
            await self._move(subscription, decision.position, sender)
        if update.acknowledged and subscription is not None and subscription.durable:
            pending = self._pending.setdefault(update.subscription, [])
            pending += [(cluster, run) for cluster, runs in update.acknowledged.items() for run in runs]
            del pending[:-PENDING_RUNS_MAX]

    async def _create(self, decision: CreateSubscription) -> Subscription | None:
        name = decision.subscription
        try:
            created = await self._subscriptions.create(name, decision.position, {}, replicated=True)
        except AlreadyExistsError:  # a consumer came first, and began where it wanted to
            return self._subscriptions.find(name)
        self._context.counters.updates_applied += 1
        logger.info("subscription created by an update topic=%s subscription=%s", self._topic_name, name)
        return created

    async def _move(self, subscription: Subscription, position: Position, sender: str) -> None:
        cursor = subscription.cursor
        position = min(position, self._ledger.last_confirmed)
        origins = await self._log.known(cursor.mark_delete_position, position)
        key = (subscription.name, sender)
        before = max(cursor.mark_delete_position, self._applied.get(key, EARLIEST))
        unseen = origins.restricted(cursor.mark_delete_position, position, sender)
        unseen = [each for each in unseen if not cursor.is_acknowledged(each)]
        self._applied[key] = position
        if unseen:
            self._held[subscription.name] = max(unseen[-1], self._held.get(subscription.name, EARLIEST))

        def move() -> None:
            if unseen:
                self._pass_around(cursor, before, position, unseen)
            else:
                cursor.acknowledge_cumulative(position)
            subscription.acknowledged_elsewhere()

        self._follow(subscription, move)

    def _pass_around(self, cursor: ManagedCursor, after: Position, upto: Position, unseen: list[Position]) -> None:
        """Acknowledge (after, upto] but for `unseen`: these are there for whoever consumes here."""
        first = self._ledger.next_position(after)
        for position in unseen:
            if position >= first:
                cursor.pass_over(first, position)
                first = self._ledger.next_position(position)
        cursor.pass_over(first, Position(upto.ledger_id, upto.entry_id + 1))

    async def _acknowledge(self, name: str) -> None:
        """Single messages; those that have not come wait."""
        subscription = self._subscriptions.find(name)
        runs = self._pending.pop(name)
        if subscription is None:
            return
        cursor = subscription.cursor
        origins = await self._log.known(cursor.mark_delete_position, self._ledger.last_confirmed)
        places: list[Position] = []
        left: list[tuple[str, Run]] = []
        for cluster, run in runs:
            if cluster == self._context.cluster:
                ledger_id, first, last = run
                places += [Position(ledger_id, entry_id) for entry_id in range(first, last + 1)]
                continue
            places += origins.places(cluster, run)
            if not origins.complete(cluster, run):
                left.append((cluster, run))

        def move() -> None:
            cursor.acknowledge(places)
            subscription.acknowledged_elsewhere()

        if places:
            self._follow(subscription, move)
        if left:
            self._pending[name] = left + self._pending.get(name, [])

    def _forget(self) -> None:
        """Forget what no later subscription can ask about."""
        followers = [self._subscriptions.find(name) for name in {name for name, _ in self._applied}]
        places = [follower.cursor.mark_delete_position for follower in followers if follower is not None]
        if self._log.origins is not None and places:
            self._log.origins.forget_upto(min(places))

    def _follow(self, subscription: Subscription, move: Callable[[], None]) -> None:
        self._context.counters.updates_applied += 1
        side = self._sides.get(subscription.name)
        held = self._held.get(subscription.name)
        if side is None:
            move()
        else:
            side.follow(move, quiet=held is None)
            if held is not None and side.told > held:
                del self._held[subscription.name]
        self._moved[subscription.name] = None

    async def flush(self) -> None:
        """Wait until what was applied is durable. Raises the error of storing it; the next call tries again."""
        for name in list(self._moved):
            subscription = self._subscriptions.find(name)
            if subscription is not None:
                await subscription.cursor.flush()
            self._moved.pop(name, None)
