"""What one broker is told at start. Namespace policies override most of it (`namespaces/policies`).

Every default is read from the declaration of its setting, so that a broker made without a configuration file behaves as documented.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.broker.load_balance.config import LoadBalanceConfig
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.replication import ReplicatedSubscriptionSettings, ReplicationSettings
from magnetar.broker.settings.security import SecuritySettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.managed_ledger.config import ManagedLedgerConfig

_MIB = 1024 * 1024
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Who is let in and what the roles may do. Keys are named as in Pulsar: `data:;base64,...`, `file:///path`, a path."""

    authentication: bool = SecuritySettings.authentication_enabled
    providers: tuple[str, ...] = ()
    authorization: bool = SecuritySettings.authorization_enabled
    super_user_roles: tuple[str, ...] = ()
    replicator_roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the cluster that they may replicate from."""
    proxy_roles: tuple[str, ...] = ()
    anonymous_role: str = SecuritySettings.anonymous_user_role
    metrics_need_superuser: bool = SecuritySettings.authenticate_metrics_endpoint
    token_secret_key: str = field(default=SecuritySettings.token_secret_key, repr=False)
    token_public_key: str = SecuritySettings.token_public_key
    token_public_alg: str = SecuritySettings.token_public_alg
    token_jwks_file: str = SecuritySettings.token_jwks_file
    token_auth_claim: str = SecuritySettings.token_auth_claim
    token_audience_claim: str = SecuritySettings.token_audience_claim
    token_audience: str = SecuritySettings.token_audience
    token_clock_skew_s: int = SecuritySettings.token_allowed_clock_skew_s
    basic_auth_conf: str = field(default=SecuritySettings.basic_auth_conf, repr=False)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Files of the TLS listeners. Without `trust_certs_file` clients are not asked for a certificate."""

    certificate_file: str
    key_file: str
    trust_certs_file: str = ""
    require_client_cert: bool = False
    refresh_check_s: float = SecuritySettings.tls_cert_refresh_check_s
    certificate_settings: str = "tlsCertificateFilePath, tlsKeyFilePath"
    trust_setting: str = "tlsTrustCertsFilePath"
    """What an error says is to be mended."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """`coordinators` is the number of the first start; `active_max` is for each of them, `active_per_role_max` for one role at each of
    them, 0 = no limit."""

    enabled: bool = TransactionSettings.transaction_coordinator_enabled
    coordinators: int = TransactionSettings.initial_num_transaction_coordinators
    active_max: int = TransactionSettings.max_active_transactions_per_coordinator
    active_per_role_max: int = TransactionSettings.max_active_transactions_per_role
    timeout_max_ms: int = TransactionSettings.max_transaction_timeout_s * 1000
    snapshot_transactions: int = TransactionSettings.transaction_buffer_snapshot_max_transaction_count
    snapshot_interval_ms: int = TransactionSettings.transaction_buffer_snapshot_min_time_ms


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """How this cluster sends to others, where a cluster's record does not say."""

    queue_max: int = ReplicationSettings.replication_producer_queue_size
    """Entries of one replicator that are sent and not acknowledged."""
    start_at_earliest: bool = ReplicationSettings.replication_start_at == "earliest"
    """A cluster that joins gets what the topic holds; else what comes from then on."""
    create_topics: bool = ReplicationSettings.create_topic_to_remote_cluster_for_replication
    dispatch_rate_messages: int = ReplicationSettings.dispatch_throttling_rate_per_replicator_in_msg
    dispatch_rate_bytes: int = ReplicationSettings.dispatch_throttling_rate_per_replicator_in_byte
    authentication_plugin: str = ReplicationSettings.broker_client_authentication_plugin
    authentication_parameters: str = field(
        default=ReplicationSettings.broker_client_authentication_parameters, repr=False
    )
    tls_enabled: bool = ReplicationSettings.broker_client_tls_enabled
    trust_certs_file: str = ReplicationSettings.broker_client_trust_certs_file_path
    verify_hostname: bool = ReplicationSettings.tls_hostname_verification_enabled


@dataclass(frozen=True, slots=True)
class ReplicatedSubscriptionsConfig:
    """`partial_after_ms` None: no snapshot is taken while a cluster is away."""

    enabled: bool = ReplicatedSubscriptionSettings.enable_replicated_subscriptions
    interval_ms: int = ReplicatedSubscriptionSettings.replicated_subscriptions_snapshot_frequency_ms
    timeout_ms: int = ReplicatedSubscriptionSettings.replicated_subscriptions_snapshot_timeout_s * 1000
    snapshots_max: int = ReplicatedSubscriptionSettings.replicated_subscriptions_snapshot_max_cached_per_subscription
    partial_after_ms: int | None = None


