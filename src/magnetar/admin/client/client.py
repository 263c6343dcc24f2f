"""The client: one object, its nouns as attributes."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from magnetar.admin.client.explain import Explain, Traces
from magnetar.admin.client.http import Answer, Http
from magnetar.admin.client.namespaces import Namespaces
from magnetar.admin.client.noun import filled, query_text
from magnetar.admin.client.pipelines import Pipelines
from magnetar.admin.client.policies import NamespacePolicies, TopicPolicies
from magnetar.admin.client.scalable import ScalableTopics
from magnetar.admin.client.schemas import Schemas
from magnetar.admin.client.servers import (
    Bookies,
    Brokers,
    BrokerStats,
    Clusters,
    Ledgers,
    LoadBalance,
    Lookups,
    ResourceGroups,
    ResourceQuotas,
    StoredMetadata,
    Tenants,
)
from magnetar.admin.client.subscriptions import Subscriptions
from magnetar.admin.client.topics import Topics
from magnetar.admin.client.transactions import Transactions
from magnetar.client.blocking_http import TIMEOUT_S

Token = str | Callable[[], str]


class AdminClient:
    """`with AdminClient("http://127.0.0.1:8080") as admin: admin.tenants.list()`. May be used by several threads.

    `http://HOST:PORT,HOST:PORT` names several brokers of a cluster: the next one is asked when one does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token | None = None,
        basic: tuple[str, str] | None = None,
        tls_trust_certs: str | Path | None = None,
        tls_certificate: tuple[str | Path, str | Path] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`token` may be a function that is asked before each request; `basic` is user and password.

        For https: `tls_trust_certs` are the authorities that the server's certificate must come from (the system's by default),
        `tls_certificate` the client's own certificate and key; or a whole `tls` context. Raises ValueError for what is not a valid URL.
        """
        if tls is None and url.startswith("https:"):
            tls = ssl.create_default_context(cafile=None if tls_trust_certs is None else str(tls_trust_certs))
            if tls_certificate is not None:
                tls.load_cert_chain(*map(str, tls_certificate))
        self._http = Http(url, _headers(token, basic), tls, timeout_s)
        self.clusters = Clusters(self.call)
        self.tenants = Tenants(self.call)
        self.namespaces = Namespaces(self.call)
        self.namespace_policies = NamespacePolicies(self.call)
        self.topics = Topics(self.call)
        self.topic_policies = TopicPolicies(self.call)
        self.subscriptions = Subscriptions(self.call)
        self.schemas = Schemas(self.call)
        self.pipelines = Pipelines(self.call)
        self.bookies = Bookies(self.call)
        self.ledgers = Ledgers(self.call)
        self.metadata = StoredMetadata(self.call)
        self.brokers = Brokers(self.call)
        self.broker_stats = BrokerStats(self.call)
        self.load_balance = LoadBalance(self.call)
        self.resource_groups = ResourceGroups(self.call)
        self.resource_quotas = ResourceQuotas(self.call)
        self.lookups = Lookups(self.call)
        self.transactions = Transactions(self.call)
        self.explain = Explain(self.call)
        self.traces = Traces(self.call)
        self.scalable_topics = ScalableTopics(self.call)

    @property
    def url(self) -> str:
        return self._http.url

    def call(
        self,
        method: str,
        template: str,
        names: Mapping[str, object],
        query: Mapping[str, object] | None = None,
        body: object = None,
        *,
        has_body: bool = False,
    ) -> Answer:
        """Any route by its template in the OpenAPI document. Raises what `errors` lists."""
        return self._http.request(method, filled(template, names) + query_text(query), body, has_body=has_body)

    def close(self) -> None:
        """Give connections back."""
        self._http.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _headers(token: Token | None, basic: tuple[str, str] | None) -> Callable[[], Mapping[str, str]]:
    if token is not None and basic is not None:
        raise ValueError("give a token or a user with password, not both")

    def headers() -> Mapping[str, str]:
        if token is not None:
            return {"Authorization": f"Bearer {token() if callable(token) else token}"}
        if basic is not None:
            return {"Authorization": f"Basic {base64.b64encode(':'.join(basic).encode()).decode()}"}
        return {}

    return headers


T = TypeVar("T")


class AsyncAdminClient:
    """AdminClient for asyncio, with the same arguments: each call runs in a thread of the event loop's executor.

    async with AsyncAdminClient("http://127.0.0.1:8080") as admin:
        names = await admin.run(lambda sync: sync.topics.list("public/default"))   # typed
        names = await admin.topics.list("public/default")                          # the same, not seen by type checkers
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._client = AdminClient(url, **options)

    async def run(self, work: Callable[[AdminClient], T]) -> T:
        """`work` with the synchronous client, in a thread."""
        return await asyncio.to_thread(work, self._client)

    def __getattr__(self, noun: str) -> Any:
        return _Noun(getattr(self._client, noun))

    async def __aenter__(self) -> AsyncAdminClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()


class _Noun:
    """A noun, or a policy of one."""

    def __init__(self, noun: Any) -> None:
        self._noun = noun

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._noun, name)
        if not callable(found):
            return _Noun(found)

        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return asyncio.to_thread(found, *args, **kwargs)

        return call
