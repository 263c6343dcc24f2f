"""What is done to a persistent topic now and then: expiry, trimming, backlog quota, compaction, snapshots."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from magnetar.base.clock import Clock
from magnetar.base.errors import BrokerError
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.namespaces.policies import BacklogQuota, EffectivePolicies
from magnetar.broker.naming import TopicName
from magnetar.broker.reasons import Code, Rule
from magnetar.broker.replicators.replicator_set import ReplicatorSet
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics import deduplication, policy_rules
from magnetar.broker.topics.expiry import last_of_older_row, position_older_than, publish_time_after_ms
from magnetar.broker.topics.ports import BacklogHolder
from magnetar.broker.topics.publishers import Publishers
from magnetar.broker.topics.subscription_set import SubscriptionSet
from magnetar.broker.topics.topic_deduplication import TopicDeduplication
from magnetar.broker.topics.transactions import TopicTransactions
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.ledger_index import position_after_bytes, size_after
from magnetar.managed_ledger.position import Position

logger = logging.getLogger(__name__)


class Excess(NamedTuple):
    """A backlog quota that is exceeded: of which subscriptions how much is too much."""

    quota: BacklogQuota
    subscriptions: Sequence[Subscription]
    until: Position


class TopicUpkeep:
    """Jobs of one topic: `broker/upkeep` runs them by the clock, the admin API when it is asked to."""

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        clock: Clock,
        policies: EffectivePolicies,
        publishers: Publishers,
        subscriptions: SubscriptionSet,
        replicators: ReplicatorSet,
        deduplication: TopicDeduplication,
        compaction: TopicCompaction,
        transactions: TopicTransactions,
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._clock = clock
        self.policies = policies
        """The topic's current policies; the topic sets them."""
        self._publishers = publishers
        self._subscriptions = subscriptions
        self._replicators = replicators
        self._deduplication = deduplication
        self._compaction = compaction
        self._transactions = transactions
        self.refused_since_ms = 0
        """Wall time since which a quota refuses producers, 0 while none does."""
        self._oldest: tuple[Position, int] | None = None
        """Mark-delete position of the slowest subscription and publish time of the entry behind it, when they were last read."""

    async def compact_if_due(self) -> None:
        """Start a compaction if the backlog exceeds the policies' threshold."""
        self._compaction.start_if_due(self.policies.compaction_threshold_bytes)

    async def snapshot_deduplication(self) -> None:
        """Store the sequence ids once the last snapshot is older than its interval."""
        interval_s = self.policies.deduplication_snapshot_interval_s
        self._deduplication.snapshot_if_older(interval_s, self._clock.monotonic_s())

    async def expire_subscriptions(self) -> None:
        """Delete durable subscriptions that nobody has used for as long as the policies say."""
        if self.policies.subscription_expiration_s > 0:
            for name in await self._subscriptions.expire_unused(self.policies.subscription_expiration_s):
                logger.info("unused subscription deleted topic=%s subscription=%s", self._name, name)

    async def expire_messages(self) -> None:
        """Count backlog older than the TTL as consumed."""
        ttl_s = self.policies.message_ttl_s
        readers: list[BacklogHolder] = [*self._subscriptions.all, *self._replicators.all]
        if ttl_s > 0 and any(reader.cursor.backlog_entries for reader in readers):
            await self.expire_older_than(ttl_s, readers, Rule.TTL)

    async def expire_older_than(self, age_s: int, readers: Sequence[BacklogHolder], rule: Rule = Rule.REQUEST) -> None:
        """Count what was published longer ago as consumed."""
        position = await self._older_than(age_s, readers)
        if position is not None:
            for reader in readers:
                await reader.expire(position, rule)

    async def _older_than(self, age_s: int, readers: Sequence[BacklogHolder]) -> Position | None:
        cutoff_ms = self._clock.now_ms() - age_s * 1000
        if not self._deduplication.sources:
            return await position_older_than(self._ledger, cutoff_ms)
        marks = [reader.cursor.mark_delete_position for reader in readers]
        return await last_of_older_row(self._ledger, min(marks), cutoff_ms) if marks else None

    async def trim(self) -> None:
        """Give back the storage of consumed ledgers that retention no longer keeps."""
        self._deduplication.snapshot()
        self._transactions.snapshot()
        if self._consumed_and_unretained():
            await self._ledger.rollover()
        await self._ledger.trim()

    @property
    def settled(self) -> bool:
        """True if none of these jobs would find anything to do, however much time went by: what is stored is consumed and removed, or kept
        for ever, and nobody but clients and deduplication has a cursor."""
        policies, subscriptions = self.policies, self._subscriptions.all
        if policies.subscription_expiration_s > 0 and subscriptions:
            return False
        if self._ledger.size_bytes and (policies.retention_time_minutes >= 0 or policies.retention_size_mb >= 0):
            return False
        of_clients = {each.name for each in subscriptions if each.durable and not each.backlog_entries}
        return not self._replicators.all and all(
            name in of_clients or name == deduplication.CURSOR_NAME for name in self._ledger.cursors
        )

    def _consumed_and_unretained(self) -> bool:
        """An idle topic whose last ledger is consumed would keep it until the next rollover: roll now. Deduplication consumes nothing."""
        cursors = [c for c in self._ledger.cursors.values() if c.durable and c.name != deduplication.CURSOR_NAME]
        policies = self.policies
        unretained = policies.retention_time_minutes == 0 or policies.retention_size_mb == 0
        return unretained and bool(cursors) and not any(cursor.backlog_entries for cursor in cursors)

    async def read_oldest_backlog(self) -> None:
        """Look when the oldest unacknowledged message was published, unless that is known."""
        slowest = self._subscriptions.slowest
        if slowest is None or not slowest.cursor.backlog_entries:
            return
        position = slowest.cursor.mark_delete_position
        if self._oldest is None or self._oldest[0] != position:
            published_ms = await publish_time_after_ms(self._ledger, position)
            self._oldest = (position, published_ms) if published_ms is not None else None

    def oldest_backlog(self) -> Mapping[str, object]:
        """Age and subscription of the oldest unacknowledged message as Pulsar's topic stats have them; -1 if it was not read since
        the slowest subscription has moved."""
        slowest, known = self._subscriptions.slowest, self._oldest
        if slowest is None or known is None or known[0] != slowest.cursor.mark_delete_position:
            return {"oldestBacklogMessageAgeSeconds": -1, "oldestBacklogMessageSubscriptionName": None}
        age_s = max(0, self._clock.now_ms() - known[1]) // 1000
        return {"oldestBacklogMessageAgeSeconds": age_s, "oldestBacklogMessageSubscriptionName": slowest.name}

    async def check_backlog_quota(self) -> None:
        """Refuse producers or evict, as long as the quota is exceeded; take producers back once it is not."""
        excess = await self._excess()
        refusal = self._refuse(excess)
        if refusal is not None:
            self._publishers.disconnect_all()
        elif excess is not None:
            for subscription in excess.subscriptions:
                await subscription.expire(excess.until, Rule.QUOTA)

    async def review_backlog_quota(self) -> None:
        """What producers that come are told: what holds now, which need not be what the last check has found."""
        self._refuse(await self._excess())

    async def _excess(self) -> Excess | None:
        slowest = self._subscriptions.slowest
        if slowest is None:
            return None
        size_quota, age_quota = self.policies.size_quota, self.policies.age_quota
        mark = slowest.cursor.mark_delete_position
        backlog_bytes = size_after(self._ledger.index, mark)
        if policy_rules.size_exceeded(size_quota, backlog_bytes):
            surplus = policy_rules.bytes_to_evict(size_quota, backlog_bytes)
            return Excess(size_quota, [slowest], position_after_bytes(self._ledger.index, mark, surplus))
        if age_quota.limit_time_s > 0:
            oldest = await self._older_than(age_quota.limit_time_s, [slowest])
            if oldest is not None and oldest > slowest.cursor.mark_delete_position:
                return Excess(age_quota, list(self._subscriptions.all), oldest)
        return None

    def _refuse(self, excess: Excess | None) -> BrokerError | None:
        """Producers by what the policy of the exceeded quota says, and none without one."""
        refusal = None if excess is None else policy_rules.refusal(excess.quota, str(self._name))
        if (refusal is None) != (self._publishers.refusal is None):
            change = "producers are refused" if refusal is not None else "producers are taken again"
            logger.info("%s topic=%s reason=%s", change, self._name, Code.QUOTA_EXCEEDED)
        self.refused_since_ms = 0 if refusal is None else self.refused_since_ms or self._clock.now_ms()
        self._publishers.refusal = refusal
        return refusal
