"""A subscription in the JSON of Pulsar's admin API (field names of protocol facts 3.8; maps are never null)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription


def subscription_stats(subscription: Subscription) -> dict[str, Any]:
    """SubscriptionStats. Rates are of the last sampling interval."""
    consumers = subscription.consumers
    active = subscription.active_consumer
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
        "backlogSize": -1,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgBacklogNoDelayed": max(0, backlog - delayed),
        "msgDelayed": delayed,
        "msgInReplay": subscription.messages_in_replay,
        "blockedSubscriptionOnUnackedMsgs": subscription.blocked_on_unacked,
        "unackedMessages": subscription.unacked_messages,
        "activeConsumerName": active.name if active is not None else "",
        "msgRateExpired": 0.0,
        "totalMsgExpired": subscription.expired_total,
        "lastExpireTimestamp": subscription.last_expire_ms,
        "lastConsumedFlowTimestamp": subscription.last_flow_ms,
        "lastConsumedTimestamp": max(
            (consumer.last_consumed_ms for consumer in consumers), default=subscription.last_consumed_ms
        ),
        "lastAckedTimestamp": subscription.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": subscription.last_mark_delete_ms,
        "consumers": [consumer.stats() for consumer in consumers],
        "isDurable": subscription.durable,
        "isReplicated": False,
        "allowOutOfOrderDelivery": any(consumer.allow_out_of_order for consumer in consumers),
        "keySharedMode": subscription.key_shared_mode_name,
        "consumersAfterMarkDeletePosition": {},
        "nonContiguousDeletedMessagesRanges": len(subscription.cursor.individual_ranges()),
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": subscription.delayed_index_bytes,
        "subscriptionProperties": dict(subscription.properties),
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
        "replicated": False,
        "durable": subscription.durable,
    }
