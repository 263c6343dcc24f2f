"""The configurations of `magnetar standalone` and of a cluster's processes: each a frozen dataclass composed of its components' settings.

Keys are BookKeeper's (bookie, auto-recovery), Pulsar's (standalone, broker) and ZooKeeper's (metadata server). Defaults that differ from
theirs say so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from magnetar.base.errors import ConfigError
from magnetar.base.listen_settings import HttpListenSettings, ListenSettings, is_loopback
from magnetar.base.settings import load_settings, setting
from magnetar.bookkeeper.autorecovery.settings import AutorecoverySettings, CopiesCheckSettings
from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.bookkeeper.client.settings import LedgerClientSettings
from magnetar.bookkeeper.wire_settings import BookieRequestSettings, BookieServerTlsSettings, BookieTlsSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.security import SecuritySettings, names_of
from magnetar.metadata.settings import MetadataAccessSettings
from magnetar.processes.pulsar_keys import PULSAR_KEYS

DEFAULT_DATA_DIR = Path("magnetar-data")
METADATA_URL_FORMS = "zk:HOST:PORT[,HOST:PORT...]"

ProcessConfig = TypeVar(
    "ProcessConfig", "BookieProcessConfig", "BrokerProcessConfig", "AutorecoveryConfig", "MetadataServerConfig"
)


class StandaloneConfig(BookieSettings, BrokerSettings, CopiesCheckSettings):
    """Everything the one-process server can be told. Build it with `load_config`; in tests `StandaloneConfig(port=0, ...)`."""

    data_dir: Path = setting(DEFAULT_DATA_DIR, "dataDir", "Directory that holds journal, ledgers and metadata.")

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        self.check_broker()
        self.check_bookie()

    def warnings(self) -> list[str]:
        """What the operator must hear about at every start, one line each."""
        return self.bookie_warnings() + self.broker_warnings()


class BookieProcessConfig(
    HttpListenSettings,
    BookieSettings,
    AutorecoverySettings,
    BookieRequestSettings,
    BookieServerTlsSettings,
    MetadataAccessSettings,
):
    """`magnetar bookie`."""

    data_dir: Path = setting(Path("magnetar-bookie"), "dataDir", "Directory that holds journal and ledgers.")
    journal_directory: str = setting("", "journalDirectory", "The journal elsewhere, best on a disk of its own.")
    ledger_directory: str = setting("", "ledgerDirectories", "Entry logs and index elsewhere; one directory.")
    port: int = setting(
        3181, "bookiePort", "Port of the BookKeeper protocol; 0 takes any free one.", minimum=0, maximum=65535
    )
    http_port: int = setting(
        8000,
        "httpServerPort",
        "Port of metrics, health and bookie info; 0 takes any free one, -1: none.",
        minimum=-1,
        maximum=65535,
    )
    http_server_host: str = setting(
        "",
        "httpServerHost",
        "Where that port listens: it asks nobody who they are. Empty: bindAddress, or loopback if others reach that.",
    )
    bookie_id: str = setting("", "bookieId", "Name in ledger metadata, for ever; empty: the advertised HOST:PORT.")
    metadata_service_uri: str = setting("", "metadataServiceUri", f"Metadata store: {METADATA_URL_FORMS}.")
    zk_timeout_ms: int = setting(
        10_000, "zkTimeout", "Silence after which the metadata store gives the bookie up.", unit="ms", minimum=100
    )
    auto_recovery_daemon_enabled: bool = setting(
        False, "autoRecoveryDaemonEnabled", "Run auto-recovery inside the bookie. BookKeeper: true."
    )

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        self._check_listening()
        self.check_server_tls()
        self.check_bookie()
        if self.auto_recovery_daemon_enabled and self.tls_certificate_path and not self.tls_trust_store:
            raise ConfigError("autoRecoveryDaemonEnabled with TLS needs tlsTrustStore: other bookies are asked as well")
        check_metadata_url(self.metadata_service_uri, "metadataServiceUri", "--metadata-url")

    def warnings(self) -> list[str]:
        """What the operator must hear about at every start, one line each."""
        warnings = self.bookie_warnings()
        if is_loopback(self.bind_address):
            return warnings
        if not self.asks_everybody:
            return warnings + open_door_warnings(self)
        if not is_loopback(self.http_host) and self.http_port >= 0:
            warnings.append(f"insecureListen: anybody who reaches {self.http_host} may read what httpServerPort shows")
        if not (self.tls_certificate_path and self.tls_required):
            warnings.append(
                f"bookiePort on {self.bind_address} serves clients that do not encrypt: entries can be read and changed on "
                "the network; set tlsCertificatePath and tlsKeyStore"
            )
        return warnings

    @property
    def asks_everybody(self) -> bool:
        """Whether a stranger gets nowhere on the bookie's port."""
        return bool(self.bookie_shared_secret) or self.asks_for_certificates

    @property
    def http_host(self) -> str:
        """Where the HTTP port listens."""
        open_door = self.insecure_listen or is_loopback(self.bind_address)
        return self.http_server_host or (self.bind_address if open_door else "127.0.0.1")

    def _check_listening(self) -> None:
        if self.insecure_listen:
            return
        if not is_loopback(self.bind_address) and not self.asks_everybody:
            raise ConfigError(
                f"bindAddress {self.bind_address} lets other machines in and nothing asks who they are; set "
                "bookieSharedSecret or tlsClientAuthentication, or pass --insecure-listen (insecureListen=true)"
            )
        if not is_loopback(self.http_host):
            raise ConfigError(
                f"httpServerHost {self.http_host} lets other machines in and nothing asks who they are; "
                "pass --insecure-listen (insecureListen=true) if that is wanted"
            )


