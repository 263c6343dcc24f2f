"""One TCP connection to a bookie: bytes to frames, one write per turn of the event loop, and what has to be said before the first request.

Until `open()` frames are the handshake's, one at a time; afterwards they go to `receive`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.wire.bookkeeper.frames import BookieFrameError, FrameCutter

Receive = Callable[[list[bytes]], None]
"""Takes frames in order, without their lengths; raises BookieFrameError for bytes that are not an answer: the connection ends."""

Take = Callable[[bytes, int], int]
"""See `FrameCutter.feed`."""


class BookieConnection(asyncio.Protocol):
    """`on_lost(connection, error)` is called once, if the connection was made at all."""

    def __init__(
        self,
        frame_bytes_max: int,
        receive: Receive,
        on_lost: Callable[[BookieConnection, Exception | None], None],
        take: Take | None = None,
    ) -> None:
        self._cutter = FrameCutter(frame_bytes_max)
        self._receive = receive
        self._take = take
        self._on_lost = on_lost
        self._open = False
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._output: list[bytes] = []
        self._flush_scheduled = False
        self._error: Exception | None = None
        self.heard = False
        """Something arrived since somebody last set this to False."""
        self.served = False
        """A request was answered. With TLS 1.3 a client learns only after its handshake that its certificate is refused."""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it

    # ---- Handshake

    async def ask(self, frame: bytes) -> bytes:
        """Send a frame and wait for the next one. Raises BookieUnavailableError when the connection ends instead."""
        if self.closed or self._transport is None:
            raise BookieUnavailableError("the bookie closed the connection")
        self._answer = self._loop.create_future()
        self._transport.write(frame)
        return await self._answer

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from now on."""
        if self.closed or self._transport is None:
            raise BookieUnavailableError("the bookie closed the connection")
        upgraded = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        if upgraded is None:
            raise BookieUnavailableError("the bookie closed the connection")
        self._transport = upgraded

    def open(self) -> None:
        """The handshake is over."""
        self._open = True
        if self._output:
            self._flush()

    # ---- Frames

    def write(self, first: bytes, second: bytes = b"") -> None:
        """Append a frame in one or two pieces to the output."""
        output = self._output
        output.append(first)
        if second:
            output.append(second)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write_pieces(self, pieces: list[bytes]) -> None:
        """Append frames to the output, in any pieces."""
        self._output += pieces
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.closed or not self._output or self._transport is None:
            return
        data = b"".join(self._output)
        self._output.clear()
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        try:
            if self._open:
                self.served = True
                self._receive(self._cutter.feed(data, self._take))
            else:
                self._take_answer(self._cutter.feed(data))
        except BookieFrameError as error:
            self.abort(error)

    def _take_answer(self, frames: list[bytes]) -> None:
        if not frames:
            return
        if self._answer is None or self._answer.done() or len(frames) > 1:
            raise BookieFrameError("the bookie says what it was not asked for")
        self._answer.set_result(frames[0])

    def abort(self, error: Exception | None = None) -> None:
        """End the connection at once; what is unsent is dropped."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._output.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BookieUnavailableError("the bookie closed the connection"))
        self._on_lost(self, self._error or error)
