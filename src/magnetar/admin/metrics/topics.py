"""Pulsar's metrics of topics and subscriptions, read from plain counters at scrape time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar.base.clock import Clock
from magnetar.broker.explain.subscription import blocked_by, standing_of
from magnetar.broker.subscriptions.nonpersistent import NonPersistentSubscription
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import AnyTopic

_LATENCY = ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow")
_SIZES = ("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb", "overflow")

TOPIC_COLUMNS = (
    "pulsar_subscriptions_count",
    "pulsar_producers_count",
    "pulsar_consumers_count",
    "pulsar_rate_in",
    "pulsar_rate_out",
    "pulsar_throughput_in",
    "pulsar_throughput_out",
    "pulsar_in_messages_total",
    "pulsar_in_bytes_total",
    "pulsar_out_messages_total",
    "pulsar_out_bytes_total",
    "pulsar_msg_backlog",
    "pulsar_storage_size",
    "pulsar_storage_logical_size",
    "pulsar_storage_backlog_size",
    "pulsar_storage_offloaded_size",
    "pulsar_storage_backlog_quota_limit",
    "pulsar_storage_backlog_quota_limit_time",
    "pulsar_storage_write_rate",
    "pulsar_storage_read_rate",
    "pulsar_storage_read_latency_count",
    *(f"pulsar_storage_write_latency_{bucket}" for bucket in _LATENCY),
    "pulsar_storage_write_latency_count",
    "pulsar_storage_write_latency_sum",
    *(f"pulsar_entry_size_{bucket}" for bucket in _SIZES),
    "pulsar_entry_size_count",
    "pulsar_entry_size_sum",
    "pulsar_compaction_removed_event_count",
    "pulsar_compaction_succeed_count",
    "pulsar_compaction_failed_count",
    "pulsar_compaction_duration_time_in_mills",
)

SUBSCRIPTION_COLUMNS = (
    "pulsar_subscription_back_log",
    "pulsar_subscription_back_log_no_delayed",
    "pulsar_subscription_delayed",
    "pulsar_subscription_in_replay",
    "pulsar_subscription_msg_rate_out",
    "pulsar_subscription_msg_throughput_out",
    "pulsar_subscription_unacked_messages",
    "pulsar_subscription_blocked_on_unacked_messages",
    "pulsar_subscription_consumers_count",
    "pulsar_subscription_total_msg_expired",
    "pulsar_subscription_last_acked_timestamp",
    "pulsar_subscription_last_consumed_flow_timestamp",
)

BLOCKED_COLUMNS = ("magnetar_subscription_blocked",)
"""With the label `reason`: a row for each code that holds something up in a subscription, 1 where all of it stands still, else 0.5."""

REPLICATOR_COLUMNS = (
    "pulsar_replication_rate_in",
    "pulsar_replication_rate_out",
    "pulsar_replication_throughput_in",
    "pulsar_replication_throughput_out",
    "pulsar_replication_backlog",
    "pulsar_replication_rate_expired",
    "pulsar_replication_connected_count",
    "pulsar_replication_disconnected_count",
    "pulsar_replication_delay_in_seconds",
)
_REPLICATOR_STATS = (
    "msgRateIn",
    "msgRateOut",
    "msgThroughputIn",
    "msgThroughputOut",
    "replicationBacklog",
    "msgRateExpired",
)


def replicator_values(row: Mapping[str, Any]) -> Sequence[float]:
    """In the order of REPLICATOR_COLUMNS. `row`: of the topic's stats, one other cluster."""
    known = [row[name] for name in _REPLICATOR_STATS]
    return (*known, int(row["connected"]), int(not row["connected"]), row["replicationDelayInSeconds"])


def topic_values(topic: AnyTopic) -> Sequence[float]:
    """In the order of TOPIC_COLUMNS."""
    counters = topic.publishers.counters
    subscriptions = subscriptions_of(topic)
    quotas = topic.policies.size_quota.limit_bytes, topic.policies.age_quota.limit_time_s
    stored = backlog_bytes = backlog = reads = 0
    read_rate = 0.0
    compaction: Sequence[float] = (0, 0, 0, 0)
    if isinstance(topic, PersistentTopic):
        stored, backlog_bytes = topic.ledger.size_bytes, topic.backlog_bytes
        backlog = sum(subscription.backlog_entries for subscription in topic.subscriptions.all)
        reads, read_rate = topic.ledger.reads.from_bookies, topic.read_rates.entries_per_s
        compaction = topic.compaction.counters.as_metrics()
    return (
        len(subscriptions),
        len(topic.publishers.producers),
        sum(len(subscription.consumers) for subscription in subscriptions),
        topic.rates.messages_per_s,
        sum(subscription.rates.messages_per_s for subscription in subscriptions),
        topic.rates.bytes_per_s,
        sum(subscription.rates.bytes_per_s for subscription in subscriptions),
        counters.messages_in,
        counters.bytes_in,
        sum(subscription.messages_out for subscription in subscriptions),
        sum(subscription.bytes_out for subscription in subscriptions),
        backlog,
        stored,
        stored,
        backlog_bytes,
        0,
        *quotas,
        topic.rates.entries_per_s,
        read_rate,
        reads,
        *counters.latency_buckets,
        counters.entries_in,
        round(counters.latency_total_ms, 3),
        *counters.entry_size_buckets,
        counters.entries_in,
        counters.bytes_in,
        *compaction,
    )


def subscriptions_of(topic: AnyTopic) -> Sequence[Subscription | NonPersistentSubscription]:
    return topic.subscriptions.all if isinstance(topic, PersistentTopic) else topic.subscriptions


def blocked_values(topic: PersistentTopic, subscription: Subscription, clock: Clock) -> dict[str, float]:
    """By code. Nothing is asked where nothing waits."""
    if not subscription.backlog_entries and topic.transactions.buffer is None:
        return {}
    standing = standing_of(topic, subscription, clock)
    weight = 1.0 if standing.moving is False else 0.5
    return {str(code): weight for code in blocked_by(standing)}


def subscription_values(subscription: Subscription) -> Sequence[float]:
    """In the order of SUBSCRIPTION_COLUMNS."""
    backlog, delayed = subscription.backlog_entries, subscription.delayed_messages
    return (
        backlog,
        max(0, backlog - delayed),
        delayed,
        subscription.dispatch.dispatcher.waiting_count,
        subscription.rates.messages_per_s,
        subscription.rates.bytes_per_s,
        subscription.unacked_messages,
        subscription.dispatch.dispatcher.blocked_on_unacked,
        len(subscription.consumers),
        subscription.expired_total,
        subscription.last_acked_ms,
        subscription.last_flow_ms,
    )