class BrokerProcessConfig(BrokerSettings, LedgerClientSettings, MetadataAccessSettings):
    """`magnetar broker`."""

    metadata_store_url: str = setting("", "metadataStoreUrl", f"Metadata store: {METADATA_URL_FORMS}.")
    metadata_store_session_timeout_ms: int = setting(
        30_000,
        "metadataStoreSessionTimeoutMillis",
        "Silence after which the metadata store gives the broker up.",
        unit="ms",
        minimum=100,
    )
    managed_ledger_ensemble_size: int = setting(
        2, "managedLedgerDefaultEnsembleSize", "Bookies a ledger is spread over.", minimum=1
    )
    managed_ledger_write_quorum: int = setting(2, "managedLedgerDefaultWriteQuorum", "Copies of each entry.", minimum=1)
    managed_ledger_ack_quorum: int = setting(
        2, "managedLedgerDefaultAckQuorum", "Copies on disk before an entry counts as stored.", minimum=1
    )

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        self.check_broker()
        self.check_bookkeeper_tls()
        check_metadata_url(self.metadata_store_url, "metadataStoreUrl", "--metadata-url")

    def warnings(self) -> list[str]:
        """What the operator must hear about at every start, one line each."""
        return self.broker_warnings()


class AutorecoveryConfig(
    HttpListenSettings, AutorecoverySettings, BookieRequestSettings, BookieTlsSettings, MetadataAccessSettings
):
    """`magnetar autorecovery`."""

    http_port: int = setting(
        8001,
        "httpServerPort",
        "Port of metrics and health; 0 takes any free one, -1: none.",
        minimum=-1,
        maximum=65535,
    )
    metadata_service_uri: str = setting("", "metadataServiceUri", f"Metadata store: {METADATA_URL_FORMS}.")
    zk_timeout_ms: int = setting(
        10_000, "zkTimeout", "Silence after which the metadata store gives this process up.", unit="ms", minimum=100
    )

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        check_listening(self)
        self.check_tls()
        check_metadata_url(self.metadata_service_uri, "metadataServiceUri", "--metadata-url")

    def warnings(self) -> list[str]:
        """What the operator must hear about at every start, one line each."""
        return open_door_warnings(self)


class MetadataServerConfig(ListenSettings, MetadataAccessSettings):
    """`magnetar metadata-server`."""

    data_dir: Path = setting(Path("magnetar-metadata"), "dataDir", "Directory that holds the metadata.")
    port: int = setting(
        2181, "clientPort", "Port of ZooKeeper's protocol; 0 takes any free one.", minimum=0, maximum=65535
    )
    min_session_timeout_ms: int = setting(
        1000, "minSessionTimeout", "The shortest session that a client gets.", unit="ms", minimum=100
    )
    max_session_timeout_ms: int = setting(
        60_000, "maxSessionTimeout", "The longest session that a client gets.", unit="ms", minimum=100
    )

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if not self.insecure_listen and not is_loopback(self.bind_address) and not self.metadata_secret:
            raise ConfigError(
                f"bindAddress {self.bind_address} lets other machines in and nothing asks who they are; set metadataSecret, "
                "or pass --insecure-listen (insecureListen=true)"
            )
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            raise ConfigError("minSessionTimeout <= maxSessionTimeout must hold")

    def warnings(self) -> list[str]:
        """What the operator must hear about at every start, one line each."""
        if is_loopback(self.bind_address) or not self.metadata_secret:
            return open_door_warnings(self)
        return [
            f"clientPort on {self.bind_address} does not encrypt: the secret is not sent, but metadata can be read and changed "
            "on the network; keep it from networks that others use"
        ]


