"""A client's side of a session of this very broker: commands in, frames out, no socket between them.

So what a WebSocket does passes through the same handlers, rights, quotas and counters as what comes over the binary protocol.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import COMMAND_BYTES_MAX
from magnetar.broker.auth.principal import Principal
from magnetar.broker.connection.error_codes import CODES
from magnetar.broker.errors import ServiceNotReadyError, UnknownServerError
from magnetar.broker.naming import TopicName
from magnetar.broker.service import Broker
from magnetar.wire.pulsar import client_commands, commands
from magnetar.wire.pulsar.frames import FrameDecoder
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandPartitionedTopicMetadataResponse

VERSION: Final = "magnetar-websocket"
FRAME_EXTRA_BYTES: Final = 64 * 1024
"""Room for headers around the largest message."""

_ANSWERS: dict[int, str] = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.ERROR: "error",
    BaseCommand.PRODUCER_SUCCESS: "producer_success",
    BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
}
_KINDS = {code: kind for kind, code in CODES.items()}


def error_of(code: int, message: str) -> MagnetarError:
    """The broker's error that was told with this code."""
    return _KINDS.get(code, UnknownServerError)(message)


class Link:
    """`told` gets the commands that answer no request: MESSAGE, SEND_RECEIPT, SEND_ERROR, CLOSE_*; `ended` why the session ended, once."""

    def __init__(
        self,
        broker: Broker,
        principal: Principal | None,
        host: str,
        told: Callable[[BaseCommand, bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self._told = told
        self._ended = ended
        self._answers: dict[int, asyncio.Future[BaseCommand]] = {}
        self._request_ids = itertools.count(1)
        self._problem = ""
        self.over = False
        largest = broker.config.settings.max_message_size + FRAME_EXTRA_BYTES
        self._decoder = FrameDecoder(largest + COMMAND_BYTES_MAX, COMMAND_BYTES_MAX)
        self._pipe = _Pipe(self, host)
        self._session = broker.connections.open_inside(self._pipe, principal, VERSION)

    # ---- Towards the broker

    def send(self, command: BaseCommand) -> None:
        self.send_bytes(commands.frame(command))

    def send_bytes(self, data: bytes) -> None:
        if not self.over:
            self._session.data_received(data)

    def new_request(self, kind: int, field: str) -> tuple[BaseCommand, Any, int]:
        """A command, its message, and its request id."""
        command = BaseCommand(type=kind)  # type: ignore[arg-type]  # the stubs want the enum's own type
        message = getattr(command, field)
        message.request_id = next(self._request_ids)
        return command, message, message.request_id

    def asked(self, command: BaseCommand, request_id: int) -> asyncio.Future[BaseCommand]:
        """Becomes the answer, or the broker's error."""
        answer: asyncio.Future[BaseCommand] = asyncio.get_running_loop().create_future()
        if self.over:
            answer.set_exception(ServiceNotReadyError(self._problem or "the broker is closing"))
        else:
            self._answers[request_id] = answer
            answer.add_done_callback(lambda _: self._answers.pop(request_id, None))
            self.send(command)
        return answer

    async def ask(self, command: BaseCommand, request_id: int) -> BaseCommand:
        """The answer. Raises the broker's error."""
        return await self.asked(command, request_id)

    async def parts_of(self, name: TopicName) -> list[TopicName]:
        """The topic, or its partitions; made if the server makes topics that are used."""
        request_id = next(self._request_ids)
        answer = await self.ask(client_commands.partition_metadata(str(name), request_id, create=True), request_id)
        found = answer.partitionMetadataResponse
        if found.response == CommandPartitionedTopicMetadataResponse.Failed:
            raise error_of(found.error, found.message)
        return [name.partition_name(number) for number in range(found.partitions)] or [name]

    def output_full(self, full: bool) -> None:
        """What goes to the client waits: the broker sends no more messages meanwhile."""
        if not self.over:
            (self._session.pause_writing if full else self._session.resume_writing)()

    def on_hold(self, hold: Callable[[bool], None]) -> None:
        """Called with True when the broker takes no more for now, with False when it does again."""
        self._pipe.hold = hold
        if self._pipe.held:
            hold(True)

    def close(self) -> None:
        if not self.over:
            self._session.close()

    # ---- From the broker

    def received(self, data: bytes) -> None:
        for command_bytes, rest in self._decoder.feed(data):
            command = BaseCommand.FromString(command_bytes)
            if command.type == BaseCommand.PING:
                self.send_bytes(commands.pong())
                continue
            field = _ANSWERS.get(command.type)
            if field is None:
                self._told(command, rest)
                continue
            message = getattr(command, field)
            waiting = self._answers.pop(message.request_id, None)
            if waiting is None:
                if command.type == BaseCommand.ERROR:
                    self._problem = message.message
            elif not waiting.done():
                if command.type == BaseCommand.ERROR:
                    waiting.set_exception(error_of(message.error, message.message))
                else:
                    waiting.set_result(command)

    def session_lost(self) -> None:
        self._session.connection_lost(None)

    def lost(self) -> None:
        if self.over:
            return
        self.over = True
        problem = self._problem or "the broker closed the session"
        for waiting in list(self._answers.values()):
            if not waiting.done():
                waiting.set_exception(ServiceNotReadyError(problem))
        self._ended(problem)


class _Pipe(asyncio.Transport):
    """What a session takes for its socket."""

    def __init__(self, link: Link, host: str) -> None:
        super().__init__({"peername": (host, 0), "ssl_object": None})
        self._link = link
        self._closing = False
        self.held = False
        self.hold: Callable[[bool], None] = lambda held: None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._link.received(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """No effect: the WebSocket has limits of its own."""

    def pause_reading(self) -> None:
        self.held = True
        self.hold(True)

    def resume_reading(self) -> None:
        self.held = False
        self.hold(False)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._gone)

    def abort(self) -> None:
        self.close()

    def _gone(self) -> None:
        self._link.session_lost()
        self._link.lost()
