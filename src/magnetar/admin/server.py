"""The admin API's HTTP server: uvicorn inside the server's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import TracebackType

import uvicorn

from magnetar.admin.app import AdminApp
from magnetar.admin.context import AdminContext
from magnetar.admin.settings import runtime_settings
from magnetar.base.config import StandaloneConfig
from magnetar.base.network import ACCEPT_BACKLOG
from magnetar.bookkeeper.bookie.statistics import BookieStatistics
from magnetar.broker.service import Broker

CONNECTIONS_MAX = 1000
"""Further requests are answered with 503."""

HEADER_BYTES_MAX = 64 * 1024
"""Longer request lines and headers are refused with 400 and the connection is closed."""

KEEP_ALIVE_S = 30
"""An idle connection is closed after this long."""

CLOSE_GRACE_S = 0.5
"""Requests under way at the stop get this long to finish."""


class AdminServer:
    """`async with AdminServer(...) as admin: await admin.serve(bound_socket)`."""

    def __init__(
        self,
        broker: Broker,
        bookie_statistics: Callable[[], BookieStatistics],
        config: StandaloneConfig | None = None,
    ) -> None:
        """`config` is what `brokers/configuration/runtime` shows; without one, what the broker itself was given."""
        settings = runtime_settings(config if config is not None else broker.config)
        app = AdminApp(AdminContext(broker, bookie_statistics, settings))
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=ACCEPT_BACKLOG,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=KEEP_ALIVE_S,
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            )
        )
        self._serving = False

    async def __aenter__(self) -> AdminServer:
        return self

    async def serve(self, bound: socket.socket) -> None:
        """Accept requests on a bound socket from now on. uvicorn's own loop, which owns signals and polls, is not run."""
        server = self._server
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[bound])
        self._serving = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._serving:
            return
        self._serving = False
        server, state = self._server, self._server.server_state
        for listener in server.servers:
            listener.close()
        for connection in list(state.connections):
            connection.shutdown()  # idle ones close now, the others after their response
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=CLOSE_GRACE_S)
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            if connection.transport is not None:
                connection.transport.close()
