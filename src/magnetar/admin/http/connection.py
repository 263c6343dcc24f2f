"""One HTTP/1.1 connection: httptools (llhttp, strict) parses, an ASGI application answers. Every bound against hostile clients is here.

- Work: what has arrived is parsed in slices, and the server gives all connections together one short turn per turn of the loop.
- Time: a deadline for the request's head from accept or from its first byte, for an idle connection, and for a client that does not read.
  The body's deadline is its reader's.
- A request that is answered before its body has arrived ends the connection: the rest of the body is not parsed. What still comes is thrown
  away for a moment, because closing at once would reset the connection and could destroy the answer on its way.
- What two parsers could read in two ways (Content-Length beside Transfer-Encoding, two lengths, folded headers, bare line feeds, two Hosts)
  is answered with 400, and the connection is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import unquote

import httptools

from magnetar.admin.http.guard import HttpGuard
from magnetar.admin.http.request import UPGRADE, HttpRequest, check_head
from magnetar.base.limits import CLOSE_TIMEOUT_S
from magnetar.base.network import AdmittedProtocol
from magnetar.base.tasks import LooseTasks
from magnetar.broker.auth.tls import peer_certificate

if TYPE_CHECKING:
    from magnetar.admin.websocket.framing import Handler, WebSocket

logger = logging.getLogger(__name__)

CERTIFICATE = "magnetar.client_certificate"
"""Where the requests of a connection find the client's verified certificate."""

CLIENT_LEFT = "magnetar.client_left"
"""Where they find a function that says whether the client has closed its side, for answers that take long to begin."""

HEAD_BYTES_MAX: Final = 64 * 1024
"""Longer request lines and headers, or trailers, are refused with 400 and the connection is closed."""

HEAD_TIMEOUT_S: Final = 10.0
"""From accept, or from the first byte of a further request, to the end of its headers: the connection is closed."""

KEEP_ALIVE_S: Final = 30.0
"""An idle connection is closed after this long."""

UNREAD_TIMEOUT_S: Final = 30.0
"""A client that takes nothing of its answer for this long: the connection is aborted."""

SLICE_BYTES: Final = 4096
"""Parsed at a time. The worst input, chunks of one byte, takes a third of a millisecond."""

BODY_BUFFER_BYTES: Final = 64 * 1024
"""Body bytes that the handler has not taken yet; above this nothing more is parsed."""

LINGER_S: Final = 1.0
"""Time for which the input of a refused request is discarded, so that its client can read the answer."""

LINGER_BYTES_MAX: Final = 256 * 1024
"""Input of a refused request that is discarded; after more the connection is aborted."""

OUTPUT_HIGH_BYTES: Final = 256 * 1024
"""Unsent output at which an answer that is made in pieces waits for its client."""


class Server(Protocol):
    """What a connection needs of its server."""

    app: Any
    guard: HttpGuard
    tasks: LooseTasks
    connections: dict[HttpConnection, None]

    def parse_soon(self, connection: HttpConnection) -> None:
        """`connection.parse_some` is to be called, in a turn that all connections share."""
        ...


