"""HTTP inside the server's own event loop.

It is on the loop of the data plane because its handlers work on what that loop owns; the parser is C, its work per turn is bounded, and
a thread for the parsing alone would hand the interpreter back and forth for every request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self

from magnetar.admin.http.connection import HttpConnection
from magnetar.admin.http.guard import HttpGuard
from magnetar.base.network import Listener
from magnetar.base.tasks import LooseTasks

TURN_S: Final = 0.001
"""Parsing for all connections together, before everything else on the loop has its turn."""

CLOSE_GRACE_S: Final = 0.5
"""Requests under way at the stop get this long to finish."""


class HttpServer:
    """`async with HttpServer(app) as http: await http.serve(listener)`; once per listener. `app`: an ASGI application.

    How many connections there may be is the listener's to say (`base/admission`), which requests were not made by a page is the guard's.
    """

    def __init__(self, app: Any, guard: HttpGuard | None = None) -> None:
        self.app = app
        self.guard = guard or HttpGuard()
        self.tasks = LooseTasks("http")
        self.connections: dict[HttpConnection, None] = {}
        self._listeners: list[Listener] = []
        self._queue: deque[HttpConnection] = deque()
        self._turn_comes = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def serve(self, listener: Listener, tls: ssl.SSLContext | None = None) -> None:
        """Accept requests on a bound address from now on, behind TLS if given; may be called for several."""
        self._listeners.append(listener)
        await listener.serve(lambda: HttpConnection(self), tls)

    def parse_soon(self, connection: HttpConnection) -> None:
        """Its input is parsed in the next turn, or in those after it."""
        if not connection.queued:
            connection.queued = True
            self._queue.append(connection)
        if not self._turn_comes:
            self._turn_comes = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_comes = False
        queue, until_s = self._queue, perf_counter() + TURN_S
        while queue:
            connection = queue.popleft()
            connection.queued = False
            if connection.parse_some():
                connection.queued = True
                queue.append(connection)
            if perf_counter() >= until_s:
                break
        if queue and not self._turn_comes:
            self._turn_comes = True
            self._loop.call_soon(self._turn)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._listeners:
            await listener.close()
        for connection in list(self.connections):
            connection.stop()
        await self.tasks.wait(CLOSE_GRACE_S)
        self.tasks.cancel()
        for connection in list(self.connections):
            connection.close()
