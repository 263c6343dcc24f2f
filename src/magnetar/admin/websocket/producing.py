"""A producer behind a WebSocket, or behind one REST call: JSON in, entries out, one answer for each message in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from magnetar.admin.errors import BadRequestError
from magnetar.admin.websocket import documents
from magnetar.admin.websocket.documents import Outgoing, Published
from magnetar.admin.websocket.framing import FAILED, RESTART, WebSocket
from magnetar.admin.websocket.link import Link, error_of
from magnetar.base.errors import MagnetarError
from magnetar.base.limits import BATCH_MESSAGES_MAX
from magnetar.broker.auth.principal import Principal
from magnetar.broker.naming import TopicName
from magnetar.broker.service import Broker
from magnetar.hashing.java_hash import java_string_hash
from magnetar.hashing.murmur3 import murmur3_positive
from magnetar.wire.pulsar import client_commands
from magnetar.wire.pulsar.batches import join
from magnetar.wire.pulsar.compression import compress
from magnetar.wire.pulsar.headers import with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CompressionType,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)

TEXT_EXTRA_BYTES: Final = 128 * 1024
"""Room in a JSON message beside the payload."""

CLOSED: Final = "the topic moved or was closed; connect again"


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The query of a producer's URL, in Pulsar's names."""

    name: str = ""
    initial_sequence_id: int | None = None
    compression: int = CompressionType.NONE
    batching: bool = False
    batch_messages_max: int = 1000
    batch_delay_s: float = 0.01
    hash_of: Callable[[str], int] = lambda key: java_string_hash(key) & 0x7FFFFFFF
    one_partition: bool = False


class _Lane:
    """The producer of one partition."""

    def __init__(self, number: int, partition: int, name: str, first: int) -> None:
        self.number = number
        self.partition = partition
        self.name = name
        self.next_sequence_id = first
        self.pending: dict[int, list[str | None]] = {}
        """Contexts of the messages of each entry under way."""
        self.batch: list[tuple[SingleMessageMetadata, bytes, str | None]] = []
        self.batch_bytes = 0
        self.timer: asyncio.TimerHandle | None = None


