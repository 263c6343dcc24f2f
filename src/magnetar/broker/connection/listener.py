"""Accepts client connections and remembers the live ones, so that a stop can close them."""

from __future__ import annotations

import asyncio
import ssl

from magnetar.base.network import Listener
from magnetar.broker.auth.principal import Principal
from magnetar.broker.connection.context import BrokerContext
from magnetar.broker.connection.handlers import connect
from magnetar.broker.connection.routes import BEFORE_CONNECT, ROUTES, RUNS, guarded
from magnetar.broker.connection.session import Session


class ConnectionListener:
    """The bound addresses of the binary protocol."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._sessions: dict[Session, None] = {}
        self._listeners: list[Listener] = []
        self._routes = ROUTES if context.security.authentication is None else guarded(ROUTES)

    @property
    def sessions(self) -> list[Session]:
        """The live ones, oldest first."""
        return list(self._sessions)

    def now_ms(self) -> int:
        return self._context.clock.now_ms()

    async def serve(self, listener: Listener, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound address, behind TLS if given."""
        self._listeners.append(listener)
        await listener.serve(self._accept, tls)

    def cut(self) -> None:
        """End every connection at once; clients look up where to go on."""
        for session in self.sessions:
            session.abort()

    def _accept(self) -> asyncio.Protocol:
        return Session(self._context, BEFORE_CONNECT, self._routes, RUNS, self._changed)

    def open_inside(self, transport: asyncio.Transport, principal: Principal | None, version: str) -> Session:
        """A session for somebody within this process who was authenticated by other means; CONNECT is behind it."""
        session = Session(self._context, BEFORE_CONNECT, self._routes, RUNS, self._changed)
        session.connection_made(transport)
        connect.greet_inside(session, principal, version)
        return session

    def _changed(self, session: Session, is_open: bool) -> None:
        """Open from the end of the TLS handshake on: one that fails never was."""
        if is_open:
            self._sessions[session] = None
        else:
            self._sessions.pop(session, None)

    async def close(self) -> None:
        """Stop accepting, then close every connection after what it has to say."""
        for listener in self._listeners:
            await listener.close()
        for session in self.sessions:
            session.close()
