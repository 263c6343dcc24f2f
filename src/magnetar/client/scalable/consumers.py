"""The three consumers of Pulsar 5 (PIP-466): a queue for many, a stream in order per key, a reader whose place the application keeps."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from magnetar.base.errors import InvalidArgumentError, MagnetarError
from magnetar.client.scalable.attachment import Attachment, Subscribing, is_gone
from magnetar.client.scalable.context import ClientContext
from magnetar.client.scalable.errors import ConsumerClosedError, ReceiveTimeoutError, UnreadableMessageError
from magnetar.client.scalable.following import AssignmentFollower, LayoutFollower, Membership
from magnetar.client.scalable.layout import Layout, Segment
from magnetar.client.scalable.messages import EARLIEST, LATEST, Checkpoint, Message, MessageId
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandSubscribe, ScalableConsumerAssignment

QUEUE_MESSAGES: Final = 1000
"""Messages of each segment that are received in advance."""

_EARLIEST_ID: Final = MessageId(-1, 0xFFFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF)
_LATEST_ID: Final = MessageId(-1, 0x7FFF_FFFF_FFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF)

Item = Message | UnreadableMessageError


class Consumer:
    """What the three have in common: messages of all segments in one queue, `receive`, iteration, a layout that is followed."""

    def __init__(self, context: ClientContext, topic: str, queue_messages: int) -> None:
        self._context = context
        self._queue_messages = queue_messages
        self._attachments: dict[int, Attachment] = {}
        self._items: deque[tuple[Attachment, Item]] = deque()
        self._readers: deque[asyncio.Future[None]] = deque()
        self._failure: MagnetarError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._follower = LayoutFollower(context, topic, self._layout_changed, self._failed_for_good)
        self.topic = topic
        self.closed = False

    # ---- For the application

    async def receive(self, timeout_s: float | None = None) -> Message:
        """The next message. Raises ReceiveTimeoutError, UnreadableMessageError, and what ended the consumer."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._items:
                    self._check()
                    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._readers.append(waiting)
                    try:
                        await waiting
                    finally:
                        with contextlib.suppress(ValueError):
                            self._readers.remove(waiting)
        except TimeoutError:
            raise ReceiveTimeoutError(f"no message of {self.topic} came within {timeout_s:g} s") from None
        attachment, item = self._items.popleft()
        attachment.taken(1)
        if self._items:
            self._wake()
        if isinstance(item, UnreadableMessageError):
            self._handed_over(attachment, item.id)
            raise item
        self._handed_over(attachment, item.id)
        return self._finished(item)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Message]:
        while True:
            try:
                yield await self.receive()
            except ConsumerClosedError:
                return

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._failure = self._failure or ConsumerClosedError(f"the consumer of {self.topic} is closed")
        self._wake_all()
        await self._follower.close()
        # what is being left is left: cut short, it would stay connected, and nobody else could read the segment
        leaving = asyncio.gather(*self._tasks, return_exceptions=True)
        attachments, self._attachments = self._attachments, {}
        await asyncio.gather(*(each.close() for each in attachments.values()))
        await leaving
        self._items.clear()

    # ---- Segments

    def _attach(self, segment: Segment, subscribing: Subscribing) -> Attachment:
        made = Attachment(self._context, segment, subscribing, self)
        self._attachments[segment.id] = made
        made.start()
        return made

    def _detach(self, segment_id: int) -> None:
        attachment = self._attachments.pop(segment_id, None)
        if attachment is not None:
            self.reset(attachment)
            self._spawn(attachment)

    def _spawn(self, attachment: Attachment) -> None:
        task = self._context.spawn(attachment.close(), f"leave {attachment.segment.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _all_opened(self) -> None:
        """Raises ClientError when a segment's subscription is refused for good."""
        for attachment in list(self._attachments.values()):
            if self._attachments.get(attachment.segment.id) is attachment:
                await attachment.opened()

    def _attachment(self, identifier: MessageId) -> Attachment:
        found = self._attachments.get(identifier.segment_id)
        if found is None:
            self._check()
            raise InvalidArgumentError(
                f"message {identifier} is of a segment that this consumer does not read (any more); it will be delivered again"
            )
        return found

    def _layout_changed(self, layout: Layout) -> None:
        raise NotImplementedError

    def _handed_over(self, attachment: Attachment, identifier: MessageId) -> None:
        """The application has it."""

    def _finished(self, message: Message) -> Message:
        """As the application gets it."""
        return message

    # ---- Sink

    def received(self, attachment: Attachment, messages: list[Message]) -> None:
        """What comes of a segment that is being left is not for the application: what came before it was forgotten."""
        if self._attachments.get(attachment.segment.id) is not attachment:
            return
        self._items.extend((attachment, each) for each in messages)
        self._wake()

    def unreadable(self, attachment: Attachment, identifier: MessageId, error: PayloadError) -> None:
        if self._attachments.get(attachment.segment.id) is not attachment:
            return
        self._items.append((attachment, UnreadableMessageError(identifier, str(error))))
        self._wake()

    def reached_end(self, attachment: Attachment) -> None:
        """Nothing has to be done: the segment stays until the layout or the assignment is without it."""

    def reset(self, attachment: Attachment) -> None:
        self._items = deque(item for item in self._items if item[0] is not attachment)

    def failed(self, attachment: Attachment, error: MagnetarError) -> None:
        """A sealed segment may be deleted at any time; anything else ends the consumer."""
        if self._attachments.get(attachment.segment.id) is attachment:
            del self._attachments[attachment.segment.id]
        if not (is_gone(error) and self._may_be_gone(attachment.segment.id)):
            self._failed_for_good(error)

    def _may_be_gone(self, segment_id: int) -> bool:
        layout = self._follower.layout
        known = layout.segments.get(segment_id) if layout is not None else None
        return known is None or not known.active

    def _failed_for_good(self, error: MagnetarError) -> None:
        if self._failure is None:
            self._failure = error
        self._wake_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        while self._readers:
            reader = self._readers.popleft()
            if not reader.done():
                reader.set_result(None)
                return

    def _wake_all(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)


class QueueConsumer(Consumer):
    """Made by `Client.queue_consumer`. Many share a subscription; each message goes to one of them and is acknowledged by itself."""

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscription: str,
        *,
        name: str = "",
        earliest: bool = False,
        redelivery_delay_s: float = 60.0,
        queue_messages: int = QUEUE_MESSAGES,
        replicated: bool = False,
    ) -> None:
        self._subscribing = Subscribing(
            subscription,
            CommandSubscribe.Shared,
            name,
            earliest=earliest,
            permits=queue_messages,
            replicated=replicated,
        )
        self._delay_s = redelivery_delay_s
        self._first = True
        super().__init__(context, topic, queue_messages)

    async def opened(self) -> QueueConsumer:
        await self._follower.opened()
        await self._all_opened()
        return self

    async def acknowledge(self, message: Message | MessageId) -> None:
        """Returns when it is stored (of a batch: with the last message of the batch). Raises ClientError."""
        identifier = message.id if isinstance(message, Message) else message
        await self._attachment(identifier).acknowledge(identifier)

    def negative_acknowledge(self, message: Message | MessageId, delay_s: float | None = None) -> None:
        """Have it delivered once more, to any consumer, after `delay_s` (else the consumer's `redelivery_delay_s`)."""
        identifier = message.id if isinstance(message, Message) else message
        attachment = self._attachment(identifier)
        delay_s = self._delay_s if delay_s is None else delay_s
        asyncio.get_running_loop().call_later(delay_s, attachment.redeliver, [identifier.place])

    async def unsubscribe(self) -> None:
        """Delete the subscription with its backlog; other consumers of it must have left. Closes the consumer. Raises ClientError."""
        for attachment in list(self._attachments.values()):
            await attachment.unsubscribe()
        await self.close()

    async def __aenter__(self) -> QueueConsumer:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _layout_changed(self, layout: Layout) -> None:
        """Sealed segments are read as well: they keep what nobody has acknowledged."""
        for number in [number for number in self._attachments if number not in layout.segments]:
            self._detach(number)
        for segment in layout.segments.values():
            if segment.id not in self._attachments:
                self._attach(segment, self._of(segment))
        self._first = False

    def _of(self, segment: Segment) -> Subscribing:
        """What came into being after the consumer is read from its beginning."""
        if self._first:
            return self._subscribing
        of = self._subscribing
        return replace(of, earliest=True)


