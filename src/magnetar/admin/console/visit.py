"""One visit to a page: its names, its query, and the admin API with the reader's own credential."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.types import Message

from magnetar.admin.app import AdminApp
from magnetar.admin.console.errors import RefusedError
from magnetar.admin.console.session import Session
from magnetar.admin.routing import ADMIN
from magnetar.broker.auth.principal import Principal
from magnetar.broker.naming import DOMAINS, TopicName
from magnetar.broker.peers import ORIGINAL_PRINCIPAL_HEADER

SAMPLES_MAX: Final = 60
"""Points of a live chart."""


class Visit:
    """`history` and `first` live as long as a page is followed live: samples by name, for its charts, and what there was at first."""

    def __init__(self, app: AdminApp, request: Request, session: Session, params: Mapping[str, str]) -> None:
        self._app = app
        self.request = request
        self.session = session
        self.params = params
        self.principal: Principal | None = None
        self.form = FormData()
        self.history: dict[str, deque[float]] = {}
        self.first: dict[str, Any] = {}

    # ---- What the address says

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    @property
    def namespace(self) -> str:
        return f"{self.params['tenant']}/{self.params['namespace']}"

    @property
    def topic(self) -> TopicName:
        """Raises InvalidTopicNameError."""
        return TopicName.parse(f"{self.params['domain']}://{self.namespace}/{self.params['topic']}")

    # ---- The admin API

    async def get(self, path: str, /, **query: object) -> Any:
        """The document of a GET below /admin/v2. Raises RefusedError with the route's status and reason."""
        return await self.call("GET", path, query)

    async def maybe(self, path: str, /, **query: object) -> Any:
        """The same, None where it is refused: for parts of a page that not every reader may see, or that are not there."""
        try:
            return await self.get(path, **query)
        except RefusedError:
            return None

    async def call(self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None) -> Any:
        """What a client gets. Raises RefusedError."""
        data = b"" if body is None else json.dumps(body).encode()
        status, answer = await self._app.ask(self._request(method, path, query or {}, data), data)
        document = _document(answer)
        if status >= 300:
            reason = document.get("reason", "") if isinstance(document, dict) else ""
            raise RefusedError(status, str(reason) or f"the server answered with status {status}")
        return document

    async def may(self, method: str, path: str) -> bool:
        """True if the reader has the right that this route asks for."""
        return await self._app.may(self._request(method, path, {}, b""))

    def explains(self, kind: str) -> bool:
        """True if the server can say why about such a thing."""
        return self._app.knows("GET", f"{ADMIN}/explain/{kind}")

    def _request(self, method: str, path: str, query: Mapping[str, object], body: bytes) -> Request:
        outer = self.request
        headers = [(b"host", outer.headers.get("host", "").encode("latin-1"))]
        if self.session.authorization:
            headers.append((b"authorization", self.session.authorization.encode("latin-1")))
        if ORIGINAL_PRINCIPAL_HEADER in outer.headers:
            headers.append((ORIGINAL_PRINCIPAL_HEADER.encode(), outer.headers[ORIGINAL_PRINCIPAL_HEADER].encode()))
        given = {name: _text(value) for name, value in query.items() if value is not None}
        scope = {
            **outer.scope,
            "method": method,
            "raw_path": f"{ADMIN}{path}".encode("ascii"),
            "query_string": urlencode(given).encode("ascii"),
            "headers": headers,
        }
        return Request(scope, _Body(body))

    def now_ms(self) -> int:
        """By the server's clock."""
        return self._app.now_ms()

    def remembered(self, name: str, value: Any) -> Any:
        """What this was when the page was opened: now, for one that is not followed."""
        return self.first.setdefault(name, value)

    # ---- Charts

    def sample(self, name: str, value: float) -> list[float]:
        """The last values of a number with the newest one."""
        samples = self.history.setdefault(name, deque(maxlen=SAMPLES_MAX))
        samples.append(value)
        return list(samples)


class _Body:
    """An ASGI receive of a body that is there."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __call__(self) -> Message:
        return {"type": "http.request", "body": self._body, "more_body": False}


def _document(answer: bytes) -> Any:
    if not answer:
        return None
    try:
        return json.loads(answer)
    except ValueError:
        return answer.decode("utf-8", "replace")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def path_of(*segments: object) -> str:
    """A path with each segment encoded for itself, so that a name with a slash or a question mark stays one name."""
    return "".join(f"/{quote(str(segment), safe='')}" for segment in segments)


def topic_path(topic: TopicName, *rest: object) -> str:
    """Below /admin/v2: the topic's routes."""
    return path_of(topic.domain, topic.tenant, topic.namespace, topic.local_name, *rest)


def topic_page(name: str | TopicName, *rest: object) -> str:
    """The address of a topic's page."""
    topic = name if isinstance(name, TopicName) else TopicName.parse(name)
    assert topic.domain in DOMAINS
    return "/console/topics" + topic_path(topic, *rest)
