"""HTTP with the standard library: connections are kept and shared by threads, redirects to a topic's owner are followed."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection, RemoteDisconnected
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from magnetar.admin.client.errors import AnswerError, UnreachableError, refused

IDLE_S_MAX = 10.0
"""A connection that was unused for longer is not used again: servers close them, ours after 30 s."""

CONNECTIONS_KEPT_MAX = 8
"""More idle connections are closed."""

REDIRECTS_MAX = 20
"""A longer way to a topic's owner is given up."""

TIMEOUT_S = 30.0

CONNECT_TIMEOUT_S = 5.0
"""For a connection to one of several addresses: then the next one is tried."""

REDIRECTED_AGAIN_S = 10.0
"""For as long a request is sent again that was led to a broker which does not answer: it was killed, and another one takes over."""

_REDIRECTED_PAUSE_S = 0.5


class Answer(NamedTuple):
    """A response with a 2xx status. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON; None for an empty one. Raises AnswerError when it is something else."""
        try:
            return json.loads(self.body) if self.body else None
        except ValueError as error:
            raise AnswerError("the server's answer is not JSON; does an admin API listen there?") from error


class Http:
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
    ) -> None:
        """Raises ValueError for what is not a valid http or https URL."""
        self.url = url.rstrip("/")
        self._bases = addresses(self.url)
        self._origins = {origin(base) for base in self._bases}
        self._preferred = 0
        self._headers = headers
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

    def request(self, method: str, path: str, body: object = None, *, has_body: bool = False) -> Answer:
        """Send `body` as JSON (with `has_body` also null). Raises UnreachableError, RefusedError, AnswerError."""
        data = json.dumps(body).encode() if has_body or body is not None else None
        if len(self._bases) == 1:
            return self._follow(method, self._bases[0] + path, data)
        give_up_at_s = time.monotonic() + REDIRECTED_AGAIN_S
        while True:
            led_away = None
            for number in range(self._preferred, self._preferred + len(self._bases)):
                base = self._bases[number % len(self._bases)]
                try:
                    answer = self._follow(method, base + path, data)
                except UnreachableError as error:
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

    def _follow(self, method: str, url: str, data: bytes | None) -> Answer:
        for _ in range(REDIRECTS_MAX):
            status, headers, payload = self._exchange(method, url, data)
            if status in (301, 302, 307, 308) and "location" in headers:
                url = urljoin(url, headers["location"])
                continue
            if 200 <= status < 300:
                return Answer(status, headers, payload)
            raise refused(status, reason_of(payload, status))
        raise AnswerError(f"{self.url}: more than {REDIRECTS_MAX} redirects")

    def _exchange(self, method: str, url: str, data: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
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
            raise UnreachableError(
                unreachable(place, error), place=place, unsent=not connected and not maybe_sent
            ) from error

    def _connect(self, connection: HTTPConnection) -> None:
        if len(self._bases) > 1:
            connection.timeout = min(CONNECT_TIMEOUT_S, self._timeout_s)
        connection.connect()
        connection.timeout = self._timeout_s
        connection.sock.settimeout(self._timeout_s)

    def _send(
        self, connection: HTTPConnection, place: str, method: str, target: str, data: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Accept": "*/*"}
        if place in self._origins:
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
        return response.status, found, payload

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
                "use a host name that stands in the certificate"
                if "mismatch" in error.verify_message
                else "name the authority to trust by --tls-trust-certs FILE, if you know the server"
            )
            return f"the certificate of {place} does not hold ({error.verify_message.rstrip('.')}); {fix}"
        case ssl.SSLError() if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return f"{place} answers, but not by TLS; use the URL without TLS (http://, pulsar://), or the server's TLS port"
        case ssl.SSLError():
            return (
                f"the TLS handshake with {place} failed ({error.reason or 'closed'}); if the server asks for a certificate, name it by "
                "--auth-plugin tls --auth-params tlsCertFile:FILE,tlsKeyFile:FILE"
            )
        case RemoteDisconnected() | ConnectionResetError() | BrokenPipeError():
            return f"{place} closed the connection without an answer; does it speak TLS (https://), or another protocol? Correct the URL"
        case HTTPException():
            return (
                f"{place} answers, but not by HTTP; use the admin API's port (webServicePort, 8080), not the broker's"
            )
        case socket.gaierror():
            return f"the host name of {place} is not known ({error.strerror}); correct the URL, or the name service"
        case ConnectionRefusedError():
            return f"{place} refuses connections; is a server running there? Start it, or correct the URL"
        case TimeoutError():
            return f"{place} does not answer in time; is it overloaded or paused, or does a firewall drop the packets?"
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


def reason_of(payload: bytes, status: int) -> str:
    """Pulsar answers `{"reason": "..."}`; other servers answer what they like."""
    try:
        return str(json.loads(payload)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"
