"""The bookie's TCP server: Apache BookKeeper's protocol, versions 0 to 3, in front of anything that is a `BookieService`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.base.limits import FRAME_BYTES_BEFORE_AUTH_MAX
from magnetar.base.network import Listener
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie.server.auth import BookieAuth, ConnectionAuth
from magnetar.bookkeeper.bookie.server.connection import FrameConnection
from magnetar.bookkeeper.bookie.server.reads import ReadGate
from magnetar.bookkeeper.bookie.server.v2 import V2Requests
from magnetar.bookkeeper.bookie.server.v3 import V3Requests
from magnetar.bookkeeper.ports import BookieService
from magnetar.wire.bookkeeper.BookkeeperProtocol_pb2 import Request
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, BookieFrameError

_V2_FIRST_BYTES: Final = frozenset(range(4))
"""Protocol version of the packed form. A protobuf never begins with one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieServerOptions:
    """`auth`: without it nobody is asked. `start_tls`: what START_TLS upgrades to; without it that request is refused.

    `tls_required`: before START_TLS every request is answered "unauthorized".
    """

    auth: BookieAuth | None = None
    start_tls: ssl.SSLContext | None = None
    tls_required: bool = False
    frame_bytes_max: int = FRAME_BYTES_MAX


class BookieServer:
    """`await server.serve(network.bind(host, port, share))`, and `await server.close()` before the bookie stops.

    `scope` runs TLS handshakes. How many connections there may be is the listener's share.
    """

    def __init__(self, bookie: BookieService, scope: TaskScope, options: BookieServerOptions | None = None) -> None:
        self._bookie = bookie
        self._scope = scope
        self._options = options or BookieServerOptions()
        self._listeners: list[Listener] = []
        self._connections: dict[FrameConnection, None] = {}

    @property
    def connections_count(self) -> int:
        """Open ones."""
        return len(self._connections)

    async def serve(self, listener: Listener, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on a bound address, behind TLS from the first byte if given."""
        self._listeners.append(listener)
        await listener.serve(self._accept, tls)

    async def close(self) -> None:
        """Stop accepting and close every connection; requests under way are no longer answered."""
        for listener in self._listeners:
            await listener.close()
        for connection in list(self._connections):
            connection.close()

    def _accept(self) -> asyncio.Protocol:
        return _Session(self._bookie, self._scope, self._options, self._changed).connection

    def _changed(self, connection: FrameConnection, is_open: bool) -> None:
        if is_open:
            self._connections[connection] = None
        else:
            del self._connections[connection]


class _Session:
    """One connection: which protocol it speaks, and who handles its frames.

    As in BookKeeper, version 3 may turn into version 2, not the other way: after one packed frame all others are taken for such.
    """

    __slots__ = ("_auth", "_frame_bytes_max", "_on_change", "_reads", "_v2", "_v3", "connection")

    def __init__(
        self,
        bookie: BookieService,
        scope: TaskScope,
        options: BookieServerOptions,
        on_change: Callable[[FrameConnection, bool], None],
    ) -> None:
        self._on_change = on_change
        self._frame_bytes_max = options.frame_bytes_max
        connection = self.connection = FrameConnection(options.frame_bytes_max, self._changed)
        self._reads = ReadGate(connection)
        auth = self._auth = ConnectionAuth(options.auth, connection, self._passed, tls_required=options.tls_required)
        if not auth.passed:
            connection.limit_frames(min(FRAME_BYTES_BEFORE_AUTH_MAX, options.frame_bytes_max))
        self._v2 = V2Requests(bookie, connection, self._reads, auth)
        self._v3 = V3Requests(bookie, connection, self._reads, auth, options.start_tls, scope)
        connection.receive = self._receive_first
        connection.on_room = self._reads.run

    def _passed(self) -> None:
        self.connection.limit_frames(self._frame_bytes_max)

    def _receive_first(self, frame: bytes) -> None:
        """Until a request could be read from somebody who may ask."""
        self.connection.receive = self._receive
        self._receive(frame)
        if self.connection.closed:
            return
        if self._auth.passed:
            if self.connection.receive == self._v2.receive:
                self.connection.take_adds = self._v2.take_adds
                self.connection.take_run = self._v2.take_run
            self.connection.prove()
        elif self.connection.receive == self._receive:
            self.connection.receive = self._receive_first
        else:
            self.connection.receive = self._receive_first_packed

    def _receive_first_packed(self, frame: bytes) -> None:
        self._v2.receive(frame)
        if self._auth.passed and not self.connection.closed:
            self.connection.receive = self._v2.receive
            self.connection.take_adds = self._v2.take_adds
            self.connection.take_run = self._v2.take_run
            self.connection.prove()

    def _receive(self, frame: bytes) -> None:
        if frame and frame[0] not in _V2_FIRST_BYTES:
            request = Request.FromString(frame)
            if not request.IsInitialized():  # parsing alone does not look for required fields
                raise BookieFrameError("neither version 2 nor version 3 of the protocol")
            self._v3.receive(request)
            return
        self.connection.receive = self._v2.receive
        if self.connection.proven:  # it has spoken version 3 so far
            self.connection.take_adds = self._v2.take_adds
            self.connection.take_run = self._v2.take_run
        self._v2.receive(frame)

    def _changed(self, is_open: bool) -> None:
        self._on_change(self.connection, is_open)
        if not is_open:
            self._reads.clear()
            self._v3.close()