class HttpConnection(AdmittedProtocol):
    """Its requests are answered one after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._input = bytearray()
        self._parsing: HttpRequest | None = None
        """Its head is arriving, or its body."""
        self._head_bytes = 0
        self._waiting: deque[HttpRequest] = deque()
        """Parsed behind the one that is being answered: what one slice held."""
        self._current: HttpRequest | None = None
        self._problem = ""
        """Why the input is not HTTP: what was asked before that is answered, nothing after it."""
        self._ended = False
        """No further request: the client has sent all it will, or the server stops."""
        self._discarded: int | None = None
        """Bytes thrown away after the last answer; None while the input still counts."""
        self._paused = self._write_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._answered_any = False
        self._socket: WebSocket | None = None
        """What the connection has become."""
        self._held = False
        """The WebSocket takes no input for now."""
        self.lost = False
        self._timer: asyncio.TimerHandle | None = None
        self.queued = False
        """The server will call `parse_some`."""

    # ---- The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(OUTPUT_HIGH_BYTES)
        self._loop = asyncio.get_running_loop()
        secured = transport.get_extra_info("ssl_object")
        self._scheme = "http" if secured is None else "https"
        self._state = {CERTIFICATE: peer_certificate(secured), CLIENT_LEFT: self._client_left}
        self._client, self._host = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        self._server.connections[self] = None
        self._close_after(HEAD_TIMEOUT_S)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._server.connections.pop(self, None)
        self._input.clear()
        self._waiting.clear()
        self._writable.set()
        if self._socket is not None:
            self._socket.end()
        if self._timer is not None:
            self._timer.cancel()
        if self._current is not None:
            self._current.changed.set()

    def data_received(self, data: bytes) -> None:
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES_MAX:
                self._transport.abort()
            return
        if (self._ended and not self._upgrading) or self._problem:
            return
        self._input += data
        if len(self._input) > SLICE_BYTES:
            self._pause(True)
        self._server.parse_soon(self)

    def eof_received(self) -> bool:
        """The client has sent everything. What it asked is answered, as far as it came."""
        self._ended = True
        current = self._current
        if self._socket is not None:
            return False
        if self._discarded is not None or (current is None and not self._input and not self._waiting):
            return False
        if current is not None and not current.complete and not self._input:
            current.changed.set()
        return self._scheme == "http"

    def pause_writing(self) -> None:
        self._write_paused = True
        self._writable.clear()
        if self.ticket is not None:
            self.ticket.unsettle()
        if self._socket is not None:
            self._socket.output_full(True)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._writable.set()
        if self.ticket is not None and (self._current is not None or self._socket is not None):
            self.ticket.settle()
        if self._socket is not None:
            self._socket.output_full(False)

    def evict(self) -> None:
        self._transport.abort()

    def stop(self) -> None:
        """The server ends: an idle connection is closed now, another one after its answer."""
        self._ended = True
        if self._socket is not None:
            self._socket.server_closes()
        elif self._current is None:
            self.close()

    def _pause(self, paused: bool) -> None:
        if paused != self._paused and not self.lost and not self._transport.is_closing():
            self._paused = paused
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    def _close_after(self, timeout_s: float) -> None:
        """Deadline of the connection's present state."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(timeout_s, self._transport.abort)

    def _no_deadline(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- Parsing

    @property
    def _upgrading(self) -> bool:
        return self._socket is not None or (self._current is not None and self._current.upgrades)

    @property
    def _may_parse(self) -> bool:
        if self._problem or self.lost or self._discarded is not None or self._waiting:
            return False
        current = self._current
        return current is None or (not current.complete and current.body_bytes < BODY_BUFFER_BYTES)

    def parse_some(self) -> bool:
        """One slice of the input. Whether there is more that may be parsed now."""
        if self._socket is not None:
            return self._feed(self._socket)
        if not self._input or not self._may_parse:
            self._go_on()
            return False
        data = bytes(self._input[:SLICE_BYTES])
        del self._input[:SLICE_BYTES]
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ended = (
                True  # the request itself is answered as any other; what follows is of another protocol, or nobody's
            )
            if self._upgrading:
                self._input[:0] = data[upgrade.args[0] :]
            else:
                self._input.clear()
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            if not isinstance(cause, ValueError | httptools.HttpParserError):
                raise
            self._fail(str(cause) or "the request is not HTTP/1.1")
            return False
        if self._head_bytes > HEAD_BYTES_MAX and (self._parsing is None or not self._parsing.method):
            self._fail(f"the head of the request is longer than {HEAD_BYTES_MAX} bytes")
            return False
        if self._input and self._may_parse:
            return True
        self._go_on()
        return False

    def _feed(self, socket: WebSocket) -> bool:
        """As `parse_some`, for a WebSocket."""
        if self._held or socket.over or not self._input:
            if not self._input and not self._held:
                self._pause(False)
            return False
        data = bytes(self._input[: socket.slice_bytes])
        del self._input[: socket.slice_bytes]
        socket.feed(data)
        if self._input:
            return not self._held
        if not self._held:
            self._pause(False)
        return False

    def _go_on(self) -> None:
        """Read more, unless what is there has to be answered first."""
        if not self._input and self._may_parse:
            if self._ended:
                if self._current is not None:
                    self._current.changed.set()
                elif not self._waiting:
                    self.close()
                return
            self._pause(False)

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._input.clear()
        if self._current is not None:
            self._current.changed.set()
        elif not self.lost:
            self._refuse()

    def _refuse(self) -> None:
        body = json.dumps({"reason": f"invalid HTTP request: {self._problem}"}).encode()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self._transport.write(head.encode() + body)
        self._linger()

    # Callbacks of the parser. What they raise comes out of `feed_data`.

    def on_message_begin(self) -> None:
        self._parsing = HttpRequest()
        self._head_bytes = 0
        if self._answered_any and self._current is None and not self._waiting:
            self._close_after(HEAD_TIMEOUT_S)

    def on_url(self, url: bytes) -> None:
        assert self._parsing is not None
        self._parsing.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._parsing is not None
        if not self._parsing.method:  # afterwards it is a trailer, which nobody wants
            self._parsing.headers.append((name.lower(), value.strip(b" \t")))
        else:
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > HEAD_BYTES_MAX:
                raise ValueError("the trailers are too long")

    def on_headers_complete(self) -> None:
        request = self._parsing
        assert request is not None
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        check_head(request.version, request.target, request.headers)
        request.method = self._parser.get_method().decode("ascii")
        request.upgrades = self._parser.should_upgrade() and self._current is None and not self._waiting
        request.expects_continue = any(value.lower() == b"100-continue" for value in request.values(b"expect"))
        self._head_bytes = 0
        if self._current is None and not self._waiting:
            self._begin(request)
        else:
            self._waiting.append(request)

    def on_body(self, body: bytes) -> None:
        request = self._parsing
        assert request is not None
        if not request.answered:
            request.body.append(body)
            request.body_bytes += len(body)
            request.changed.set()

    def on_message_complete(self) -> None:
        request = self._parsing
        assert request is not None
        self._parsing = None
        self._head_bytes = 0
        request.complete = True
        request.changed.set()
        if request is self._current and self.ticket is not None:
            self.ticket.settle()

    # ---- Answering

    def _begin(self, request: HttpRequest) -> None:
        self._current = request
        self._no_deadline()
        if request.complete and self.ticket is not None:
            self.ticket.settle()
        self._server.tasks.start(self._run(request), "request")

    async def _run(self, request: HttpRequest) -> None:
        exchange = _Exchange(self, request)
        try:
            refusal = self._server.guard.refusal(request.method, request.text(b"host"), request.text(b"origin"))
            if refusal is not None:
                await exchange.send_reason(*refusal)
                return
            await self._server.app(self._scope_of(request), exchange.receive, exchange.send)
        except Exception as error:
            if not self.lost:
                logger.error("an HTTP request failed", exc_info=error)
                if not request.started:
                    await exchange.send_reason(500, "internal error; see the server's log")
        finally:
            if not request.answered and not self.lost:
                self._transport.abort()

    def _scope_of(self, request: HttpRequest) -> dict[str, Any]:
        target, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.version,
            "server": self._host[:2] if self._host else None,
            "client": self._client[:2] if self._client else None,
            "scheme": self._scheme,
            "method": request.method,
            "root_path": "",
            "path": unquote(target.decode("ascii")),
            "raw_path": target,
            "query_string": query,
            "headers": request.headers,
            "state": dict(self._state) | ({UPGRADE: partial(self._upgrade, request)} if request.upgrades else {}),
        }

    def _client_left(self) -> bool:
        return self.lost or self._ended

    def _upgrade(self, request: HttpRequest, handler: Handler, accept: bytes) -> None:
        """The answer to the request: from here on the connection is a WebSocket."""
        if self.lost:
            handler.closed()
            return
        head = (
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: "
        )
        self._transport.write(head + accept + b"\r\n\r\n")
        request.started = request.answered = self._answered_any = True
        self._current = None
        self._no_deadline()
        from magnetar.admin.websocket.framing import WebSocket  # with wsproto and h11: for the first one that is opened

        self._socket = WebSocket(self, handler)
        handler.opened(self._socket)
        self._server.parse_soon(self)

    # What a WebSocket asks for.

    def hold(self, held: bool) -> None:
        self._held = held
        if held:
            self._pause(True)
        else:
            self._server.parse_soon(self)

    def hang_up(self, timeout_s: float) -> None:
        if not self.lost:
            self._discarded = self._discarded or 0
            self._transport.close()
            self._close_after(timeout_s)

    async def body_part(self, request: HttpRequest) -> tuple[bytes, bool] | None:
        """The next part of the body and whether there will be more; None when the client has left."""
        if request.expects_continue and not request.complete and not request.body and not self.lost:
            request.expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not request.body and not request.complete:
            if self.lost or self._problem or request.answered or (self._ended and not self._input):
                return None
            request.changed.clear()
            await request.changed.wait()
        part = b"".join(request.body)
        request.body.clear()
        request.body_bytes = 0
        if not request.complete:
            self._server.parse_soon(self)
        return part, not request.complete

    def write(self, data: bytes) -> None:
        if not self.lost:
            self._transport.write(data)

    async def drained(self) -> None:
        """Until the client has taken most of what was written. Raises OSError when it has left."""
        if self._write_paused and not self.lost:
            self._close_after(UNREAD_TIMEOUT_S)
            await self._writable.wait()
            self._no_deadline()
        if self.lost:
            raise ConnectionResetError("the client has left")

    def keeps_alive(self, request: HttpRequest) -> bool:
        """True if another request may follow: a body that did not arrive would have to be read first."""
        return request.keep_alive and request.complete and not self._ended and not self._problem

    def finished(self, request: HttpRequest, *, keep_alive: bool) -> None:
        """The answer is written."""
        request.answered = self._answered_any = True
        request.body.clear()
        self._current = None
        if self.lost:
            return
        if not keep_alive:
            if request.complete and not self._problem:
                self.close()
            else:
                self._linger()
            return
        if self._waiting:
            self._begin(self._waiting.popleft())
        else:
            if self.ticket is not None:
                self.ticket.unsettle()
            self._close_after(KEEP_ALIVE_S)
        self._server.parse_soon(self)

    def close(self) -> None:
        """After the last answer, which the client gets some seconds to read."""
        if not self.lost:
            self._discarded = self._discarded or 0
            self._transport.close()
            self._close_after(CLOSE_TIMEOUT_S)

    def _linger(self) -> None:
        """As `_close`, but what is still coming is received and thrown away for a moment."""
        if self._transport.is_closing():
            return
        self._discarded = 0
        self._input.clear()
        if self.ticket is not None:
            self.ticket.unsettle()
        self._pause(False)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._close_after(LINGER_S)


