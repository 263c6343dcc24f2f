"""A standalone server on a loop that stands still between two steps of a test, and connections to it without sockets.

What the network decides otherwise, how bytes are cut into reads, is then the test's to say; nothing else differs.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from magnetar.broker.connection.routes import BEFORE_CONNECT, ROUTES, RUNS
from magnetar.broker.connection.session import Session
from magnetar.processes.configurations import StandaloneConfig
from magnetar.standalone import Standalone
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.raw import connect_command

T = TypeVar("T")
WAIT_S = 60.0


class DirectServer:
    """`with DirectServer(directory, **settings) as server: server.run(coroutine)`."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.standalone = Standalone(StandaloneConfig(data_dir=data_dir, port=0, http_port=0, **settings))
        self._runner = asyncio.Runner()

    def __enter__(self) -> DirectServer:
        self._runner.__enter__()
        self.run(self.standalone.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        self.run(self.standalone.__aexit__(None, None, None))
        self._runner.__exit__(None, None, None)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


class DirectConnection:
    """Implements `asyncio.Transport` for a session, as far as that uses it. `received`: commands, each with headers and payload."""

    def __init__(self, server: DirectServer) -> None:
        self.session = Session(server.standalone.broker.context, BEFORE_CONNECT, ROUTES, RUNS)
        self.received: list[tuple[BaseCommand, bytes]] = []
        self.reading = True
        self.closing = False
        self._unread = b""
        self._requests = 0

    async def open(self) -> DirectConnection:
        self.session.connection_made(self)  # type: ignore[arg-type]  # a transport as far as a session uses it
        await self.feed(encode_frame(connect_command().SerializeToString()))
        await self.answer(BaseCommand.CONNECTED)
        return self

    async def feed(self, data: bytes) -> None:
        """One read of the socket, when the session reads."""
        await wait(lambda: self.reading)
        self.session.data_received(data)

    async def request(self, kind: str, part: str, answer: int, **fields: Any) -> BaseCommand:
        """Send a command with a request id and wait for its answer. `part`: the name of its field."""
        self._requests += 1
        command = BaseCommand(type=BaseCommand.Type.Value(kind))
        for name, value in {"request_id": self._requests, **fields}.items():
            setattr(getattr(command, part), name, value)
        await self.feed(encode_frame(command.SerializeToString()))
        return await self.answer(answer)

    async def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> None:
        named = {"topic": topic, "producer_id": producer_id, **fields}
        await self.request("PRODUCER", "producer", BaseCommand.PRODUCER_SUCCESS, **named)

    async def subscribe(self, topic: str, subscription: str, consumer_id: int = 1, **fields: Any) -> None:
        named = {"topic": topic, "subscription": subscription, "consumer_id": consumer_id, "subType": 0, **fields}
        await self.request("SUBSCRIBE", "subscribe", BaseCommand.SUCCESS, initialPosition=1, **named)

    async def answer(self, kind: int) -> BaseCommand:
        """The next frame of this type, taken out of `received`."""
        await wait(lambda: any(command.type == kind for command, _ in self.received))
        index = next(index for index, (command, _) in enumerate(self.received) if command.type == kind)
        return self.received.pop(index)[0]

    def commands(self, *kinds: int) -> list[BaseCommand]:
        return [command for command, _ in self.received if command.type in kinds]

    async def leave(self) -> None:
        """As when the client goes away."""
        self.closing = True
        self.session.connection_lost(None)
        await asyncio.sleep(0)

    # ---- What the session calls

    def write(self, data: bytes) -> None:
        """Cut by hand: the server's own codec is not its own judge, and its calls are counted."""
        data, at = self._unread + data, 0
        while len(data) - at >= 8:
            size, command_size = struct.unpack_from(">II", data, at)
            end = at + 4 + size
            if end > len(data):
                break
            split = at + 8 + command_size
            self.received.append((BaseCommand.FromString(data[at + 8 : split]), data[split:end]))
            at = end
        self._unread = data[at:]

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """Nothing waits here."""

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


async def wait(condition: Callable[[], bool]) -> None:
    """Let the loop and its threads run until the condition holds."""
    turns = 0
    async with asyncio.timeout(WAIT_S):
        while not condition():
            turns += 1
            await asyncio.sleep(0 if turns < 50 else 0.0005)
