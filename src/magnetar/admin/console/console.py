"""The ASGI application of the console: find the page, see who reads it, refuse forged forms, render, follow live."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import parse_qsl, quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from magnetar.admin.app import AdminApp
from magnetar.admin.call import Call
from magnetar.admin.console.errors import RefusedError
from magnetar.admin.console.live import FOLLOWERS_MAX, Followers, LiveResponse
from magnetar.admin.console.page import Page, PageFunction, Redirect
from magnetar.admin.console.pages import all_pages
from magnetar.admin.console.rendering import Renderer
from magnetar.admin.console.session import FORM_TOKEN, Session, of_login
from magnetar.admin.console.visit import Visit
from magnetar.admin.context import AdminContext
from magnetar.admin.errors import (
    BadRequestError,
    ForbiddenError,
    MethodNotAllowedError,
    UnhealthyError,
    reason_of,
    status_of,
)
from magnetar.admin.http.connection import CERTIFICATE
from magnetar.admin.http.guard import FOREIGN_PAGE, is_of_foreign_page
from magnetar.admin.routing import RouteTable
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.peers import ORIGINAL_PRINCIPAL_HEADER

logger = logging.getLogger(__name__)

HOME: Final = "/console/"
LOGIN: Final = "/console/login"
LOGOUT: Final = "/console/logout"
STATIC: Final = "/console/static/"

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

FIELDS_MAX: Final = 200
"""Fields of a form; more are refused with 400."""

FORGED: Final = (
    "this form was not sent by a page of this console, or you have logged in anew since; load the page again"
)


class Console:
    """Everything at `/` and below `/console`."""

    def __init__(self, context: AdminContext, app: AdminApp) -> None:
        self._context = context
        self._app = app
        self._followers = Followers()
        self._renderer = Renderer(context.broker.config.settings.cluster_name)
        self._table = RouteTable()
        for row in all_pages():
            self._table.add(row)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._answer(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace")
        if path in ("/", "/console") and request.method in ("GET", "HEAD"):
            return RedirectResponse(HOME, 303)
        if path.startswith(STATIC) and request.method in ("GET", "HEAD"):
            return self._renderer.static(path.removeprefix(STATIC))
        session = Session(request)
        visit = Visit(self._app, request, session, {})
        try:
            response = await self._routed(request, session, visit, path)
        except Exception as error:
            response = self._failed(visit, error)
        session.remember_browser(response)
        return response

    async def _routed(self, request: Request, session: Session, visit: Visit, path: str) -> Response:
        if request.method == "POST":
            body = await Call(self._context, request, {}).body()
            visit.form = FormData(list(fields_of(body)))
            if not session.is_own_form(str(visit.form.get(FORM_TOKEN, ""))):
                raise ForbiddenError(FORGED)
        if path in (LOGIN, LOGOUT):
            return self._login(visit) if path == LOGIN else self._logout(visit)
        route, params = self._table.match(request.method, path)
        visit.params = params
        self._authenticate(visit)
        function = cast("PageFunction", route.handler)
        if "text/event-stream" in request.headers.get("accept", "") and request.method == "GET":
            return self._live(visit, function)
        found = await function(visit)
        if isinstance(found, Redirect):
            return RedirectResponse(found.to, 303)
        return self._rendered(visit, found)

    # ---- Who reads

    def _authenticate(self, visit: Visit) -> None:
        """Raises AuthenticationError. What the reader may see is decided route by route."""
        security = self._context.broker.security
        if security.authentication is None or not security.authorizer.needs_credential(Access.AUTHENTICATED):
            return
        visit.principal = security.authentication.of_http(
            visit.session.authorization,
            visit.request.scope.get("state", {}).get(CERTIFICATE),
            visit.request.headers.get(ORIGINAL_PRINCIPAL_HEADER, ""),
        )

    def _login(self, visit: Visit) -> Response:
        target = own_page(visit.query("next"))
        authentication = self._context.broker.security.authentication
        if authentication is None:
            return RedirectResponse(target, 303)
        if visit.request.method != "POST":
            return self._rendered(visit, Page("login.html", "Log in", {"problem": "", "next": target}))
        fields = (str(visit.form.get(name, "")) for name in ("token", "user", "password"))
        try:
            authorization = of_login(*fields)
            authentication.of_http(authorization, None, "")
        except (ValueError, AuthenticationError) as error:
            return self._rendered(
                visit, Page("login.html", "Log in", {"problem": str(error), "next": target}, status=401)
            )
        response = RedirectResponse(target, 303)
        visit.session.log_in(response, authorization)
        return response

    def _logout(self, visit: Visit) -> Response:
        if visit.request.method != "POST":
            raise MethodNotAllowedError("POST")
        response = RedirectResponse(LOGIN, 303)
        visit.session.log_out(response)
        return response

    # ---- Answers

    def _rendered(self, visit: Visit, found: Page) -> Response:
        text = self._renderer.page(found, visit, with_login=self._context.broker.security.authentication is not None)
        return Response(text, found.status, media_type="text/html")

    def _live(self, visit: Visit, function: PageFunction) -> Response:
        if is_of_foreign_page(visit.request.headers):
            raise ForbiddenError(FOREIGN_PAGE)
        if self._followers.count >= FOLLOWERS_MAX:
            raise UnhealthyError(f"{FOLLOWERS_MAX} pages are followed live already; load this one again by hand")

        async def render() -> Mapping[str, str]:
            try:
                self._authenticate(visit)  # a token that has expired meanwhile shows nothing more
                found = await function(visit)
                return {} if isinstance(found, Redirect) else self._renderer.live_parts(found, visit)
            except Exception as error:
                raise RefusedError(*self._reason(visit, error)) from error

        return LiveResponse(self._followers, render)

    def _reason(self, visit: Visit, error: Exception) -> tuple[int, str]:
        """Status and text; what is our fault is logged."""
        if isinstance(error, RefusedError):
            return error.answer_status, str(error)
        status = status_of(error)
        if status == 500:
            path = visit.request.scope["raw_path"].decode("ascii", "replace")
            logger.error("a page failed method=%s path=%r", visit.request.method, path[:200], exc_info=error)
        return status, reason_of(error, status)

    def _failed(self, visit: Visit, error: Exception) -> Response:
        request = visit.request
        status, reason = self._reason(visit, error)
        if status == 401 and request.method == "GET":
            query = request.scope["query_string"].decode("ascii", "replace")
            here = request.scope["raw_path"].decode("ascii", "replace") + (f"?{query}" if query else "")
            return RedirectResponse(f"{LOGIN}?next={quote(here, safe='')}", 303)
        values = {"status": status, "reason": reason}
        response = self._rendered(visit, Page("error.html", "Not shown", values, status=status))
        if isinstance(error, MethodNotAllowedError):
            response.headers["Allow"] = error.allowed
        return response


def fields_of(body: bytes) -> list[tuple[str, str]]:
    """The fields of a form. Raises BadRequestError."""
    try:
        return parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise BadRequestError(f"a form has at most {FIELDS_MAX} fields") from None


def own_page(target: str) -> str:
    """`target` if it is a page of the console, else its first page: a login leads nowhere else."""
    is_own = target.startswith(HOME) and "\\" not in target and target.isascii() and target.isprintable()
    return target if is_own else HOME
