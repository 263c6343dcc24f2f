"""The ASGI application: find the route, run its handler, turn what it raises into a status and `{"reason": ...}`."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from magnetar.admin.access import authorize
from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.context import AdminContext
from magnetar.admin.errors import (
    BodyTooLargeError,
    CrossSiteError,
    MethodNotAllowedError,
    SlowBodyError,
    reason_of,
    status_of,
)
from magnetar.admin.redirects import redirect
from magnetar.admin.routes import all_routes
from magnetar.admin.routing import RouteTable
from magnetar.admin.spread import spread
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.namespaces.errors import NotOwnedError

logger = logging.getLogger(__name__)

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


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
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace")
        try:
            route, params = self._table.match(request.method, path)
            refuse_cross_site(request)
            call = Call(self._context, request, params)
            await authorize(call, route)
            return await spread(call, route) or await route.handler(call)
        except NotOwnedError as error:
            if error.owner is not None:
                return redirect(request, error.owner)
            return failed(request.method, path, error)
        except Exception as error:
            if isinstance(error, MethodNotAllowedError) and request.method == "OPTIONS":
                return Response(status_code=204, headers={"Allow": error.allowed})
            return failed(request.method, path, error)


def refuse_cross_site(request: Request) -> None:
    """Browsers send such requests to local servers for any page that asks, and nobody here asks who sends. Raises CrossSiteError."""
    if request.method in SAFE_METHODS:
        return
    origin = request.headers.get("origin")
    if origin is None or origin.partition("://")[2] == request.headers.get("host"):
        return
    raise CrossSiteError("requests that change something are not taken from pages of other sites")


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