class ViewServerConfig(HttpListenSettings, SecuritySettings):
    """`magnetar pipeline serve`: views to PostgreSQL's clients. TLS and authentication are those of a broker."""

    port: int = setting(
        5433, "postgresPort", "Port of PostgreSQL's protocol; 0 takes any free one.", minimum=0, maximum=65535
    )
    view_http_port: int = setting(
        -1,
        "viewHttpPort",
        "Port of queries over HTTP, with TLS if tlsCertificateFilePath is set; 0 takes any free one, -1 none.",
        minimum=-1,
        maximum=65535,
    )
    view_reader_roles: str = setting(
        "",
        "viewReaderRoles",
        "With authorizationEnabled: roles that may read views, as ROLE (all pipelines) or PIPELINE:ROLE, separated by commas; superusers "
        "may read all.",
    )
    view_owner_roles: str = setting(
        "",
        "viewOwnerRoles",
        "Roles that may change running pipelines (CREATE, ALTER, DROP), as ROLE (all pipelines) or PIPELINE:ROLE, separated by commas; "
        "superusers may change all. They may read, and run Python on the pipeline's machines.",
    )
    scram_secrets_file: str = setting(
        "",
        "scramSecretsFile",
        "With `scram` among authenticationProviders: the roles' passwords, as `magnetar pipeline password` writes them; read again when it "
        "changes.",
    )
    view_memory_mb: int = setting(
        1024, "viewMemoryMb", "Rows of views kept in memory, for each pipeline that is served.", unit="MiB", minimum=64
    )
    query_memory_mb: int = setting(
        1024, "queryMemoryMb", "What running queries may use besides, for each pipeline.", unit="MiB", minimum=64
    )
    statement_timeout_s: float = setting(
        60.0, "statementTimeoutSeconds", "A statement that takes longer is cancelled.", unit="s", minimum=0.1
    )
    max_connections: int = setting(
        200, "maxPostgresConnections", "Connections at a time; further ones are refused.", minimum=1
    )

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if not self.insecure_listen and not is_loopback(self.bind_address) and not self.asks_everybody:
            raise ConfigError(
                f"bindAddress {self.bind_address} lets other machines in and nothing asks who they are; switch on authenticationEnabled, "
                "or pass --insecure-listen (insecureListen=true) if everybody there may read the views"
            )
        if bool(self.tls_certificate_file_path) != bool(self.tls_key_file_path):
            raise ConfigError("tlsCertificateFilePath and tlsKeyFilePath go together: set both, or neither")
        if ("scram" in names_of(self.authentication_providers)) != bool(self.scram_secrets_file):
            raise ConfigError(
                "scramSecretsFile and `scram` in authenticationProviders go together: set both, or neither"
            )
        self.check_security()

    def warnings(self) -> list[str]:
        """What the operator must hear about at every start, one line each."""
        if is_loopback(self.bind_address):
            return []
        found = []
        if not self.asks_everybody:
            found.append(f"insecureListen: anybody who reaches {self.bind_address} may read all views that are served")
        if not self.tls_certificate_file_path:
            found.append(
                f"postgresPort on {self.bind_address} does not encrypt: rows can be read on the network, and tokens and "
                "passwords in clear text are refused from there; set tlsCertificateFilePath and tlsKeyFilePath"
            )
        return found


CONFIGURATIONS: tuple[type, ...] = (
    StandaloneConfig,
    BookieProcessConfig,
    BrokerProcessConfig,
    AutorecoveryConfig,
    MetadataServerConfig,
    ViewServerConfig,
)
"""One environment may configure several kinds of processes: each takes what it knows and leaves alone what another knows."""


def check_listening(config: ListenSettings) -> None:
    """Nobody is let in from outside by accident. Raises ConfigError."""
    if not config.insecure_listen and not is_loopback(config.bind_address):
        raise ConfigError(
            f"bindAddress {config.bind_address} lets other machines in and nothing asks who they are; "
            "pass --insecure-listen (insecureListen=true) if that is wanted"
        )


def open_door_warnings(config: ListenSettings) -> list[str]:
    if is_loopback(config.bind_address):
        return []
    return [f"insecureListen: anybody who reaches {config.bind_address} may read, write and delete everything"]


def check_metadata_url(url: str, key: str, option: str) -> None:
    """Raises ConfigError when there is none; what it means is decided when it is opened."""
    if not url:
        raise ConfigError(f"{key} is not set: which metadata store? Say {option} {METADATA_URL_FORMS}")


def load_config(
    file: Path | None = None, env: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> StandaloneConfig:
    """The composed configuration; `env` defaults to the process's. Raises ConfigError with one line that names the fix."""
    env = os.environ if env is None else env
    return load_settings(StandaloneConfig, file, env, flags or {}, foreign=PULSAR_KEYS)
