"""`magnetar pipeline serve`: views of pipelines to clients of PostgreSQL, with the credentials and roles of the brokers."""

from __future__ import annotations

import logging
import os
import re
import secrets
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from magnetar.admin.http.guard import HttpGuard
from magnetar.admin.http.server import HttpServer
from magnetar.base.admission import Admission
from magnetar.base.clock import Clock, SystemClock
from magnetar.base.errors import ConfigError
from magnetar.base.listen_settings import is_loopback
from magnetar.base.network import AsyncioNetwork
from magnetar.broker.auth.authenticate import BASIC, TLS, TOKEN, Authentication, Credentials
from magnetar.broker.auth.key_material import read_file
from magnetar.broker.auth.principal import checked_role
from magnetar.broker.auth.tls import TlsContext
from magnetar.broker.config import TlsConfig
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.settings.security import names_of
from magnetar.pipeline.home import Place
from magnetar.pipeline.serving.reader import Views
from magnetar.pipeline.serving.server import AccessRefused, Bounds, OpenGate, Served, Server
from magnetar.pipeline.serving.wire.scram import ITERATIONS, MECHANISM, Secret, mock_secret, read_secret
from magnetar.pipeline.serving.writer import Credential, basic_credential, token_credential
from magnetar.pipeline.state.files import StateFiles
from magnetar.processes.composition import Composition
from magnetar.processes.configurations import ViewServerConfig
from magnetar.processes.serving import serve_until_told

if TYPE_CHECKING:
    from magnetar.processes.view_http import HttpGate

logger = logging.getLogger(__name__)

_TOKEN: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


SCRAM: Final = "scram"


