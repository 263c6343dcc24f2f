"""The network as a value passed in: no other module listens or connects."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from typing import Protocol

from magnetar.base.errors import StartupError


class Listener(Protocol):
    """A bound socket."""

    @property
    def port(self) -> int: ...

    async def close(self) -> None: ...


class Network(Protocol):
    """Listens and connects."""

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None
    ) -> Listener:
        """Serve `factory()` for each connection. Port 0 takes any free one. Raises StartupError when it cannot bind."""
        ...

    async def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
    ) -> asyncio.Protocol: ...


class _AsyncioListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()


class AsyncioNetwork:
    """Real sockets through the running event loop."""

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None
    ) -> Listener:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(factory, host, port, ssl=tls, backlog=1024)
        except OSError as error:
            raise StartupError(bind_problem(host, port, error)) from error
        return _AsyncioListener(server)

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
    if error.errno == errno.EADDRNOTAVAIL:
        return f"address {host} does not belong to this machine"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
