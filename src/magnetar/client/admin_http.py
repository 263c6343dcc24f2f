"""The few admin calls that one cluster makes to another: HTTP/1.1 over the network that is passed in, one connection for each call."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from magnetar.base.errors import ConfigError
from magnetar.base.network import Network
from magnetar.client.credentials import Credentials, TlsTrust
from magnetar.client.errors import RequestRefusedError, UnreachableError

CALL_TIMEOUT_S = 30.0
"""From connecting to the last byte of the answer; then the call counts as unanswered."""

ANSWER_BYTES_MAX = 1024 * 1024
"""A longer answer ends the call."""

REDIRECTS_MAX = 5
"""To the broker that has the namespace; then the call fails."""

_REDIRECTS = (301, 302, 307, 308)


@dataclass(frozen=True, slots=True)
class AdminEndpoint:
    """`url`: http://host:port or https://host:port, several separated by commas: the first is asked."""

    url: str
    credentials: Credentials
    trust: TlsTrust


class AdminCaller:
    """`call` answers the body's JSON."""

    def __init__(self, endpoint: AdminEndpoint, network: Network) -> None:
        self._endpoint = endpoint
        self._network = network

    async def call(self, method: str, path: str, body: object = None) -> object:
        """`path` below /admin/v2/. Raises RequestRefusedError with the status, UnreachableError, ConfigError."""
        url = f"{self._endpoint.url.split(',')[0].rstrip('/')}/admin/v2/{path}"
        for _ in range(REDIRECTS_MAX):
            status, headers, answer = await self._exchange(method, url, body)
            if status not in _REDIRECTS or "location" not in headers:
                break
            url = headers["location"]
        if status >= 300:
            raise RequestRefusedError(status, f"{method} {url}: {status} {_reason(answer)}")
        return json.loads(answer) if answer else None

    async def _exchange(self, method: str, url: str, body: object) -> tuple[int, Mapping[str, str], bytes]:
        parts = urlsplit(url)
        tls = self._tls() if parts.scheme == "https" else None
        try:
            host, port = parts.hostname or "", parts.port or (443 if tls is not None else 80)
        except ValueError:
            host, port = "", 0
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(
                f"{url!r} is not a valid address of an admin API; write http://host:port or https://host:port"
            )
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        exchange = _Exchange(self._request(method, target, parts.netloc, body))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._network.connect(host, port, lambda: exchange, tls)
                return _parsed(await exchange.answer, url)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"{method} {url}: {error or 'no answer'}") from None
        finally:
            exchange.close()

    def _request(self, method: str, target: str, host: str, body: object) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        headers = {
            "Host": host,
            "Connection": "close",
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
        }
        authorization = self._endpoint.credentials.header()
        if authorization:
            headers["Authorization"] = authorization
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + content

    def _tls(self) -> ssl.SSLContext:
        return self._endpoint.trust.context(self._endpoint.credentials.certificate())


class _Exchange(asyncio.Protocol):
    """One request, and everything until the other side closes."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > ANSWER_BYTES_MAX:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_result(bytes(self._received))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _parsed(data: bytes, url: str) -> tuple[int, Mapping[str, str], bytes]:
    head, separator, content = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not separator or len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise UnreachableError(f"{url} did not answer by HTTP")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        content = _unchunked(content)
    return int(words[1]), headers, content


def _unchunked(content: bytes) -> bytes:
    parts, rest = [], content
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.split(b";")[0] or b"0", 16)
        parts.append(rest[:length])
        rest = rest[length + 2 :]
        if not length:
            break
    return b"".join(parts)


def _reason(answer: bytes) -> str:
    try:
        document = json.loads(answer)
    except ValueError:
        return answer[:200].decode(errors="replace")
    return str(document.get("reason", document)) if isinstance(document, dict) else str(document)
