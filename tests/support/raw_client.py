"""A client made of raw frames: what the official Python client cannot say, and bytes that no client would send.

Blocking, one socket, no threads. Commands are built with the generated protobuf classes; frames are cut by hand, so that the
server's own codec is not its own judge.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from types import TracebackType

import google_crc32c

from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandAck,
    CommandSubscribe,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)
from tests.support.answers import checked

Kind = BaseCommand.Type
NO_REQUEST_ID = 2**64 - 1
NO_POSITION = 2**64 - 1
"""Ledger and entry id of a receipt for what was not stored."""


class ConnectionEnded(AssertionError):
    """The server closed the connection."""


class RawConnection:
    """`with RawConnection(port) as connection:`; CONNECT is done unless `handshake` is False."""

    def __init__(
        self, port: int, *, handshake: bool = True, timeout_s: float = 30.0, version: str = "raw", token: str = ""
    ) -> None:
        self.timeout_s = timeout_s
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._waiting: deque[tuple[BaseCommand, bytes]] = deque()
        self._request_id = 0
        if handshake:
            connect = BaseCommand(type=BaseCommand.CONNECT)
            connect.connect.client_version = version
            connect.connect.protocol_version = 20
            if token:
                connect.connect.auth_method_name = "token"
                connect.connect.auth_data = token.encode()
            self.send(connect)
            self.connected = self.expect(BaseCommand.CONNECTED)[0].connected

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # ---- Frames

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, command: BaseCommand, rest: bytes = b"") -> None:
        self.socket.sendall(frame(command, rest))

    def receive(self, timeout_s: float | None = None) -> tuple[BaseCommand, bytes]:
        """The next frame; PINGs are answered on the way. Raises ConnectionEnded, TimeoutError."""
        if self._waiting:
            return self._waiting.popleft()
        return self._read(timeout_s)

    def _read(self, timeout_s: float | None) -> tuple[BaseCommand, bytes]:
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while True:
            size = struct.unpack(">I", self._exactly(4, deadline))[0]
            body = self._exactly(size, deadline)
            command_size = struct.unpack_from(">I", body)[0]
            command = checked(BaseCommand.FromString(body[4 : 4 + command_size]))
            if command.type != BaseCommand.PING:
                return command, body[4 + command_size :]
            pong = BaseCommand(type=BaseCommand.PONG)
            pong.pong.SetInParent()
            self.send(pong)

    def _exactly(self, size: int, deadline: float) -> bytes:
        """Bytes stay in the buffer when the time is up: the next call goes on from there."""
        while len(self._buffer) < size:
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError as error:
                raise ConnectionEnded("reset") from error
            if not data:
                raise ConnectionEnded("closed")
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def expect(self, *kinds: int, timeout_s: float | None = None) -> tuple[BaseCommand, bytes]:
        """The next frame of one of these types; others are kept for later."""
        for index, (command, rest) in enumerate(self._waiting):
            if command.type in kinds:
                del self._waiting[index]
                return command, rest
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while True:
            command, rest = self._read(max(0.0, deadline - time.monotonic()))
            if command.type in kinds:
                return command, rest
            self._waiting.append((command, rest))

    def silent(self, *kinds: int, for_s: float) -> bool:
        """True when no frame of these types arrives for a while."""
        try:
            self.expect(*kinds, timeout_s=for_s)
        except TimeoutError:
            return True
        return False

    def wait_closed(self, timeout_s: float | None = None) -> list[BaseCommand]:
        """What still comes until the server closes the connection."""
        seen = [command for command, _ in self._waiting]
        self._waiting.clear()
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while True:
            try:
                seen.append(self._read(max(0.001, deadline - time.monotonic()))[0])
            except ConnectionEnded:
                return seen

    def next_request_id(self) -> int:
        self._request_id += 1
        return self._request_id

    # ---- Producing

    def producer(self, topic: str, producer_id: int = 1, **fields: object) -> BaseCommand:
        """PRODUCER; the answer, PRODUCER_SUCCESS or ERROR."""
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = producer_id
        command.producer.request_id = self.next_request_id()
        for name, value in fields.items():
            setattr(command.producer, name, value)
        self.send(command)
        return self.expect(BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR)[0]

    def publish(self, data: bytes, *, producer_id: int = 1, sequence_id: int = 0, **fields: object) -> None:
        """SEND headers and payload as they are; the receipt is not waited for."""
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id = producer_id
        command.send.sequence_id = sequence_id
        command.send.num_messages = 1
        for name, value in fields.items():
            setattr(command.send, name, value)
        self.send(command, data)

    def receipt(self) -> BaseCommand:
        """The next SEND_RECEIPT or SEND_ERROR."""
        return self.expect(BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)[0]

    # ---- Consuming

    def subscribe(
        self,
        topic: str,
        subscription: str,
        kind: int = CommandSubscribe.Shared,
        *,
        consumer_id: int = 1,
        permits: int = 1000,
        earliest: bool = True,
        **fields: object,
    ) -> BaseCommand:
        """SUBSCRIBE and, when it succeeds, FLOW; the answer, SUCCESS or ERROR."""
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic = topic
        subscribe.subscription = subscription
        subscribe.subType = kind  # type: ignore[assignment]  # the stubs want the enum's own type
        subscribe.consumer_id = consumer_id
        subscribe.request_id = self.next_request_id()
        subscribe.initialPosition = CommandSubscribe.Earliest if earliest else CommandSubscribe.Latest
        for name, value in fields.items():
            setattr(subscribe, name, value)
        self.send(command)
        answer = self.expect(BaseCommand.SUCCESS, BaseCommand.ERROR)[0]
        if answer.type == BaseCommand.SUCCESS and permits:
            self.flow(permits, consumer_id)
        return answer

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = consumer_id
        command.flow.messagePermits = permits
        self.send(command)

    def message(self, timeout_s: float | None = None) -> tuple[BaseCommand, bytes]:
        """The next MESSAGE and its headers and payload."""
        return self.expect(BaseCommand.MESSAGE, timeout_s=timeout_s)

    def ack(
        self,
        *ids: MessageIdData,
        consumer_id: int = 1,
        cumulative: bool = False,
        receipt: bool = True,
        ack_sets: list[list[int]] | None = None,
    ) -> BaseCommand | None:
        """ACK; the ACK_RESPONSE when a receipt is asked for. `ack_sets`: words for each id, bit set = not acknowledged."""
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = consumer_id
        command.ack.ack_type = CommandAck.Cumulative if cumulative else CommandAck.Individual
        for index, message_id in enumerate(ids):
            added = command.ack.message_id.add()
            added.ledgerId = message_id.ledgerId
            added.entryId = message_id.entryId
            if ack_sets is not None:
                added.ack_set.extend(ack_sets[index])
        if receipt:
            command.ack.request_id = self.next_request_id()
        self.send(command)
        return self.expect(BaseCommand.ACK_RESPONSE)[0] if receipt else None

    def redeliver(self, *ids: MessageIdData, consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        command.redeliverUnacknowledgedMessages.consumer_id = consumer_id
        for message_id in ids:
            added = command.redeliverUnacknowledgedMessages.message_ids.add()
            added.ledgerId = message_id.ledgerId
            added.entryId = message_id.entryId
        self.send(command)

    def close_consumer(self, consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer_id
        command.close_consumer.request_id = self.next_request_id()
        self.send(command)
        self.expect(BaseCommand.SUCCESS)

    def consumer_stats(self, consumer_id: int = 1) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.CONSUMER_STATS)
        command.consumerStats.consumer_id = consumer_id
        command.consumerStats.request_id = self.next_request_id()
        self.send(command)
        return self.expect(BaseCommand.CONSUMER_STATS_RESPONSE)[0]

    def partitions(self, topic: str, *, create: bool = False) -> BaseCommand:
        """PARTITIONED_METADATA and its response."""
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        command.partitionMetadata.topic = topic
        command.partitionMetadata.request_id = self.next_request_id()
        command.partitionMetadata.metadata_auto_creation_enabled = create
        self.send(command)
        return self.expect(BaseCommand.PARTITIONED_METADATA_RESPONSE)[0]

    def lookup(self, topic: str) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic
        command.lookupTopic.request_id = self.next_request_id()
        self.send(command)
        return self.expect(BaseCommand.LOOKUP_RESPONSE)[0]


def frame(command: BaseCommand, rest: bytes = b"") -> bytes:
    """One frame."""
    serialized = command.SerializeToString()
    return struct.pack(">II", len(serialized) + 4 + len(rest), len(serialized)) + serialized + rest


def message(payload: bytes, *, sequence_id: int = 0, producer_name: str = "raw", **fields: object) -> bytes:
    """Headers and payload of SEND, with a valid checksum. `fields` are of MessageMetadata."""
    metadata = MessageMetadata(producer_name=producer_name, sequence_id=sequence_id, publish_time=now_ms())
    for name, value in fields.items():
        setattr(metadata, name, value)
    serialized = metadata.SerializeToString()
    body = struct.pack(">I", len(serialized)) + serialized + payload
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(body)) + body


def batch(payloads: list[bytes]) -> bytes:
    """The payload of a batch: to be sent with `num_messages_in_batch`."""
    parts = []
    for payload in payloads:
        single = SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        parts.append(struct.pack(">I", len(single)) + single + payload)
    return b"".join(parts)


def split(data: bytes) -> tuple[MessageMetadata, bytes]:
    """Metadata and payload of a MESSAGE; checks the checksum."""
    assert data[:2] == b"\x0e\x01"
    body = data[6:]
    assert google_crc32c.value(body) == struct.unpack_from(">I", data, 2)[0]
    size = struct.unpack_from(">I", body)[0]
    return MessageMetadata.FromString(body[4 : 4 + size]), body[4 + size :]


def now_ms() -> int:
    return int(time.time() * 1000)


def send_command(sequence_id: int, producer_id: int = 1) -> BaseCommand:
    """SEND of one message."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = producer_id
    command.send.sequence_id = sequence_id
    command.send.num_messages = 1
    return command
