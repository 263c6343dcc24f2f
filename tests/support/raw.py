"""A tiny client that speaks frames over a plain socket, for everything that no well-behaved client would say."""

from __future__ import annotations

import itertools
import socket
import time
from typing import Any

from magnetar.wire.pulsar.frames import FrameDecoder, encode_frame
from magnetar.wire.pulsar.headers import with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandAck,
    CommandPing,
    CommandPong,
    CommandSubscribe,
    MessageMetadata,
)
from tests.support.answers import checked

ANSWER_TIMEOUT_S = 30.0
_NO_LIMIT = 2**31 - 1

Received = tuple[BaseCommand, bytes]


class ClosedByServer(Exception):
    """The server closed (or reset) the connection."""


class RawClient:
    """`connect()` shakes hands; before it the connection is a bare socket. PINGs are answered while waiting, unless `silent`."""

    def __init__(self, port: int, *, receive_buffer_bytes: int = 0, silent: bool = False) -> None:
        self._socket = socket.socket()
        if receive_buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder(_NO_LIMIT, _NO_LIMIT)
        self._received: list[Received] = []
        self._request_ids = itertools.count(1)
        self._silent = silent

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def half_close(self) -> None:
        """No more bytes from here; the server may still answer."""
        self._socket.shutdown(socket.SHUT_WR)

    # ---- Bytes and frames

    def send_bytes(self, data: bytes, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """All of it. TimeoutError when the server takes no more; ClosedByServer when it is gone."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise ClosedByServer from None

    def send_some(self, data: bytes, timeout_s: float) -> int:
        """As much as the server takes before it stops reading for `timeout_s`; the number of bytes."""
        self._socket.settimeout(timeout_s)
        sent = 0
        view = memoryview(data)
        while sent < len(data):
            try:
                sent += self._socket.send(view[sent : sent + 1_048_576])
            except TimeoutError:
                break
            except (BrokenPipeError, ConnectionResetError):
                raise ClosedByServer from None
        return sent

    def send(self, command: BaseCommand, rest: bytes = b"") -> None:
        self.send_bytes(encode_frame(command.SerializeToString(), rest))

    def receive(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Received:
        """The next frame. TimeoutError, ClosedByServer."""
        deadline = time.monotonic() + timeout_s
        while True:
            while not self._received:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    data = self._socket.recv(1 << 20)
                except ConnectionResetError:
                    raise ClosedByServer from None
                if not data:
                    raise ClosedByServer
                for command_bytes, rest in self._decoder.feed(data):
                    self._received.append((checked(BaseCommand.FromString(command_bytes)), rest))
            command, rest = self._received.pop(0)
            if command.type == BaseCommand.PING and not self._silent:
                self.send(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))
                continue
            return command, rest

    def expect(self, kind: int, timeout_s: float = ANSWER_TIMEOUT_S) -> BaseCommand:
        """The next frame, which must be of this type."""
        command, _ = self.receive(timeout_s)
        assert command.type == kind, command
        return command

    def until(self, kind: int, timeout_s: float = ANSWER_TIMEOUT_S) -> BaseCommand:
        """The next frame of this type; others are passed over."""
        deadline = time.monotonic() + timeout_s
        while True:
            command, _ = self.receive(max(0.001, deadline - time.monotonic()))
            if command.type == kind:
                return command

    def closed_within(self, timeout_s: float = ANSWER_TIMEOUT_S) -> list[BaseCommand]:
        """What the server says before it closes. Fails when it does not."""
        deadline = time.monotonic() + timeout_s
        said: list[BaseCommand] = []
        try:
            while True:
                said.append(self.receive(max(0.001, deadline - time.monotonic()))[0])
        except ClosedByServer:
            return said
        except TimeoutError:
            raise AssertionError(f"still open after {timeout_s} s; the server said {said}") from None

    def answer_to(self, request_id: int, timeout_s: float = ANSWER_TIMEOUT_S) -> BaseCommand:
        """The answer to a request. What comes before it, such as receipts of messages that were under way, is kept for `receive`."""
        deadline = time.monotonic() + timeout_s
        before: list[Received] = []
        while True:
            command, rest = self.receive(max(0.001, deadline - time.monotonic()))
            if _answers(command) == request_id:
                self._received[:0] = before
                return command
            before.append((command, rest))

    # ---- What clients do

    def connect(self, protocol_version: int = 21, **fields: Any) -> BaseCommand:
        self.send(connect_command(protocol_version, **fields))
        return self.expect(BaseCommand.CONNECTED)

    def ping(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.send(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
        self.until(BaseCommand.PONG, timeout_s)

    def answer_ping(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Wait until the server asks for a sign of life, and give it."""
        silent, self._silent = self._silent, True
        try:
            self.until(BaseCommand.PING, timeout_s)
        finally:
            self._silent = silent
        self.send(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))

    def request_id(self) -> int:
        return next(self._request_ids)

    def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> BaseCommand:
        """Register a producer: PRODUCER_SUCCESS or the ERROR."""
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = producer_id
        command.producer.request_id = self.request_id()
        _fill(command.producer, fields)
        self.send(command)
        return self.answer_to(command.producer.request_id)

    def subscribe(
        self, topic: str, subscription: str = "sub", consumer_id: int = 1, kind: str = "Shared", **fields: Any
    ) -> BaseCommand:
        """Subscribe from the earliest message on: SUCCESS or the ERROR."""
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic = topic
        request.subscription = subscription
        request.subType = CommandSubscribe.SubType.Value(kind)
        request.consumer_id = consumer_id
        request.request_id = self.request_id()
        request.initialPosition = CommandSubscribe.Earliest
        _fill(request, fields)
        self.send(command)
        answer = self.answer_to(request.request_id)
        self._received = [each for each in self._received if each[0].type != BaseCommand.ACTIVE_CONSUMER_CHANGE]
        return answer

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = consumer_id
        command.flow.messagePermits = permits
        self.send(command)

    def publish(self, payload: bytes, sequence_id: int = 0, producer_id: int = 1, **metadata: Any) -> BaseCommand:
        """SEND one message and wait: SEND_RECEIPT or SEND_ERROR. What consumers of this connection are told meanwhile is kept."""
        self.send_bytes(send_frame(payload, sequence_id, producer_id, **metadata))
        before: list[Received] = []
        while (received := self.receive())[0].type in (BaseCommand.MESSAGE, BaseCommand.ACTIVE_CONSUMER_CHANGE):
            before.append(received)
        self._received[:0] = before
        return received[0]

    def message(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Received:
        """The next MESSAGE with headers and payload."""
        deadline = time.monotonic() + timeout_s
        while True:
            command, rest = self.receive(max(0.001, deadline - time.monotonic()))
            if command.type == BaseCommand.MESSAGE:
                return command, rest

    def messages(self, count: int) -> list[Received]:
        """Up to `count`; fewer when nothing came for a while, in which the server has answered several times."""
        found: list[Received] = []
        quiet = 0
        while len(found) < count and quiet < 3:
            self.send(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
            before = len(found)
            while (received := self.receive())[0].type != BaseCommand.PONG:
                if received[0].type == BaseCommand.MESSAGE:
                    found.append(received)
            try:
                while len(found) < count:
                    found.append(self.message(0.1))
            except TimeoutError:
                quiet = 0 if len(found) > before else quiet + 1
        return found

    def no_message(self, for_s: float = 0.3) -> None:
        """Nothing is delivered for a while."""
        try:
            command, _ = self.message(for_s)
        except TimeoutError:
            return
        raise AssertionError(f"unexpected {command}")

    def ack(
        self,
        ids: list[tuple[int, int]],
        *,
        cumulative: bool = False,
        receipt: bool = True,
        consumer_id: int = 1,
    ) -> BaseCommand | None:
        """ACK; with `receipt` waits for the ACK_RESPONSE and returns it."""
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = consumer_id
        command.ack.ack_type = CommandAck.Cumulative if cumulative else CommandAck.Individual
        for ledger_id, entry_id in ids:
            command.ack.message_id.add(ledgerId=ledger_id % 2**64, entryId=entry_id % 2**64)
        if receipt:
            command.ack.request_id = self.request_id()
        self.send(command)
        return self.until(BaseCommand.ACK_RESPONSE) if receipt else None


def _answers(command: BaseCommand) -> int | None:
    """The number of the request that a frame answers."""
    for _, body in command.ListFields()[1:]:
        if "request_id" in body.DESCRIPTOR.fields_by_name and body.HasField("request_id"):
            number: int = body.request_id
            return number
    return None


def connect_command(protocol_version: int = 21, **fields: Any) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "raw-test-client"
    command.connect.protocol_version = protocol_version
    _fill(command.connect, fields)
    return command


def send_command(sequence_id: int, producer_id: int = 1, num_messages: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = producer_id
    command.send.sequence_id = sequence_id
    command.send.num_messages = num_messages
    return command


def headers_and_payload(payload: bytes, sequence_id: int = 0, **metadata: Any) -> bytes:
    """What follows the command of a SEND frame, checksum included."""
    fields = MessageMetadata(producer_name="raw", sequence_id=sequence_id, publish_time=1_700_000_000_000)
    _fill(fields, metadata)
    return with_checksum(fields, payload)


def send_frame(payload: bytes, sequence_id: int = 0, producer_id: int = 1, **metadata: Any) -> bytes:
    command = send_command(sequence_id, producer_id)
    return encode_frame(command.SerializeToString(), headers_and_payload(payload, sequence_id, **metadata))


def _fill(target: Any, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        setattr(target, name, value)
