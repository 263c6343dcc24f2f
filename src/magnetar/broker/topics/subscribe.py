"""What a client asks for when it subscribes: SUBSCRIBE without the wire."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from magnetar.broker.dispatch.ports import ConsumerChannel
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.naming import subscription_name
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.policies import KeySharedMode, SubscriptionType
from magnetar.managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """`start` is the first position to be read, for non-durable subscriptions (readers) only."""

    subscription: str
    type: SubscriptionType
    consumer_id: int
    consumer_name: str
    durable: bool = True
    start: Position | None = None
    start_rollback_s: int = 0
    earliest: bool = False
    priority_level: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    sticky_ranges: tuple[tuple[int, int], ...] = ()
    sticky: bool = False
    allow_out_of_order: bool = False
    read_compacted: bool = False
    replicated: bool = False
    subscription_properties: dict[str, str] = field(default_factory=dict)
    force_topic_creation: bool = True
    auto_consume: bool = False
    client_address: str = ""
    client_version: str = ""


def check_request(request: SubscribeRequest, enabled: Collection[str]) -> None:
    """What can be said without the subscription. Raises NotAllowedError, also unless policies have `enabled` its type."""
    subscription_name(request.subscription)
    if request.read_compacted and request.type.holds_entries:
        raise NotAllowedError("readCompacted only allowed on failover or exclusive subscriptions")
    check_type(request, enabled)


def check_type(request: SubscribeRequest, enabled: Collection[str]) -> None:
    """Raises NotAllowedError unless policies allow the subscription's type."""
    if request.type.name not in enabled:
        raise NotAllowedError(
            f"the topic takes no subscriptions of type {request.type.name}, only {', '.join(sorted(enabled))}"
        )


def new_consumer(request: SubscribeRequest, channel: ConsumerChannel, now_ms: int) -> Consumer:
    """The consumer that a request asks for, not yet part of any subscription."""
    return Consumer(
        consumer_id=request.consumer_id,
        name=request.consumer_name,
        type=request.type,
        channel=channel,
        priority_level=request.priority_level,
        metadata=request.metadata,
        durable=request.durable,
        key_shared_mode=KeySharedMode.STICKY if request.sticky else KeySharedMode.AUTO_SPLIT,
        sticky_ranges=request.sticky_ranges,
        allow_out_of_order=request.allow_out_of_order,
        auto_consume=request.auto_consume,
        client_address=request.client_address,
        client_version=request.client_version,
        connected_since_ms=now_ms,
        read_compacted=request.read_compacted,
        from_earliest=request.durable and request.earliest,
    )
