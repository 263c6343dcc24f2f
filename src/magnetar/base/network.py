"""The network as a value passed in: no other module listens or connects.

Binding and serving are two steps: a server learns its port (and that it may have it) before it builds what depends on it, and
nobody can connect before it is ready.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from magnetar.base.errors import StartupError
from magnetar.base.limits import HANDSHAKE_TIMEOUT_S

ACCEPT_BACKLOG = 1024
"""Connections that wait to be accepted; the kernel refuses further ones."""


class Listener(Protocol):
    """A bound address."""

    @property
    def port(self) -> int: ...

    async def serve(self, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None) -> None:
        """Accept from now on, one `factory()` per connection."""
        ...

    async def close(self) -> None:
        """Accept no more; connections stay."""
        ...


class Network(Protocol):
    """Listens and connects."""

    def bind(self, host: str, port: int) -> Listener:
        """Take an address; port 0 takes any free one. Raises StartupError, whose text names the fix."""
        ...

    async def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
    ) -> asyncio.Protocol: ...


class SocketListener:
    """A real bound socket; `socket` may be handed to another server instead of calling `serve`."""

    def __init__(self, bound: socket.socket) -> None:
        self.socket = bound
        self.port: int = bound.getsockname()[1]
        self._server: asyncio.Server | None = None

    async def serve(self, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        handshake_s = HANDSHAKE_TIMEOUT_S if tls is not None else None
        self._server = await loop.create_server(
            factory, sock=self.socket, ssl=tls, backlog=ACCEPT_BACKLOG, ssl_handshake_timeout=handshake_s
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.socket.close()


class AsyncioNetwork:
    """Real sockets through the running event loop."""

    def bind(self, host: str, port: int) -> SocketListener:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            bound = socket.socket(family, kind, protocol)
        except OSError as error:
            raise StartupError(bind_problem(host, port, error)) from error
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError as error:
            bound.close()
            raise StartupError(bind_problem(host, port, error)) from error
        bound.setblocking(False)
        return SocketListener(bound)

    async def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
    ) -> asyncio.Protocol:
        async with asyncio.timeout(timeout_s):
            _, protocol = await asyncio.get_running_loop().create_connection(factory, host, port, ssl=tls)
        return protocol


def bind_problem(host: str, port: int, error: OSError) -> str:
    """One line that says why a bind failed and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another process; stop it or choose another port (0 = any free)"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs privileges this user lacks; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"address {host} does not belong to this machine"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
