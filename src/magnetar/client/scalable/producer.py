"""A producer of a scalable topic: each message goes to the segment of its key, also while segments split and merge.

A segment that was sealed is left in order: what it has not confirmed goes, in the order in which it was sent, to the segments that follow
it, before anything newer of its range does. A message may then be stored twice, as after any lost connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from magnetar.base.backoff import Backoff
from magnetar.base.errors import ClientError, InvalidArgumentError, MagnetarError
from magnetar.client.connection import ClientConnection
from magnetar.client.errors import RequestRefusedError, UnreachableError
from magnetar.client.scalable.attachment import CLOSE_TIMEOUT_S, RETRY_FIRST_S, is_final
from magnetar.client.scalable.context import ClientContext
from magnetar.client.scalable.errors import SendTimeoutError
from magnetar.client.scalable.following import LayoutFollower
from magnetar.client.scalable.layout import RING_MASK, Layout, Segment, hash_of
from magnetar.client.scalable.messages import MessageId
from magnetar.wire.pulsar import batches, client_commands, commands, compression, headers
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata, ServerError, SingleMessageMetadata

logger = logging.getLogger(__name__)

BATCH_MESSAGES_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 128 * 1024

RETRY_LONGEST_S: Final = 5.0
"""Between two attempts to open a segment's producer. Shorter than a consumer's: messages have a time-out."""

SCAN_INTERVAL_S: Final = 0.25
"""Between two looks for messages whose time is over."""

_PLACE_KEEPERS: Final = (
    ServerError.TopicTerminatedError,
    ServerError.NotAllowedError,
    ServerError.ProducerBlockedQuotaExceededException,
)


@dataclass(slots=True, eq=False)
class Pending:
    """A message on its way."""

    value: bytes | None
    key: str | None
    properties: Mapping[str, str]
    event_time_ms: int
    key_hash: int
    deadline_s: float
    done: asyncio.Future[MessageId] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        return len(self.value or b"")


@dataclass(slots=True)
class Entry:
    """What was sent as one: a message, or a batch."""

    messages: list[Pending]
    sequence_id: int
    data: bytes


class SegmentProducer:
    """The messages of one segment, in order. Opens its producer when the first one comes, and again after each lost connection."""

    def __init__(self, owner: Producer, segment: Segment) -> None:
        self.segment = segment
        self.waiting: deque[Pending] = deque()
        self.sent: deque[Entry] = deque()
        self.retiring = False
        """Its segment is sealed: nothing is sent any more, and what it holds moves on when the server has said its last word."""
        self.left = False
        """And it has said it."""
        self._owner = owner
        self._id = owner.context.new_id()
        self._sequence_ids = itertools.count()
        self._connection: ClientConnection | None = None
        self._name = ""
        self._lost: asyncio.Future[MagnetarError] | None = None
        self._flushing = False
        self._task: asyncio.Task[None] | None = None

    def add(self, message: Pending) -> None:
        self.waiting.append(message)
        if self.retiring:
            return
        if self._task is None:
            self._task = self._owner.context.spawn(self._run(), f"produce to {self.segment.topic}")
        elif self._connection is not None and not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    # ---- Life

    async def _run(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, self._owner.context.rng)
        while not self.retiring:
            try:
                await self._open()
                backoff.reset()
                assert self._lost is not None
                error = await self._lost
            except MagnetarError as refused:
                error = refused
            self._connection = None
            if self._owner.closed:
                return
            if _is_terminated(error):
                self._owner.sealed(self)
                return
            if is_final(error):
                self.fail(error)
                self._task = None  # the next message tries again
                return
            logger.info("producer of %s is not connected, trying again: %s", self.segment.topic, error)
            await asyncio.sleep(backoff.next_s())

    async def _open(self) -> None:
        topic, name = self.segment.topic, self._owner.name
        connection = await self._owner.context.remote.broker_of(topic)
        request_id = connection.next_request_id()
        wanted = f"{name}-seg-{self.segment.id}" if name else ""
        managed = {client_commands.MANAGED_METADATA: "true"} if self.segment.classic else {}
        command = client_commands.producer(topic, self._id, request_id, wanted, {**self._owner.properties, **managed})
        self._lost = asyncio.get_running_loop().create_future()
        connection.producers[self._id] = self
        try:
            undo = partial(client_commands.close_producer, self._id)
            answer = await connection.request(command, request_id, undo=undo)
        except BaseException:
            connection.producers.pop(self._id, None)
            raise
        self._name = answer.producer_success.producer_name
        if not self.sent and wanted:
            known = answer.producer_success.last_sequence_id
            self._sequence_ids = itertools.count(max(known + 1, next(self._sequence_ids)))
        self._connection = connection
        self.sent = deque(entry for entry in self.sent if any(not each.done.done() for each in entry.messages))
        for entry in self.sent:
            self._write(entry)
        self._flush()

    async def leave(self) -> None:
        """The server confirms what it stored, then closes the producer."""
        connection, self._connection = self._connection, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if connection is None or connection.closed:
            return
        request_id = connection.next_request_id()
        try:
            command = client_commands.close_producer(self._id, request_id)
            await connection.request(command, request_id, CLOSE_TIMEOUT_S)
        except ClientError as error:
            logger.debug("close of a producer of %s failed: %s", self.segment.topic, error)
        connection.producers.pop(self._id, None)

    # ---- Sending

    def _flush(self) -> None:
        self._flushing = False
        connection = self._connection
        if connection is None:
            return
        while self.waiting:
            if not connection.writable:
                self._flushing = True
                connection.when_writable(self._flush)
                return
            entry = self._next_entry()
            if 0 < connection.message_bytes_max < len(entry.data):
                self._owner.settle(entry.messages, _too_large(entry, connection.message_bytes_max))
                continue
            self.sent.append(entry)
            self._write(entry)

    def _write(self, entry: Entry) -> None:
        assert self._connection is not None
        count = len(entry.messages)
        highest = entry.sequence_id + count - 1 if count > 1 else 0
        header = client_commands.send_header(
            self._id, entry.sequence_id, highest, count, is_chunk=False, marker=False, data_bytes=len(entry.data)
        )
        self._connection.write(header, entry.data)

    def _next_entry(self) -> Entry:
        """As many of those that wait as one entry may hold: of one bucket, if the segment has several. In a partition of a classic topic
        of one key, by which Key_Shared consumers of older clients get the entry."""
        first = self.waiting.popleft()
        messages, size_bytes = [first], first.size_bytes
        bucket = self.segment.bucket(first.key_hash)
        classic = self.segment.classic
        while (
            self._owner.batching
            and self.waiting
            and len(messages) < BATCH_MESSAGES_MAX
            and size_bytes + self.waiting[0].size_bytes <= BATCH_BYTES_MAX
            and self.segment.bucket(self.waiting[0].key_hash) == bucket
            and (not classic or self.waiting[0].key == first.key)
        ):
            messages.append(self.waiting.popleft())
            size_bytes += messages[-1].size_bytes
        sequence_id = next(self._sequence_ids)
        for _ in messages[1:]:
            next(self._sequence_ids)
        return Entry(messages, sequence_id, self._owner.encode(messages, self._name, sequence_id))

    # ---- What the connection says

    def receipt(self, sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """They come in order. One that is not the oldest's is of an entry that was confirmed before the connection was lost."""
        if not self.sent or sequence_id < self.sent[0].sequence_id:
            return
        if sequence_id > self.sent[0].sequence_id:
            self.end(UnreachableError(f"{self.segment.topic}: a receipt is missing"))
            return
        entry = self.sent.popleft()
        for index, message in enumerate(entry.messages):
            found = MessageId(self.segment.id, ledger_id, entry_id, index if len(entry.messages) > 1 else -1)
            self._owner.confirmed(message, found)

    def end(self, error: MagnetarError) -> None:
        """An entry that the server will never take fails alone; the others are sent again."""
        connection = self._connection
        if isinstance(error, RequestRefusedError) and connection is not None and not connection.closed:
            if self.sent and error.code in _PLACE_KEEPERS and not _is_terminated(error):
                self._owner.settle(self.sent.popleft().messages, error)
                error = UnreachableError(str(error))
            connection.write(commands.frame(client_commands.close_producer(self._id, connection.next_request_id())))
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(error)

    # ---- For the owner

    def messages(self) -> list[Pending]:
        """Everything unconfirmed, oldest first; they are the caller's now."""
        found = [message for entry in self.sent for message in entry.messages] + list(self.waiting)
        self.sent.clear()
        self.waiting.clear()
        return [each for each in found if not each.done.done()]

    def fail(self, error: MagnetarError) -> None:
        self._owner.settle(self.messages(), error)

    def expire(self, now_s: float) -> None:
        """Those that wait and whose time is over fail. One that was sent fails with all behind it in its entry, and stays in the
        order of receipts."""
        if not self.sent and not self.waiting:
            return
        late = [each for entry in self.sent for each in entry.messages if each.deadline_s <= now_s]
        while self.waiting and self.waiting[0].deadline_s <= now_s:
            late.append(self.waiting.popleft())
        if late:
            self._owner.settle(late, SendTimeoutError(f"{self.segment.topic} did not confirm the message in time"))