class Producing:
    """Implements `Handler`. `answer` gets one `Published` for each message."""

    def __init__(self, broker: Broker, principal: Principal | None, host: str, options: ProducerOptions) -> None:
        self._options = options
        self._payload_bytes_max = broker.config.settings.max_message_size
        self.message_bytes_max = self._payload_bytes_max * 4 // 3 + TEXT_EXTRA_BYTES
        self._now_ms = broker.connections.now_ms
        self._lanes: list[_Lane] = []
        self._turn = random.randrange(1 << 16)
        self._socket: WebSocket | None = None
        self._link = Link(broker, principal, host, self._told, self._ended)
        self.answer: Callable[[Published], None] = self._send_answer

    async def open(self, name: TopicName, parts: Sequence[TopicName] | None = None) -> None:
        """Raises the broker's error."""
        for number, part in enumerate(parts or await self._link.parts_of(name)):
            command, request, request_id = self._link.new_request(BaseCommand.PRODUCER, "producer")
            request.topic, request.producer_id = str(part), number
            if self._options.name:
                request.producer_name, request.user_provided_producer_name = self._options.name, True
            answer = (await self._link.ask(command, request_id)).producer_success
            first = self._options.initial_sequence_id
            first = answer.last_sequence_id + 1 if first is None else first + 1
            self._lanes.append(_Lane(number, part.partition, answer.producer_name, first))
        if self._options.one_partition:
            self._lanes = [self._lanes[self._turn % len(self._lanes)]]

    # ---- As a WebSocket's handler

    def opened(self, socket: WebSocket) -> None:
        self._socket = socket
        self._link.on_hold(lambda held: socket.hold("broker", held))

    def text(self, text: str) -> None:
        try:
            message = msgspec.json.decode(text, type=Outgoing)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            self._refuse(documents.NOT_JSON, f"Failed to de-serialize from JSON: {error}", None)
            return
        self.publish(message)

    def output_full(self, full: bool) -> None:
        """Nothing to do: no more input is taken meanwhile, so no more answers come."""

    def closed(self) -> None:
        for lane in self._lanes:
            self._flush(lane)
        self._link.close()

    # ---- Messages

    def publish(self, message: Outgoing) -> None:
        """Refusals are answered like receipts."""
        try:
            payload = documents.payload_of(message.payload)
        except ValueError:
            self._refuse(documents.BAD_PAYLOAD, "Invalid payload encoding: expected base64", message.context)
            return
        try:
            self._check(message, payload)
            lane = self._lane_for(message.key)
            if self._options.batching and not (message.deliver_at or message.deliver_after_ms):
                self._add(lane, message, payload)
            else:
                self._flush(lane)
                self._send_single(lane, message, payload)
        except (MagnetarError, ValueError) as error:
            self._refuse(documents.FAILED_TO_PRODUCE, str(error), message.context)

    def _check(self, message: Outgoing, payload: bytes) -> None:
        if message.encryption_param:
            raise BadRequestError(
                "messages that the client has encrypted are not taken over WebSocket: use a Pulsar client"
            )
        if len(payload) > self._payload_bytes_max:
            raise BadRequestError(f"the payload has {len(payload)} bytes, maxMessageSize is {self._payload_bytes_max}")
        numbers = (message.deliver_at, message.deliver_after_ms, message.sequence_id or 0)
        if not all(0 <= number < 2**62 for number in numbers):
            raise BadRequestError("deliverAt, deliverAfterMs and sequenceId must not be negative")

    def _lane_for(self, key: str | None) -> _Lane:
        if len(self._lanes) == 1:
            return self._lanes[0]
        if key is not None:
            return self._lanes[self._options.hash_of(key) % len(self._lanes)]
        self._turn += 1
        return self._lanes[self._turn % len(self._lanes)]

    def _number_of(self, lane: _Lane, message: Outgoing) -> int:
        """The message's sequence id: its own, or the next one."""
        number = lane.next_sequence_id if message.sequence_id is None else message.sequence_id
        lane.next_sequence_id = max(lane.next_sequence_id, number + 1)
        return number

    def _send_single(self, lane: _Lane, message: Outgoing, payload: bytes) -> None:
        metadata = self._metadata(lane, self._number_of(lane, message))
        for key, value in (message.properties or {}).items():
            metadata.properties.add(key=key, value=value)
        if message.key is not None:
            metadata.partition_key = message.key
        event_time = documents.number_of(message.event_time, "eventTime")
        if event_time:
            metadata.event_time = event_time
        if message.deliver_at or message.deliver_after_ms:
            metadata.deliver_at_time = message.deliver_at or metadata.publish_time + message.deliver_after_ms
        self._replicate(metadata, message)
        self._send(lane, metadata, payload, [message.context])

    def _replicate(self, metadata: MessageMetadata, message: Outgoing) -> None:
        if message.disable_replication:
            metadata.replicate_to.append("__local__")
        elif message.replication_clusters:
            metadata.replicate_to.extend(message.replication_clusters)

    def _metadata(self, lane: _Lane, sequence_id: int) -> MessageMetadata:
        return MessageMetadata(producer_name=lane.name, sequence_id=sequence_id, publish_time=self._now_ms())

    def _send(
        self, lane: _Lane, metadata: MessageMetadata, payload: bytes, contexts: list[str | None], highest: int = 0
    ) -> None:
        codec = self._options.compression
        if codec:
            metadata.compression = codec  # type: ignore[assignment]  # the stubs want the enum's own type
            metadata.uncompressed_size = len(payload)
            payload = compress(codec, payload)
        data = with_checksum(metadata, payload)
        number = metadata.sequence_id
        header = client_commands.send_header(lane.number, number, highest, len(contexts), False, False, len(data))
        lane.pending.setdefault(number, []).extend(contexts)
        self._link.send_bytes(header + data)

    # ---- Batches

    def _add(self, lane: _Lane, message: Outgoing, payload: bytes) -> None:
        single = SingleMessageMetadata(payload_size=len(payload))
        for key, value in (message.properties or {}).items():
            single.properties.append(KeyValue(key=key, value=value))
        if message.key is not None:
            single.partition_key = message.key
        event_time = documents.number_of(message.event_time, "eventTime")
        if event_time:
            single.event_time = event_time
        if lane.batch_bytes + len(payload) > self._payload_bytes_max // 2:
            self._flush(lane)
        single.sequence_id = self._number_of(lane, message)
        lane.batch.append((single, payload, message.context))
        lane.batch_bytes += len(payload)
        if len(lane.batch) >= self._options.batch_messages_max:
            self._flush(lane)
        elif lane.timer is None:
            lane.timer = asyncio.get_running_loop().call_later(self._options.batch_delay_s, self._flush, lane)

    def _flush(self, lane: _Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        batch, lane.batch, lane.batch_bytes = lane.batch, [], 0
        if not batch:
            return
        first, last = batch[0][0].sequence_id, batch[-1][0].sequence_id
        metadata = self._metadata(lane, first)
        metadata.num_messages_in_batch = len(batch)
        metadata.highest_sequence_id = last
        if batch[0][0].partition_key:
            metadata.partition_key = batch[0][0].partition_key
        payload = join((single, part) for single, part, _ in batch)
        self._send(lane, metadata, payload, [context for _, _, context in batch], last if len(batch) > 1 else 0)

    # ---- Answers

    def _told(self, command: BaseCommand, rest: bytes) -> None:
        if command.type == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            self._settle(receipt.producer_id, receipt.sequence_id, receipt.message_id, "")
        elif command.type == BaseCommand.SEND_ERROR:
            refused = command.send_error
            reason = str(error_of(refused.error, refused.message))
            self._settle(refused.producer_id, refused.sequence_id, None, reason)
        elif command.type == BaseCommand.CLOSE_PRODUCER:
            self._end(RESTART, CLOSED)

    def _settle(self, number: int, sequence_id: int, stored: MessageIdData | None, why: str) -> None:
        lane = next(lane for lane in self._lanes if lane.number == number)
        contexts = lane.pending.pop(sequence_id, [])
        for index, context in enumerate(contexts):
            if stored is None:
                self._refuse(documents.FAILED_TO_PRODUCE, why, context)
                continue
            message_id = MessageIdData(ledgerId=stored.ledgerId, entryId=stored.entryId, partition=lane.partition)
            if self._options.batching:
                message_id.batch_index, message_id.batch_size = index, len(contexts)
            self.answer(Published("ok", documents.id_text(message_id), context))

    def _refuse(self, code: int, why: str, context: str | None) -> None:
        self.answer(Published(documents.SEND_ERROR.format(code), None, context, why, code))

    def _send_answer(self, answer: Published) -> None:
        if self._socket is not None:
            self._socket.send(documents.encoded(answer))

    def _ended(self, problem: str) -> None:
        self._end(FAILED, problem)

    def _end(self, code: int, reason: str) -> None:
        """What has no receipt has failed for all that is known."""
        for lane in self._lanes:
            pending, lane.pending = lane.pending, {}
            for context in (context for contexts in pending.values() for context in contexts):
                self._refuse(documents.FAILED_TO_PRODUCE, reason, context)
            for _, _, context in lane.batch:
                self._refuse(documents.FAILED_TO_PRODUCE, reason, context)
            lane.batch.clear()
        if self._socket is not None:
            self._socket.close(code, reason)


def options_of(query: Callable[[str], str]) -> ProducerOptions:
    """From the values of a URL's query; empty where nothing is given. Raises BadRequestError."""
    compression = query("compressionType").upper() or "NONE"
    names = CompressionType.keys()
    if compression not in names:
        raise BadRequestError(f"compressionType must be one of {', '.join(names)}, not {compression[:40]!r}")
    scheme = query("hashingScheme") or "JavaStringHash"
    if scheme not in _HASHES:
        raise BadRequestError(f"hashingScheme must be one of {', '.join(_HASHES)}, not {scheme[:40]!r}")
    mode = query("messageRoutingMode") or "RoundRobinPartition"
    if mode not in ("RoundRobinPartition", "SinglePartition"):
        raise BadRequestError(f"messageRoutingMode must be RoundRobinPartition or SinglePartition, not {mode[:40]!r}")
    if query("encryptionKeys"):
        raise BadRequestError("encryptionKeys: this server keeps no keys; encrypt with a Pulsar client")
    initial = whole(query, "initialSequenceId", -1, -1)
    return ProducerOptions(
        name=query("producerName"),
        initial_sequence_id=initial if query("initialSequenceId") else None,
        compression=CompressionType.Value(compression),
        batching=query("batchingEnabled").lower() == "true",
        batch_messages_max=min(max(whole(query, "batchingMaxMessages", 1000), 1), BATCH_MESSAGES_MAX),
        batch_delay_s=min(whole(query, "batchingMaxPublishDelay", 10), 60_000) / 1000,
        hash_of=_HASHES[scheme],
        one_partition=mode == "SinglePartition",
    )


_HASHES: dict[str, Callable[[str], int]] = {
    "JavaStringHash": lambda key: java_string_hash(key) & 0x7FFFFFFF,
    "Murmur3_32Hash": murmur3_positive,
}


def whole(query: Callable[[str], str], name: str, default: int, least: int = 0) -> int:
    """A whole number of the query. Raises BadRequestError."""
    text: Any = query(name)
    if not text:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or int(text) < least:
        raise BadRequestError(f"{name} must be a whole number from {least} on, not {text[:40]!r}")
    return int(text)
