"""One request as the handlers see it: names parsed, the body bounded, values checked."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from magnetar.admin.context import AdminContext
from magnetar.admin.errors import BadRequestError, BodyTooLargeError, NotFoundError, SlowBodyError
from magnetar.admin.pacing import Pace
from magnetar.base.admission import address_of
from magnetar.broker.auth.principal import Principal
from magnetar.broker.naming import NamespaceName, TopicName, cursor_name, entity_name, subscription_name
from magnetar.broker.replicators.names import cluster_of_cursor
from magnetar.broker.service import Broker
from magnetar.managed_ledger.position import Position

T = TypeVar("T")

BODY_BYTES_MAX = 1024 * 1024
"""A larger body is refused with 413 before it is read."""

BODY_TIMEOUT_S = 10.0
"""A body that takes longer to arrive is refused with 408."""

JSON_DEPTH_MAX = 32
"""Deeper nested JSON is refused with 400: no document of Pulsar's needs it, and the store's encoder is recursive."""

NUMBER_MAX = 2**63 - 1
NUMBER_DIGITS_MAX = 19
INT_MAX = 2**31 - 1
"""The largest of Java's `int`."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


class Call:
    """`params` are the path's, decoded; `principal` is the authenticated caller, None without authentication."""

    __slots__ = ("admin", "pace", "params", "principal", "request")

    def __init__(self, admin: AdminContext, request: Request, params: dict[str, str]) -> None:
        self.admin = admin
        self.request = request
        self.params = params
        self.principal: Principal | None = None
        self.pace = Pace(admin.workload)
        """Pauses for handlers that work through many topics."""

    @property
    def who(self) -> str:
        """The caller's role; its address without authentication."""
        if self.principal is not None:
            return f"role {self.principal.role}"
        client = self.request.client
        return f"address {address_of(client.host)}" if client is not None else ""

    @property
    def broker(self) -> Broker:
        return self.admin.broker

    # ---- Names in the path; all raise InvalidTopicNameError

    @property
    def tenant(self) -> str:
        return entity_name(self.params["tenant"], "tenant")

    @property
    def namespace(self) -> NamespaceName:
        return NamespaceName(self.tenant, entity_name(self.params["namespace"], "namespace"))

    @property
    def domain(self) -> str:
        return self.params["domain"]

    @property
    def topic(self) -> TopicName:
        return TopicName.parse(f"{self.domain}://{self.namespace}/{self.params['topic']}", scalable=True)

    @property
    def subscription(self) -> str:
        """Raises NotAllowedError for a cursor of the server's own as well."""
        return subscription_name(self.params["subscription"])

    @property
    def cursor(self) -> str:
        """A subscription, or the cursor of a replicator, whose backlog an administrator may give up."""
        name = cursor_name(self.params["subscription"])
        return name if cluster_of_cursor(name) else subscription_name(name)

    # ---- Values

    def number(self, name: str, most: int = NUMBER_MAX) -> int:
        """A path parameter that is a number from 0 to `most`. Raises NotFoundError, as in Pulsar nothing is at such a path, and
        BadRequestError for a negative number."""
        return _natural(name, self.params[name], most)

    def query_integer(self, name: str, default: int, most: int = NUMBER_MAX) -> int:
        """The same of a query parameter, whose text decides in Pulsar as well whether the route is there."""
        return _natural(name, self.query(name, str(default)), most)

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """A query parameter that is `true` or not."""
        text = self.request.query_params.get(name)
        return default if text is None else text.strip().lower() == "true"

    def query_number(self, name: str, default: int) -> int:
        """A query parameter of a route that Pulsar does not have. Raises BadRequestError."""
        text = self.query(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
            raise BadRequestError(f"{name} must be a number, not '{text[:40]}'")
        return min(int(text), NUMBER_MAX)

    # ---- Body

    async def body(self) -> bytes:
        """Raises BodyTooLargeError, SlowBodyError, BadRequestError when the client leaves."""
        announced = self.request.headers.get("content-length", "0")
        if announced.isdigit() and int(announced[:NUMBER_DIGITS_MAX]) > BODY_BYTES_MAX:
            raise BodyTooLargeError(f"the body is larger than {BODY_BYTES_MAX} bytes")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for part in self.request.stream():
                    size += len(part)
                    if size > BODY_BYTES_MAX:
                        raise BodyTooLargeError(f"the body is larger than {BODY_BYTES_MAX} bytes")
                    parts.append(part)
        except TimeoutError:
            raise SlowBodyError(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
        except ClientDisconnect:
            raise BadRequestError("the client left before its body was complete") from None
        return b"".join(parts)

    async def json(self) -> Any:
        """The body's JSON value, None without a body. Raises BadRequestError."""
        body = await self.body()
        return parse_json(body) if body.strip() else None

    async def body_as(self, kind: type[T], *, unset: T | None = None) -> T:
        """The JSON body as a value of a type, `unset` for none or null. Raises BadRequestError, which says where it differs."""
        document = await self.json()
        if document is None and unset is not None:
            return unset
        try:
            return msgspec.convert(document, kind)
        except msgspec.ValidationError as error:
            raise BadRequestError(str(error)) from None

    async def position(self) -> tuple[Position | None, dict[str, Any]]:
        """A body that is a MessageId, and its other fields; None for an empty body or `null`. Raises BadRequestError."""
        document = await self.json()
        if document is None:
            return None, {}
        if not isinstance(document, dict):
            raise BadRequestError('expected a message id: {"ledgerId": n, "entryId": n}')
        ids = [document.get("ledgerId", -1), document.get("entryId", -1)]
        if not all(type(value) is int and -1 <= value <= NUMBER_MAX for value in ids):
            raise BadRequestError('expected a message id: {"ledgerId": n, "entryId": n}')
        return Position(*ids), document


def names_in_query(request: Request, scalable: bool = False) -> dict[str, str]:
    """The path parameters of a route whose topic is in the query. Raises BadRequestError without one, InvalidTopicNameError."""
    given = request.query_params
    if not given.get("topic"):
        raise BadRequestError("name the topic: ?topic=persistent://tenant/namespace/topic")
    name = TopicName.parse(given["topic"], scalable=scalable)
    found = {
        "domain": name.domain,
        "tenant": name.tenant,
        "namespace": name.namespace,
        "topic": name.local_name,
    }
    return found | ({"subscription": given["subscription"]} if given.get("subscription") else {})


def parse_json(body: bytes) -> Any:
    """JSON without NaN, Infinity or deep nesting. Raises BadRequestError."""
    if depth_exceeds(body, JSON_DEPTH_MAX):
        raise BadRequestError(f"the JSON is nested deeper than {JSON_DEPTH_MAX} levels")
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def depth_exceeds(body: bytes, limit: int) -> bool:
    """True if brackets nest deeper than `limit`; brackets inside texts do not count."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    inside = escaped = False
    for byte in body:
        if inside:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                inside = False
        elif byte == 0x22:
            inside = True
        elif byte in b"[{":
            depth += 1
            if depth > limit:
                return True
        elif byte in b"]}":
            depth -= 1
    return False


def whole_number(name: str, text: str, most: int) -> int:
    """Of up to `most`, with either sign. Raises NotFoundError for anything else."""
    if _WHOLE.fullmatch(text) and abs(number := int(text)) <= most:
        return number
    raise NotFoundError(f"{name} must be a number of up to {most}, not '{text[:40]}'")


def _natural(name: str, text: str, most: int) -> int:
    number = whole_number(name, text, most)
    if number < 0:
        raise BadRequestError(f"{name} must be 0 or more, not {number}")
    return number
