"""The ASGI application: find the route, run its handler, turn what it raises into a status and `{"reason": ...}`."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from magnetar.admin.answers import as_json
from magnetar.admin.call import Call, names_in_query
from magnetar.admin.context import AdminContext
from magnetar.admin.errors import (
    AdminError,
    BodyTooLargeError,
    ForbiddenError,
    MethodNotAllowedError,
    SlowBodyError,
    reason_of,
    status_of,
)
from magnetar.admin.http.connection import CERTIFICATE
from magnetar.admin.http.guard import FOREIGN_PAGE, SAFE_METHODS, is_of_foreign_page
from magnetar.admin.operation import OPERATIONS
from magnetar.admin.redirects import credentials_of, redirect
from magnetar.admin.routes import all_routes
from magnetar.admin.routing import Route, RouteTable
from magnetar.admin.spread import spread
from magnetar.base.errors import MagnetarError
from magnetar.broker.auth.decide import Resource
from magnetar.broker.auth.principal import Principal
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.naming import cursor_name
from magnetar.broker.peers import ORIGINAL_PRINCIPAL_HEADER

LIGHT_PARTITIONS_MAX = 32
"""A request over a topic of at most so many partitions is like any other."""

WEBSOCKETS = "/ws/"

logger = logging.getLogger(__name__)


class AdminApp:
    """Callable by any ASGI server."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._table = RouteTable()
        for route in all_routes():
            self._table.add(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        async with AsyncExitStack() as turn:
            response = await self._answer(request, turn)
            await response(scope, receive, send)

    async def _answer(self, request: Request, turn: AsyncExitStack) -> Response:
        """`turn`: what is to be held until the answer has been sent."""
        path = request.scope["raw_path"].decode("ascii", "replace")
        try:
            return await self._perform(*self._routed(request), turn)
        except NotOwnedError as error:
            if error.owner is not None:
                return redirect(request, error.owner)
            return failed(request.method, path, error)
        except Exception as error:
            if isinstance(error, MethodNotAllowedError) and request.method == "OPTIONS":
                return Response(status_code=204, headers={"Allow": error.allowed})
            return failed(request.method, path, error)

    def _routed(self, request: Request) -> tuple[Call, Route]:
        route, params = self._table.match(request.method, request.scope["raw_path"].decode("ascii", "replace"))
        if route.by_query:
            params |= names_in_query(request, route.scalable)
        return Call(self._context, request, params), route

    async def _perform(self, call: Call, route: Route, turn: AsyncExitStack) -> Response:
        check_page(call, route)
        check_origin(call, route)
        await authorize(call, route)
        check_subscription(call, route)
        if await is_heavy(call, route):
            await turn.enter_async_context(self._context.workload.turn(call.who))
        return await spread(call, route) or await route.handler(call)

    # ---- For pages of this process, which show what the routes answer

    async def ask(self, request: Request, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer that a client with these headers would get, redirects followed. Raises nothing."""
        path = request.scope["raw_path"].decode("ascii", "replace")
        try:
            async with AsyncExitStack() as turn:
                call, route = self._routed(request)
                try:
                    response = await self._perform(call, route, turn)
                except NotOwnedError as error:
                    if error.owner is None:
                        raise
                    query = request.scope["query_string"].decode("ascii")
                    target = f"{path}?{query}" if query else path
                    answer = await call.broker.peers.call(
                        error.owner, request.method, target, body, credentials_of(call)
                    )
                    return answer.status, answer.body
                return response.status_code, await whole_body(response)
        except Exception as error:
            response = failed(request.method, path, error)
            return response.status_code, bytes(response.body)

    def now_ms(self) -> int:
        """By the broker's clock."""
        return self._context.broker.clock.now_ms()

    def knows(self, method: str, path: str) -> bool:
        """True if there is such a route."""
        try:
            self._table.match(method, path)
        except AdminError:
            return False
        return True

    async def may(self, request: Request) -> bool:
        """True if the request's role has the right that its route declares. Nothing is done."""
        try:
            await authorize(*self._routed(request))
        except MagnetarError:
            return False
        return True


async def whole_body(response: Response) -> bytes:
    """What a response would send, streamed or not."""
    if not isinstance(response, StreamingResponse):
        return bytes(response.body)
    parts = [part.encode() if isinstance(part, str) else bytes(part) async for part in response.body_iterator]
    return b"".join(parts)


def check_page(call: Call, route: Route) -> None:
    """Raises ForbiddenError for a GET with an effect that a page of another site may have sent; HttpGuard looks at all other methods."""
    if call.request.method not in SAFE_METHODS:
        return
    operation = OPERATIONS.get(route.handler)
    effect = operation.effect if operation is not None else False
    if (effect is True or (effect and call.flag(effect))) and is_of_foreign_page(call.request.headers):
        raise ForbiddenError(FOREIGN_PAGE)


def check_origin(call: Call, route: Route) -> None:
    """Browsers let every page connect to every WebSocket: only the server can ask whose page it is. Raises ForbiddenError."""
    origin = call.request.headers.get("origin")
    if origin is None or not route.path.startswith(WEBSOCKETS):
        return
    if not call.query("token") and not call.admin.takes_origin(call.request.headers.get("host", ""), origin):
        raise ForbiddenError(
            f"WebSockets are not opened for pages of {origin[:100]}: add its name to webServiceAllowedHosts, or show a token in the query"
        )


def check_subscription(call: Call, route: Route) -> None:
    """The one place that keeps the cursors of the server's own from every route that names a subscription, before anything is looked up.
    Raises NotAllowedError (405), InvalidTopicNameError (412)."""
    if "subscription" not in call.params:
        return
    operation = OPERATIONS.get(route.handler)
    _ = call.cursor if operation is not None and operation.of_replicators else call.subscription


async def is_heavy(call: Call, route: Route) -> bool:
    """True if this request works through many topics. One of a single partition, or of what is `here`, is not:
    a heavy one at another broker may wait for it."""
    operation = OPERATIONS.get(route.handler)
    if operation is None or not operation.heavy or ("here" in operation.query and call.flag("here")):
        return False
    if "topic" not in call.params:
        return True
    name = call.topic
    return name.partition < 0 and await call.broker.namespaces.partitions(name) > LIGHT_PARTITIONS_MAX


def failed(method: str, path: str, error: Exception) -> Response:
    """The response to an exception; what is our fault is logged."""
    status = status_of(error)
    headers: dict[str, str] = {}
    if status == 500:
        logger.error("admin request failed method=%s path=%r", method, path[:200], exc_info=error)
    if isinstance(error, MethodNotAllowedError):
        headers["Allow"] = error.allowed
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = 'Bearer realm="magnetar"'
    if isinstance(error, BodyTooLargeError | SlowBodyError):
        headers["Connection"] = "close"  # the rest of the body would have to be read otherwise
    return as_json({"reason": reason_of(error, status)}, status, headers)


async def authorize(call: Call, route: Route) -> None:
    """Raises AuthenticationError (401), AuthorizationError (403), InvalidTopicNameError (412)."""
    security = call.broker.security
    if security.authentication is None:
        return
    principal: Principal | None = None
    if security.authorizer.needs_credential(route.access):
        headers = call.request.headers
        principal = security.authentication.of_http(
            headers.get("authorization", "") or token_of(call, route),
            call.request.scope.get("state", {}).get(CERTIFICATE),
            headers.get(ORIGINAL_PRINCIPAL_HEADER, ""),
        )
    call.principal = principal
    await security.authorizer.check(principal, route.access, resource_of(call))


def token_of(call: Call, route: Route) -> str:
    """The token in the query of a WebSocket's address: browsers cannot set headers there."""
    token = call.query("token") if route.path.startswith(WEBSOCKETS) else ""
    return f"Bearer {token}" if token else ""


def resource_of(call: Call) -> Resource:
    """What the path names, parsed by the rules that the handlers use."""
    params = call.params
    if "tenant" not in params:
        return Resource()
    if "namespace" not in params:
        return Resource(call.tenant)
    if "topic" not in params:
        return Resource.of_namespace(call.namespace)
    subscription = cursor_name(params["subscription"]) if "subscription" in params else ""
    return Resource.of_topic(call.topic, subscription, source=params.get("cluster", ""))
