"""The HTTP server of a broker: the admin API, and the console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar.admin.http.guard import HttpGuard
from magnetar.admin.http.server import HttpServer
from magnetar.broker.service import Broker

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from magnetar.admin.app import AdminApp
    from magnetar.admin.console.console import Console
    from magnetar.admin.context import AdminContext, Storage


class AdminServer(HttpServer):
    """`async with AdminServer(...) as admin: await admin.serve(listener)`; once per listener."""

    def __init__(
        self,
        broker: Broker,
        storage: Storage | None = None,
        shut_down: Callable[[], None] | None = None,
    ) -> None:
        """`shut_down` is what `brokers/shutdown` calls; without it that is refused."""

        settings = broker.config.settings
        asks_for_names = broker.security.authentication is None or bool(settings.web_service_allowed_hosts)
        guard = HttpGuard(settings.http_names, asks_for_names=asks_for_names)

        def make() -> Front:
            # Some 50 modules with all routes, a fifth of what a server imports: its start does not wait for them.
            from magnetar.admin.app import AdminApp
            from magnetar.admin.context import AdminContext, AnyStorage

            context = AdminContext(broker, storage or AnyStorage(), shut_down, guard.takes_origin)
            return Front(context, AdminApp(context))

        super().__init__(AppOnDemand(make), guard)


class Front:
    """`/` and `/console` are for people, everything else is the admin API. The console is imported for its first visitor."""

    def __init__(self, context: AdminContext, admin: AdminApp) -> None:
        def make() -> Console:
            from magnetar.admin.console.console import Console

            return Console(context, admin)

        self._admin = admin
        self._console = AppOnDemand(make)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("raw_path", b"")
        is_page = path == b"/" or path == CONSOLE or path.startswith(CONSOLE + b"/")
        await (self._console if is_page else self._admin)(scope, receive, send)


CONSOLE: Final = b"/console"


class AppOnDemand:
    """An ASGI application that is made for its first request, on a thread: clients of the broker go on meanwhile."""

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make = make
        self._app: ASGIApp | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            async with self._making:
                if self._app is None:
                    self._app = await asyncio.to_thread(self._make)
        await self._app(scope, receive, send)