class Producer:
    """Made by `Client.producer`. Messages with a key go to the key's segment, others to one segment after the other."""

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        *,
        name: str = "",
        properties: Mapping[str, str] | None = None,
        batching: bool = True,
        codec: int = 0,
        send_timeout_s: float = 30.0,
        pending_max: int = 10_000,
        low_bits: bool = False,
    ) -> None:
        self.context = context
        self.name = name
        self.properties = dict(properties or {})
        self.batching = batching
        self.closed = False
        self._codec = codec
        self._timeout_s = send_timeout_s
        self._low_bits = low_bits
        self._room = asyncio.Semaphore(pending_max)
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._round_robin = itertools.count(context.rng.randrange(1 << 16))
        self._layout: Layout | None = None
        self._segments: dict[int, SegmentProducer] = {}
        self._retiring: dict[int, SegmentProducer] = {}
        self._homeless: list[Pending] = []
        """Of sealed segments, until a layout says what follows them."""
        self._failure: MagnetarError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._follower = LayoutFollower(context, topic, self._changed, self._failed)
        self._timer = asyncio.get_running_loop().call_later(SCAN_INTERVAL_S, self._scan)

    async def opened(self) -> Producer:
        """Raises ClientError when the topic has no layout."""
        await self._follower.opened()
        return self

    async def send(
        self,
        value: bytes | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
    ) -> MessageId:
        """Returns when the message is stored. Raises SendTimeoutError, or what the server refused it with.

        Calls that run at the same time are sent together. It waits while `pending_max` messages are on their way.
        """
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidArgumentError(f"a message's value is bytes or None, not {type(value).__name__}; encode it")
        await self._room.acquire()
        try:
            self._check_open()
            message = Pending(
                None if value is None else bytes(value),
                key,
                dict(properties or {}),
                event_time_ms,
                hash_of(key) if key is not None else 0,
                self.context.clock.monotonic_s() + self._timeout_s,
                asyncio.get_running_loop().create_future(),
            )
            self._pending += 1
            self._idle.clear()
            self._route(message)
            try:
                return await message.done
            finally:
                self._pending -= 1
                if not self._pending:
                    self._idle.set()
        finally:
            self._room.release()

    async def flush(self) -> None:
        """Returns when all messages that were given are stored, or have failed."""
        await self._idle.wait()

    async def close(self) -> None:
        """Waits for what was given, then closes."""
        if self.closed:
            return
        await self.flush()
        self.closed = True
        self._timer.cancel()
        await self._follower.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.leave() for each in [*self._segments.values(), *self._retiring.values()]))

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.closed:
            raise UnreachableError(f"the producer of {self._follower.topic} is closed")

    # ---- Routing

    def _route(self, message: Pending) -> None:
        layout = self._layout
        assert layout is not None, "a producer is given to the application when it has a layout"
        for leaving in self._retiring.values():
            if message.key is not None and self._covers(leaving.segment, message.key_hash):
                leaving.add(message)
                return
        try:
            segment = self._segment_of(layout, message)
        except LookupError:
            self._homeless.append(message)
            return
        found = self._segments.get(segment.id)
        if found is None:
            found = self._segments[segment.id] = SegmentProducer(self, segment)
        found.add(message)

    def _segment_of(self, layout: Layout, message: Pending) -> Segment:
        if message.key is not None:
            return layout.at(message.key_hash, low_bits=self._low_bits)
        active = layout.active
        if not active:
            raise LookupError(layout.topic)
        return active[next(self._round_robin) % len(active)]

    def _covers(self, segment: Segment, key_hash: int) -> bool:
        place = key_hash & RING_MASK if self._low_bits else key_hash >> 16
        return not segment.classic and segment.start <= place <= segment.end

    def _changed(self, layout: Layout) -> None:
        if self._layout is not None and layout.epoch < self._layout.epoch and not self._layout.classic:
            return
        self._layout = layout
        for number in list(self._segments):
            known = layout.segments.get(number)
            if known is None or not known.active:
                self._retire(self._segments[number])
            else:
                self._segments[number].segment = known
        for leaving in list(self._retiring.values()):
            if leaving.left and not self._is_active(leaving.segment.id):
                self._release(leaving)
        homeless, self._homeless = self._homeless, []
        for message in homeless:
            self._route(message)

    def sealed(self, producer: SegmentProducer) -> None:
        """Its server said so; the layout that says what follows may not have come yet."""
        self._retire(producer)

    def _retire(self, producer: SegmentProducer) -> None:
        if producer.retiring:
            return
        producer.retiring = True
        self._segments.pop(producer.segment.id, None)
        self._retiring[producer.segment.id] = producer
        task = self.context.spawn(self._hand_over(producer), f"leave {producer.segment.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_over(self, producer: SegmentProducer) -> None:
        await producer.leave()
        producer.left = True
        if self._is_active(producer.segment.id):
            return  # it keeps its messages, and their time-outs, until a layout comes that says what follows
        self._release(producer)

    def _release(self, producer: SegmentProducer) -> None:
        del self._retiring[producer.segment.id]
        for message in producer.messages():
            self._route(message)

    def _is_active(self, segment_id: int) -> bool:
        if self._layout is None:
            return True
        known = self._layout.segments.get(segment_id)
        return known is not None and known.active

    def _failed(self, error: MagnetarError) -> None:
        """No layout any more: the topic was deleted, or may not be produced to."""
        self._failure = error
        for each in [*self._segments.values(), *self._retiring.values()]:
            each.fail(error)
        homeless, self._homeless = self._homeless, []
        self.settle(homeless, error)

    # ---- For the segments

    def confirmed(self, message: Pending, identifier: MessageId) -> None:
        if not message.done.done():
            message.done.set_result(identifier)

    def settle(self, messages: list[Pending], error: MagnetarError) -> None:
        for each in messages:
            if not each.done.done():
                each.done.set_exception(error)

    def encode(self, messages: list[Pending], producer_name: str, sequence_id: int) -> bytes:
        """Headers and payload of an entry."""
        metadata = MessageMetadata(
            producer_name=producer_name, sequence_id=sequence_id, publish_time=self.context.clock.now_ms()
        )
        if not self._low_bits and all(each.key is not None for each in messages):
            places = [each.key_hash & RING_MASK for each in messages]
            metadata.entry_hash_min, metadata.entry_hash_max = min(places), max(places)
        first = messages[0]
        if len(messages) == 1:
            _describe(metadata, first)
            payload = first.value or b""
        else:
            metadata.num_messages_in_batch = len(messages)
            metadata.highest_sequence_id = sequence_id + len(messages) - 1
            if first.key is not None and all(each.key == first.key for each in messages):
                metadata.partition_key = first.key
            payload = batches.join(_single(each, sequence_id + at) for at, each in enumerate(messages))
        metadata.uncompressed_size = len(payload)
        if self._codec:
            metadata.compression = self._codec  # type: ignore[assignment]  # the stubs want the enum's own type
            payload = compression.compress(self._codec, payload)
        return headers.with_checksum(metadata, payload)

    def _scan(self) -> None:
        now_s = self.context.clock.monotonic_s()
        for each in [*self._segments.values(), *self._retiring.values()]:
            each.expire(now_s)
        late = [each for each in self._homeless if each.deadline_s <= now_s]
        if late:
            self._homeless = [each for each in self._homeless if each.deadline_s > now_s]
            self.settle(late, SendTimeoutError(f"{self._follower.topic} has no segment that takes messages"))
        self._timer = asyncio.get_running_loop().call_later(SCAN_INTERVAL_S, self._scan)


def _describe(metadata: MessageMetadata | SingleMessageMetadata, message: Pending) -> None:
    if message.key is not None:
        metadata.partition_key = message.key
    for name, value in message.properties.items():
        metadata.properties.add(key=name, value=value)
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms
    if message.value is None:
        metadata.null_value = True


def _single(message: Pending, sequence_id: int) -> batches.Single:
    payload = message.value or b""
    single = SingleMessageMetadata(payload_size=len(payload), sequence_id=sequence_id)
    _describe(single, message)
    return single, payload


def _is_terminated(error: MagnetarError) -> bool:
    return isinstance(error, RequestRefusedError) and error.code == ServerError.TopicTerminatedError


def _too_large(entry: Entry, most_bytes: int) -> MagnetarError:
    size = len(entry.data)
    return RequestRefusedError(
        ServerError.NotAllowedError, f"the message has {size} bytes with its headers; the server takes {most_bytes}"
    )
