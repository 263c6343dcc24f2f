"""The asynchronous HTTP caller of every process: one request, one connection, over the network that is passed in.

Answers are parsed by httptools (llhttp), which the admin server carries already and which imports in 2 ms. httpx was measured against it:
it brings five packages, takes 65 to 155 ms to import, and opens sockets by itself, so that it could not be used in a simulated network.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from magnetar.base.errors import ConfigError
from magnetar.base.network import Network
from magnetar.client.errors import UnreachableError


class HttpAnswer(NamedTuple):
    """Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def exchange(
    network: Network,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    tls: ssl.SSLContext | None = None,
    connect_timeout_s: float,
    answer_timeout_s: float,
    answer_bytes_max: int,
) -> HttpAnswer:
    """Send one request and return its complete answer, whatever its status. Redirects are the caller's.

    `tls` is used for https URLs. Raises ConfigError for what is not a valid URL, UnreachableError when no complete answer arrives.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    try:
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    except ValueError:
        host, port = "", 0
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(
            f"{url!r} is not a valid address of an admin API; write http://host:port or https://host:port"
        )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = {
        "Host": parts.netloc,
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **headers,
    }
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    protocol = _Exchange("\r\n".join([*lines, "", ""]).encode() + body, method == "HEAD", answer_bytes_max)
    try:
        await network.connect(host, port, lambda: protocol, tls if secure else None, timeout_s=connect_timeout_s)
        async with asyncio.timeout(answer_timeout_s):
            return await protocol.answer
    except (OSError, TimeoutError) as error:
        raise UnreachableError(str(error) or "timed out") from None
    finally:
        protocol.close()


class _Exchange(asyncio.Protocol):
    """Sends one request and parses what comes back; the `on_...` methods are httptools' callbacks."""

    def __init__(self, request: bytes, headers_only: bool, bytes_max: int) -> None:
        """`headers_only`: the answer has no body whatever its Content-Length says (HEAD)."""
        self._request = request
        self._headers_only = headers_only
        self._bytes_left = self._bytes_max = bytes_max
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._in_body = False
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self.answer: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self._fail(f"the answer is larger than {self._bytes_max} bytes")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("the answer is not HTTP")
        except httptools.HttpParserUpgrade:
            self._fail("the server wants to speak another protocol")

    def connection_lost(self, error: Exception | None) -> None:
        if self.answer.done():
            return
        if not self._in_body:
            self._fail("the connection ended before the answer")
        elif error is None and not self._headers.keys() & {"content-length", "transfer-encoding"}:
            self._succeed()  # a body without a length ends with the connection
        else:
            self._fail("the connection ended within the answer")

    def on_message_begin(self) -> None:
        self._in_body, self._headers, self._body = False, {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        self._in_body = self._parser.get_status_code() >= 200
        if self._in_body and self._headers_only:
            self._succeed()

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        if self._in_body:  # and not an interim answer, such as 100
            self._succeed()

    def close(self) -> None:
        self.answer.cancel()  # without effect on one that is there
        if self._transport is not None:
            self._transport.abort()

    def _succeed(self) -> None:
        if not self.answer.done():
            self.answer.set_result(HttpAnswer(self._parser.get_status_code(), self._headers, b"".join(self._body)))

    def _fail(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(ConnectionError(reason))
