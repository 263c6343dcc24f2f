"""HTTP inside the server's own event loop: uvicorn without its loop, its signals and its logs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from magnetar.base.network import ACCEPT_BACKLOG
from magnetar.broker.auth.tls import peer_certificate

CERTIFICATE = "magnetar.client_certificate"
"""Where the requests of a connection find the client's verified certificate."""

CONNECTIONS_MAX = 1000
"""Further requests are answered with 503."""

HEADER_BYTES_MAX = 64 * 1024
"""Longer request lines and headers are refused with 400 and the connection is closed."""

KEEP_ALIVE_S = 30
"""An idle connection is closed after this long."""

CLOSE_GRACE_S = 0.5
"""Requests under way at the stop get this long to finish."""


class HttpServer:
    """`async with HttpServer(app) as http: await http.serve(bound_socket)`; once per socket. `app`: an ASGI application."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._servers: list[uvicorn.Server] = []

    def _server(self) -> uvicorn.Server:
        return uvicorn.Server(
            uvicorn.Config(
                self._app,
                http=_Protocol,
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

    async def __aenter__(self) -> Self:
        return self

    async def serve(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept requests on a bound socket from now on, behind TLS if given; may be called for several sockets.

        uvicorn's own loop, which owns signals and polls, is not run.
        """
        server = self._server()
        server.config.load()
        server.config.ssl = tls
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[bound])
        self._servers.append(server)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        servers, self._servers = self._servers, []
        states = [server.server_state for server in servers]
        for server in servers:
            for listener in server.servers:
                listener.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()  # idle ones close now, the others after their response
        tasks = [task for state in states for task in state.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_GRACE_S)
        for task in tasks:
            task.cancel()
        for connection in [connection for state in states for connection in state.connections]:
            if connection.transport is not None:
                connection.transport.close()


class _Protocol(H11Protocol):
    """Keeps the client's verified certificate where the requests of the connection find it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        certificate = peer_certificate(transport.get_extra_info("ssl_object"))
        self.app_state = {**self.app_state, CERTIFICATE: certificate}