class StreamConsumer(Consumer):
    """Made by `Client.stream_consumer`. The consumers of a subscription share its segments; each key's messages come in order."""

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscription: str,
        *,
        name: str = "",
        earliest: bool = False,
        queue_messages: int = QUEUE_MESSAGES,
        replicated: bool = False,
    ) -> None:
        self.name = name or context.new_name("stream")
        self.subscription = subscription
        self._replicated = replicated
        self._earliest = earliest
        self._membership: AssignmentFollower | None = None
        self._positions: dict[int, MessageId] = {}
        self._first = True
        super().__init__(context, topic, queue_messages)

    async def opened(self) -> StreamConsumer:
        layout = await self._follower.opened()
        if layout.classic:
            raise InvalidArgumentError(
                f"{self.topic} is not a scalable topic: a stream consumer needs one; use a queue consumer, or create topic://..."
            )
        membership = Membership(layout.topic, self.subscription, self.name, checkpoint=False)
        self._membership = AssignmentFollower(
            self._context, membership, self._context.new_id(), self._controller, self._assigned, self._failed_for_good
        )
        await self._membership.opened()
        await self._all_opened()
        return self

    async def acknowledge_cumulative(self, message: Message) -> None:
        """This message and all that this consumer received before it, of all segments. Returns when it is stored. Raises ClientError."""
        waiting = []
        for segment_id, identifier in message.positions.items():
            attachment = self._attachments.get(segment_id)
            if (
                attachment is not None
            ):  # else another consumer has the segment, and gets again what was not acknowledged
                waiting.append(attachment.acknowledge_up_to(identifier))
        await asyncio.gather(*waiting)

    async def close(self) -> None:
        """Its segments go to the other consumers at once."""
        if self._membership is not None and not self.closed:
            await self._membership.close()
        await super().close()

    async def __aenter__(self) -> StreamConsumer:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _controller(self) -> str:
        layout = self._follower.layout
        if layout is None:
            return ""
        return (layout.controller_url_tls if self._context.remote.endpoint.tls else "") or layout.controller_url

    def _assigned(self, assignment: ScalableConsumerAssignment) -> None:
        wanted = {each.segment_id: each for each in assignment.segments}
        for number in [number for number in self._attachments if number not in wanted]:
            self._detach(number)
            self._positions.pop(number, None)
        for number, each in wanted.items():
            if number not in self._attachments:
                segment = Segment(number, each.hash_start, each.hash_end, True, (), each.segment_topic)
                earliest = self._earliest or not self._first
                name = f"{self.name}-seg-{number}"
                self._attach(
                    segment,
                    Subscribing(
                        self.subscription,
                        CommandSubscribe.Exclusive,
                        name,
                        earliest=earliest,
                        permits=self._queue_messages,
                        replicated=self._replicated,
                    ),
                )
        self._first = False

    def _layout_changed(self, layout: Layout) -> None:
        """The controller assigns; the layout only says where it is."""

    def _finished(self, message: Message) -> Message:
        self._positions[message.id.segment_id] = message.id
        return Message(
            message.id,
            message.topic,
            message.value,
            message.key,
            message.properties,
            message.publish_time_ms,
            message.event_time_ms,
            message.producer_name,
            message.sequence_id,
            message.redelivery_count,
            dict(self._positions),
        )


