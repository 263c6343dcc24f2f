"""How bookies and their clients talk: waiting times, frames, TLS, a shared secret. BookKeeper's key names, Pulsar's in a broker."""

from __future__ import annotations

from magnetar.base.errors import ConfigError
from magnetar.base.limits import BOOKIE_FRAME_BYTES_MAX
from magnetar.base.settings import Settings, setting

_PEM = "PEM"


class BookieRequestSettings(Settings):
    """A part of the configuration of every process that is a client of bookies, and of bookies."""

    add_entry_timeout_s: float = setting(
        5.0, "addEntryTimeoutSec", "Silence after which an add to a bookie has failed.", unit="s", minimum=0.1
    )
    read_entry_timeout_s: float = setting(
        5.0,
        "readEntryTimeoutSec",
        "Silence after which any other request to a bookie has failed.",
        unit="s",
        minimum=0.1,
    )
    client_connect_timeout_ms: int = setting(
        10_000,
        "clientConnectTimeoutMillis",
        "For a connection to a bookie with its TLS handshake and its authentication.",
        unit="ms",
        minimum=10,
    )
    netty_max_frame_size_bytes: int = setting(
        BOOKIE_FRAME_BYTES_MAX,
        "nettyMaxFrameSizeBytes",
        "Longest frame of the bookie protocol: an entry and its heads. The same everywhere. BookKeeper: 5242880.",
        unit="bytes",
        minimum=64 * 1024,
        maximum=1024**3,
    )
    bookie_shared_secret: str = setting(
        "",
        "bookieSharedSecret",
        "What clients have to know to use a bookie: file:///path, data:;base64,..., a path or base64. Empty: nothing.",
        secret=True,
    )


class BookieTlsSettings(Settings):
    """A part of the configuration of `magnetar bookie` and `magnetar autorecovery`."""

    tls_certificate_path: str = setting(
        "", "tlsCertificatePath", "Certificate with its chain, PEM: a bookie's own, or what a client shows bookies."
    )
    tls_key_store: str = setting("", "tlsKeyStore", "Private key of the certificate, PEM, not encrypted.")
    tls_key_store_type: str = setting(_PEM, "tlsKeyStoreType", "Form of tlsKeyStore: PEM. BookKeeper: JKS.")
    tls_trust_store: str = setting(
        "",
        "tlsTrustStore",
        "Authorities, PEM: of clients' certificates in a bookie; of bookies' in a client, which then speaks TLS.",
    )
    tls_trust_store_type: str = setting(_PEM, "tlsTrustStoreType", "Form of tlsTrustStore: PEM. BookKeeper: JKS.")

    def check_tls(self) -> None:
        """Raises ConfigError."""
        for key, value in (
            ("tlsKeyStoreType", self.tls_key_store_type),
            ("tlsTrustStoreType", self.tls_trust_store_type),
        ):
            check_pem(key, value)
        if bool(self.tls_certificate_path) != bool(self.tls_key_store):
            raise ConfigError("tlsCertificatePath and tlsKeyStore go together: set both, or neither")


class BookieServerTlsSettings(BookieTlsSettings):
    """A part of the configuration of `magnetar bookie`: TLS is offered where there is a certificate."""

    tls_required: bool = setting(
        True, "tlsRequired", "With a certificate, serve nobody in the clear. BookKeeper serves both (false)."
    )
    tls_client_authentication: bool = setting(
        False, "tlsClientAuthentication", "Serve only clients that show a certificate which tlsTrustStore trusts."
    )
    tls_cert_files_refresh_s: int = setting(
        300,
        "tlsCertFilesRefreshDurationSeconds",
        "How long a renewed certificate may go unnoticed; 0: it is looked at in every handshake. BookKeeper: 0, never.",
        unit="s",
        minimum=0,
    )

    def check_server_tls(self) -> None:
        """Raises ConfigError."""
        self.check_tls()
        if self.tls_client_authentication and not (self.tls_certificate_path and self.tls_trust_store):
            raise ConfigError("tlsClientAuthentication needs tlsCertificatePath, tlsKeyStore and tlsTrustStore")

    @property
    def asks_for_certificates(self) -> bool:
        """Nobody is served without one."""
        return self.tls_client_authentication and self.tls_required


class BrokerBookieTlsSettings(Settings):
    """A part of the configuration of `magnetar broker`."""

    bookkeeper_tls: bool = setting(
        False, "bookkeeperTLSClientAuthentication", "Speak TLS to bookies, and refuse those that do not."
    )
    bookkeeper_tls_trust_certs_file_path: str = setting(
        "", "bookkeeperTLSTrustCertsFilePath", "Authorities of the bookies' certificates, PEM."
    )
    bookkeeper_tls_certificate_file_path: str = setting(
        "", "bookkeeperTLSCertificateFilePath", "Certificate that the broker shows bookies, PEM; empty: none."
    )
    bookkeeper_tls_key_file_path: str = setting(
        "", "bookkeeperTLSKeyFilePath", "Private key of that certificate, PEM, not encrypted."
    )
    bookkeeper_tls_key_file_type: str = setting(_PEM, "bookkeeperTLSKeyFileType", "Form of the key: PEM.")
    bookkeeper_tls_trust_cert_types: str = setting(_PEM, "bookkeeperTLSTrustCertTypes", "Form of the authorities: PEM.")

    def check_bookkeeper_tls(self) -> None:
        """Raises ConfigError."""
        check_pem("bookkeeperTLSKeyFileType", self.bookkeeper_tls_key_file_type)
        check_pem("bookkeeperTLSTrustCertTypes", self.bookkeeper_tls_trust_cert_types)
        files = self.bookkeeper_tls_certificate_file_path, self.bookkeeper_tls_key_file_path
        if bool(files[0]) != bool(files[1]):
            raise ConfigError(
                "bookkeeperTLSCertificateFilePath and bookkeeperTLSKeyFilePath go together: set both, or neither"
            )
        if self.bookkeeper_tls != bool(self.bookkeeper_tls_trust_certs_file_path):
            raise ConfigError(
                "bookkeeperTLSClientAuthentication and bookkeeperTLSTrustCertsFilePath go together: set both, or neither"
            )
        if files[0] and not self.bookkeeper_tls:
            raise ConfigError("bookkeeperTLSCertificateFilePath needs bookkeeperTLSClientAuthentication=true")


def check_pem(key: str, value: str) -> None:
    """Raises ConfigError for a store that only Java reads."""
    if value.upper() != _PEM:
        raise ConfigError(
            f"{key} {value}: only PEM files are read; convert them, for instance with keytool and openssl"
        )
