"""Pulsar's topic stats document. Maps are `{}` when empty, never absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar.base.clock import iso_time
from magnetar.broker.rate_limits import Rates
from magnetar.broker.replicators.names import cluster_of_source
from magnetar.broker.subscriptions.nonpersistent import NonPersistentSubscription
from magnetar.broker.subscriptions.stats import subscription_stats
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.publishers import Publishers
from magnetar.broker.topics.subscription_set import SubscriptionSet
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.ledger_index import size_after


def sample_rates(
    rates: Rates,
    publishers: Publishers,
    subscriptions: Sequence[Subscription | NonPersistentSubscription],
    now_s: float,
) -> None:
    """Take the counters of a topic and of everybody who is connected to it."""
    counters = publishers.counters
    rates.sample(counters.messages_in, counters.bytes_in, now_s, counters.entries_in)
    for producer in [*publishers.producers.all, *publishers.producers.remote]:
        producer.rates.sample(producer.messages_in, producer.bytes_in, now_s)
    for subscription in subscriptions:
        subscription.rates.sample(subscription.messages_out, subscription.bytes_out, now_s)
        for consumer in subscription.consumers:
            consumer.rates.sample(consumer.messages_out, consumer.bytes_out, now_s)


def producer_stats(producer: Producer) -> dict[str, Any]:
    return {
        "accessMode": ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")[producer.access_mode],
        "msgRateIn": producer.rates.messages_per_s,
        "msgThroughputIn": producer.rates.bytes_per_s,
        "averageMsgSize": producer.bytes_in / producer.messages_in if producer.messages_in else 0.0,
        "chunkedMessageRate": 0.0,
        "producerId": producer.producer_id,
        "supportsPartialProducer": False,
        "producerName": producer.name,
        "address": producer.channel.address,
        "connectedSince": iso_time(producer.connected_since_ms),
        "clientVersion": producer.channel.client_version,
        "metadata": producer.metadata,
    }


def incoming_stats(publishers: Publishers) -> dict[str, dict[str, Any]]:
    """Rates from each other cluster that is connected: the incoming part of Pulsar's ReplicatorStats."""
    return {
        cluster_of_source(producer.source_cluster or ""): {
            "msgRateIn": producer.rates.messages_per_s,
            "msgThroughputIn": producer.rates.bytes_per_s,
            "msgInCount": producer.messages_in,
            "bytesInCount": producer.bytes_in,
            "inboundConnection": producer.channel.address,
            "inboundConnectedSince": iso_time(producer.connected_since_ms),
        }
        for producer in publishers.producers.remote
    }


NOT_OFFLOADED: Mapping[str, int] = dict.fromkeys(
    ("offloadedStorageSize", "lastOffloadLedgerId", "lastOffloadSuccessTimeStamp", "lastOffloadFailureTimeStamp"), 0
)
"""Nothing is ever moved to a tiered storage here."""


def persistent_stats(
    publishers: Publishers, subscriptions: SubscriptionSet, ledger: ManagedLedger, rates: Rates, created_ms: int
) -> Mapping[str, object]:
    """One persistent topic."""
    counters = publishers.counters
    by_name = {subscription.name: subscription_stats(subscription, ledger.index) for subscription in subscriptions.all}
    slowest = subscriptions.slowest
    return {
        "msgRateIn": rates.messages_per_s,
        "msgThroughputIn": rates.bytes_per_s,
        "msgRateOut": sum(stats["msgRateOut"] for stats in by_name.values()),
        "msgThroughputOut": sum(stats["msgThroughputOut"] for stats in by_name.values()),
        "bytesInCounter": counters.bytes_in,
        "msgInCounter": counters.messages_in,
        "bytesOutCounter": sum(stats["bytesOutCounter"] for stats in by_name.values()),
        "msgOutCounter": sum(stats["msgOutCounter"] for stats in by_name.values()),
        "averageMsgSize": counters.bytes_in / counters.messages_in if counters.messages_in else 0.0,
        "msgChunkPublished": False,
        "storageSize": ledger.size_bytes,
        "backlogSize": size_after(ledger.index, slowest.cursor.mark_delete_position) if slowest else 0,
        "earliestMsgPublishTimeInBacklogs": 0,
        **NOT_OFFLOADED,
        "waitingPublishers": len(publishers.producers.waiting),
        "publishers": [producer_stats(producer) for producer in publishers.producers.all],
        "subscriptions": by_name,
        "replication": {},
        "deduplicationStatus": "Enabled" if publishers.dedup is not None and publishers.dedup_producers else "Disabled",
        "topicEpoch": publishers.topic_epoch or None,
        "nonContiguousDeletedMessagesRanges": sum(
            stats["nonContiguousDeletedMessagesRanges"] for stats in by_name.values()
        ),
        "delayedMessageIndexSizeInBytes": sum(stats["delayedMessageIndexSizeInBytes"] for stats in by_name.values()),
        "topicCreationTimeStamp": created_ms,
        "lastPublishTimestamp": ledger.last_add_time_ms,
        "ownerBroker": "",
    }
