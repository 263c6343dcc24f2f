"""A consumer or a reader behind a WebSocket: entries in, JSON out, and the client's acknowledgements and permits back.

The client is sent at most as many messages as its receiver queue holds; each acknowledgement of whatever kind makes room for another,
and so does `permit` in pull mode. Entries are opened one at a time, as the client takes them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from magnetar.admin.errors import BadRequestError
from magnetar.admin.websocket import documents
from magnetar.admin.websocket.documents import EndOfTopic, Outgoing, Published, Request
from magnetar.admin.websocket.framing import FAILED, NORMAL, RESTART, WebSocket
from magnetar.admin.websocket.link import Link
from magnetar.admin.websocket.producing import CLOSED, ProducerOptions, Producing, whole
from magnetar.base.errors import MagnetarError
from magnetar.broker.auth.principal import Principal
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.naming import TopicName
from magnetar.broker.service import Broker
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.wire.pulsar import batches
from magnetar.wire.pulsar.compression import PayloadError, decompress
from magnetar.wire.pulsar.headers import metadata_bounds
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandAck,
    CommandSubscribe,
    KeySharedMode,
    MessageIdData,
    MessageMetadata,
)

QUEUE_MAX: Final = 100_000
"""The longest receiver queue, and the most that one `permit` grants."""

CHUNKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Parts of chunked messages that wait for their ends; a consumer with more is closed."""

WORD_BITS: Final = 64
REQUEST_BYTES_MAX: Final = 64 * 1024
"""A consumer's requests are short."""

Place = tuple[int, int, int]
"""Partition, ledger, entry."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The query of a consumer's or a reader's URL, in Pulsar's names."""

    type: SubscriptionType = SubscriptionType.Exclusive
    durable: bool = True
    earliest: bool = False
    queue: int = 1000
    name: str = ""
    priority_level: int = 0
    pulls: bool = False
    nack_delay_s: float = 60.0
    ack_timeout_s: float = 0.0
    redeliveries_max: int = 0
    dead_letter_topic: str = ""
    start: MessageIdData | None = None
    """Of a reader: the message before the first one."""


@dataclass(slots=True)
class _Held:
    """What the client has of an entry and has not settled."""

    left: int
    """A bit for each message of the batch; 1 for a single message."""
    batch_size: int
    since_s: float
    chunks: tuple[Place, ...] = ()
    """The other entries of a chunked message."""


@dataclass(slots=True)
class _Ready:
    """A message that waits for the client's room."""

    place: Place
    index: int
    batch_size: int
    text: str


