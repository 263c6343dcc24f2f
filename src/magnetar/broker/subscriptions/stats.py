"""A subscription in the JSON of Pulsar's admin API. Maps are never null there."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.ledger_index import LedgerIndex, size_after


def _consumer_stats(dispatcher: Dispatcher, consumer: Consumer) -> dict[str, Any]:
    stats = consumer.stats()
    ranges = [f"[{start}, {end}]" for start, end in dispatcher.key_ranges_of(consumer)]
    if ranges:
        stats["keyHashRanges"] = ranges
    if dispatcher.keyed:
        stats |= _draining_stats(dispatcher.draining_of(consumer))
    return stats


DRAINING_SHOWN_MAX = 1_000
"""Draining hashes of a consumer that are listed; the count covers all of them."""


def _draining_stats(held: Mapping[int, int]) -> dict[str, Any]:
    """PIP-379: slots that went to another consumer and wait for this one's acknowledgements."""
    listed = islice(held.items(), DRAINING_SHOWN_MAX)
    return {
        "drainingHashesCount": len(held),
        "drainingHashesUnackedMessages": sum(held.values()),
        "drainingHashes": [{"hash": slot, "unackMsgs": entries} for slot, entries in listed],
    }


def subscription_stats(subscription: Subscription, index: LedgerIndex) -> dict[str, Any]:
    """SubscriptionStats. Rates are of the last sampling interval. `backlogSize` is that of all entries behind the mark-delete
    position, acknowledged ones among them, as Pulsar estimates it."""
    consumers = subscription.consumers
    dispatcher = subscription.dispatch.dispatcher
    active = dispatcher.active_consumer
    backlog = subscription.backlog_entries
    delayed = subscription.delayed_messages
    kind = subscription.type
    return {
        "type": kind.name if kind is not None else "None",
        "msgRateOut": subscription.rates.messages_per_s,
        "msgThroughputOut": subscription.rates.bytes_per_s,
        "bytesOutCounter": subscription.bytes_out,
        "msgOutCounter": subscription.messages_out,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
        "chunkedMessageRate": 0,
        "msgBacklog": backlog,
        "backlogSize": size_after(index, subscription.cursor.mark_delete_position) if backlog else 0,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgBacklogNoDelayed": max(0, backlog - delayed),
        "msgDelayed": delayed,
        "msgInReplay": dispatcher.waiting_count,
        "blockedSubscriptionOnUnackedMsgs": dispatcher.blocked_on_unacked,
        "unackedMessages": dispatcher.unacked_messages,
        **({"activeConsumerName": active.name} if active is not None else {}),
        "msgRateExpired": 0.0,
        "totalMsgExpired": subscription.expired_total,
        "lastExpireTimestamp": subscription.last_expire_ms,
        "lastConsumedFlowTimestamp": subscription.last_flow_ms,
        "lastConsumedTimestamp": max(
            (consumer.last_consumed_ms for consumer in consumers), default=subscription.last_consumed_ms
        ),
        "lastAckedTimestamp": subscription.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": subscription.last_acked_ms,
        "consumers": [_consumer_stats(dispatcher, consumer) for consumer in consumers],
        "isDurable": subscription.durable,
        "isReplicated": subscription.replicated,
        "allowOutOfOrderDelivery": any(consumer.allow_out_of_order for consumer in consumers),
        **({"keySharedMode": consumers[0].key_shared_mode.name} if consumers and dispatcher.keyed else {}),
        "consumersAfterMarkDeletePosition": {},
        "nonContiguousDeletedMessagesRanges": subscription.cursor.acks.range_count(),
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": dispatcher.delayed.size_bytes if dispatcher.delayed is not None else 0,
        "subscriptionProperties": subscription.properties,
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
        "replicated": subscription.replicated,
        "durable": subscription.durable,
    }
