"""Pulsar's topic stats document (facts 3.8). Maps are `{}` when empty, never absent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.publishers import Publishers
from magnetar.broker.topics.subscription_set import SubscriptionSet
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.sizes import size_after


class TopicRates:
    """Rates of the last sampling interval, from counters that only grow. `sample` is called by the upkeep loop."""

    __slots__ = ("_last", "rate_in", "throughput_in")

    def __init__(self) -> None:
        self._last = (0, 0, 0.0)
        self.rate_in = 0.0
        self.throughput_in = 0.0

    def sample(self, messages: int, size_bytes: int, now_s: float) -> None:
        last_messages, last_bytes, last_s = self._last
        elapsed_s = now_s - last_s
        if last_s and elapsed_s > 0:
            self.rate_in = (messages - last_messages) / elapsed_s
            self.throughput_in = (size_bytes - last_bytes) / elapsed_s
        self._last = (messages, size_bytes, now_s)


def producer_stats(producer: Producer) -> dict[str, Any]:
    rate, throughput = producer.rates
    return {
        "accessMode": ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")[producer.access_mode],
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
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


def persistent_stats(
    publishers: Publishers, subscriptions: SubscriptionSet, ledger: ManagedLedger, rates: TopicRates, created_ms: int
) -> Mapping[str, object]:
    """One persistent topic."""
    counters = publishers.counters
    by_name = {subscription.name: subscription.stats() for subscription in subscriptions.all}
    slowest = subscriptions.slowest
    return {
        "msgRateIn": rates.rate_in,
        "msgThroughputIn": rates.throughput_in,
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
        "offloadedStorageSize": 0,
        "waitingPublishers": len(publishers.producers.waiting),
        "publishers": [producer_stats(producer) for producer in publishers.producers.all],
        "subscriptions": by_name,
        "replication": {},
        "deduplicationStatus": "Enabled" if publishers.dedup is not None else "Disabled",
        "topicEpoch": publishers.topic_epoch or None,
        "nonContiguousDeletedMessagesRanges": sum(
            stats["nonContiguousDeletedMessagesRanges"] for stats in by_name.values()
        ),
        "topicCreationTimeStamp": created_ms,
        "lastPublishTimestamp": ledger.last_add_time_ms,
        "ownerBroker": "",
    }


def iso_time(timestamp_ms: int) -> str:
    """`2013-01-01T10:00:00.000Z`, as Pulsar prints times."""
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"