class Consuming:
    """Implements `Handler`, for a subscription or, with a `start`, for a reader."""

    message_bytes_max = REQUEST_BYTES_MAX

    def __init__(self, broker: Broker, principal: Principal | None, host: str, options: ConsumerOptions) -> None:
        self._options = options
        self._reader = options.start is not None
        self._cap_bytes = broker.config.settings.max_message_size
        self._who = (broker, principal, host)
        self._socket: WebSocket | None = None
        self._parts: list[TopicName] = []
        self._allowed = 0 if options.pulls else options.queue
        """Messages that the client may be sent."""
        self._ready: deque[_Ready] = deque()
        self._held: dict[Place, _Held] = {}
        self._chunks: dict[tuple[int, str], list[tuple[Place, bytes]]] = {}
        self._chunked_bytes = 0
        self._dead: Producing | None = None
        self._full = False
        self._ends: set[int] = set()
        self._again: dict[asyncio.TimerHandle, None] = {}
        self._link = Link(broker, principal, host, self._told, self._ended)

    async def open(self, name: TopicName, subscription: str) -> None:
        """Raises the broker's error."""
        options = self._options
        self._parts = await self._link.parts_of(name)
        if options.redeliveries_max:
            dead = TopicName.parse(options.dead_letter_topic or f"{name}-{subscription}-DLQ")
            self._dead = Producing(*self._who, ProducerOptions())
            self._dead.answer = self._buried
            await self._dead.open(dead)
        for number, part in enumerate(self._parts):
            command, request, request_id = self._link.new_request(BaseCommand.SUBSCRIBE, "subscribe")
            request.topic, request.subscription, request.consumer_id = str(part), subscription, number
            request.subType = int(options.type)
            request.consumer_name = options.name
            request.priority_level = options.priority_level
            request.durable = options.durable
            if options.type is SubscriptionType.Key_Shared:
                request.keySharedMeta.keySharedMode = KeySharedMode.AUTO_SPLIT
            request.initialPosition = CommandSubscribe.Earliest if options.earliest else CommandSubscribe.Latest
            if options.start is not None:
                request.start_message_id.CopyFrom(options.start)
            await self._link.ask(command, request_id)

    # ---- As a WebSocket's handler

    def opened(self, socket: WebSocket) -> None:
        self._socket = socket
        self._link.on_hold(lambda held: socket.hold("broker", held))
        if self._allowed:
            self._flow(self._allowed)
        if self._options.ack_timeout_s:
            self._later(self._options.ack_timeout_s / 2, self._look_at_held)

    def text(self, text: str) -> None:
        try:
            request = msgspec.json.decode(text, type=Request)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise BadRequestError(f"Failed to de-serialize from JSON: {error}") from None
        kind = request.type or "acknowledge"
        if kind == "permit":
            self._permit(request.permit_messages)
        elif kind == "isEndOfTopic":
            self._send(documents.encoded(EndOfTopic(len(self._ends) == len(self._parts) and not self._ready)))
        elif kind == "unsubscribe":
            self._unsubscribe()
        else:
            self._settled(documents.id_of(request.message_id), again=kind == "negativeAcknowledge")

    def output_full(self, full: bool) -> None:
        self._full = full
        self._link.output_full(full)
        self._push()

    def closed(self) -> None:
        for timer in self._again:
            timer.cancel()
        self._again.clear()
        self._ready.clear()
        if self._dead is not None:
            self._dead.closed()
        self._link.close()

    def _send(self, text: str) -> None:
        if self._socket is not None:
            self._socket.send(text)

    def _end(self, code: int, reason: str) -> None:
        if self._socket is not None:
            self._socket.close(code, reason)

    def _ended(self, problem: str) -> None:
        self._end(FAILED, problem)

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        """`call` unless the WebSocket has ended by then."""

        def run() -> None:
            self._again.pop(timer, None)
            call()

        timer = asyncio.get_running_loop().call_later(delay_s, run)
        self._again[timer] = None

    # ---- What the client says

    def _permit(self, messages: int | None) -> None:
        if not self._options.pulls:
            raise NotAllowedError("permits are for consumers with pullMode=true; here each acknowledgement makes room")
        if messages is None or not 0 < messages <= QUEUE_MAX:
            raise BadRequestError(f"permitMessages must be a number from 1 to {QUEUE_MAX}")
        self._give_room(min(messages, QUEUE_MAX - self._allowed))

    def _give_room(self, messages: int) -> None:
        if messages > 0:
            self._allowed += messages
            self._flow(messages)
            self._push()

    def _flow(self, messages: int) -> None:
        """To each partition its part, rounded up: what is too much waits in `_ready`."""
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.messagePermits = -(-messages // max(1, len(self._parts)))
        for number in range(len(self._parts)):
            command.flow.consumer_id = number
            self._link.send(command)

    def _settled(self, message_id: MessageIdData, *, again: bool) -> None:
        """Acknowledged, or to come again. An id of an earlier connection is acknowledged as well, and makes no room."""
        place = (message_id.partition, message_id.ledgerId, message_id.entryId)
        number = self._number_of(message_id.partition)
        held = self._held.get(place)
        bit = 1 << max(0, message_id.batch_index)
        if held is not None and held.left & bit:
            held.left &= ~bit
            if not held.left or again:
                del self._held[place]
            if not self._options.pulls:
                self._give_room(1)
        if self._reader:
            return
        if again:
            self._later(self._options.nack_delay_s, lambda: self._redeliver(number, place))
            return
        self._acknowledge(number, place, message_id, held)
        for chunk in held.chunks if held is not None and not held.left else ():
            self._acknowledge(number, chunk, None, None)

    def _acknowledge(self, number: int, place: Place, message_id: MessageIdData | None, held: _Held | None) -> None:
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = number
        command.ack.ack_type = CommandAck.Individual
        named = command.ack.message_id.add(ledgerId=place[1], entryId=place[2])
        size = message_id.batch_size if message_id is not None else 0
        if message_id is not None and message_id.HasField("batch_index") and 0 <= message_id.batch_index < size:
            left = held.left if held is not None else ((1 << size) - 1) & ~(1 << message_id.batch_index)
            named.ack_set.extend(_words(left))
            named.batch_size = size
        self._link.send(command)

    def _redeliver(self, number: int, place: Place) -> None:
        command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        command.redeliverUnacknowledgedMessages.consumer_id = number
        command.redeliverUnacknowledgedMessages.message_ids.add(ledgerId=place[1], entryId=place[2])
        self._link.send(command)

    def _look_at_held(self) -> None:
        """What was not settled in time comes again."""
        loop, timeout_s = asyncio.get_running_loop(), self._options.ack_timeout_s
        late = [(place, held) for place, held in self._held.items() if loop.time() - held.since_s >= timeout_s]
        for place, held in late:
            del self._held[place]
            self._redeliver(self._number_of(place[0]), place)
            if not self._options.pulls:
                self._give_room(held.left.bit_count())
        self._later(timeout_s / 2, self._look_at_held)

    def _number_of(self, partition: int) -> int:
        number = max(0, partition)
        if number >= len(self._parts):
            raise BadRequestError(f"the topic has no partition {partition}")
        return number

    def _unsubscribe(self) -> None:
        if self._reader:
            raise NotAllowedError("a reader has no subscription")
        answers = []
        for number in range(len(self._parts)):
            command, request, request_id = self._link.new_request(BaseCommand.UNSUBSCRIBE, "unsubscribe")
            request.consumer_id = number
            answers.append(self._link.asked(command, request_id))

        def ended(_: object) -> None:
            problems = [str(answer.exception()) for answer in answers if answer.done() and answer.exception()]
            if problems:
                self._end(FAILED, problems[0])
            elif all(answer.done() for answer in answers):
                self._end(NORMAL, "unsubscribed")

        for answer in answers:
            answer.add_done_callback(ended)

    # ---- What the broker sends

    def _told(self, command: BaseCommand, rest: bytes) -> None:
        if command.type == BaseCommand.MESSAGE:
            delivered = command.message
            try:
                self._arrived(
                    delivered.consumer_id,
                    delivered.message_id,
                    delivered.redelivery_count,
                    list(delivered.ack_set),
                    rest,
                )
            except (PayloadError, ValueError, MagnetarError) as error:
                self._end(
                    FAILED,
                    f"message {delivered.message_id.ledgerId}:{delivered.message_id.entryId} cannot be read: {error}",
                )
        elif command.type == BaseCommand.REACHED_END_OF_TOPIC:
            self._ends.add(command.reachedEndOfTopic.consumer_id)
        elif command.type == BaseCommand.CLOSE_CONSUMER:
            self._end(RESTART, CLOSED)

    def _arrived(self, number: int, entry: MessageIdData, count: int, ack_set: list[int], rest: bytes) -> None:
        partition = self._parts[number].partition
        place = (partition, entry.ledgerId, entry.entryId)
        start, end = metadata_bounds(rest)
        metadata = MessageMetadata.FromString(rest[start:end])
        payload = rest[end:]
        whole_id = MessageIdData(ledgerId=entry.ledgerId, entryId=entry.entryId, partition=partition)
        if metadata.num_chunks_from_msg > 1:
            chunks = self._assemble(number, place, metadata, payload)
            if chunks is None:
                return
            places, payload = chunks
            text = self._text(whole_id, metadata, self._plain(metadata, payload, CHUNKED_BYTES_MAX), count)
            self._take(place, [(0, text)], 0, count, places)
        elif metadata.encryption_keys or not batches.is_batch(metadata):
            plain = payload if metadata.encryption_keys else self._plain(metadata, payload, self._cap_bytes)
            if self._is_before(place, -1):
                self._skipped(1)
                return
            self._take(place, [(0, self._text(whole_id, metadata, plain, count))], 0, count, ())
        else:
            self._take_batch(place, metadata, payload, count, _number(ack_set) if ack_set else -1)

    def _take_batch(self, place: Place, metadata: MessageMetadata, payload: bytes, count: int, left: int) -> None:
        singles = batches.unpack(metadata, payload, self._cap_bytes)
        found = []
        for index, (single, part) in enumerate(singles):
            if not left >> index & 1 or single.compacted_out or self._is_before(place, index):
                continue
            one = MessageIdData(
                ledgerId=place[1], entryId=place[2], partition=place[0], batch_index=index, batch_size=len(singles)
            )
            found.append((index, documents.encoded(documents.incoming(one, metadata, single, part, count))))
        self._skipped(len(singles) - len(found) if left < 0 else left.bit_count() - len(found))
        self._take(place, found, len(singles), count, ())

    def _take(
        self, place: Place, messages: list[tuple[int, str]], batch_size: int, count: int, chunks: tuple[Place, ...]
    ) -> None:
        """Messages of one entry that are the client's to settle; or the dead letter topic's."""
        if not messages:
            return
        left = sum(1 << index for index, _ in messages)
        self._held[place] = _Held(left, batch_size, asyncio.get_running_loop().time(), chunks)
        for index, text in messages:
            if self._dead is not None and count > self._options.redeliveries_max:
                self._bury(self._dead, text)
            else:
                self._ready.append(_Ready(place, index, batch_size, text))
        self._push()

    def _push(self) -> None:
        """Send what the client has room for."""
        if self._socket is None or self._full:
            return
        while self._ready and self._allowed > 0:
            self._allowed -= 1
            self._send(self._ready.popleft().text)

    def _text(self, message_id: MessageIdData, metadata: MessageMetadata, payload: bytes, count: int) -> str:
        return documents.encoded(documents.incoming(message_id, metadata, None, payload, count))

    def _plain(self, metadata: MessageMetadata, payload: bytes, cap_bytes: int) -> bytes:
        return decompress(metadata.compression, payload, metadata.uncompressed_size, cap_bytes)

    def _is_before(self, place: Place, index: int) -> bool:
        """True for messages up to the one after which a reader begins."""
        start = self._options.start
        if start is None or start.ledgerId >= 1 << 63 or start.ledgerId != place[1] or start.entryId != place[2]:
            return False
        return start.batch_index < 0 or index <= start.batch_index

    def _skipped(self, messages: int) -> None:
        """The broker counted them against the permits, and the client does not get them."""
        if messages > 0:
            self._flow(messages)

    def _assemble(
        self, number: int, place: Place, metadata: MessageMetadata, payload: bytes
    ) -> tuple[tuple[Place, ...], bytes] | None:
        """The whole message with the entries before its last one, once its last chunk is there."""
        key = (number, metadata.uuid)
        if metadata.chunk_id == 0:
            former = self._chunks.pop(key, [])
            self._chunked_bytes -= sum(len(part) for _, part in former)
        parts = self._chunks.setdefault(key, [])
        parts.append((place, payload))
        self._chunked_bytes += len(payload)
        if self._chunked_bytes > CHUNKED_BYTES_MAX:
            raise PayloadError(f"more than {CHUNKED_BYTES_MAX} bytes of chunks wait for their ends")
        if metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            self._skipped(1)
            return None
        del self._chunks[key]
        self._chunked_bytes -= sum(len(part) for _, part in parts)
        if len(parts) != metadata.num_chunks_from_msg:
            self._skipped(1)
            return None  # its beginning was acknowledged before: nobody can have the rest
        return tuple(each for each, _ in parts[:-1]), b"".join(part for _, part in parts)

    # ---- Dead letters

    def _bury(self, dead: Producing, text: str) -> None:
        message = msgspec.json.decode(text, type=documents.Incoming)
        properties = message.properties | {"ORIGIN_MESSAGE_ID": message.message_id, "REAL_TOPIC": str(self._parts[0])}
        dead.publish(Outgoing(message.payload, properties, message.message_id, message.key))

    def _buried(self, answer: Published) -> None:
        """Acknowledged once it is stored; what is not comes again."""
        message_id = documents.id_of(answer.context)
        self._allowed -= 0 if self._options.pulls else 1  # settling it makes room that nothing had taken
        self._settled(message_id, again=answer.result != "ok")


def _words(bits: int) -> Iterator[int]:
    """As the protocol carries a bit set: signed words of 64 bits, the lowest first."""
    while bits:
        word = bits & (1 << WORD_BITS) - 1
        yield word - (1 << WORD_BITS) if word >> (WORD_BITS - 1) else word
        bits >>= WORD_BITS


def _number(words: list[int]) -> int:
    return sum((word & (1 << WORD_BITS) - 1) << WORD_BITS * index for index, word in enumerate(words))


def consumer_options(query: Callable[[str], str]) -> ConsumerOptions:
    """From the values of a URL's query; empty where nothing is given. Raises BadRequestError."""
    kind = query("subscriptionType") or "Exclusive"
    if kind not in SubscriptionType.__members__:
        raise BadRequestError(
            f"subscriptionType must be one of {', '.join(SubscriptionType.__members__)}, not {kind[:40]!r}"
        )
    dead = whole(query, "maxRedeliverCount", 0)
    if query("deadLetterTopic") and not dead:
        raise BadRequestError("deadLetterTopic needs maxRedeliverCount")
    if dead and kind not in ("Shared", "Key_Shared"):
        raise BadRequestError("maxRedeliverCount needs subscriptionType Shared or Key_Shared")
    ack_timeout_ms = whole(query, "ackTimeoutMillis", 0)
    if 0 < ack_timeout_ms < 1000:
        raise BadRequestError("ackTimeoutMillis must be 0 or at least 1000")
    return ConsumerOptions(
        type=SubscriptionType[kind],
        durable=query("subscriptionMode") != "NonDurable",
        earliest=query("subscriptionInitialPosition") == "Earliest",
        queue=queue_of(query),
        name=query("consumerName"),
        priority_level=whole(query, "priorityLevel", 0),
        pulls=query("pullMode").lower() == "true",
        nack_delay_s=min(whole(query, "negativeAckRedeliveryDelay", 60_000), 86_400_000) / 1000,
        ack_timeout_s=min(ack_timeout_ms, 86_400_000) / 1000,
        redeliveries_max=dead,
        dead_letter_topic=query("deadLetterTopic"),
    )


def reader_options(query: Callable[[str], str]) -> ConsumerOptions:
    """As `consumer_options`, for a reader."""
    text = query("messageId") or "latest"
    nowhere = (1 << 64) - 1
    if text == "earliest":
        start = MessageIdData(ledgerId=nowhere, entryId=nowhere)
    elif text == "latest":
        start = MessageIdData(ledgerId=(1 << 63) - 1, entryId=(1 << 63) - 1)
    else:
        start = documents.id_of(text)
    name = query("readerName")
    return ConsumerOptions(
        durable=False, queue=queue_of(query), name=name, pulls=query("pullMode") == "true", start=start
    )


def queue_of(query: Callable[[str], str]) -> int:
    return max(1, min(whole(query, "receiverQueueSize", 1000), QUEUE_MAX))


def reader_subscription(name: str) -> str:
    """Nobody else's."""
    return f"reader-{name or 'ws'}-{secrets.token_hex(5)}"
