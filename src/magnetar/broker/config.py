"""What one broker is told at start. Namespace policies override most of it (`namespaces/policies`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.broker.load_balance.config import LoadBalanceConfig
from magnetar.managed_ledger.config import ManagedLedgerConfig


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Who is let in and what the roles may do. Keys are named as in Pulsar: `data:;base64,...`, `file:///path`, a path."""

    authentication: bool = False
    providers: tuple[str, ...] = ()
    authorization: bool = False
    super_user_roles: tuple[str, ...] = ()
    replicator_roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the cluster that they may replicate from."""
    proxy_roles: tuple[str, ...] = ()
    anonymous_role: str = ""
    metrics_need_superuser: bool = True
    token_secret_key: str = field(default="", repr=False)
    token_public_key: str = ""
    token_public_alg: str = "RS256"
    token_jwks_file: str = ""
    token_auth_claim: str = ""
    token_audience_claim: str = ""
    token_audience: str = ""
    token_clock_skew_s: int = 0
    basic_auth_conf: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Files of the TLS listeners. Without `trust_certs_file` clients are not asked for a certificate."""

    certificate_file: str
    key_file: str
    trust_certs_file: str = ""
    require_client_cert: bool = False
    refresh_check_s: float = 300.0
    certificate_settings: str = "tlsCertificateFilePath, tlsKeyFilePath"
    trust_setting: str = "tlsTrustCertsFilePath"
    """What an error says is to be mended."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """`coordinators` is the number of the first start; `active_max` is for each of them, `active_per_role_max` for one role at each of
    them, 0 = no limit."""

    enabled: bool = True
    coordinators: int = 16
    active_max: int = 10_000
    active_per_role_max: int = 1000
    timeout_max_ms: int = 86_400_000
    snapshot_transactions: int = 1000
    snapshot_interval_ms: int = 5000


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """How this cluster sends to others, where a cluster's record does not say."""

    queue_max: int = 1000
    """Entries of one replicator that are sent and not acknowledged."""
    start_at_earliest: bool = False
    """A cluster that joins gets what the topic holds; else what comes from then on."""
    create_topics: bool = True
    dispatch_rate_messages: int = 0
    dispatch_rate_bytes: int = 0
    authentication_plugin: str = ""
    authentication_parameters: str = field(default="", repr=False)
    tls_enabled: bool = False
    trust_certs_file: str = ""
    verify_hostname: bool = True


@dataclass(frozen=True, slots=True)
class ReplicatedSubscriptionsConfig:
    """`partial_after_ms` None: no snapshot is taken while a cluster is away."""

    enabled: bool = True
    interval_ms: int = 1000
    timeout_ms: int = 30_000
    snapshots_max: int = 30
    partial_after_ms: int | None = None


@dataclass(slots=True)
class BrokerConfig:
    """Defaults are Pulsar standalone's, where it has the setting.

    All parts of a broker share the one object; only `dynamic_configuration` changes it, while the broker runs.
    """

    cluster: str = "standalone"
    advertised_address: str = "localhost"
    bind_address: str = "127.0.0.1"
    port: int = 6650
    http_port: int = 8080
    port_tls: int = 0
    http_port_tls: int = 0
    tls: TlsConfig | None = None
    security: SecurityConfig = field(default_factory=SecurityConfig)
    max_message_size_bytes: int = 5 * 1024 * 1024
    keep_alive_interval_s: float = 30.0
    max_pending_publishes_per_connection: int = 10_000
    drain_timeout_s: float = 60.0
    client_auth_plugin: str = ""
    """With `client_auth_parameters`: who this broker is to others of its cluster."""
    client_auth_parameters: str = field(default="", repr=False)
    client_trust_certs_file: str = ""
    client_tls_enabled: bool = False
    client_verify_hostname: bool = True
    publish_buffer_bytes: int = 128 * 1024 * 1024

    allow_auto_topic_creation: bool = True
    auto_topic_creation_partitioned: bool = False
    default_num_partitions: int = 1
    allow_auto_subscription_creation: bool = True
    bundles_per_namespace: int = 4

    deduplication_enabled: bool = False
    deduplication_snapshot_entries: int = 1000
    deduplication_producers_max: int = 10_000
    deduplication_snapshot_interval_s: int = 120
    deduplication_snapshot_check_s: float = 120.0

    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    max_producers_per_topic: int = 0
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_topics_per_namespace: int = 0
    max_tenants: int = 0
    max_namespaces_per_tenant: int = 0

    publish_rate_per_topic_messages: int = 0
    publish_rate_per_topic_bytes: int = 0
    dispatch_rate_per_topic_messages: int = 0
    dispatch_rate_per_topic_bytes: int = 0
    dispatch_rate_per_subscription_messages: int = 0
    dispatch_rate_per_subscription_bytes: int = 0
    subscribe_rate_per_consumer: int = 0
    subscribe_rate_period_s: int = 30

    delete_inactive_topics: bool = False
    inactive_topic_mode: str = "delete_when_no_subscriptions"
    inactive_topic_max_s: int = 60
    inactive_topic_check_s: float = 60.0
    subscription_expiration_minutes: float = 0.0
    subscription_expiry_check_interval_s: float = 300.0

    key_shared_consistent_hashing: bool = True
    key_shared_points: int = 100
    delayed_delivery_enabled: bool = True
    delayed_delivery_tick_ms: int = 1000
    batch_index_acknowledgment_enabled: bool = True
    active_consumer_failover_delay_ms: int = 1000

    message_ttl_s: int = 0
    message_expiry_check_interval_s: float = 30.0
    retention_time_minutes: int = 0
    retention_size_mb: int = 0
    retention_check_interval_s: float = 30.0
    backlog_quota_check_enabled: bool = True
    backlog_quota_limit_bytes: int = -1
    backlog_quota_limit_time_s: int = -1
    backlog_quota_policy: str = "producer_request_hold"
    backlog_quota_check_interval_s: float = 60.0
    compaction_threshold_bytes: int = 0
    compaction_monitor_interval_s: float = 60.0
    compaction_retain_null_key: bool = False
    stats_interval_s: float = 5.0
    load_balance: LoadBalanceConfig = field(default_factory=LoadBalanceConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    replicated_subscriptions: ReplicatedSubscriptionsConfig = field(default_factory=ReplicatedSubscriptionsConfig)

    schema_compatibility_strategy: str = "FULL"
    schema_validation_enforced: bool = False
    allow_auto_update_schema: bool = True

    entry_cache_bytes: int = 64 * 1024 * 1024
    managed_ledger: ManagedLedgerConfig = field(default_factory=ManagedLedgerConfig)

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
