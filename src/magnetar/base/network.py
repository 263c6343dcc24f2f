"""The network as a value passed in: no other module listens or connects.

Binding and serving are two steps: a server learns its port (and that it may have it) before it builds what depends on it, and
nobody can connect before it is ready.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from magnetar.base.admission import Share, Ticket
from magnetar.base.errors import StartupError
from magnetar.base.limits import HANDSHAKE_TIMEOUT_S
from magnetar.base.tasks import LooseTasks

logger = logging.getLogger(__name__)

ACCEPT_BACKLOG = 1024
"""Connections that wait to be accepted; the kernel refuses further ones."""

ACCEPTS_PER_TURN_MAX = 64
"""Connections accepted before the established ones get their turn; the rest follows in the next turn of the loop."""

ACCEPT_PAUSE_S = 0.5
"""After an accept for which the system had no descriptor or memory: connections wait in the backlog meanwhile."""

REFUSALS_SAID_EVERY_S = 10.0
"""Between two lines of one kind: a flood of connections must not become a flood of log lines; the metric counts all of them."""

_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
"""Silence in s before a peer is asked for a sign of life, between two questions, and how many may go unanswered."""


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


class AdmittedProtocol(asyncio.Protocol):
    """A server's side of a connection that starts as a stranger and says when it is none: `self.ticket.settle()`.

    Connections of other protocols are never evicted.
    """

    ticket: Ticket | None = None

    def evict(self) -> None:
        """Close the connection at once: its place goes to a newcomer. Called after `connection_made` only."""
        raise NotImplementedError


class _AdmittedSocket(socket.socket):
    """Gives its place back with its descriptor, whoever closes it, and however far its protocol has come."""

    ticket: Ticket | None = None

    def close(self) -> None:
        super().close()
        self._leave()

    def detach(self) -> int:
        """uvloop closes descriptors itself, and detaches them from their socket at the same moment."""
        number = super().detach()
        self._leave()
        return number

    def _leave(self) -> None:
        if self.ticket is not None:
            self.ticket.leave()


class SocketListener:
    """A real bound socket. Every connection is asked for at `share`, if there is one, before anything else is done with it."""

    def __init__(self, bound: socket.socket, share: Share | None = None) -> None:
        self.socket = bound
        self.port: int = bound.getsockname()[1]
        self._share = share
        self._opening = LooseTasks("accept")
        self._said_s: dict[str, float] = {}
        self._serving = False

    async def serve(self, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._factory = factory
        self._tls = tls
        self._serving = True
        self.socket.listen(ACCEPT_BACKLOG)
        self._loop.add_reader(self.socket.fileno(), self._accept)

    async def close(self) -> None:
        if self._serving:
            self._serving = False
            self._loop.remove_reader(self.socket.fileno())
        self._opening.cancel()
        self.socket.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                accepted, peer = self.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._say("no connection can be accepted, trying again error=%s", error)
                self._loop.remove_reader(self.socket.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
                return
            self._admit(accepted, peer)

    def _accept_again(self) -> None:
        if self._serving:
            self._loop.add_reader(self.socket.fileno(), self._accept)

    def _admit(self, accepted: socket.socket, peer: tuple[Any, ...]) -> None:
        accepted.setblocking(False)
        connection = _AdmittedSocket(accepted.family, accepted.type, accepted.proto, accepted.detach())
        if self._share is not None:
            evicted_before = self._share.evicted_total
            ticket = self._share.enter(peer[0], partial(_shut, connection))
            if self._share.evicted_total != evicted_before:
                self._say_evicted(self._share)
            if isinstance(ticket, str):
                connection.close()
                self._say("connection refused address=%s reason=%s", f"/{peer[0]}:{peer[1]}", ticket)
                return
            connection.ticket = ticket
        self._opening.start(self._open(connection), "open")

    async def _open(self, connection: _AdmittedSocket) -> None:
        handshake_s = HANDSHAKE_TIMEOUT_S if self._tls is not None else None
        protocol = self._factory()
        ticket = connection.ticket
        if isinstance(protocol, AdmittedProtocol):
            protocol.ticket = ticket
        elif ticket is not None:
            ticket.settle()
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
            if isinstance(protocol, AdmittedProtocol) and ticket is not None:
                ticket.evict = protocol.evict
        except OSError as error:  # the client left, or its TLS handshake did not come to an end: it was never there
            connection.close()
            logger.debug("connection not opened error=%s", error)
        except BaseException:
            connection.close()
            raise

    def _say_evicted(self, share: Share) -> None:
        self._say(
            "too many connections, some are closed before their clients have proved who they are: port=%d open=%d waiting=%d "
            "closed=%d last_address=%s",
            self.port,
            share.total,
            share.strangers_count,
            share.evicted_total,
            share.evicted_address,
        )

    def _say(self, message: str, *about: object) -> None:
        now_s = self._loop.time()
        if now_s - self._said_s.get(message, float("-inf")) >= REFUSALS_SAID_EVERY_S:
            self._said_s[message] = now_s
            logger.warning(message, *about)


def _shut(connection: socket.socket) -> None:
    """End a connection whose transport is the loop's: that sees the end of the stream, and closes."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has just ended by itself


class AsyncioNetwork:
    """Real sockets through the running event loop."""

    def bind(self, host: str, port: int, share: Share | None = None) -> SocketListener:
        """`share`: where the connections of this address count."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            bound = socket.socket(family, kind, protocol)
        except OSError as error:
            raise StartupError(bind_problem(host, port, error)) from error
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _keep_alive(bound)
            bound.bind(address)
        except OSError as error:
            bound.close()
            raise StartupError(bind_problem(host, port, error)) from error
        bound.setblocking(False)
        return SocketListener(bound, share)

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


def _keep_alive(listening: socket.socket) -> None:
    """Have the system look for peers that vanished without a word; accepted sockets inherit it (Linux)."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def bind_problem(host: str, port: int, error: OSError) -> str:
    """One line that says why a bind failed and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another process; stop it or choose another port (0 = any free)"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs privileges this user lacks; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"address {host} does not belong to this machine"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