class CheckpointConsumer(Consumer):
    """Made by `Client.checkpoint_consumer`. It leaves nothing on the server: the application stores `checkpoint()` with its results.

    A segment is read when all from which it descends have been read to their ends, so each key's messages come in order.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        start: Checkpoint = EARLIEST,
        *,
        queue_messages: int = QUEUE_MESSAGES,
    ) -> None:
        self._start = start
        self._name = context.new_name("reader")
        self._positions: dict[int, MessageId] = dict(start.positions)
        self._unknown: set[int] | None = None
        """Segments that existed when a consumer that begins at the end did."""
        self._done: set[int] = set()
        super().__init__(context, topic, queue_messages)

    async def opened(self) -> CheckpointConsumer:
        await self._follower.opened()
        await self._all_opened()
        return self

    def checkpoint(self) -> Checkpoint:
        """Behind the last message that `receive` gave."""
        return Checkpoint(dict(self._positions)) if self._positions else self._start

    async def __aenter__(self) -> CheckpointConsumer:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _layout_changed(self, layout: Layout) -> None:
        if self._unknown is None:
            self._unknown = set(layout.segments)
        for number in [number for number in self._attachments if number not in layout.segments]:
            self._detach(number)
        self._positions = {number: each for number, each in self._positions.items() if number in layout.segments}
        self._attach_next(layout)

    def _attach_next(self, layout: Layout) -> None:
        for segment in layout.segments.values():
            if segment.id in self._attachments or segment.id in self._done:
                continue
            if self._start.kind == LATEST.kind and segment.id in (self._unknown or ()) and not segment.active:
                self._done.add(segment.id)  # nothing new comes there
                continue
            if any(each not in self._done for each in layout.ancestors(segment.id)):
                continue
            begin = self._begin(segment)
            self._attach(
                segment,
                Subscribing(
                    self._name,
                    CommandSubscribe.Exclusive,
                    f"{self._name}-seg-{segment.id}",
                    durable=False,
                    start=begin,
                    earliest=begin is not _LATEST_ID,
                    permits=self._queue_messages,
                ),
            )

    def _begin(self, segment: Segment) -> MessageId:
        known = self._positions.get(segment.id)
        if known is not None:
            return known
        if self._start.kind == LATEST.kind and segment.id in (self._unknown or ()):
            return _LATEST_ID
        return _EARLIEST_ID

    def _handed_over(self, attachment: Attachment, identifier: MessageId) -> None:
        attachment.read_up_to(identifier)
        self._positions[identifier.segment_id] = identifier
        self._close_if_done(attachment)

    def reached_end(self, attachment: Attachment) -> None:
        self._close_if_done(attachment)

    def _close_if_done(self, attachment: Attachment) -> None:
        """Read to its end by the application: what descends from it may follow."""
        if not attachment.ended or any(each is attachment for each, _ in self._items):
            return
        self._finish(attachment.segment.id)

    def failed(self, attachment: Attachment, error: MagnetarError) -> None:
        super().failed(attachment, error)
        if self._failure is None:
            self._finish(attachment.segment.id)

    def _finish(self, segment_id: int) -> None:
        self._done.add(segment_id)
        self._detach(segment_id)
        if self._follower.layout is not None:
            self._attach_next(self._follower.layout)
