"""The blocking HTTP caller of commands, the typed admin client and pipelines: requests to one server or to the brokers of a cluster.

It is built on http.client of the standard library. httpx was measured against it: five more packages, and 65 to 155 ms instead of 35 to
40 ms to import (most of which is `ssl`, which is needed anyway), of the 0.35 s of a whole `magnetar topics list`.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection, RemoteDisconnected
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from magnetar.client.errors import BadAnswerError, ServerUnreachableError

IDLE_S_MAX = 10.0
"""A connection that was unused for longer is not used again: servers close them, ours after 30 s."""

CONNECTIONS_KEPT_MAX = 8
"""More idle connections are closed."""

REDIRECTS_MAX = 20
"""Redirects that one request follows; then it fails."""

TIMEOUT_S = 30.0

CONNECT_TIMEOUT_S = 5.0
"""Time-out of a connection to one of several addresses; then the next address is tried."""

REDIRECTED_AGAIN_S = 10.0
"""Time for which a request is repeated that was redirected to a broker which does not answer: another broker takes over from it."""

_REDIRECTED_PAUSE_S = 0.5


class HttpAnswer(NamedTuple):
    """The last answer after redirects, whatever its status. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BlockingHttp:
    """Requests to one server, or to a cluster whose brokers are listed as `http://HOST:PORT,HOST:PORT`: when one does not answer, the
    next one is asked. A request that may have been carried out, other than a GET, is not repeated. Safe to be used by several threads;
    proxies of the environment are not used.

    `headers` is asked for each request, so that a token may be renewed meanwhile.
    """

    def __init__(
        self,
        url: str,
        headers: Callable[[], Mapping[str, str]],
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
        *,
        trusts_redirects: bool = False,
    ) -> None:
        """Raises ValueError for what is not a valid http or https URL.

        `trusts_redirects`: servers that a redirect names are sent `headers` too, not only those of `url`.
        """
        self.url = url.rstrip("/")
        self._bases = addresses(self.url)
        self._origins = {origin(base) for base in self._bases}
        self._preferred = 0
        self._headers = headers
        self._trusts_redirects = trusts_redirects
        self._tls = tls
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[HTTPConnection, float]]] = {}

    def close(self) -> None:
        """Close idle connections. The next request opens one again."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection, _ in connections:
                connection.close()

    def request(self, method: str, path: str, data: bytes | None = None) -> HttpAnswer:
        """Send `data` as a JSON body. Raises ServerUnreachableError, BadAnswerError."""
        if len(self._bases) == 1:
            return self._follow(method, self._bases[0] + path, data)
        give_up_at_s = time.monotonic() + REDIRECTED_AGAIN_S
        while True:
            led_away = None
            for number in range(self._preferred, self._preferred + len(self._bases)):
                base = self._bases[number % len(self._bases)]
                try:
                    answer = self._follow(method, base + path, data)
                except ServerUnreachableError as error:
                    if method != "GET" and not error.unsent:
                        raise
                    failure = error
                    led_away = led_away or error.place != origin(base)
                else:
                    self._preferred = number % len(self._bases)
                    return answer
            if not led_away or time.monotonic() >= give_up_at_s:
                raise failure
            time.sleep(_REDIRECTED_PAUSE_S)

    def _follow(self, method: str, url: str, data: bytes | None) -> HttpAnswer:
        for _ in range(REDIRECTS_MAX):
            answer = self._exchange(method, url, data)
            if answer.status not in (301, 302, 307, 308) or "location" not in answer.headers:
                return answer
            url = urljoin(url, answer.headers["location"])
        raise BadAnswerError(f"{self.url}: more than {REDIRECTS_MAX} redirects")

    def _exchange(self, method: str, url: str, data: bytes | None) -> HttpAnswer:
        place, target = origin(url), url[len(origin(url)) :]
        kept = self._take(place)
        maybe_sent = False
        if kept is not None and method != "POST":
            try:
                return self._send(kept, place, method, target, data)
            except (OSError, HTTPException):
                kept.close()  # it may have been closed as idle: once more, on a new one
                kept = None
                maybe_sent = True
        connection = kept or self._open(place)
        connected = kept is not None
        try:
            if not connected:
                self._connect(connection)
                connected = True
            return self._send(connection, place, method, target, data)
        except (OSError, HTTPException) as error:
            connection.close()
            raise ServerUnreachableError(
                unreachable(place, error), place=place, unsent=not connected and not maybe_sent
            ) from error

    def _connect(self, connection: HTTPConnection) -> None:
        if len(self._bases) > 1:
            connection.timeout = min(CONNECT_TIMEOUT_S, self._timeout_s)
        connection.connect()
        connection.timeout = self._timeout_s
        connection.sock.settimeout(self._timeout_s)

    def _send(self, connection: HTTPConnection, place: str, method: str, target: str, data: bytes | None) -> HttpAnswer:
        headers = {"Accept": "*/*"}
        if self._trusts_redirects or place in self._origins:
            headers |= self._headers()  # nobody else is shown the credential
        if data is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, target or "/", data, headers)
        response = connection.getresponse()
        payload = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        if response.will_close:
            connection.close()
        else:
            self._keep(place, connection)
        return HttpAnswer(response.status, found, payload)

    def _open(self, place: str) -> HTTPConnection:
        parts = urlsplit(place)
        host = parts.hostname or "localhost"
        if parts.scheme == "https":
            return HTTPSConnection(host, parts.port or 443, timeout=self._timeout_s, context=self._tls)
        return _Connection(host, parts.port or 80, timeout=self._timeout_s)

    def _take(self, place: str) -> HTTPConnection | None:
        with self._lock:
            idle = self._idle.get(place, [])
            while idle:
                connection, since_s = idle.pop()
                if time.monotonic() - since_s <= IDLE_S_MAX:
                    return connection
                connection.close()
        return None

    def _keep(self, place: str, connection: HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(place, [])
            if len(idle) < CONNECTIONS_KEPT_MAX:
                idle.append((connection, time.monotonic()))
                return
        connection.close()


class _Connection(HTTPConnection):
    """Small requests leave at once."""

    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def origin(url: str) -> str:
    """Scheme, host and port. Raises ValueError for what is not a valid http or https URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is not a valid URL; write it as http://HOST:PORT")
    _ = parts.port  # raises ValueError for what is not a port
    return f"{parts.scheme}://{parts.netloc}"


