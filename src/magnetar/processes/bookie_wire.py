"""From settings to what bookies and their clients need to talk: waiting times, frames, TLS contexts, the shared secret."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from magnetar.base.errors import ConfigError
from magnetar.bookkeeper.bookie.server.server import BookieServerOptions
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.shared_secret import BookieSecret, ClientSecret
from magnetar.bookkeeper.wire_settings import BookieRequestSettings, BookieTlsSettings
from magnetar.broker.auth.key_material import read_key
from magnetar.broker.auth.tls import TlsContext, load_certificate, load_trust
from magnetar.broker.config import TlsConfig
from magnetar.processes.configurations import AutorecoveryConfig, BookieProcessConfig, BrokerProcessConfig

MESSAGE_FRAME_PADDING_BYTES = 10 * 1024
"""What an entry's frame may have beyond maxMessageSize, as in Pulsar."""

_SECRET = "bookieSharedSecret"


def server_options(config: BookieProcessConfig, monotonic: Callable[[], float]) -> BookieServerOptions:
    """Raises ConfigError."""
    secret = shared_secret(config)
    return BookieServerOptions(
        auth=BookieSecret(secret) if secret else None,
        start_tls=_server_context(config, monotonic),
        tls_required=config.tls_required and bool(config.tls_certificate_path),
        frame_bytes_max=config.netty_max_frame_size_bytes,
    )


def client_options(config: AutorecoveryConfig | BookieProcessConfig) -> ChannelOptions:
    """Raises ConfigError."""
    return _channel_options(config, config)


def command_options(requests: BookieRequestSettings, tls: BookieTlsSettings) -> ChannelOptions:
    """Raises ConfigError."""
    tls.check_tls()
    return _channel_options(requests, tls)


def broker_options(config: BrokerProcessConfig) -> ChannelOptions:
    """Raises ConfigError. Frames are long enough for maxMessageSize whatever nettyMaxFrameSizeBytes says."""
    context = None
    if config.bookkeeper_tls:
        context = client_context(
            config.bookkeeper_tls_trust_certs_file_path,
            config.bookkeeper_tls_certificate_file_path,
            config.bookkeeper_tls_key_file_path,
            ("bookkeeperTLSTrustCertsFilePath", "bookkeeperTLSCertificateFilePath, bookkeeperTLSKeyFilePath"),
        )
    secret = shared_secret(config)
    return ChannelOptions(
        add_timeout_s=config.add_entry_timeout_s or config.client_timeout_s,
        read_timeout_s=config.read_entry_timeout_s or config.client_timeout_s,
        connect_timeout_s=config.client_connect_timeout_ms / 1000,
        frame_bytes_max=max(config.netty_max_frame_size_bytes, config.max_message_size + MESSAGE_FRAME_PADDING_BYTES),
        tls=context,
        auth=ClientSecret(secret) if secret else None,
    )


def _channel_options(config: BookieRequestSettings, tls: BookieTlsSettings) -> ChannelOptions:
    context = None
    if tls.tls_trust_store:
        names = "tlsTrustStore", "tlsCertificatePath, tlsKeyStore"
        context = client_context(tls.tls_trust_store, tls.tls_certificate_path, tls.tls_key_store, names)
    secret = shared_secret(config)
    return ChannelOptions(
        add_timeout_s=config.add_entry_timeout_s,
        read_timeout_s=config.read_entry_timeout_s,
        connect_timeout_s=config.client_connect_timeout_ms / 1000,
        frame_bytes_max=config.netty_max_frame_size_bytes,
        tls=context,
        auth=ClientSecret(secret) if secret else None,
    )


def shared_secret(config: BookieRequestSettings) -> bytes:
    """Empty when there is none. Raises ConfigError, which never shows it."""
    if not config.bookie_shared_secret:
        return b""
    secret = read_key(config.bookie_shared_secret, _SECRET).strip()
    if not secret:
        raise ConfigError(f"{_SECRET} names an empty secret; make one with `openssl rand -base64 32`")
    return secret


def client_context(trust_file: str, certificate: str, key: str, names: tuple[str, str]) -> ssl.SSLContext:
    """Only what `trust_file` has signed is trusted, for the address that it says it is. Raises ConfigError naming the setting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_trust(context, trust_file, names[0])
    if certificate:
        load_certificate(context, certificate, key, names[1])
    return context


def _server_context(config: BookieProcessConfig, monotonic: Callable[[], float]) -> ssl.SSLContext | None:
    if not config.tls_certificate_path:
        return None
    files = TlsConfig(
        certificate_file=config.tls_certificate_path,
        key_file=config.tls_key_store,
        trust_certs_file=config.tls_trust_store if config.tls_client_authentication else "",
        require_client_cert=config.tls_client_authentication,
        refresh_check_s=config.tls_cert_files_refresh_s,
        certificate_settings="tlsCertificatePath, tlsKeyStore",
        trust_setting="tlsTrustStore",
    )
    return TlsContext(files, monotonic).context
