"""Requests of this broker to others of its cluster, over their admin API: what concerns topics that they serve."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from magnetar.base.errors import ConfigError, MagnetarError
from magnetar.base.network import Network
from magnetar.broker.errors import (
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.naming import NamespaceName, TopicName
from magnetar.client.async_http import HttpAnswer, exchange
from magnetar.client.credentials import Credentials, TlsTrust
from magnetar.client.errors import UnreachableError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0
"""Time-out of connecting, TLS included."""

ANSWER_TIMEOUT_S: Final = 30.0
"""Time-out of the whole answer; then the request counts as failed, whether or not it was carried out."""

READY_TIMEOUT_S: Final = 1.0
"""A broker that takes longer to say that it is ready counts as one that is not."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer answer is refused."""

ORIGINAL_PRINCIPAL_HEADER: Final = "x-original-principal"
"""Whom a request is made for."""

REDIRECTS_MAX: Final = 5
"""A topic that moves faster than this is not followed."""


class PeerAnswer(NamedTuple):
    """`body`: as it came."""

    status: int
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body) if self.body else None

    @property
    def reason(self) -> str:
        """The reason of a refusal."""
        try:
            document = self.document
        except ValueError:
            document = None
        return str(document.get("reason", "")) if isinstance(document, dict) else ""