def unreachable(place: str, error: Exception) -> str:
    """What failed at an address, why, and what to do. Nothing that the peer sent is repeated: it may be binary."""
    match error:
        case ssl.SSLCertVerificationError():
            fix = (
                "use a host name that the certificate lists"
                if "mismatch" in error.verify_message
                else "pass --tls-trust-certs FILE with the authority to trust, if you know the server"
            )
            return f"the certificate of {place} cannot be verified ({error.verify_message.rstrip('.')}); {fix}"
        case ssl.SSLError() if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return f"{place} answers, but not by TLS; use the URL without TLS (http://, pulsar://), or the server's TLS port"
        case ssl.SSLError():
            return (
                f"the TLS handshake with {place} failed ({error.reason or 'closed'}); if the server asks for a certificate, pass "
                "--auth-plugin tls --auth-params tlsCertFile:FILE,tlsKeyFile:FILE"
            )
        case RemoteDisconnected() | ConnectionResetError() | BrokenPipeError():
            return f"{place} closed the connection without an answer; use https:// if it speaks TLS, or correct the URL"
        case HTTPException():
            return (
                f"{place} answers, but not by HTTP; use the admin API's port (webServicePort, 8080), not the broker's"
            )
        case socket.gaierror():
            return f"the host name of {place} is not known ({error.strerror}); correct the URL, or the name service"
        case ConnectionRefusedError():
            return f"{place} refuses connections; start a server there, or correct the URL"
        case TimeoutError():
            return f"{place} does not answer in time; it may be overloaded or paused, or a firewall drops the packets"
        case OSError():
            return (
                f"{place} cannot be reached ({error.strerror or type(error).__name__}); correct the URL, or the network"
            )
        case _:
            return f"{place} cannot be reached ({type(error).__name__})"


def addresses(url: str) -> list[str]:
    """The URLs in `http://HOST:PORT,HOST:PORT`, as Pulsar writes several servers. Raises ValueError."""
    scheme, separator, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    found = [f"{scheme}{separator}{host.strip()}{slash}{path}" for host in hosts.split(",")]
    for each in found:
        origin(each)
    return found
