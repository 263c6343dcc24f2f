"""One server with everything switched on, its keys and certificates, and roles that may do different things."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
import requests

from magnetar.base.ports import free_ports
from magnetar.broker.auth.basic import apr1
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.certificates import Authority
from tests.support.raw import RawClient
from tests.support.tokens import AUDIENCE, SECRET, token

PASSWORD = "correct horse battery"
ROLES = ("root", "tenant-admin", "other-admin", "producer", "consumer", "topic-role", "stranger", "anonymous")
"""`root`: superuser. The admins: of tenant `t`, of tenant `other`. `producer`, `consumer`: in `t/ns`. `topic-role`: on `t/ns/one`."""


@dataclasses.dataclass
class Secured:
    """A server, and how to reach it as one role or another."""

    process: ServerProcess
    authority: Authority
    port_tls: int
    http_port_tls: int

    def http(self, method: str, path: str, role: str = "root", **options: Any) -> requests.Response:
        """`role` anonymous shows no credential; `headers` add to it."""
        headers = {**bearer(role), **options.pop("headers", {})}
        url = path if "://" in path else f"{self.process.http_url}{path}"
        return requests.request(method, url, headers=headers, timeout=60, **options)

    def admin(self, method: str, path: str, body: object = None) -> None:
        response = self.http(method, f"/admin/v2/{path}", json=body)
        assert response.status_code in (200, 204), response.text

    def raw(self, role: str) -> RawClient:
        """Shaken hands as that role."""
        client = RawClient(self.process.port)
        fields = {} if role == "anonymous" else {"auth_method_name": "token", "auth_data": token(role).encode()}
        client.connect(**fields)
        return client


def bearer(role: str) -> dict[str, str]:
    return {} if role == "anonymous" else {"Authorization": f"Bearer {token(role)}"}


def settings(directory: Path, authority: Authority, **more: object) -> dict[str, object]:
    """Everything on."""
    certificate, key = authority.sign("localhost", "server")
    passwords = directory / "htpasswd"
    passwords.write_text(f"# users\nadmin:{apr1(PASSWORD.encode(), 'saltsalt')}\n")
    return {
        "advertisedAddress": "localhost",
        "brokerServicePortTls": free_ports(1)[0],
        "webServicePortTls": free_ports(1)[0],
        "tlsCertificateFilePath": certificate,
        "tlsKeyFilePath": key,
        "tlsTrustCertsFilePath": authority.file,
        "tlsCertRefreshCheckDurationSec": 0,
        "authenticationEnabled": True,
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken,basic,tls",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
        "tokenAudience": AUDIENCE,
        "basicAuthConf": f"file://{passwords}",
        "authorizationEnabled": True,
        "superUserRoles": "root,admin",
        "anonymousUserRole": "anonymous",
        "proxyRoles": "proxy",
    } | more


def start(directory: Path, **more: object) -> Secured:
    authority = Authority(directory / "certificates")
    chosen = settings(directory, authority, **more)
    process = ServerProcess(directory / "data", chosen).start()
    return Secured(process, authority, int(str(chosen["brokerServicePortTls"])), int(str(chosen["webServicePortTls"])))


def grant(server: Secured) -> None:
    """What the docstring of ROLES says."""
    for tenant, role in (("t", "tenant-admin"), ("other", "other-admin")):
        server.admin("PUT", f"tenants/{tenant}", {"adminRoles": [role], "allowedClusters": ["standalone"]})
    for namespace in ("t/ns", "other/ns"):
        server.admin("PUT", f"namespaces/{namespace}")
    server.admin("POST", "namespaces/t/ns/permissions/producer", ["produce"])
    server.admin("POST", "namespaces/t/ns/permissions/consumer", ["consume"])
    for domain in ("persistent", "non-persistent"):
        server.admin("POST", f"{domain}/t/ns/one/permissions/topic-role", ["produce", "consume"])


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    server = start(tmp_path_factory.mktemp("secured"))
    grant(server)
    yield server
    log = server.process.log()
    server.process.close()
    check_log(log)


def check_log(log: str) -> None:
    """Neither tracebacks nor anything that would let somebody in."""
    assert "Traceback" not in log, log[-4000:]
    for secret in (SECRET.decode(), base64.b64encode(SECRET).decode(), PASSWORD, "$apr1$", "eyJ"):
        assert secret not in log


@pytest.fixture
def connect(secured: Secured) -> Iterator[Callable[..., pulsar.Client]]:
    """`connect(authentication, tls=False)`: official clients, closed after the test."""
    clients: list[pulsar.Client] = []

    def open_client(authentication: Any = None, *, tls: bool = False, url: str = "", **options: Any) -> pulsar.Client:
        if tls:
            url = url or f"pulsar+ssl://localhost:{secured.port_tls}"
            options |= {"tls_trust_certs_file_path": str(secured.authority.file), "tls_validate_hostname": True}
        client = pulsar.Client(
            url or secured.process.service_url,
            authentication=authentication,
            operation_timeout_seconds=30,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            **options,
        )
        clients.append(client)
        return client

    yield open_client
    for client in clients:
        client.close()


def error_code(command: BaseCommand) -> int | None:
    """The ServerError of an answer of any form; None for a success."""
    for _, message in command.ListFields():
        for field in ("error_code", "error"):
            if getattr(message, "DESCRIPTOR", None) and field in message.DESCRIPTOR.fields_by_name:
                return getattr(message, field) if message.HasField(field) else None
    return None