class Peers:
    """One connection for a request: they are few. `credentials` are this broker's own (brokerClientAuthenticationPlugin)."""

    def __init__(self, network: Network, credentials: Credentials, trust: TlsTrust, tls: bool = False) -> None:
        """`tls`: over their TLS ports, or not at all (brokerClientTlsEnabled)."""
        self._tls_only = tls
        self._network = network
        self._credentials = credentials
        self._trust = trust
        self._context: ssl.SSLContext | None = None

    async def call(
        self, to: BrokerAddress, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> PeerAnswer:
        """`target`: path and query. Redirects are followed. `headers` instead of this broker's own credentials.

        Raises ServiceNotReadyError when there is no answer.
        """
        base = to.web_service_url_tls if self._tls_only else to.web_service_url or to.web_service_url_tls
        if not base:
            raise ServiceNotReadyError(
                f"the broker {to.broker_id} has no webServicePortTls, and brokerClientTlsEnabled asks for it"
            )
        url = base + target
        if headers is None:
            headers = self._own()
        for _ in range(REDIRECTS_MAX):
            answer = await self._exchange(method, url, body, headers)
            if answer.status != 307:
                return PeerAnswer(answer.status, answer.body)
            url = answer.headers.get("location", "")
        raise ServiceNotReadyError(f"{method} {target} was redirected more than {REDIRECTS_MAX} times; try again")

    def _own(self) -> dict[str, str]:
        header = self._credentials.header()
        return {"Authorization": header} if header else {}

    def on_behalf_of(self, role: str) -> dict[str, str]:
        """This broker asks, and may no more than that role may."""
        return {**self._own(), ORIGINAL_PRINCIPAL_HEADER: role}

    async def is_ready(self, broker: BrokerAddress) -> bool:
        """True if the broker answers in time that it has joined the cluster."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                return (await self.call(broker, "GET", "/admin/v2/brokers/ready", headers={})).status == 200
        except (ServiceNotReadyError, TimeoutError):
            return False

    async def _exchange(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        tls = self._tls() if url.startswith("https:") else None
        try:
            return await exchange(
                self._network,
                method,
                url,
                headers,
                body,
                tls=tls,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                answer_timeout_s=ANSWER_TIMEOUT_S,
                answer_bytes_max=ANSWER_BYTES_MAX,
            )
        except (UnreachableError, ConfigError) as error:
            raise ServiceNotReadyError(f"the broker at {urlsplit(url).netloc} does not answer: {error}") from None

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = self._trust.context(self._credentials.certificate())
        return self._context


def raise_for(answer: PeerAnswer) -> None:
    """The refusal as the error that it was over there. Raises TopicNotFoundError, NotAllowedError, ServiceNotReadyError ..."""
    if answer.status < 300:
        return
    reason = answer.reason or f"status {answer.status}"
    error: MagnetarError = ServiceNotReadyError(f"another broker refused: {reason}")
    if answer.status == 404:
        error = (SubscriptionNotFoundError if reason.startswith("Subscription") else TopicNotFoundError)(reason)
    elif answer.status == 405:
        error = NotAllowedError(reason)
    elif answer.status in (401, 403):
        logger.warning("another broker does not let this one in: set brokerClientAuthenticationPlugin: %s", reason)
    raise error


class RemoteTopics:
    """Single topics of other brokers, for what is done to many topics at once."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def partitions(self, broker: BrokerAddress, topic: TopicName, auto_create: bool) -> int:
        """Their number, 0 for a plain topic or none; `auto_create`: made where the policies say so. Raises TopicNotFoundError."""
        leaf = f"/partitions?checkAllowAutoCreation={str(auto_create).lower()}"
        answer = await self._peers.call(broker, "GET", topic_target(topic, leaf))
        if answer.status == 404 and answer.reason.startswith("Topic "):
            return 0
        raise_for(answer)
        return int(answer.document["partitions"])

    async def delete(self, owner: BrokerAddress, topic: TopicName, force: bool) -> None:
        """Raises TopicNotFoundError, PreconditionFailedError while it is in use."""
        answer = await self._peers.call(owner, "DELETE", topic_target(topic, f"?force={str(force).lower()}"))
        if answer.status == 412:
            raise PreconditionFailedError(answer.reason)
        raise_for(answer)

    async def subscriptions(self, owner: BrokerAddress, topic: TopicName) -> list[str]:
        answer = await self._peers.call(owner, "GET", topic_target(topic, "/subscriptions"))
        raise_for(answer)
        return [str(name) for name in answer.document]

    async def subscribe_from_the_start(self, owner: BrokerAddress, topic: TopicName, subscription: str) -> None:
        """A durable subscription that begins with the first message, unless it is there."""
        leaf = f"/subscription/{quote(subscription, safe='')}"
        answer = await self._peers.call(owner, "PUT", topic_target(topic, leaf), b'{"ledgerId": -1, "entryId": -1}')
        if answer.status != 409:
            raise_for(answer)

    async def clear_backlog(self, owner: BrokerAddress, topic: TopicName, subscription: str) -> None:
        leaf = f"/subscription/{quote(subscription, safe='')}/skip_all"
        raise_for(await self._peers.call(owner, "POST", topic_target(topic, leaf)))

    async def unsubscribe(self, owner: BrokerAddress, topic: TopicName, subscription: str) -> None:
        """Raises PreconditionFailedError while consumers are connected."""
        leaf = f"/subscription/{quote(subscription, safe='')}"
        answer = await self._peers.call(owner, "DELETE", topic_target(topic, leaf))
        if answer.status == 412:
            raise PreconditionFailedError(answer.reason)
        raise_for(answer)

    async def non_persistent(self, broker: BrokerAddress, namespace: NamespaceName) -> list[str]:
        """The names of those that a broker has loaded."""
        answer = await self._peers.call(broker, "GET", f"/admin/v2/non-persistent/{namespace}?here=true")
        raise_for(answer)
        return [str(name) for name in answer.document]


class NonPersistentTopics:
    """Those of the whole cluster: they exist where they are used, and each broker knows only its own."""

    def __init__(self, others: Callable[[], Awaitable[list[BrokerAddress]]], peers: Peers) -> None:
        """`others`: the brokers beside this one."""
        self._others = others
        self._remote = RemoteTopics(peers)

    async def elsewhere(self, namespace: NamespaceName) -> list[str]:
        """Complete names at the other brokers. Raises ServiceNotReadyError when one of them does not answer: a list without its
        topics would say that they are gone."""
        lists = await asyncio.gather(
            *(self._remote.non_persistent(address, namespace) for address in await self._others())
        )
        return [name for names in lists for name in names]


def topic_target(topic: TopicName, leaf: str = "") -> str:
    """The path of a topic's admin routes."""
    name = quote(topic.local_name, safe="")
    return f"/admin/v2/{topic.domain}/{topic.namespace_name}/{name}{leaf}"
