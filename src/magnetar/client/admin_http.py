"""The few admin calls that one cluster makes to another."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass

from magnetar.base.network import Network
from magnetar.client.async_http import HttpAnswer, exchange
from magnetar.client.credentials import Credentials, TlsTrust
from magnetar.client.errors import RequestRefusedError, UnreachableError

CALL_TIMEOUT_S = 30.0
"""Time-out from connecting to the last byte of the answer."""

ANSWER_BYTES_MAX = 1024 * 1024
"""A longer answer fails the call."""

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
    """Calls of another cluster's admin API; each has a connection of its own."""

    def __init__(self, endpoint: AdminEndpoint, network: Network) -> None:
        self._endpoint = endpoint
        self._network = network

    async def call(self, method: str, path: str, body: object = None) -> object:
        """The JSON that `path` below /admin/v2/ answers. Raises RequestRefusedError with the status, UnreachableError, ConfigError."""
        url = f"{self._endpoint.url.split(',')[0].rstrip('/')}/admin/v2/{path}"
        for _ in range(REDIRECTS_MAX):
            answer = await self._exchange(method, url, body)
            if answer.status not in _REDIRECTS or "location" not in answer.headers:
                break
            url = answer.headers["location"]
        if answer.status >= 300:
            raise RequestRefusedError(answer.status, f"{method} {url}: {answer.status} {_reason(answer.body)}")
        return json.loads(answer.body) if answer.body else None

    async def _exchange(self, method: str, url: str, body: object) -> HttpAnswer:
        authorization = self._endpoint.credentials.header()
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await exchange(
                    self._network,
                    method,
                    url,
                    {"Authorization": authorization} if authorization else {},
                    b"" if body is None else json.dumps(body).encode(),
                    tls=self._tls() if url.startswith("https:") else None,
                    connect_timeout_s=CALL_TIMEOUT_S,
                    answer_timeout_s=CALL_TIMEOUT_S,
                    answer_bytes_max=ANSWER_BYTES_MAX,
                )
        except (UnreachableError, TimeoutError) as error:
            raise UnreachableError(f"{method} {url}: {error or 'timed out'}") from None

    def _tls(self) -> ssl.SSLContext:
        return self._endpoint.trust.context(self._endpoint.credentials.certificate())


def _reason(answer: bytes) -> str:
    try:
        document = json.loads(answer)
    except ValueError:
        return answer[:200].decode(errors="replace")
    return str(document.get("reason", document)) if isinstance(document, dict) else str(document)