class _Exchange:
    """`receive` and `send` of the ASGI interface for one request."""

    __slots__ = ("_connection", "_keep_alive", "_request")

    def __init__(self, connection: HttpConnection, request: HttpRequest) -> None:
        self._connection = connection
        self._request = request
        self._keep_alive = False

    async def receive(self) -> dict[str, Any]:
        part = await self._connection.body_part(self._request)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part[0], "more_body": part[1]}

    async def send(self, message: Any) -> None:
        await self._connection.drained()
        if message["type"] == "http.response.start":
            self._start(message["status"], list(message.get("headers", ())))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        while len(body) > OUTPUT_HIGH_BYTES:
            self._body(body[:OUTPUT_HIGH_BYTES], more=True)
            body = body[OUTPUT_HIGH_BYTES:]
            await self._connection.drained()
        self._body(body, more=more)

    async def send_reason(self, status: int, reason: str) -> None:
        """The whole answer."""
        body = json.dumps({"reason": reason}).encode()
        about = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": about})
        await self.send({"type": "http.response.body", "body": body})

    def _start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        request = self._request
        assert not request.started, "an answer begins once"
        request.started = True
        given = [(name, value) for name, value in headers if name != b"connection"]
        assert not any(b"\n" in name + value for name, value in given), "a header is one line"
        keep_alive = self._connection.keeps_alive(request) and (b"connection", b"close") not in headers
        if request.method != "HEAD" and status not in (204, 304) and b"content-length" not in dict(given):
            request.chunked = request.version == "1.1"
            keep_alive = keep_alive and request.chunked  # else the end of the stream is the end of the body
            if request.chunked:
                given.append((b"transfer-encoding", b"chunked"))
        if not keep_alive:
            given.append((b"connection", b"close"))
        elif request.version == "1.0":
            given.append((b"connection", b"keep-alive"))
        self._keep_alive = keep_alive
        lines = b"".join(b"%b: %b\r\n" % pair for pair in given)
        self._connection.write(f"HTTP/1.1 {status} {_phrase(status)}\r\n".encode() + lines + b"\r\n")

    def _body(self, body: bytes, *, more: bool) -> None:
        request = self._request
        if request.method == "HEAD":
            body = b""
        if request.chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        if body:
            self._connection.write(body)
        if not more:
            self._connection.finished(request, keep_alive=self._keep_alive)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
