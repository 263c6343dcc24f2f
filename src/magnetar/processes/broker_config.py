"""From the configuration file's settings to what the broker takes."""

from __future__ import annotations

from dataclasses import replace

from magnetar.broker.config import (
    BrokerConfig,
    ReplicatedSubscriptionsConfig,
    ReplicationConfig,
    SecurityConfig,
    TlsConfig,
    TransactionConfig,
    managed_ledger_config,
)
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.security import names_of, replicators_of
from magnetar.processes.listeners import Listeners
from magnetar.processes.load_balance_config import load_balance_config

_MIB = 1024 * 1024

PROVIDERS = {
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken": "token",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic": "basic",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls": "tls",
}
"""Pulsar's class names."""


def tls_config(config: BrokerSettings) -> TlsConfig | None:
    """None without a TLS port."""
    if max(config.port_tls, config.http_port_tls) < 0:
        return None
    return TlsConfig(
        certificate_file=config.tls_certificate_file_path,
        key_file=config.tls_key_file_path,
        trust_certs_file="" if config.tls_allow_insecure_connection else config.tls_trust_certs_file_path,
        require_client_cert=config.tls_require_trusted_client_cert_on_connect,
        refresh_check_s=config.tls_cert_refresh_check_s,
    )


def security_config(config: BrokerSettings) -> SecurityConfig:
    return SecurityConfig(
        authentication=config.authentication_enabled,
        providers=tuple(PROVIDERS.get(name, name.lower()) for name in names_of(config.authentication_providers)),
        authorization=config.authorization_enabled,
        super_user_roles=names_of(config.super_user_roles),
        replicator_roles=replicators_of(config.replicator_roles),
        proxy_roles=names_of(config.proxy_roles),
        anonymous_role=config.anonymous_user_role,
        metrics_need_superuser=config.authenticate_metrics_endpoint,
        token_secret_key=config.token_secret_key,
        token_public_key=config.token_public_key,
        token_public_alg=config.token_public_alg,
        token_jwks_file=config.token_jwks_file,
        token_auth_claim=config.token_auth_claim,
        token_audience_claim=config.token_audience_claim,
        token_audience=config.token_audience,
        token_clock_skew_s=config.token_allowed_clock_skew_s,
        basic_auth_conf=config.basic_auth_conf,
    )


def transaction_config(config: BrokerSettings) -> TransactionConfig:
    return TransactionConfig(
        enabled=config.transaction_coordinator_enabled,
        coordinators=config.initial_num_transaction_coordinators,
        active_max=config.max_active_transactions_per_coordinator,
        active_per_role_max=config.max_active_transactions_per_role,
        timeout_max_ms=config.max_transaction_timeout_s * 1000,
        snapshot_transactions=config.transaction_buffer_snapshot_max_transaction_count,
        snapshot_interval_ms=config.transaction_buffer_snapshot_min_time_ms,
    )


def replicated_subscriptions_config(config: BrokerSettings) -> ReplicatedSubscriptionsConfig:
    partial_after_s = config.replicated_subscriptions_partial_snapshots_after_s
    return ReplicatedSubscriptionsConfig(
        enabled=config.enable_replicated_subscriptions,
        interval_ms=config.replicated_subscriptions_snapshot_frequency_ms,
        timeout_ms=config.replicated_subscriptions_snapshot_timeout_s * 1000,
        snapshots_max=config.replicated_subscriptions_snapshot_max_cached_per_subscription,
        partial_after_ms=partial_after_s * 1000 or None,
    )


def replication_config(config: BrokerSettings) -> ReplicationConfig:
    return ReplicationConfig(
        queue_max=config.replication_producer_queue_size,
        start_at_earliest=config.replication_start_at == "earliest",
        create_topics=config.create_topic_to_remote_cluster_for_replication,
        dispatch_rate_messages=config.dispatch_throttling_rate_per_replicator_in_msg,
        dispatch_rate_bytes=config.dispatch_throttling_rate_per_replicator_in_byte,
        authentication_plugin=config.broker_client_authentication_plugin,
        authentication_parameters=config.broker_client_authentication_parameters,
        tls_enabled=config.broker_client_tls_enabled,
        trust_certs_file=config.broker_client_trust_certs_file_path,
        verify_hostname=config.tls_hostname_verification_enabled,
    )


