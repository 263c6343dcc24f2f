"""One client's connection: frames in, frames out, answers in the order of the requests."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol, cast

from magnetar.base.limits import FRAME_BYTES_BEFORE_AUTH_MAX, HANDSHAKE_TIMEOUT_S
from magnetar.base.network import AdmittedProtocol
from magnetar.metadata.digest_md5 import Credentials, MetadataAuthenticationError, ServerDigest
from magnetar.metadata.server.jute import (
    AUTH_XID,
    PING_XID,
    Code,
    MalformedRequestError,
    Op,
    connect_reply,
    notification,
    pack_buffer,
    reply,
)
from magnetar.metadata.server.operations import Outcome, Work, work_of
from magnetar.metadata.server.requests import Connect, Request, read_connect, read_request
from magnetar.metadata.server.watches import Kind

logger = logging.getLogger(__name__)

FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""A longer frame closes the connection. Clients of ZooKeeper keep to 1 MiB by themselves."""

REQUESTS_MAX: Final = 1_000
"""Requests of one connection that wait for the disk: reading from the socket pauses until half are done."""

OUTPUT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Unsent answers and notifications of a client that does not read: when more are to follow, the connection is closed, its session
goes on. A single answer may be longer: a list of millions of names."""

_WORDS: Final = (b"ruok", b"srvr", b"isro", b"stat", b"mntr")
_WORDS_FOR_STRANGERS: Final = (b"ruok", b"isro")
_WATCH_TYPES: Final = {
    1: (Kind.CHILDREN, Kind.PERSISTENT, Kind.RECURSIVE),
    2: (Kind.DATA, Kind.PERSISTENT, Kind.RECURSIVE),
    3: tuple(Kind),
}


class SessionHost(Protocol):
    """What a connection needs of the server."""

    def submit(self, work: Work, connection: ClientConnection, request: Request) -> None:
        """Carry it out in turn; `connection.answer(request, outcome)` follows."""
        ...

    def made(self, connection: ClientConnection) -> None:
        """It has been accepted."""
        ...

    def open_session(self, connection: ClientConnection, wanted: Connect) -> None:
        """`connection.greet` follows. Of a client that has to prove who it is nothing is kept before `authenticated`."""
        ...

    def authenticated(self, connection: ClientConnection) -> None:
        """The client has proven who it is: its session begins, or goes on."""
        ...

    def heard(self, session_id: int) -> None: ...

    def close_session(self, connection: ClientConnection, request: Request) -> None: ...

    def end_watches(
        self, connection: ClientConnection, path: str, kinds: tuple[Kind, ...], *, remove: bool
    ) -> bool: ...

    def word(self, connection: ClientConnection, word: str) -> None: ...

    def disconnected(self, connection: ClientConnection) -> None: ...


class ClientConnection(AdmittedProtocol):
    """`number` names it among the watchers. `session_id` is 0 until the session is open."""

    def __init__(
        self, host: SessionHost, number: int, *, tree_watches: bool, credentials: Credentials | None = None
    ) -> None:
        """With `credentials` nothing but SASL is answered before the client has shown by it that it knows them."""
        self.number = number
        self.session_id = 0
        self._credentials = credentials
        self._digest: ServerDigest | None = None
        self.authenticated = credentials is None
        self._host = host
        self._tree_watches = tree_watches
        self._transport: asyncio.Transport | None = None
        self._input = bytearray()
        self._output: list[bytes] = []
        self._asked = False
        self._pending = 0
        self._paused = False
        self._closed = False
        self._handshake: asyncio.TimerHandle | None = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        self._handshake = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.abort)
        self._host.made(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._end_handshake()
        self._host.disconnected(self)

    def data_received(self, data: bytes) -> None:
        self._input += data
        if not self._asked and bytes(self._input[:4]) in (_WORDS if self.authenticated else _WORDS_FOR_STRANGERS):
            self._host.word(self, self._input[:4].decode())
            self._input.clear()
            return
        try:
            self._take_frames()
        except MalformedRequestError as error:
            logger.warning("a client's request cannot be read, its connection is closed: %s", error)
            self.abort()

    def _take_frames(self) -> None:
        view, start = self._input, 0
        while not self._closed and len(view) - start >= 4:
            size = int.from_bytes(view[start : start + 4], "big", signed=True)
            if not 0 <= size <= (FRAME_BYTES_MAX if self.authenticated else FRAME_BYTES_BEFORE_AUTH_MAX):
                raise MalformedRequestError(f"a frame of {size} bytes")
            if len(view) - start - 4 < size:
                break
            self._frame(bytes(view[start + 4 : start + 4 + size]))
            start += 4 + size
        del view[:start]

    def _frame(self, data: bytes) -> None:
        if not self._asked:
            self._asked = True
            self._host.open_session(self, read_connect(data))
            return
        if self.session_id == 0:
            raise MalformedRequestError("a request before the session is open")
        request = read_request(data)
        if not self.authenticated:
            self._authenticate(request)
            return
        self._host.heard(self.session_id)
        if request.op == Op.PING:
            self.send(reply(PING_XID, 0, Code.OK))
        elif request.op == Op.CLOSE_SESSION:
            self._host.close_session(self, request)
        else:
            self._submit(request)

    def _authenticate(self, request: Request) -> None:
        """A token of the client. A wrong one, and anything else, is answered with an error, and the connection ends."""
        assert self._credentials is not None
        if request.op != Op.SASL:
            logger.warning("a client asks without a proof that it knows the metadata secret; its connection is closed")
            self.finish(reply(request.xid, 0, Code.SASL_REQUIRED))
        elif self._digest is None:
            self._digest = ServerDigest(self._credentials)
            self.send(reply(request.xid, 0, Code.OK, pack_buffer(self._digest.challenge())))
        else:
            try:
                proof = self._digest.verify(request.value)
            except MetadataAuthenticationError as error:
                logger.warning("a client of the metadata server is refused: %s", error)
                self.finish(reply(request.xid, 0, Code.AUTH_FAILED))
                return
            self._end_handshake()
            self.authenticated = True
            self.send(reply(request.xid, 0, Code.OK, pack_buffer(proof)))
            self._host.authenticated(self)

    def _submit(self, request: Request) -> None:
        self._pending += 1
        if self._pending >= REQUESTS_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        work = work_of(request, self.session_id)
        if request.op in (Op.AUTH, Op.CHECK_WATCHES, Op.REMOVE_WATCHES):
            work = _nothing
        elif request.op == Op.ADD_WATCH and not self._tree_watches:
            request.op = Op.ERROR  # as a server before ZooKeeper 3.6
            work = work_of(request, self.session_id)
        self._host.submit(work, self, request)

    # ---- Answers

    def answer(self, request: Request, outcome: Outcome) -> None:
        """The request has been carried out."""
        self._pending -= 1
        if self._paused and self._pending <= REQUESTS_MAX // 2 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        for event, path in outcome.missed:
            self.notify(event, path)
        error, xid = outcome.error, request.xid
        if request.op == Op.AUTH:
            xid = AUTH_XID
        elif request.op in (Op.CHECK_WATCHES, Op.REMOVE_WATCHES):
            kinds = _WATCH_TYPES.get(request.flags, ())
            remove = request.op == Op.REMOVE_WATCHES
            if not self._host.end_watches(self, request.path, kinds, remove=remove):
                error = Code.NO_WATCHER
        self.send(reply(xid, outcome.zxid, error, b"" if error else outcome.body))

    def notify(self, event: int, path: str) -> None:
        self.send(notification(event, path))

    def greet(self, timeout_ms: int, session_id: int, password: bytes) -> None:
        """The session is open, or will be when the client has proven who it is."""
        if self.authenticated:
            self._end_handshake()
        self.session_id = session_id
        self.send(connect_reply(timeout_ms, session_id, password))

    def turn_away(self) -> None:
        """The session is over; the client has to begin a new one."""
        self.finish(connect_reply(0, 0, bytes(16)))

    def send(self, data: bytes) -> None:
        """Leaves with everything else of this turn of the loop."""
        if self._closed or self._transport is None:
            return
        if not self._output:
            asyncio.get_running_loop().call_soon(self._flush)
        self._output.append(data)

    def finish(self, data: bytes) -> None:
        """Last words; then the connection ends."""
        self.send(data)
        self._flush()
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def evict(self) -> None:
        """Make room for a newcomer."""
        self.abort()

    def settle(self) -> None:
        """The client has a session, which it may have: it keeps its place from now on."""
        if self.ticket is not None:
            self.ticket.settle()

    def _end_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def _flush(self) -> None:
        if self._closed or self._transport is None or not self._output:
            return
        if self._transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:
            logger.warning("session 0x%x does not read its answers; its connection is closed", self.session_id)
            self.abort()
            return
        self._transport.write(b"".join(self._output))
        self._output.clear()


def _nothing(tree: object, outcome: Outcome) -> None:
    """For requests that only have to be answered in their turn."""
