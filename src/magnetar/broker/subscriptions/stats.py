"""A subscription in the JSON of Pulsar's admin API (field names of protocol facts 3.8; maps are never null)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from magnetar.broker.rates import Rates
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.types import SubscriptionType


class HoleyCursor(Protocol):
    """What statistics need of a cursor."""

    @property
    def individual_range_count(self) -> int: ...


class Described(Protocol):
    """What statistics need of a subscription."""

    @property
    def type(self) -> SubscriptionType | None: ...
    @property
    def rates(self) -> Rates: ...
    @property
    def active_consumer(self) -> Consumer | None: ...
    @property
    def consumers(self) -> Sequence[Consumer]: ...
    @property
    def cursor(self) -> HoleyCursor: ...
    @property
    def durable(self) -> bool: ...
    @property
    def replicated(self) -> bool: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def backlog_entries(self) -> int: ...
    @property
    def delayed_messages(self) -> int: ...
    @property
    def delayed_index_bytes(self) -> int: ...
    @property
    def messages_in_replay(self) -> int: ...
    @property
    def unacked_messages(self) -> int: ...
    @property
    def blocked_on_unacked(self) -> bool: ...
    @property
    def messages_out(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def key_shared_mode_name(self) -> str: ...
    @property
    def expired_total(self) -> int: ...
    @property
    def last_expire_ms(self) -> int: ...
    @property
    def last_flow_ms(self) -> int: ...
    @property
    def last_consumed_ms(self) -> int: ...
    @property
    def last_acked_ms(self) -> int: ...
    def key_ranges_of(self, consumer: Consumer, /) -> list[tuple[int, int]]: ...


def _consumer_stats(subscription: Described, consumer: Consumer) -> dict[str, Any]:
    stats = consumer.stats()
    stats["keyHashRanges"] = [f"[{start}, {end}]" for start, end in subscription.key_ranges_of(consumer)]
    return stats


def subscription_stats(subscription: Described) -> dict[str, Any]:
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
        "lastMarkDeleteAdvancedTimestamp": subscription.last_acked_ms,
        "consumers": [_consumer_stats(subscription, consumer) for consumer in consumers],
        "isDurable": subscription.durable,
        "isReplicated": subscription.replicated,
        "allowOutOfOrderDelivery": any(consumer.allow_out_of_order for consumer in consumers),
        "keySharedMode": subscription.key_shared_mode_name,
        "consumersAfterMarkDeletePosition": {},
        "nonContiguousDeletedMessagesRanges": subscription.cursor.individual_range_count,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": subscription.delayed_index_bytes,
        "subscriptionProperties": dict(subscription.properties),
        "filterProcessedMsgCount": 0,
        "filterAcceptedMsgCount": 0,
        "filterRejectedMsgCount": 0,
        "filterRescheduledMsgCount": 0,
        "replicated": subscription.replicated,
        "durable": subscription.durable,
    }