class ScramSecrets:
    """A file with a line ROLE:SECRET for each role. Used by several threads."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError."""
        self._path = path
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._seen = self._signature()
        self._secrets = read_secrets(path)

    def of(self, user: str) -> Secret:
        with self._lock:
            seen = self._signature()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._secrets = read_secrets(self._path)
                except ConfigError as error:
                    logger.error("the passwords stay those that were read before: %s", error)
            found = self._secrets.get(user)
            if found is not None:
                return found
            some = next(iter(self._secrets.values()), None)
            return mock_secret(user, self._key, some.iterations if some is not None else ITERATIONS)

    def _signature(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


def read_secrets(path: str) -> dict[str, Secret]:
    """By role. Raises ConfigError."""
    found = {}
    text = read_file(path, "scramSecretsFile").decode(errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        role, mark, rest = line.rpartition(f":{MECHANISM}$")
        try:
            found[checked_role(role)] = read_secret(f"{MECHANISM}${rest}" if mark else "")
        except (ValueError, AuthenticationError):
            raise ConfigError(
                f"scramSecretsFile: line {number} of {path} is not ROLE:{MECHANISM}$...; write it by "
                "`magnetar pipeline password ROLE --file FILE`"
            ) from None
    return found


class BrokerGate:
    """Tokens, passwords and client certificates as a broker takes them. A token is shown in place of a password."""

    asks = True

    def __init__(self, config: ViewServerConfig, clock: Clock) -> None:
        """Raises ConfigError."""
        self._config = config
        self._authentication = Authentication(config, clock.now_ms, elsewhere=(SCRAM,))
        self._secrets = ScramSecrets(config.scram_secrets_file) if config.scram_secrets_file else None
        self._readers = names_of(config.view_reader_roles)
        self._owners = names_of(config.view_owner_roles)
        self._superusers = names_of(config.super_user_roles)

    def by_certificate(self, certificate: Mapping[str, Any]) -> str | None:
        try:
            return self._authentication.authenticate(Credentials(TLS, certificate=certificate)).role
        except AuthenticationError:
            return None

    def by_password(self, user: str, password: bytes) -> str:
        shown = (
            Credentials(TOKEN, password)
            if _TOKEN.fullmatch(password)
            else Credentials(BASIC, user.encode() + b":" + password)
        )
        try:
            role = self._authentication.authenticate(shown).role
        except AuthenticationError as error:
            raise AccessRefused(f'authentication failed for user "{user}": {error}') from error
        if shown.method == TOKEN and user != role and user not in ("", "token"):
            raise AccessRefused(
                f'authentication failed for user "{user}": the token is for another role; connect as that, or as "token"'
            )
        return role

    def credential(self, user: str, password: bytes) -> Credential:
        return token_credential(password) if _TOKEN.fullmatch(password) else basic_credential(user, password)

    def scram_secret(self, user: str) -> Secret | None:
        """Of every user name but `token`, so that nobody learns which have one."""
        return None if self._secrets is None or user == TOKEN else self._secrets.of(user)

    def by_headers(self, authorization: str, certificate: Mapping[str, Any] | None, client: str, scheme: str) -> str:
        """Over HTTP; AccessRefused."""
        plain = (
            scheme != "https" and not self._config.insecure_listen and not is_loopback(client.removeprefix("::ffff:"))
        )
        if authorization and plain:
            raise AccessRefused(
                "the connection is not encrypted, so anybody on the way could read the credential: use https"
            )
        try:
            return self._authentication.of_http(authorization, certificate, "").role
        except AuthenticationError as error:
            raise AccessRefused(str(error)) from error

    def may_read(self, role: str, pipeline: str) -> bool:
        if not self._config.authorization_enabled or role in self._superusers:
            return True
        return role in self._readers or f"{pipeline}:{role}" in self._readers or self._owns(role, pipeline)

    def may_change(self, role: str, pipeline: str, *, reaches: bool) -> bool:
        return role in self._superusers or self._owns(role, pipeline)

    def _owns(self, role: str, pipeline: str) -> bool:
        return role in self._owners or f"{pipeline}:{role}" in self._owners


class OpenHttpGate(OpenGate):
    """Over HTTP nobody says who they are."""

    def by_headers(self, authorization: str, certificate: Mapping[str, Any] | None, client: str, scheme: str) -> str:
        return "reader"


class ViewServerProcess(Composition):
    """Serves the pipelines at these places, which need not run."""

    def __init__(self, config: ViewServerConfig, places: Sequence[Place]) -> None:
        super().__init__()
        self.config = config
        self._places = places
        self._port = 0
        self._http_port = 0

    @property
    def urls(self) -> Sequence[str]:
        host, names = self.config.advertised_host, [place.name for place in self._places]
        found = [f"postgresql://{host}:{self._port}/{name}" for name in names]
        if self._http_port:
            scheme = "https" if self.config.tls_certificate_file_path else "http"
            found += [f"{scheme}://{host}:{self._http_port}/sql/{quote(name)}" for name in names]
        return found

    async def _start(self) -> None:
        config, clock = self.config, SystemClock()
        bounds = Bounds(
            connections=config.max_connections,
            per_address=config.max_connections,
            memory_mb=config.query_memory_mb,
            statement_timeout_s=config.statement_timeout_s,
        )
        served = {
            place.name: Served(
                Views(StateFiles(place.directory), clock, config.view_memory_mb << 20), place.name, bounds
            )
            for place in self._places
        }
        tls = None
        if config.tls_certificate_file_path:
            files = TlsConfig(
                certificate_file=config.tls_certificate_file_path,
                key_file=config.tls_key_file_path,
                trust_certs_file="" if config.tls_allow_insecure_connection else config.tls_trust_certs_file_path,
                require_client_cert=config.tls_require_trusted_client_cert_on_connect,
                refresh_check_s=config.tls_cert_refresh_check_s,
            )
            tls = TlsContext(files, clock.monotonic_s).context
        gate = (
            BrokerGate(config, clock)
            if config.authentication_enabled
            else OpenHttpGate(local=is_loopback(config.bind_address))
        )
        server = Server(served, gate, bounds, tls, plain_passwords=config.insecure_listen)
        self._port = await server.start(config.bind_address, config.port)
        self._stack.push_async_callback(server.stop)
        if config.view_http_port >= 0:
            await self._serve_http(served, gate, tls)

    async def _serve_http(self, served: Mapping[str, Served], gate: HttpGate, tls: ssl.SSLContext | None) -> None:
        from magnetar.processes.view_http import SqlOverHttp  # with Starlette, which costs a server without HTTP memory

        config = self.config
        share = Admission(http_max=config.max_connections, per_address_max=config.max_connections).http
        listener = AsyncioNetwork().bind(config.bind_address, config.view_http_port, share)
        self._stack.push_async_callback(listener.close)
        app = SqlOverHttp(served, gate, config.statement_timeout_s)
        self._stack.push_async_callback(app.stop)
        guard = HttpGuard(config.http_names, asks_for_names=not config.authentication_enabled)
        http = await self._stack.enter_async_context(HttpServer(app, guard))
        await http.serve(listener, tls)
        self._http_port = listener.port


async def run(config: ViewServerConfig, places: Sequence[Place]) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    return await serve_until_told(ViewServerProcess(config, places), config.warnings())
