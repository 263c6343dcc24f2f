"""One WebSocket (RFC 6455) on a connection of the HTTP server. wsproto knows the frames; every bound against hostile clients is here.

- Input is taken in slices, in the turns that all HTTP connections share, and not while the broker or the client's unread output says so.
- A message is text and has a bound; compression (permessage-deflate) is not offered, so nothing unpacks to more than was sent.
- A client that is silent is pinged, and closed when it does not answer. One that leaves its output unread counts as a stranger, whose
  place somebody new may take.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection, Message, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError, generate_accept_token

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import CLOSE_TIMEOUT_S

logger = logging.getLogger(__name__)

SLICE_BYTES: Final = 1024
"""Input taken at a time: of the shortest frames this is one or two milliseconds."""

PING_AFTER_S: Final = 60.0
"""A client of which nothing is heard for this long is pinged; after twice that it is closed."""

NORMAL, GOING_AWAY, UNSUPPORTED_DATA, POLICY, TOO_BIG, FAILED, RESTART = 1000, 1001, 1003, 1008, 1009, 1011, 1012
REASON_BYTES_MAX: Final = 120
"""A close frame has room for 123."""


class Transport(Protocol):
    """What a WebSocket needs of the HTTP connection below it."""

    def write(self, data: bytes) -> None: ...

    def hold(self, held: bool) -> None:
        """Neither read nor hand on input while held."""
        ...

    def hang_up(self, timeout_s: float) -> None:
        """Close once everything is sent, or after so long."""
        ...


class Handler(Protocol):
    """The other side of a WebSocket. Plain calls."""

    message_bytes_max: int

    def opened(self, socket: WebSocket) -> None:
        """The upgrade is answered: from now on messages may be sent."""
        ...

    def text(self, text: str) -> None:
        """A message of the client. A MagnetarError closes the WebSocket with its text."""
        ...

    def output_full(self, full: bool) -> None:
        """The client does not take what is sent to it; or does again."""
        ...

    def closed(self) -> None:
        """The WebSocket has ended. Called once."""
        ...


class WebSocket:
    """Made when the upgrade is answered."""

    slice_bytes: Final = SLICE_BYTES

    def __init__(self, transport: Transport, handler: Handler) -> None:
        self._transport = transport
        self._handler = handler
        self._connection = Connection(ConnectionType.SERVER)
        self._loop = asyncio.get_running_loop()
        self._parts: list[str] = []
        self._size_bytes = 0
        self._held_by: set[str] = set()
        self._heard = True
        self._pinged = False
        self.over = False
        self._timer = self._loop.call_later(PING_AFTER_S, self._look)

    # ---- Towards the client

    def send(self, text: str) -> None:
        if not self.over:
            self._transport.write(self._connection.send(TextMessage(data=text)))

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Say why, then end."""
        if self.over:
            return
        text = reason.encode()[:REASON_BYTES_MAX].decode("utf-8", "ignore")
        try:
            self._transport.write(self._connection.send(CloseConnection(code=code, reason=text)))
        except LocalProtocolError:
            logger.debug("the other side has closed the WebSocket already")
        self.end()
        self._transport.hang_up(CLOSE_TIMEOUT_S)

    def server_closes(self) -> None:
        self.close(GOING_AWAY, "the server is closing")

    def end(self) -> None:
        """The connection below is gone, or will be soon. May be called again."""
        if not self.over:
            self.over = True
            self._timer.cancel()
            self._parts.clear()
            self._handler.closed()

    def hold(self, why: str, held: bool) -> None:
        """Take no more input while there is a reason not to."""
        before = bool(self._held_by)
        (self._held_by.add if held else self._held_by.discard)(why)
        if bool(self._held_by) != before and not self.over:
            self._transport.hold(bool(self._held_by))

    def output_full(self, full: bool) -> None:
        if not self.over:
            self.hold("output", full)
            self._handler.output_full(full)

    def _look(self) -> None:
        if not self._heard and self._pinged:
            self.close(POLICY, f"no answer to a ping within {PING_AFTER_S:.0f} s")
            return
        self._pinged = not self._heard
        if self._pinged:
            self._transport.write(self._connection.send(Ping()))
        self._heard = False
        self._timer = self._loop.call_later(PING_AFTER_S, self._look)

    # ---- From the client

    def feed(self, data: bytes) -> None:
        """A slice of the input."""
        self._heard = True
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                if self.over:
                    return
                if isinstance(event, Message):
                    self._part(event)
                elif isinstance(event, Ping):
                    self._transport.write(self._connection.send(event.response()))
                elif isinstance(event, CloseConnection):
                    if self._connection.state is ConnectionState.OPEN:  # not the client's: what it sent was no frame
                        self.close(event.code, event.reason or "")
                        return
                    self._transport.write(self._connection.send(event.response()))
                    self.end()
                    self._transport.hang_up(CLOSE_TIMEOUT_S)
        except RemoteProtocolError as error:
            hint = error.event_hint
            self.close(hint.code if isinstance(hint, CloseConnection) else 1002, str(error))
        except MagnetarError as error:
            self.close(POLICY, str(error))
        except Exception:
            logger.exception("a WebSocket failed")
            self.close(FAILED, "internal error; see the server's log")

    def _part(self, event: Message[Any]) -> None:
        if not isinstance(event, TextMessage):
            self.close(UNSUPPORTED_DATA, "send JSON in text messages")
            return
        self._parts.append(event.data)
        self._size_bytes += len(event.data)
        if self._size_bytes > self._handler.message_bytes_max:
            self.close(TOO_BIG, f"a message is at most {self._handler.message_bytes_max} bytes")
        elif event.message_finished:
            text = "".join(self._parts)
            self._parts.clear()
            self._size_bytes = 0
            self._handler.text(text)


Upgrade = Callable[[Handler, bytes], None]
"""`handler`, and the value of `Sec-WebSocket-Accept`."""


def accept_of(headers: Mapping[str, str]) -> bytes | None:
    """What accepts the upgrade that a request asks for; None if it asks for none that is understood."""
    key = headers.get("sec-websocket-key", "").strip()
    if headers.get("upgrade", "").lower() != "websocket" or headers.get("sec-websocket-version") != "13" or not key:
        return None
    return generate_accept_token(key.encode("latin-1")) if key.isascii() else None
