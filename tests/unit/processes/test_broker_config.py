"""Components that are told nothing behave as the settings of their processes are declared."""

from __future__ import annotations

from pathlib import Path

from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.broker.config import ReplicatedSubscriptionsConfig, managed_ledger_config, replicated_subscriptions_config
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.processes.bookie_config import bookie_config


def test_defaults_are_the_declared_ones() -> None:
    """Three defaults once differed: of the expiry check's interval, the retention check's, and the youngest age of a rollover."""
    settings = BrokerSettings()
    assert managed_ledger_config(settings) == ManagedLedgerConfig()
    assert replicated_subscriptions_config(settings) == ReplicatedSubscriptionsConfig()
    plain = SubscriptionConfig()
    assert plain.max_unacked_per_consumer == settings.max_unacked_messages_per_consumer
    assert plain.max_unacked_per_subscription == settings.max_unacked_messages_per_subscription
    assert plain.max_consumers == settings.max_consumers_per_subscription
    assert plain.delayed_delivery_enabled == settings.delayed_delivery_enabled
    assert plain.delayed_delivery_tick_ms == settings.delayed_delivery_tick_ms
    assert plain.batch_index_ack_enabled == settings.acknowledgment_at_batch_index_level_enabled
    assert plain.key_shared_consistent_hashing == settings.subscription_key_shared_use_consistent_hashing
    assert plain.key_shared_points == settings.subscription_key_shared_consistent_hashing_replica_points
    assert plain.failover_delay_ms == settings.active_consumer_failover_delay_ms
    declared = bookie_config(BookieSettings(), Path("d"), "127.0.0.1:3181")
    assert BookieConfig(data_dir=Path("d"), bookie_id="127.0.0.1:3181") == declared
