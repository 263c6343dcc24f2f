"""One connection to a broker: requests with their answers, and what it sends by itself to producers, consumers and followers.

The message path (`write`, receipts) is plain calls; what is asked once is awaited.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Protocol, cast

from google.protobuf.message import DecodeError

from magnetar.base import limits
from magnetar.base.errors import MagnetarError
from magnetar.client.credentials import Credentials
from magnetar.client.errors import RequestRefusedError, UnreachableError
from magnetar.wire.pulsar import client_commands, commands
from magnetar.wire.pulsar.frames import FrameDecoder, FrameError
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandMessage

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 30.0
"""Time-out of an answer; then the connection is closed, since the order of its answers cannot be trusted any more."""

_REQUEST_ID_OF: dict[int, Callable[[BaseCommand], int]] = {
    BaseCommand.SUCCESS: lambda command: command.success.request_id,
    BaseCommand.ERROR: lambda command: command.error.request_id,
    BaseCommand.PRODUCER_SUCCESS: lambda command: command.producer_success.request_id,
    BaseCommand.LOOKUP_RESPONSE: lambda command: command.lookupTopicResponse.request_id,
    BaseCommand.PARTITIONED_METADATA_RESPONSE: lambda command: command.partitionMetadataResponse.request_id,
    BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: lambda command: command.getOrCreateSchemaResponse.request_id,
    BaseCommand.ACK_RESPONSE: lambda command: command.ackResponse.request_id,
    BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE: lambda command: command.scalableTopicSubscribeResponse.request_id,
}

_OPENED = (BaseCommand.PRODUCER_SUCCESS, BaseCommand.SUCCESS, BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
"""Answers after which the other side has what was asked for."""

Undo = Callable[[int], BaseCommand]
"""The command, with this request id, that takes back what a request has made."""


class ProducerEnd(Protocol):
    """What a connection tells one of its producers."""

    def receipt(self, sequence_id: int, ledger_id: int, entry_id: int) -> None: ...

    def end(self, error: MagnetarError) -> None:
        """Refused, closed by the server, or the connection is gone. Called once."""
        ...


class ConsumerEnd(Protocol):
    """What a connection tells one of its consumers."""

    def message(self, command: CommandMessage, rest: bytes) -> None:
        """An entry: the command about it, headers and payload."""
        ...

    def reached_end(self) -> None:
        """The topic is terminated, and everything in it has been delivered."""
        ...

    def end(self, error: MagnetarError) -> None:
        """Closed by the server, or the connection is gone. Called once."""
        ...


class Follower(Protocol):
    """What a connection tells somebody who follows a layout or an assignment of a scalable topic."""

    def pushed(self, command: BaseCommand) -> None: ...

    def end(self, error: MagnetarError) -> None:
        """The connection is gone. Called once."""
        ...


class ClientConnection(asyncio.Protocol):
    """Made by a `Network`; usable once `handshake` returned."""

    def __init__(self, address: str, keep_alive_interval_s: float = limits.KEEP_ALIVE_INTERVAL_S) -> None:
        self.address = address
        self._keep_alive_s = keep_alive_interval_s
        self._decoder = FrameDecoder(limits.COMMAND_BYTES_MAX + 4, limits.COMMAND_BYTES_MAX)
        self._request_ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[BaseCommand]] = {}
        self._abandoned: dict[int, Undo] = {}
        """Requests that nobody waits for any more, and how to take back what they make."""
        self._connected: asyncio.Future[BaseCommand] | None = None
        self._credentials = Credentials()
        self._version = ""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = True
        self._ping_sent = False
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._flush_scheduled = False
        self._write_paused = False
        self._waiting_for_room: list[Callable[[], None]] = []
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.layouts: dict[int, Follower] = {}
        """By session id."""
        self.assignments: dict[int, Follower] = {}
        """By consumer id."""
        self.closed = False
        self.message_bytes_max = 0
        """Largest message that the other side accepts; 0 until it has said so."""

    # ---- Life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        self._transport.set_write_buffer_limits(limits.CONNECTION_OUTPUT_HIGH_BYTES, limits.CONNECTION_OUTPUT_LOW_BYTES)

    async def handshake(self, version: str, credentials: Credentials, proxy_to: str = "") -> None:
        """Raises UnreachableError, RequestRefusedError, ConfigError."""
        self._version, self._credentials = version, credentials
        self._connected = self._loop.create_future()
        self.write(commands.frame(client_commands.connect(version, credentials.method, credentials.data(), proxy_to)))
        answer = await self._within(self._connected, "CONNECT")
        self.message_bytes_max = answer.connected.max_message_size
        self._timer = self._loop.call_later(self._keep_alive_s, self._keep_alive)

    def _keep_alive(self) -> None:
        if not self._heard and self._ping_sent:
            self.abort(UnreachableError(f"{self.address} is silent for {2 * self._keep_alive_s:.0f} s"))
            return
        self._ping_sent = not self._heard
        if self._ping_sent:
            self.write(commands.ping())
        self._heard = False
        self._timer = self._loop.call_later(self._keep_alive_s, self._keep_alive)

    def close(self) -> None:
        """Send what is buffered, then close."""
        if not self.closed and self._transport is not None:
            self._flush()
            self._transport.close()
        self._end(UnreachableError(f"the connection to {self.address} was closed"))

    def abort(self, error: MagnetarError) -> None:
        """End at once; what is unsent is dropped."""
        if self._transport is not None:
            self._transport.abort()
        self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(UnreachableError(f"the connection to {self.address} ended{f': {error}' if error else ''}"))

    def _end(self, error: MagnetarError) -> None:
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._output.clear()
        for future in [*self._answers.values(), *([self._connected] if self._connected is not None else [])]:
            if not future.done():
                future.set_exception(error)
        self._answers.clear()
        self._abandoned.clear()
        self._waiting_for_room.clear()
        followers = [*self.layouts.values(), *self.assignments.values()]
        ended: list[ProducerEnd | ConsumerEnd | Follower] = [
            *self.producers.values(),
            *self.consumers.values(),
            *followers,
        ]
        self.producers.clear()
        self.consumers.clear()
        self.layouts.clear()
        self.assignments.clear()
        for each in ended:
            each.end(error)

    # ---- Output

    @property
    def writable(self) -> bool:
        """False above the high mark; `when_writable` then tells."""
        return not self._write_paused and self._output_bytes < limits.CONNECTION_OUTPUT_HIGH_BYTES

    def when_writable(self, go_on: Callable[[], None]) -> None:
        """`go_on()` once, when there is room again; never if the connection ends."""
        self._waiting_for_room.append(go_on)

    def write(self, first: bytes, second: bytes = b"") -> None:
        """Append a frame in one or two pieces; one socket write per turn of the event loop."""
        if self.closed:
            return
        output = self._output
        output.append(first)
        if second:
            output.append(second)
        self._output_bytes += len(first) + len(second)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.closed or not self._output or self._transport is None:
            return
        data = b"".join(self._output)
        self._output.clear()
        self._output_bytes = 0
        self._transport.write(data)
        if not self._write_paused:
            self._announce_room()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._announce_room()

    def _announce_room(self) -> None:
        waiting, self._waiting_for_room = self._waiting_for_room, []
        for go_on in waiting:
            go_on()

    # ---- Requests

    def next_request_id(self) -> int:
        return next(self._request_ids)

    async def request(
        self,
        command: BaseCommand,
        request_id: int,
        timeout_s: float = REQUEST_TIMEOUT_S,
        undo: Undo | None = None,
    ) -> BaseCommand:
        """The answer. Raises UnreachableError, or RequestRefusedError for an ERROR.

        `undo`: sent as soon as what was asked for is known to exist when the caller is cancelled. Or a producer's name would be taken
        there for as long as the connection lives.
        """
        if self.closed:
            raise UnreachableError(f"the connection to {self.address} ended")
        future = self._answers[request_id] = self._loop.create_future()
        self.write(commands.frame(command))
        try:
            answer = await self._within(future, BaseCommand.Type.Name(command.type), timeout_s)
        except asyncio.CancelledError:
            if undo is not None and request_id in self._answers:
                self._abandoned[request_id] = undo
            elif undo is not None:  # answered in this turn of the loop
                self._take_back(undo)
            raise
        finally:
            self._answers.pop(request_id, None)
        if answer.type == BaseCommand.ERROR:
            raise RequestRefusedError(answer.error.error, answer.error.message)
        return answer

    def _take_back(self, undo: Undo) -> None:
        self.write(commands.frame(undo(self.next_request_id())))

    def take_messages(self) -> None:
        """Frames may be as long as an entry from now on."""
        self._decoder.frame_bytes_max = max(
            self._decoder.frame_bytes_max, self.message_bytes_max + limits.FRAME_PADDING_BYTES
        )

    async def _within(
        self, future: asyncio.Future[BaseCommand], what: str, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> BaseCommand:
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            error = UnreachableError(f"{self.address} did not answer {what} within {timeout_s:.0f} s")
            self.abort(error)
            raise error from None

    # ---- Input

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            for command_bytes, rest in self._decoder.feed(data):
                if self.closed:
                    return
                self._received(BaseCommand.FromString(command_bytes), rest)
        except (FrameError, DecodeError) as error:
            self.abort(UnreachableError(f"{self.address} does not speak Pulsar's protocol: {error}"))

    def _received(self, command: BaseCommand, rest: bytes) -> None:
        kind = command.type
        if kind == BaseCommand.MESSAGE:
            consumer = self.consumers.get(command.message.consumer_id)
            if consumer is not None:
                consumer.message(command.message, rest)
        elif kind == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            producer = self.producers.get(receipt.producer_id)
            if producer is not None:
                producer.receipt(receipt.sequence_id, receipt.message_id.ledgerId, receipt.message_id.entryId)
        elif kind == BaseCommand.PING:
            self.write(commands.pong())
        elif kind == BaseCommand.SEND_ERROR:
            self._producer_ended(
                command.send_error.producer_id,
                RequestRefusedError(command.send_error.error, command.send_error.message),
            )
        elif kind == BaseCommand.CLOSE_PRODUCER:
            self._producer_ended(
                command.close_producer.producer_id, UnreachableError("the other side closed the producer")
            )
        elif kind == BaseCommand.AUTH_CHALLENGE:
            self._answer_challenge()
        elif kind == BaseCommand.CONNECTED:
            self._greeted(command)
        elif not self._told(command):
            self._answered(command)

    def _told(self, command: BaseCommand) -> bool:
        """News for a consumer, or for who follows a scalable topic; False for anything else."""
        kind = command.type
        if kind == BaseCommand.REACHED_END_OF_TOPIC:
            consumer = self.consumers.get(command.reachedEndOfTopic.consumer_id)
            if consumer is not None:
                consumer.reached_end()
        elif kind == BaseCommand.CLOSE_CONSUMER:
            consumer = self.consumers.pop(command.close_consumer.consumer_id, None)
            if consumer is not None:
                consumer.end(UnreachableError("the other side closed the consumer"))
        elif kind == BaseCommand.SCALABLE_TOPIC_UPDATE:
            follower = self.layouts.get(command.scalableTopicUpdate.session_id)
            if follower is not None:
                follower.pushed(command)
        elif kind == BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            follower = self.assignments.get(command.scalableTopicAssignmentUpdate.consumer_id)
            if follower is not None:
                follower.pushed(command)
        else:
            return False
        return True

    def _answered(self, command: BaseCommand) -> None:
        identify = _REQUEST_ID_OF.get(command.type)
        if identify is None:
            return  # a PONG, or news that nobody here asked for
        request_id = identify(command)
        abandoned = self._abandoned.pop(request_id, None)
        if abandoned is not None:
            if command.type in _OPENED:
                self._take_back(abandoned)
            return
        if command.type == BaseCommand.ERROR and request_id not in self._answers:
            self.abort(RequestRefusedError(command.error.error, command.error.message))
            return
        if command.type == BaseCommand.PRODUCER_SUCCESS and not command.producer_success.producer_ready:
            return
        future = self._answers.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(command)

    def _greeted(self, command: BaseCommand) -> None:
        if self._connected is not None and not self._connected.done():
            self._connected.set_result(command)

    def _answer_challenge(self) -> None:
        try:
            data = self._credentials.data()
        except MagnetarError as error:
            self.abort(error)
            return
        self.write(commands.frame(client_commands.auth_response(self._version, self._credentials.method, data)))

    def _producer_ended(self, producer_id: int, error: MagnetarError) -> None:
        producer = self.producers.pop(producer_id, None)
        if producer is not None:
            producer.end(error)
