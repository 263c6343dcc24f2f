"""The TLS ports: lookup, certificates renewed without a restart, mutual TLS, hostile handshakes."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
import requests

from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.integration.security.conftest import Secured, bearer, start
from tests.support.certificates import Authority
from tests.support.raw import connect_command
from tests.support.tokens import token


def handshake(port: int, authority: Authority, client: tuple[str, str] | None = None) -> bytes:
    """The server's certificate; raises what the handshake ends with. An answer is awaited: TLS 1.3 refuses clients late."""
    context = ssl.create_default_context(cafile=str(authority.file))
    if client is not None:
        context.load_cert_chain(*client)
    with (
        socket.create_connection(("localhost", port), 5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        certificate = secure.getpeercert(binary_form=True)
        secure.settimeout(60)
        secure.sendall(encode_frame(connect_command().SerializeToString()))
        if not secure.recv(1):
            raise ssl.SSLError("closed by the server")
        assert certificate is not None
        return certificate


def test_lookups_answer_the_tls_address(secured: Secured) -> None:
    with secured.raw("tenant-admin") as client:
        command = BaseCommand(type=BaseCommand.LOOKUP, lookupTopic={"topic": "t/ns/x", "request_id": 1})
        client.send(command)
        found = client.expect(BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
    assert found.brokerServiceUrlTls == f"pulsar+ssl://localhost:{secured.port_tls}"
    document = secured.http("GET", "/lookup/v2/topic/persistent/t/ns/x").json()
    assert document["brokerUrlTls"] == document["brokerUrlSsl"] == found.brokerServiceUrlTls
    assert document["httpUrlTls"] == f"https://localhost:{secured.http_port_tls}"
    cluster = secured.http("GET", "/admin/v2/clusters/standalone").json()
    assert cluster["brokerServiceUrlTls"] == found.brokerServiceUrlTls


def test_admin_over_tls(secured: Secured) -> None:
    url, trusted = f"https://localhost:{secured.http_port_tls}/admin/v2/tenants/t", str(secured.authority.file)
    assert requests.get(url, verify=trusted, headers=bearer("tenant-admin"), timeout=30).status_code == 200
    assert requests.get(url, verify=trusted, cert=secured.authority.sign("tenant-admin"), timeout=30).status_code == 200
    assert requests.get(url, verify=trusted, cert=secured.authority.sign("stranger"), timeout=30).status_code == 403
    assert requests.get(url, verify=trusted, timeout=30).status_code == 403  # anonymous
    both = requests.get(
        url, verify=trusted, cert=secured.authority.sign("root"), headers=bearer("stranger"), timeout=30
    )
    assert both.status_code == 403, "a credential that is shown counts before the certificate"


def test_lookup_over_https(secured: Secured, connect: Callable[..., pulsar.Client]) -> None:
    client = connect(
        pulsar.AuthenticationToken(token("tenant-admin")), tls=True, url=f"https://localhost:{secured.http_port_tls}"
    )
    client.create_producer("t/ns/https").send(b"x")


def test_strangers_certificates_are_refused(secured: Secured, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger-ca").sign("root")
    with pytest.raises(ssl.SSLError):
        handshake(secured.port_tls, secured.authority, stranger)


def test_a_client_that_checks_the_name_is_satisfied(connect: Callable[..., pulsar.Client], secured: Secured) -> None:
    url = f"pulsar+ssl://127.0.0.1:{secured.port_tls}"
    connect(pulsar.AuthenticationToken(token("tenant-admin")), tls=True, url=url).create_producer("t/ns/name").close()


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00" + b"\xff" * 600, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b""],
    ids=["broken hello", "http", "zeros", "nothing"],
)
def test_no_tls_on_the_tls_port(secured: Secured, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", secured.port_tls), 5) as connection:
        if data:
            connection.sendall(data)
        else:
            connection.shutdown(socket.SHUT_WR)
        connection.settimeout(30)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
    handshake(secured.port_tls, secured.authority)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_tls_is_refused(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=str(secured.authority.file))
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with (
        socket.create_connection(("localhost", secured.port_tls), 60) as plain,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    server = start(tmp_path, tlsRequireTrustedClientCertOnConnect=True)
    try:
        old_client = server.authority.sign("tenant-admin")
        before = handshake(server.port_tls, server.authority, old_client)
        with pytest.raises(ssl.SSLError):
            handshake(server.port_tls, server.authority)
        # half of a renewal: a key that does not fit is reported and not used
        key_path = Path(server.authority.sign("localhost", "server-new")[1])
        server_key = server.authority.directory / "server.key"
        old_key = server_key.read_bytes()
        server_key.write_bytes(key_path.read_bytes())
        assert handshake(server.port_tls, server.authority, old_client) == before
        assert "new TLS files are not used" in server.process.log()
        server_key.write_bytes(old_key)
        # all of it, and other authorities for clients
        new = Authority(server.authority.directory / "new", "test-ca")
        certificate, key = new.sign("localhost", "server")
        (server.authority.directory / "server.pem").write_bytes(Path(certificate).read_bytes())
        server_key.write_bytes(Path(key).read_bytes())
        server.authority.file.write_bytes(new.file.read_bytes())
        assert handshake(server.port_tls, new, new.sign("tenant-admin")) != before
        with pytest.raises(ssl.SSLError):
            handshake(server.port_tls, new, old_client)
        url = f"https://localhost:{server.http_port_tls}/status.html"
        assert requests.get(url, verify=str(new.file), cert=new.sign("x"), timeout=30).status_code == 200
    finally:
        server.process.close()


def test_a_connection_ends_with_its_certificate(secured: Secured) -> None:
    certificate = secured.authority.sign("tenant-admin", "short", valid_s=5)
    context = ssl.create_default_context(cafile=str(secured.authority.file))
    context.load_cert_chain(*certificate)
    started = time.monotonic()

    with (
        socket.create_connection(("localhost", secured.port_tls), 60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(encode_frame(connect_command(auth_method_name="tls").SerializeToString()))
        assert secure.recv(4096)
        secure.settimeout(60)
        while secure.recv(4096):
            pass
    assert time.monotonic() - started < 25, "less than a keep-alive takes to end it"


def test_a_stop_with_handshakes_under_way(tmp_path: Path) -> None:
    """Half a handshake, a whole one without CONNECT, a failed one: none of them keeps the server from a clean end."""
    server = start(tmp_path)
    context = ssl.create_default_context(cafile=str(server.authority.file))
    connections: list[socket.socket] = []
    try:
        for port in (server.port_tls, server.http_port_tls):
            connections.append(socket.create_connection(("localhost", port)))
            whole = socket.create_connection(("localhost", port))
            connections.append(context.wrap_socket(whole, server_hostname="localhost"))
            failed = socket.create_connection(("localhost", port))
            failed.sendall(b"\0" * 100)
            connections.append(failed)
        assert server.process.stop() == 0
        assert "Traceback" not in server.process.log()
    finally:
        for connection in connections:
            connection.close()
        server.process.close()
