"""A real bookie behind its TCP server, raw connections to it, and channels; calls as coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from magnetar.base.admission import Share
from magnetar.base.clock import SystemClock
from magnetar.base.network import AsyncioNetwork
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.server.server import BookieServer, BookieServerOptions
from magnetar.bookkeeper.client.channel.channel import RemoteBookie
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.ports import BookieChannel
from tests.unit.bookkeeper.bookie_helpers import open_bookie

NETWORK = AsyncioNetwork()


class Wire:
    """A connection on which a test says and hears bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *frames: bytes) -> None:
        """Whole frames, with their lengths."""
        self.writer.write(b"".join(frames))

    def send_body(self, body: bytes) -> None:
        self.writer.write(struct.pack(">I", len(body)) + body)

    async def frame(self) -> bytes:
        """The next one, without its length."""
        async with asyncio.timeout(60):
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)

    async def ended(self) -> bool:
        """The bookie closes the connection, after nothing else. It may do so by a reset."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


class Served:
    """`channel()` and `wire()` connect to a bookie's server."""

    def __init__(self, bookie: BookieChannel, server: BookieServer, port: int, scope: TaskScope) -> None:
        self.bookie: Any = bookie
        self.server = server
        self.port = port
        self.scope = scope
        self._channels: list[RemoteBookie] = []
        self._wires: list[Wire] = []

    def channel(self, **options: Any) -> RemoteBookie:
        channel = RemoteBookie(
            ("127.0.0.1", self.port),
            NETWORK,
            SystemClock(),
            random.Random(7),
            self.scope,
            ChannelOptions(**({"retry_min_s": 0.001, "retry_max_s": 0.01} | options)),
        )
        self._channels.append(channel)
        return channel

    async def wire(self, receive_buffer_bytes: int | None = None) -> Wire:
        connected = socket.socket()
        if receive_buffer_bytes is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", self.port))
        wire = Wire(*await asyncio.open_connection(sock=connected))
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        for wire in self._wires:
            wire.writer.close()


@contextlib.asynccontextmanager
async def serve(
    bookie: BookieChannel, port: int = 0, share: Share | None = None, **options: Any
) -> AsyncIterator[Served]:
    """Any bookie behind a server, whose connections count in `share`."""
    async with TaskScope("test") as scope:
        server = BookieServer(bookie, scope, BookieServerOptions(**options))
        listener = NETWORK.bind("127.0.0.1", port, share)
        await server.serve(listener)
        served = Served(bookie, server, listener.port, scope)
        try:
            yield served
        finally:
            served.close()
            await server.close()


@contextlib.asynccontextmanager
async def served_bookie(path: Path, **options: Any) -> AsyncIterator[Served]:
    """The real bookie behind a server; `options` are the server's."""
    async with open_bookie(path) as bookie:
        bookie_: Bookie = bookie
        async with serve(bookie_, **options) as served:
            yield served


async def answer(call: Callable[..., None], *args: Any) -> Any:
    """What `call(*args, done)` is answered with: the code, or a tuple that begins with it."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(*args, lambda *values: future.set_result(values[0] if len(values) == 1 else values))
    return await asyncio.wait_for(future, 60)


@contextlib.asynccontextmanager
async def peer(talk: Callable[[Wire], Awaitable[None]], **more: Any) -> AsyncIterator[RemoteBookie]:
    """A channel to something that is not a bookie: `talk` has the other end of each connection. `more`: options."""
    talks: list[asyncio.Task[None]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())  # type: ignore[arg-type]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await talk(Wire(reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with TaskScope("test") as scope:
        quick = {"add_timeout_s": 0.05, "read_timeout_s": 0.05, "retry_min_s": 0.001, "retry_max_s": 0.01}
        options = ChannelOptions(**(quick | more))
        channel = RemoteBookie(("127.0.0.1", port), NETWORK, SystemClock(), random.Random(7), scope, options)
        try:
            yield channel
        finally:
            channel.close()
            server.close()
            for one in talks:
                one.cancel()
            await asyncio.gather(*talks, return_exceptions=True)
