"""One connection of a simulated client: Pulsar's binary protocol over the simulated network, with requests, time-outs and pings."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

from magnetar.base.network import Network
from magnetar.testing.sim.messaging.nodes import BROKER_PORT
from magnetar.testing.sim.network import SimTransport
from magnetar.wire.pulsar.frames import HEADER_BYTES, FrameDecoder, FrameError, encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandPing, CommandPong

REQUEST_TIMEOUT_S: Final = 10.0
KEEP_ALIVE_S: Final = 10.0
"""Silence after which the client sends a PING; twice this ends the connection. The official clients wait 30 s."""

_NO_LIMIT: Final = 2**31 - 1

_REQUEST_FIELDS: Final = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.ERROR: "error",
    BaseCommand.PRODUCER_SUCCESS: "producer_success",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    BaseCommand.ACK_RESPONSE: "ackResponse",
    BaseCommand.TC_CLIENT_CONNECT_RESPONSE: "tcClientConnectResponse",
    BaseCommand.NEW_TXN_RESPONSE: "newTxnResponse",
    BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE: "addPartitionToTxnResponse",
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: "addSubscriptionToTxnResponse",
    BaseCommand.END_TXN_RESPONSE: "endTxnResponse",
}

OnCommand = Callable[[BaseCommand, bytes], None]


class ClientError(Exception):
    """A request failed: the broker refused it, or the connection ended before its answer."""


class Connection(asyncio.Protocol):
    """`await Connection.open(network, host)`. Commands that answer no request go to `on_command`, in order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(_NO_LIMIT, _NO_LIMIT)
        self._requests: dict[int, asyncio.Future[BaseCommand]] = {}
        self._request_ids = itertools.count(1)
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._heard_s = 0.0
        self._taken_bytes = 0
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.on_command: OnCommand = lambda command, rest: None
        self.on_closed: Callable[[], None] = lambda: None

    @classmethod
    async def open(cls, network: Network, host: str) -> Connection:
        """Connect and say CONNECT. Raises ClientError."""
        try:
            connection = await network.connect(host, BROKER_PORT, cls)
            assert isinstance(connection, cls)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                command = BaseCommand(type=BaseCommand.CONNECT)
                command.connect.client_version = "simulated client"
                command.connect.protocol_version = 21
                connection.send(command)
                await connection._greeted
        except (OSError, TimeoutError) as error:
            raise ClientError(f"{host} does not answer: {error!r}") from error
        connection._watch_silence()
        return connection

    def send(self, command: BaseCommand, rest: bytes = b"") -> None:
        if self.transport is not None and not self.closed:
            self.transport.write(encode_frame(command.SerializeToString(), rest))

    async def ask(self, command: BaseCommand, request: Any) -> BaseCommand:
        """Send a request and wait for its answer. `request`: the part of the command that has the `request_id`. Raises ClientError for
        ERROR, a lost connection and a time-out."""
        number = request.request_id = next(self._request_ids)
        future: asyncio.Future[BaseCommand] = self._loop.create_future()
        if self.closed:
            raise ClientError("the connection is closed")
        self._requests[number] = future
        self.send(command)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                answer = await future
        except TimeoutError as error:
            raise ClientError("the request timed out") from error
        finally:
            self._requests.pop(number, None)
        if answer.type == BaseCommand.ERROR:
            raise ClientError(f"{answer.error.error}: {answer.error.message}")
        return answer

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        self._end()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._heard_s = self._loop.time()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        try:
            frames = self._decoder.feed(data)
        except FrameError:
            self.close()
            raise
        for command, rest in frames:
            self._taken_bytes += HEADER_BYTES + len(command) + len(rest)
            if not self.closed:
                self._received(BaseCommand.FromString(command), rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    @property
    def sent_s(self) -> float:
        """When the broker has written the frame that is being handled: what a standing process hears may be old."""
        assert isinstance(self.transport, SimTransport)
        return self.transport.pipe_in.sent_s(self._taken_bytes)

    def _received(self, command: BaseCommand, rest: bytes) -> None:
        kind = command.type
        if kind == BaseCommand.PING:
            self.send(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))
        elif kind == BaseCommand.CONNECTED:
            if not self._greeted.done():
                self._greeted.set_result(None)
        elif kind in _REQUEST_FIELDS:
            future = self._requests.get(getattr(command, _REQUEST_FIELDS[kind]).request_id)
            if future is not None and not future.done():
                future.set_result(command)
        elif kind != BaseCommand.PONG:
            self.on_command(command, rest)

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        waiting: list[asyncio.Future[Any]] = [self._greeted, *self._requests.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(ClientError("the connection was lost"))
                future.exception()  # whoever waited may have given up already
        self.on_closed()

    def _watch_silence(self) -> None:
        if self.closed:
            return
        silence_s = self._loop.time() - self._heard_s
        if silence_s > 2 * KEEP_ALIVE_S:
            self.close()
            return
        if silence_s > KEEP_ALIVE_S:
            self.send(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
        self._loop.call_later(KEEP_ALIVE_S / 2, self._watch_silence)