def managed_ledger_config(config: BrokerSettings) -> ManagedLedgerConfig:
    """The `managedLedger*` settings, in the units of the managed ledger."""
    return ManagedLedgerConfig(
        ensemble_size=config.managed_ledger_ensemble_size,
        write_quorum=config.managed_ledger_write_quorum,
        ack_quorum=config.managed_ledger_ack_quorum,
        max_entries_per_ledger=config.managed_ledger_max_entries_per_ledger,
        max_size_per_ledger_bytes=config.managed_ledger_max_size_per_ledger_mb * _MIB,
        min_rollover_age_ms=config.managed_ledger_min_rollover_minutes * _MINUTE_MS,
        max_rollover_age_ms=config.managed_ledger_max_rollover_minutes * _MINUTE_MS,
        cursor_ledger_max_entries=config.managed_ledger_cursor_max_entries_per_ledger,
        cursor_ledger_max_age_ms=config.managed_ledger_cursor_rollover_s * 1000,
    )


@dataclass(slots=True)
class BrokerConfig:
    """All parts of a broker share the one object; only `dynamic_configuration` changes it, while the broker runs."""

    cluster: str = BrokerSettings.cluster_name
    advertised_address: str = "localhost"
    bind_address: str = BrokerSettings.bind_address
    port: int = BrokerSettings.port
    http_port: int = BrokerSettings.http_port
    port_tls: int = 0
    http_port_tls: int = 0
    tls: TlsConfig | None = None
    security: SecurityConfig = field(default_factory=SecurityConfig)
    max_message_size_bytes: int = BrokerSettings.max_message_size
    keep_alive_interval_s: float = BrokerSettings.keep_alive_interval_s
    max_pending_publishes_per_connection: int = BrokerSettings.max_pending_publish_requests_per_connection
    drain_timeout_s: float = BrokerSettings.broker_shutdown_timeout_ms / 1000
    client_auth_plugin: str = BrokerSettings.broker_client_authentication_plugin
    """With `client_auth_parameters`: who this broker is to others of its cluster."""
    client_auth_parameters: str = field(default=BrokerSettings.broker_client_authentication_parameters, repr=False)
    client_trust_certs_file: str = BrokerSettings.broker_client_trust_certs_file_path
    client_tls_enabled: bool = BrokerSettings.broker_client_tls_enabled
    client_verify_hostname: bool = BrokerSettings.tls_hostname_verification_enabled
    publish_buffer_bytes: int = BrokerSettings.max_message_publish_buffer_size_mb * _MIB

    allow_auto_topic_creation: bool = BrokerSettings.allow_auto_topic_creation
    auto_topic_creation_partitioned: bool = BrokerSettings.allow_auto_topic_creation_type == "partitioned"
    default_num_partitions: int = BrokerSettings.default_num_partitions
    allow_auto_subscription_creation: bool = BrokerSettings.allow_auto_subscription_creation
    bundles_per_namespace: int = 4

    deduplication_enabled: bool = BrokerSettings.broker_deduplication_enabled
    deduplication_snapshot_entries: int = BrokerSettings.broker_deduplication_entries_interval
    deduplication_producers_max: int = BrokerSettings.broker_deduplication_max_number_of_producers
    deduplication_snapshot_interval_s: int = BrokerSettings.broker_deduplication_snapshot_interval_s
    deduplication_snapshot_check_s: float = BrokerSettings.broker_deduplication_snapshot_frequency_s

    max_unacked_messages_per_consumer: int = BrokerSettings.max_unacked_messages_per_consumer
    max_unacked_messages_per_subscription: int = BrokerSettings.max_unacked_messages_per_subscription
    max_producers_per_topic: int = BrokerSettings.max_producers_per_topic
    max_consumers_per_topic: int = BrokerSettings.max_consumers_per_topic
    max_consumers_per_subscription: int = BrokerSettings.max_consumers_per_subscription
    max_subscriptions_per_topic: int = BrokerSettings.max_subscriptions_per_topic
    max_topics_per_namespace: int = BrokerSettings.max_topics_per_namespace
    max_tenants: int = BrokerSettings.max_tenants
    max_namespaces_per_tenant: int = BrokerSettings.max_namespaces_per_tenant

    publish_rate_per_topic_messages: int = BrokerSettings.max_publish_rate_per_topic_messages
    publish_rate_per_topic_bytes: int = BrokerSettings.max_publish_rate_per_topic_bytes
    dispatch_rate_per_topic_messages: int = BrokerSettings.dispatch_throttling_rate_per_topic_messages
    dispatch_rate_per_topic_bytes: int = BrokerSettings.dispatch_throttling_rate_per_topic_bytes
    dispatch_rate_per_subscription_messages: int = BrokerSettings.dispatch_throttling_rate_per_subscription_messages
    dispatch_rate_per_subscription_bytes: int = BrokerSettings.dispatch_throttling_rate_per_subscription_bytes
    subscribe_rate_per_consumer: int = BrokerSettings.subscribe_throttling_rate_per_consumer
    subscribe_rate_period_s: int = BrokerSettings.subscribe_rate_period_per_consumer_s

    delete_inactive_topics: bool = BrokerSettings.broker_delete_inactive_topics_enabled
    inactive_topic_mode: str = BrokerSettings.broker_delete_inactive_topics_mode
    inactive_topic_max_s: int = BrokerSettings.broker_delete_inactive_topics_max_inactive_duration_s
    inactive_topic_check_s: float = BrokerSettings.broker_delete_inactive_topics_frequency_s
    subscription_expiration_minutes: float = BrokerSettings.subscription_expiration_minutes
    subscription_expiry_check_interval_s: float = BrokerSettings.subscription_expiry_check_interval_minutes * 60

    key_shared_consistent_hashing: bool = BrokerSettings.subscription_key_shared_use_consistent_hashing
    key_shared_points: int = BrokerSettings.subscription_key_shared_consistent_hashing_replica_points
    delayed_delivery_enabled: bool = BrokerSettings.delayed_delivery_enabled
    delayed_delivery_tick_ms: int = BrokerSettings.delayed_delivery_tick_ms
    batch_index_acknowledgment_enabled: bool = BrokerSettings.acknowledgment_at_batch_index_level_enabled
    active_consumer_failover_delay_ms: int = BrokerSettings.active_consumer_failover_delay_ms

    message_ttl_s: int = BrokerSettings.ttl_default_s
    message_expiry_check_interval_s: float = BrokerSettings.message_expiry_check_interval_minutes * 60
    retention_time_minutes: int = BrokerSettings.default_retention_minutes
    retention_size_mb: int = BrokerSettings.default_retention_size_mb
    retention_check_interval_s: float = BrokerSettings.retention_check_interval_s
    backlog_quota_check_enabled: bool = BrokerSettings.backlog_quota_check_enabled
    backlog_quota_limit_bytes: int = BrokerSettings.backlog_quota_default_limit_bytes
    backlog_quota_limit_time_s: int = BrokerSettings.backlog_quota_default_limit_s
    backlog_quota_policy: str = BrokerSettings.backlog_quota_default_policy
    backlog_quota_check_interval_s: float = BrokerSettings.backlog_quota_check_interval_s
    compaction_threshold_bytes: int = BrokerSettings.compaction_threshold_bytes
    compaction_monitor_interval_s: float = BrokerSettings.compaction_monitor_interval_s
    compaction_retain_null_key: bool = BrokerSettings.compaction_retain_null_key
    stats_interval_s: float = 5.0
    load_balance: LoadBalanceConfig = field(default_factory=LoadBalanceConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    replicated_subscriptions: ReplicatedSubscriptionsConfig = field(default_factory=ReplicatedSubscriptionsConfig)

    schema_compatibility_strategy: str = BrokerSettings.schema_compatibility_strategy
    schema_validation_enforced: bool = BrokerSettings.is_schema_validation_enforced
    allow_auto_update_schema: bool = BrokerSettings.is_allow_auto_update_schema_enabled

    entry_cache_bytes: int = BrokerSettings.managed_ledger_cache_size_mb * _MIB
    managed_ledger: ManagedLedgerConfig = field(default_factory=lambda: managed_ledger_config(BrokerSettings()))

    @property
    def service_url(self) -> str:
        return f"pulsar://{self.advertised_address}:{self.port}"

    @property
    def web_service_url(self) -> str:
        return f"http://{self.advertised_address}:{self.http_port}"

    @property
    def service_url_tls(self) -> str:
        """Empty without a TLS listener."""
        return f"pulsar+ssl://{self.advertised_address}:{self.port_tls}" if self.port_tls else ""

    @property
    def web_service_url_tls(self) -> str:
        """Empty without a TLS listener."""
        return f"https://{self.advertised_address}:{self.http_port_tls}" if self.http_port_tls else ""
