"""A persistent topic: a managed ledger, its publishers and its subscriptions, held together and kept within their policies.

What each part does is in its own file (`publishers`, `subscription_set`, `topic_deduplication`, `policy_rules`, `expiry`, `stats`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from magnetar.broker.compaction.topic_compaction import Status, TopicCompaction
from magnetar.broker.config import BrokerConfig
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.dispatch.ports import ConsumerChannel
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.namespaces.errors import AlreadyExistsError
from magnetar.broker.namespaces.policies import EffectivePolicies
from magnetar.broker.naming import TopicName
from magnetar.broker.rate_limits import Rates
from magnetar.broker.replication.replicated_subscriptions import ReplicatedSubscriptions
from magnetar.broker.replicators.names import cluster_of_cursor
from magnetar.broker.replicators.replicator_set import ReplicatorSet
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.topics.policy_rules import Inactivity, SubscribeLimiter, TopicState, needed
from magnetar.broker.topics.ports import BacklogHolder
from magnetar.broker.topics.publish_gate import PublishGate
from magnetar.broker.topics.publishers import Publishers
from magnetar.broker.topics.stats import incoming_stats, persistent_stats, sample_rates
from magnetar.broker.topics.subscribe import SubscribeRequest
from magnetar.broker.topics.subscription_set import SubscriptionSet, TopicContext
from magnetar.broker.topics.topic_deduplication import TopicDeduplication
from magnetar.broker.topics.transactions import TopicTransactions
from magnetar.broker.topics.upkeep import TopicUpkeep
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.ledger_index import size_after
from magnetar.managed_ledger.position import EARLIEST, Position

logger = logging.getLogger(__name__)

TOPIC_EPOCH_PROPERTY = "topicEpoch"


def ledger_config(base: ManagedLedgerConfig, policies: EffectivePolicies) -> ManagedLedgerConfig:
    """The managed ledger's settings under the topic's policies; one object for all topics with the same ones."""
    quorums = (policies.ensemble_size, policies.write_quorum, policies.ack_quorum)
    retention = (policies.retention_time_minutes, policies.retention_size_mb)
    return _ledger_config(base, policies.mark_delete_rate, *retention, *quorums)


@lru_cache(maxsize=256)
def _ledger_config(
    base: ManagedLedgerConfig,
    rate: float,
    minutes: int,
    megabytes: int,
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
) -> ManagedLedgerConfig:
    return replace(
        base,
        cursor_persist_interval_ms=max(1, round(1000 / rate)) if rate > 0 else base.cursor_persist_interval_ms,
        retention_time_ms=minutes * 60_000 if minutes >= 0 else -1,
        retention_size_bytes=megabytes * 1024 * 1024 if megabytes >= 0 else -1,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
    )


def _entries_in(publishers: Publishers) -> int:
    return publishers.counters.entries_in


class PersistentTopic:
    """Implements `Topic`."""

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        config: BrokerConfig,
        policies: EffectivePolicies,
        context: TopicContext,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.policies = policies
        self._config = config
        self._context = context
        self.created_ms = context.clock.now_ms()
        self.rates = Rates()
        self.read_rates = Rates()
        self.follower: object = None
        """What `tracing` keeps of the topic, while messages of it are traced."""
        text = str(name)
        self.publishers = Publishers(
            topic_name=text,
            append=ledger.append_run,
            clock=context.clock,
            topic_epoch=int(ledger.properties.get(TOPIC_EPOCH_PROPERTY, "0")),
        )
        self.publishers.store_epoch = self._store_epoch
        self.publishers.append_failed = self._append_failed
        self.deduplication = TopicDeduplication(ledger, self.publishers, config)
        self.compaction = TopicCompaction(text, name.partition, ledger, context.compaction)
        self.subscriptions = SubscriptionSet(text, ledger, context, policies, self.compaction)
        self.replicators = ReplicatorSet(name, ledger, context.replication)
        self.transactions = TopicTransactions(
            name, ledger, self.subscriptions, self.compaction, self.replicators, context
        )
        self.replicated_subscriptions = ReplicatedSubscriptions(
            text,
            ledger,
            self.subscriptions,
            context.replicated_subscriptions,
            published=partial(_entries_in, self.publishers),
            readable_end=self.transactions.readable_end,
        )
        self.replicated_subscriptions.links = self.replicators.links
        self.publishers.marker_stored = self.replicated_subscriptions.marker_arrived
        self.subscriptions.replicated_changed = self.replicated_subscriptions.check
        self.upkeep = TopicUpkeep(
            name,
            ledger,
            context.clock,
            policies,
            self.publishers,
            self.subscriptions,
            self.replicators,
            self.deduplication,
            self.compaction,
            self.transactions,
        )
        if config.settings.backlog_quota_check_enabled:
            self.publishers.review = self.upkeep.review_backlog_quota
        self._gate = PublishGate(context.scheduler, context.clock, context.groups)
        self._subscribe_limiter = SubscribeLimiter()
        self._inactivity = Inactivity(context.clock.monotonic_s())
        self.used_s = context.clock.monotonic_s()
        """When somebody last asked for it, or was seen to be connected."""

    async def load(self) -> None:
        """Bring back what the cursors hold: subscriptions and, where it is enabled, deduplication."""
        self.apply_policies(self.policies)
        await self.compaction.load()
        await self.subscriptions.load()
        await self.transactions.load()
        await self.replicated_subscriptions.load()
        await self.policies_applied()

    async def _store_epoch(self, epoch: int) -> None:
        await self.ledger.set_properties({**self.ledger.properties, TOPIC_EPOCH_PROPERTY: str(epoch)})

    def _append_failed(self) -> None:
        """Producers were told; their clients send again from the first unanswered entry on a new registration."""
        self.publishers.disconnect_all()
        self.ledger.resume_writes()

    @property
    def terminated(self) -> bool:
        return self.ledger.terminated

    @property
    def in_use(self) -> bool:
        """True if somebody is connected: deletion then takes force. Subscriptions without consumers do not hold it up, as in Pulsar."""
        return bool(len(self.publishers.producers) or self.subscriptions.consumers_count)

    @property
    def used_without_schema(self) -> bool:
        """True if messages, producers or consumers are there already: a consumer's schema does not become the topic's any more."""
        consumers = (consumer for subscription in self.subscriptions.all for consumer in subscription.consumers)
        expecting = any(not consumer.auto_consume for consumer in consumers)
        return bool(len(self.publishers.producers) or expecting or self.ledger.size_bytes)

    @property
    def subscription_names(self) -> list[str]:
        return [subscription.name for subscription in self.subscriptions.all]

    @property
    def backlog_bytes(self) -> int:
        """Bytes that the slowest durable subscription has not consumed."""
        slowest = self.subscriptions.slowest
        return size_after(self.ledger.index, slowest.cursor.mark_delete_position) if slowest is not None else 0

    # ---- Subscriptions

    async def subscribe(self, request: SubscribeRequest, channel: ConsumerChannel) -> Consumer:
        """Raises NotAllowedError above the subscribe rate, and what `SubscriptionSet.subscribe` raises."""
        host = request.client_address.rpartition(":")[0]
        who = f"{host}\0{request.consumer_name}\0{request.consumer_id}"
        if not self._subscribe_limiter.admit(who, self._context.clock.monotonic_s()):
            raise NotAllowedError(f"Subscribe limited by subscribe rate limit per consumer on topic {self.name}")
        return await self.subscriptions.subscribe(request, channel)

    async def consumer_left(self, consumer: Consumer) -> None:
        await self.subscriptions.consumer_left(consumer)

    async def unsubscribe(self, subscription: str, force: bool = False) -> None:
        await self.subscriptions.unsubscribe(subscription, force)

    async def ensure_subscription(self, name: str, start: Position) -> None:
        """A subscription that a producer wants to exist before its first message."""
        try:
            await self.subscriptions.create(name, start, {})
        except AlreadyExistsError:
            return

    async def seek(self, subscription: str, target: Position) -> None:
        await self.subscriptions.get(subscription).seek(target)

    async def seek_to_time(self, subscription: str, publish_time_ms: int) -> None:
        sought = self.subscriptions.get(subscription)
        compacted = (
            await self.compaction.first_published_at(publish_time_ms) if sought.dispatch.reads_compacted else None
        )
        if compacted is not None:
            await sought.seek(compacted)
        else:
            await sought.seek_to_time(publish_time_ms)

    async def last_message(self, read_compacted: bool = False) -> tuple[Position, int]:
        """Position of the last entry that consumers may see, and its number of messages when it is a batch, else 0. (-1, -1) without any.

        `read_compacted`: of what compaction left, when nothing came since."""
        last = await self.transactions.last_visible()
        compacted = self.compaction.current
        if read_compacted and compacted is not None and (last.entry_id < 0 or last <= compacted.horizon):
            return await self.compaction.last_message()
        if last.entry_id < 0:
            return EARLIEST, 0
        metadata = metadata_of(await self.ledger.read_entry(last))
        return last, metadata.num_messages if metadata.batched else 0

    def mark_delete_position(self, subscription: str) -> Position | None:
        return self.subscriptions.get(subscription).cursor.mark_delete_position

    def backlog_of(self, subscription: str) -> int:
        return self.subscriptions.get(subscription).backlog_messages

    # ---- Policies and upkeep

    def apply_policies(self, policies: EffectivePolicies) -> None:
        """Limits, rates and ledger settings at once; what has to read or write follows in `policies_changed`."""
        self.policies = self.upkeep.policies = policies
        self.publishers.producers.producers_max = policies.max_producers_per_topic
        self._gate.update(policies)
        self.publishers.gate = None if self._gate.open else self._gate
        if policies.encryption_required:
            self.publishers.disconnect_unencrypted()
        self._subscribe_limiter.set_rate(policies.subscribe_rate)
        self.ledger.set_config(ledger_config(self._config.managed_ledger, policies))
        self.subscriptions.apply_policies(policies)
        self.replicated_subscriptions.apply_config(policies.replicated_subscriptions)

    async def policies_changed(self, policies: EffectivePolicies) -> None:
        """Everything that follows from new policies, without waiting for the next round of upkeep."""
        former = self.policies
        self.apply_policies(policies)
        await self.policies_applied()
        if policies.message_ttl_s != former.message_ttl_s:
            await self.upkeep.expire_messages()
        quotas = (policies.size_quota, policies.age_quota)
        if quotas != (former.size_quota, former.age_quota) and self._config.settings.backlog_quota_check_enabled:
            await self.upkeep.check_backlog_quota()

    async def policies_applied(self) -> None:
        """Start and stop what policies switch on or off, which takes a while."""
        await self.deduplication.apply(self.policies.deduplication)
        await self.replicators.apply(self.policies.replication_clusters, self.policies.replicator_dispatch_rate)
        await self.replicated_subscriptions.check()
        if self.policies.compaction_threshold_bytes > 0:
            await self.compaction.hold()

    async def accept_replicated(self, source: str, instance: str, log_end: tuple[int, int] | None) -> None:
        """Another cluster is going to send, see `TopicDeduplication.accept_from`."""
        await self.deduplication.accept_from(source, instance, log_end)

    def abandoned(self, now_s: float) -> bool:
        """True if the topic should be deleted, because nobody has used it for as long as its policies say."""
        return self._inactivity.abandoned(self.policies.inactive, self._use(), now_s)

    def _use(self) -> TopicState:
        minutes = self.policies.retention_time_minutes
        return TopicState(
            connected=self.in_use or self.subscriptions.changing or self._awaited,
            subscriptions=len(self.subscriptions.all),
            backlog=any(subscription.backlog_entries for subscription in self.subscriptions.all),
            retention_s=minutes * 60 if minutes >= 0 else -1,
        )

    def unneeded(self, now_s: float, unused_s: float) -> bool:
        """True if nobody would notice that the topic is not in memory: nobody has used it for so long, it is not on its way to be deleted,
        and no time-out, quota or other cluster concerns it."""
        state, inactive = self._use(), self.policies.inactive
        if state.connected:
            self.used_s = now_s
        if now_s - self.used_s < unused_s or self.name.is_segment or self.terminated or self.follower is not None:
            return False
        deleted_some_day = inactive.delete and not needed(inactive.mode, state)
        return not deleted_some_day and self.compaction.status is not Status.RUNNING and self.upkeep.settled

    @property
    def _awaited(self) -> bool:
        """True if a producer waits for its turn, or another cluster has not got everything."""
        return bool(self.publishers.producers.waiting or self.replicators.backlog_entries)

    def backlog_holder(self, name: str) -> BacklogHolder:
        """The subscription of that name, or the replicator whose cursor has it. Raises SubscriptionNotFoundError."""
        cluster = cluster_of_cursor(name)
        replicator = self.replicators.get(cluster) if cluster is not None else None
        return replicator or self.subscriptions.get(name)

    def sample_rates(self, now_s: float) -> None:
        sample_rates(self.rates, self.publishers, self.subscriptions.all, now_s)
        self.replicators.sample_rates(now_s)
        self.read_rates.sample(0, 0, now_s, self.ledger.reads.entries)
        self.subscriptions.publish_rate_is(self.rates.messages_per_s, self.rates.bytes_per_s, now_s)

    def replication_stats(self) -> dict[str, dict[str, Any]]:
        """Statistics of both directions by remote cluster."""
        return self.replicators.stats(incoming_stats(self.publishers))

    def stats(self) -> Mapping[str, object]:
        stats = persistent_stats(self.publishers, self.subscriptions, self.ledger, self.rates, self.created_ms)
        replication = self.replication_stats()
        compaction = self.compaction.counters.as_stats()
        quotas = {
            "backlogQuotaLimitSize": self.policies.size_quota.limit_bytes,
            "backlogQuotaLimitTime": self.policies.age_quota.limit_time_s,
            **self.upkeep.oldest_backlog(),
        }
        return {**stats, **quotas, "replication": replication, "compaction": compaction, **self.transactions.stats()}

    # ---- The end

    async def terminate(self) -> Position:
        """No more entries, for good. Consumers learn of it when they have read everything. Raises PreconditionFailedError while a
        transaction is open here: its marker could not be stored any more."""
        self.transactions.check_ended()
        position = await self.ledger.terminate()
        self.publishers.disconnect_all()  # they learn it when they come back, at once
        for subscription in self.subscriptions.all:
            subscription.topic_terminated()
        return position

    async def close(self) -> None:
        """Everything is given back even where something could not be stored; then it raises that."""
        self.publishers.closed = True
        self._gate.release()
        try:
            await self.publishers.quiesce()
            self.publishers.disconnect_all()
            await self.replicators.close()
            await self.compaction.close()
            self.replicated_subscriptions.close()
            await self.subscriptions.close()
            self.deduplication.snapshot()
            self.transactions.snapshot()
        finally:
            await self.ledger.close()
            self.publishers.forget_owner()

    async def delete(self) -> None:
        self.publishers.closed = True
        self._gate.release()
        self.publishers.disconnect_all()
        await self.replicators.close()
        await self.compaction.close()
        self.replicated_subscriptions.close()
        await self.subscriptions.close()
        compacted = self.compaction.stored_ledgers()
        await self.transactions.delete()
        await self.ledger.delete()
        await self.compaction.delete_ledgers(compacted)
        self.publishers.forget_owner()
