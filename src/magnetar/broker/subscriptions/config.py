"""Limits and switches of one subscription, made of broker configuration and namespace policies by the topic."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.base.limits import ENTRIES_PER_TURN_MAX


@dataclass(frozen=True, slots=True)
class SubscriptionConfig:
    """Defaults are Pulsar's."""

    max_unacked_per_consumer: int = 50_000
    """Messages a Shared or Key_Shared consumer may hold; then it gets none until half are acknowledged. 0 = no limit."""
    max_unacked_per_subscription: int = 200_000
    """The same over all consumers of the subscription."""
    max_consumers: int = 0
    """More are refused with ConsumerBusyError. 0 = no limit."""
    delayed_delivery_enabled: bool = True
    """Shared and Key_Shared hold messages with a deliver-at time back; the other types never do."""
    delayed_delivery_tick_ms: int = 1000
    """A delayed message goes out at most this long after it is due."""
    batch_index_ack_enabled: bool = True
    """Off: acknowledgements of single messages of a batch are ignored until the batch is acknowledged as a whole."""
    key_shared_consistent_hashing: bool = True
    """False: auto-split hash ranges."""
    key_shared_points: int = 100
    """Points a consumer on the ring of consistent hashing."""
    key_shared_waiting_max: int = 250_000
    """Positions remembered for consumers that cannot take their entries (see `dispatch/key_shared`)."""
    failover_delay_ms: int = 1000
    failover_by_ring: bool = False
    """Time that a Failover subscription waits for acknowledgements of a replaced consumer that is still connected."""
    entries_per_dispatch: int = ENTRIES_PER_TURN_MAX
    """Entries that go out before other subscriptions have their turn."""
