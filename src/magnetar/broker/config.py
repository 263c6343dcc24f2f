"""What one broker works with: its settings, the addresses that it got, and what is derived from both.

Namespace policies override many of the settings (`namespaces/policies`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.replication import ReplicatedSubscriptionSettings
from magnetar.broker.settings.security import SecuritySettings
from magnetar.managed_ledger.config import ManagedLedgerConfig

MIB = 1024 * 1024
_MINUTE_MS = 60_000


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


def tls_config(settings: BrokerSettings) -> TlsConfig | None:
    """None without a TLS port."""
    if max(settings.port_tls, settings.http_port_tls) < 0:
        return None
    return TlsConfig(
        certificate_file=settings.tls_certificate_file_path,
        key_file=settings.tls_key_file_path,
        trust_certs_file="" if settings.tls_allow_insecure_connection else settings.tls_trust_certs_file_path,
        require_client_cert=settings.tls_require_trusted_client_cert_on_connect,
        refresh_check_s=settings.tls_cert_refresh_check_s,
    )


@dataclass(frozen=True, slots=True)
class ReplicatedSubscriptionsConfig:
    """`partial_after_ms` None: no snapshot is taken while a cluster is away."""

    enabled: bool = ReplicatedSubscriptionSettings.enable_replicated_subscriptions
    interval_ms: int = ReplicatedSubscriptionSettings.replicated_subscriptions_snapshot_frequency_ms
    timeout_ms: int = ReplicatedSubscriptionSettings.replicated_subscriptions_snapshot_timeout_s * 1000
    snapshots_max: int = ReplicatedSubscriptionSettings.replicated_subscriptions_snapshot_max_cached_per_subscription
    partial_after_ms: int | None = None


def replicated_subscriptions_config(settings: ReplicatedSubscriptionSettings) -> ReplicatedSubscriptionsConfig:
    partial_after_s = settings.replicated_subscriptions_partial_snapshots_after_s
    return ReplicatedSubscriptionsConfig(
        enabled=settings.enable_replicated_subscriptions,
        interval_ms=settings.replicated_subscriptions_snapshot_frequency_ms,
        timeout_ms=settings.replicated_subscriptions_snapshot_timeout_s * 1000,
        snapshots_max=settings.replicated_subscriptions_snapshot_max_cached_per_subscription,
        partial_after_ms=partial_after_s * 1000 or None,
    )


def managed_ledger_config(settings: BrokerSettings) -> ManagedLedgerConfig:
    """The `managedLedger*` settings, in the units of the managed ledger."""
    return ManagedLedgerConfig(
        ensemble_size=settings.managed_ledger_ensemble_size,
        write_quorum=settings.managed_ledger_write_quorum,
        ack_quorum=settings.managed_ledger_ack_quorum,
        max_entries_per_ledger=settings.managed_ledger_max_entries_per_ledger,
        max_size_per_ledger_bytes=settings.managed_ledger_max_size_per_ledger_mb * MIB,
        min_rollover_age_ms=settings.managed_ledger_min_rollover_minutes * _MINUTE_MS,
        max_rollover_age_ms=settings.managed_ledger_max_rollover_minutes * _MINUTE_MS,
        cursor_ledger_max_entries=settings.managed_ledger_cursor_max_entries_per_ledger,
        cursor_ledger_max_age_ms=settings.managed_ledger_cursor_rollover_s * 1000,
    )


@dataclass(slots=True)
class BrokerConfig:
    """All parts of a broker share the one object; only `dynamic_configuration` replaces its `settings`, while the broker runs.

    Ports are those that are bound; 0: there is no such listener.
    """

    settings: BrokerSettings = field(default_factory=BrokerSettings)
    advertised_address: str = "localhost"
    port: int = BrokerSettings.port
    http_port: int = BrokerSettings.http_port
    port_tls: int = 0
    http_port_tls: int = 0
    only_broker: bool = False
    """Clients stay at the address by which they found it, since no other broker can be the owner: it may be another than the advertised
    one, behind the port mapping of a container for example."""

    @property
    def tls(self) -> TlsConfig | None:
        """None without a TLS port."""
        return tls_config(self.settings)

    @property
    def managed_ledger(self) -> ManagedLedgerConfig:
        """Of a topic whose policies say nothing."""
        return managed_ledger_config(self.settings)

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
