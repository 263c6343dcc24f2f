"""Who may listen where, and which settings of TLS go together, in the processes of a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from magnetar.base.errors import ConfigError
from magnetar.base.settings import load_settings
from magnetar.processes.bookie_wire import broker_options, client_options, server_options
from magnetar.processes.configurations import (
    CONFIGURATIONS,
    AutorecoveryConfig,
    BookieProcessConfig,
    BrokerProcessConfig,
)
from tests.support.certificates import Authority

SECRET = "data:;base64,Y29ycmVjdCBob3JzZSBiYXR0ZXJ5IHN0YXBsZQ=="
PUBLIC = {"bind_address": "192.0.2.1"}
CERTIFICATE = {"tls_certificate_path": "c", "tls_key_store": "k"}
MUTUAL = CERTIFICATE | {"tls_trust_store": "t", "tls_client_authentication": True}


def bookie(**values: Any) -> BookieProcessConfig:
    return BookieProcessConfig(metadata_service_uri="zk:localhost:1", **values)


def broker(**values: Any) -> BrokerProcessConfig:
    return BrokerProcessConfig(metadata_store_url="zk:localhost:1", **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (PUBLIC, "bookieSharedSecret or tlsClientAuthentication, or pass --insecure-listen"),
        (PUBLIC | CERTIFICATE, "nothing asks who they are"),
        (PUBLIC | MUTUAL | {"tls_required": False}, "nothing asks who they are"),
        (PUBLIC | {"bookie_shared_secret": SECRET, "http_server_host": "0.0.0.0"}, "httpServerHost"),
        ({"tls_certificate_path": "c"}, "tlsCertificatePath and tlsKeyStore go together"),
        (CERTIFICATE | {"tls_client_authentication": True}, "tlsClientAuthentication needs"),
        ({"tls_key_store_type": "JKS"}, "tlsKeyStoreType JKS: only PEM"),
        (
            CERTIFICATE | {"auto_recovery_daemon_enabled": True},
            "autoRecoveryDaemonEnabled with TLS needs tlsTrustStore",
        ),
    ],
)
def test_what_a_bookie_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        bookie(**values)


def test_where_a_bookie_listens() -> None:
    assert bookie().http_host == "127.0.0.1"
    assert bookie().warnings() == []
    asked = bookie(**PUBLIC, bookie_shared_secret=SECRET)
    assert (asked.http_host, asked.http_port) == ("127.0.0.1", 8000), "the HTTP port asks nobody"
    assert "do not encrypt" in asked.warnings()[0]
    assert bookie(**PUBLIC, **MUTUAL).warnings() == []
    opened = bookie(**PUBLIC, insecure_listen=True)
    assert opened.http_host == "192.0.2.1"
    assert "anybody" in opened.warnings()[0]
    both = bookie(**PUBLIC, **MUTUAL, insecure_listen=True)
    assert "httpServerPort" in both.warnings()[0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bookkeeper_tls": True}, "bookkeeperTLSTrustCertsFilePath go together"),
        ({"bookkeeper_tls_trust_certs_file_path": "t"}, "bookkeeperTLSTrustCertsFilePath go together"),
        ({"bookkeeper_tls_key_file_path": "k"}, "bookkeeperTLSKeyFilePath go together"),
        (
            {"bookkeeper_tls_certificate_file_path": "c", "bookkeeper_tls_key_file_path": "k"},
            "needs bookkeeperTLSClientAuthentication",
        ),
        ({"bookkeeper_tls_key_file_type": "JKS"}, "only PEM"),
    ],
)
def test_what_a_broker_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        broker(**values)


def test_bookkeepers_file_reaches_the_wire(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("bookie")
    (tmp_path / "secret").write_text("correct horse battery staple\n")
    lines = {
        "metadataServiceUri": "zk:localhost:1",
        "addEntryTimeoutSec": 7,
        "readEntryTimeoutSec": 8,
        "clientConnectTimeoutMillis": 1500,
        "nettyMaxFrameSizeBytes": 9_000_000,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": key,
        "tlsCertificatePath": certificate,
        "tlsTrustStore": authority.file,
        "bookieSharedSecret": tmp_path / "secret",
    }
    file = tmp_path / "bk_server.conf"
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    client = client_options(load_settings(AutorecoveryConfig, file, {}, {}, CONFIGURATIONS))
    assert (client.add_timeout_s, client.read_timeout_s, client.connect_timeout_s) == (7, 8, 1.5)
    assert client.frame_bytes_max == 9_000_000
    assert client.tls is not None
    assert client.tls.check_hostname
    assert client.auth is not None
    config = load_settings(BookieProcessConfig, file, {}, {}, CONFIGURATIONS)
    server = server_options(config, lambda: 0.0)
    assert (server.frame_bytes_max, server.tls_required) == (9_000_000, True)
    assert server.start_tls is not None
    assert server.auth is not None
    assert "horse" not in repr(config)
    (tmp_path / "secret").write_text("")
    with pytest.raises(ConfigError, match="empty secret"):
        client_options(load_settings(AutorecoveryConfig, file, {}, {}, CONFIGURATIONS))


def test_a_file_that_is_none_is_named_by_its_setting(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = authority.sign("one")
    _, other_key = authority.sign("two")
    with pytest.raises(ConfigError, match=r"^tlsCertificatePath, tlsKeyStore: "):
        server_options(bookie(tls_certificate_path=certificate, tls_key_store=other_key), lambda: 0.0)
    missing = {"bookkeeper_tls": True, "bookkeeper_tls_trust_certs_file_path": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match=r"^bookkeeperTLSTrustCertsFilePath: No such file"):
        broker_options(broker(**missing))


def test_a_brokers_frames_hold_its_messages_and_one_timeout_serves_for_all() -> None:
    options = broker_options(broker(client_timeout_s=3.0, max_message_size=20 * 1024 * 1024))
    assert (options.add_timeout_s, options.read_timeout_s) == (3.0, 3.0)
    assert options.frame_bytes_max == 20 * 1024 * 1024 + 10 * 1024
    options = broker_options(broker(add_entry_timeout_s=7.0, read_entry_timeout_s=8.0, max_message_size=1024))
    assert (options.add_timeout_s, options.read_timeout_s) == (7.0, 8.0)
    assert options.frame_bytes_max == 5 * 1024 * 1024 + 10 * 1024, "entries of larger messages may be there already"