def broker_config(config: BrokerSettings, listeners: Listeners) -> BrokerConfig:
    """The broker's view of the configuration, with the ports that are really bound."""
    broker = BrokerConfig(
        cluster=config.cluster_name,
        advertised_address=config.advertised_host,
        bind_address=config.bind_address,
        port=listeners.binary.port,
        http_port=listeners.http.port,
        port_tls=listeners.binary_tls.port if listeners.binary_tls is not None else 0,
        http_port_tls=listeners.http_tls.port if listeners.http_tls is not None else 0,
        tls=tls_config(config),
        security=security_config(config),
        max_message_size_bytes=config.max_message_size,
        keep_alive_interval_s=config.keep_alive_interval_s,
        drain_timeout_s=config.broker_shutdown_timeout_ms / 1000,
        max_pending_publishes_per_connection=config.max_pending_publish_requests_per_connection,
        publish_buffer_bytes=config.max_message_publish_buffer_size_mb * _MIB,
        allow_auto_topic_creation=config.allow_auto_topic_creation,
        auto_topic_creation_partitioned=config.allow_auto_topic_creation_type == "partitioned",
        default_num_partitions=config.default_num_partitions,
        allow_auto_subscription_creation=config.allow_auto_subscription_creation,
        deduplication_enabled=config.broker_deduplication_enabled,
        deduplication_snapshot_entries=config.broker_deduplication_entries_interval,
        deduplication_producers_max=config.broker_deduplication_max_number_of_producers,
        max_unacked_messages_per_consumer=config.max_unacked_messages_per_consumer,
        max_unacked_messages_per_subscription=config.max_unacked_messages_per_subscription,
        max_producers_per_topic=config.max_producers_per_topic,
        max_consumers_per_topic=config.max_consumers_per_topic,
        max_consumers_per_subscription=config.max_consumers_per_subscription,
        key_shared_consistent_hashing=config.subscription_key_shared_use_consistent_hashing,
        key_shared_points=config.subscription_key_shared_consistent_hashing_replica_points,
        delayed_delivery_enabled=config.delayed_delivery_enabled,
        delayed_delivery_tick_ms=config.delayed_delivery_tick_ms,
        batch_index_acknowledgment_enabled=config.acknowledgment_at_batch_index_level_enabled,
        active_consumer_failover_delay_ms=config.active_consumer_failover_delay_ms,
        message_ttl_s=config.ttl_default_s,
        message_expiry_check_interval_s=config.message_expiry_check_interval_minutes * 60,
        retention_time_minutes=config.default_retention_minutes,
        retention_size_mb=config.default_retention_size_mb,
        retention_check_interval_s=config.retention_check_interval_s,
        backlog_quota_check_enabled=config.backlog_quota_check_enabled,
        backlog_quota_limit_bytes=config.backlog_quota_default_limit_bytes,
        backlog_quota_limit_time_s=config.backlog_quota_default_limit_s,
        backlog_quota_policy=config.backlog_quota_default_policy,
        backlog_quota_check_interval_s=config.backlog_quota_check_interval_s,
        schema_compatibility_strategy=config.schema_compatibility_strategy,
        schema_validation_enforced=config.is_schema_validation_enforced,
        allow_auto_update_schema=config.is_allow_auto_update_schema_enabled,
        compaction_threshold_bytes=config.compaction_threshold_bytes,
        compaction_monitor_interval_s=config.compaction_monitor_interval_s,
        compaction_retain_null_key=config.compaction_retain_null_key,
        load_balance=load_balance_config(config),
        transactions=transaction_config(config),
        replication=replication_config(config),
        replicated_subscriptions=replicated_subscriptions_config(config),
        entry_cache_bytes=config.managed_ledger_cache_size_mb * _MIB,
        managed_ledger=managed_ledger_config(config),
    )
    return with_policy_defaults(broker, config)


def with_policy_defaults(broker: BrokerConfig, config: BrokerSettings) -> BrokerConfig:
    """What holds for namespaces and topics that say nothing themselves, beyond the plain limits."""
    return replace(
        broker,
        client_auth_plugin=config.broker_client_authentication_plugin,
        client_auth_parameters=config.broker_client_authentication_parameters,
        client_trust_certs_file=config.broker_client_trust_certs_file_path,
        client_tls_enabled=config.broker_client_tls_enabled,
        client_verify_hostname=config.tls_hostname_verification_enabled,
        deduplication_snapshot_interval_s=config.broker_deduplication_snapshot_interval_s,
        deduplication_snapshot_check_s=config.broker_deduplication_snapshot_frequency_s,
        max_subscriptions_per_topic=config.max_subscriptions_per_topic,
        max_topics_per_namespace=config.max_topics_per_namespace,
        max_tenants=config.max_tenants,
        max_namespaces_per_tenant=config.max_namespaces_per_tenant,
        publish_rate_per_topic_messages=config.max_publish_rate_per_topic_messages,
        publish_rate_per_topic_bytes=config.max_publish_rate_per_topic_bytes,
        dispatch_rate_per_topic_messages=config.dispatch_throttling_rate_per_topic_messages,
        dispatch_rate_per_topic_bytes=config.dispatch_throttling_rate_per_topic_bytes,
        dispatch_rate_per_subscription_messages=config.dispatch_throttling_rate_per_subscription_messages,
        dispatch_rate_per_subscription_bytes=config.dispatch_throttling_rate_per_subscription_bytes,
        subscribe_rate_per_consumer=config.subscribe_throttling_rate_per_consumer,
        subscribe_rate_period_s=config.subscribe_rate_period_per_consumer_s,
        delete_inactive_topics=config.broker_delete_inactive_topics_enabled,
        inactive_topic_mode=config.broker_delete_inactive_topics_mode,
        inactive_topic_max_s=config.broker_delete_inactive_topics_max_inactive_duration_s,
        inactive_topic_check_s=config.broker_delete_inactive_topics_frequency_s,
        subscription_expiration_minutes=config.subscription_expiration_minutes,
        subscription_expiry_check_interval_s=config.subscription_expiry_check_interval_minutes * 60,
    )
