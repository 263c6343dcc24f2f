"""One segment's subscription: it is opened, comes back after every lost connection, and confirms acknowledgements until they are stored."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.base.backoff import Backoff
from magnetar.base.errors import ClientError, MagnetarError
from magnetar.client.connection import ClientConnection
from magnetar.client.errors import RequestRefusedError, UnreachableError
from magnetar.client.scalable.context import ClientContext
from magnetar.client.scalable.layout import Segment
from magnetar.client.scalable.messages import Message, MessageId, Place, messages_told, read_entry
from magnetar.wire.pulsar import client_commands, commands
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandMessage, CommandSubscribe, ServerError

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.1
RETRY_LONGEST_S: Final = 30.0

CLOSE_TIMEOUT_S: Final = 5.0

_GONE: Final = (ServerError.TopicNotFound, ServerError.SubscriptionNotFound)
_FINAL: Final = (
    ServerError.AuthorizationError,
    ServerError.AuthenticationError,
    ServerError.NotAllowedError,
    ServerError.InvalidTopicName,
    ServerError.IncompatibleSchema,
)
"""Refusals that the same request would meet again."""


def is_final(error: MagnetarError) -> bool:
    """True if trying again cannot help. A consumer that is still connected elsewhere, a topic that moves: these pass."""
    if isinstance(error, RequestRefusedError):
        return error.code in _FINAL or error.code in _GONE
    return not isinstance(error, ClientError)


def is_gone(error: MagnetarError) -> bool:
    return isinstance(error, RequestRefusedError) and error.code in _GONE


@dataclass(frozen=True, slots=True)
class Subscribing:
    """What SUBSCRIBE says. `start`: where a reader without a durable cursor begins; `earliest`: where a new subscription does."""

    subscription: str
    kind: int
    consumer_name: str = ""
    durable: bool = True
    earliest: bool = True
    start: MessageId | None = None
    permits: int = 1000
    replicated: bool = False
    """Its place follows it to other clusters."""

    def command(self, topic: str, consumer_id: int, request_id: int, start: MessageId | None) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription = topic, self.subscription
        request.subType = self.kind  # type: ignore[assignment]  # the stubs want the enum's own type, the wire an int
        request.consumer_id, request.request_id = consumer_id, request_id
        request.durable = self.durable
        if self.replicated:
            request.replicate_subscription_state = True
        if self.consumer_name:
            request.consumer_name = self.consumer_name
        if not topic.startswith("segment://"):
            request.metadata.add(key=client_commands.MANAGED_METADATA, value="true")
        request.initialPosition = CommandSubscribe.Earliest if self.earliest else CommandSubscribe.Latest
        if not self.durable and start is not None:
            request.start_message_id.ledgerId, request.start_message_id.entryId = start.place
            if start.batch_index >= 0:
                request.start_message_id.batch_index = start.batch_index
        return command


class Sink(Protocol):
    """The consumer to which a segment's messages go."""

    def received(self, attachment: Attachment, messages: list[Message]) -> None: ...

    def unreadable(self, attachment: Attachment, identifier: MessageId, error: PayloadError) -> None: ...

    def reached_end(self, attachment: Attachment) -> None: ...

    def reset(self, attachment: Attachment) -> None:
        """What was received and not yet taken comes again: forget it."""
        ...

    def failed(self, attachment: Attachment, error: MagnetarError) -> None:
        """It does not come back."""
        ...


class Attachment:
    """Its task runs from `start` to `close`."""

    def __init__(self, context: ClientContext, segment: Segment, subscribing: Subscribing, sink: Sink) -> None:
        self.segment = segment
        self._context = context
        self._subscribing = subscribing
        self._sink = sink
        self._connection: ClientConnection | None = None
        self._consumer_id = 0
        self._lost: asyncio.Future[MagnetarError] | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken = 0
        self._last: MessageId | None = subscribing.start
        """Of a reader: behind it the next connection goes on."""
        self._partial: dict[Place, set[int]] = {}
        """Batches of which messages are not acknowledged yet, by their indexes."""
        self._acks: dict[Place, asyncio.Future[None]] = {}
        """Acknowledgements that are not confirmed."""
        self._read: Place | None = None
        """Of a reader: the last entry of which the server has not been told."""
        self._cumulative: tuple[Place, asyncio.Future[None]] | None = None
        self._sending = False
        self._under_way: set[tuple[ClientConnection, asyncio.Future[None]]] = set()
        """Acknowledgements that were sent and are not answered, with the connection they went over."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended = False
        """Everything in the segment has been received, and nothing will follow."""

    @property
    def subscription(self) -> str:
        return self._subscribing.subscription

    # ---- Life

    def start(self) -> None:
        self._task = self._context.spawn(self._run(), f"attach to {self.segment.topic}")

    async def opened(self) -> None:
        """Raises what the first attempt met, if trying again cannot help."""
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Acknowledgements that were given are confirmed before. One that cannot be counts as done: its message is delivered again."""
        self._send_acks()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=CLOSE_TIMEOUT_S)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            connection.consumers.pop(self._consumer_id, None)
            request_id = connection.next_request_id()
            try:
                await connection.request(
                    client_commands.close_consumer(self._consumer_id, request_id), request_id, CLOSE_TIMEOUT_S
                )
            except ClientError as error:
                logger.debug("close of a consumer of %s failed: %s", self.segment.topic, error)
        self._settle_acks(None)
        if not self._opened.done():
            self._opened.set_result(None)  # a reader may be at the end of its segment before it has begun

    async def unsubscribe(self) -> None:
        """Delete the subscription in this segment. Raises ClientError."""
        connection = self._connection
        if connection is None:
            raise UnreachableError(f"{self.segment.topic} is not connected at this moment; try again")
        request_id = connection.next_request_id()
        await connection.request(client_commands.unsubscribe(self._consumer_id, request_id), request_id)

    async def _run(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, self._context.rng)
        while True:
            try:
                await self._subscribe()
            except MagnetarError as error:
                if is_final(error):
                    self._give_up(error)
                    return
                logger.info("cannot subscribe to %s, trying again: %s", self.segment.topic, error)
            else:
                backoff.reset()
                if not self._opened.done():
                    self._opened.set_result(None)
                self._send_acks()
                assert self._lost is not None
                cause = await self._lost
                logger.info("consumer of %s lost its connection, connecting again: %s", self.segment.topic, cause)
            self._connection = None
            self._read = None
            self._partial.clear()
            self._sink.reset(self)
            await asyncio.sleep(backoff.next_s())

    def _give_up(self, error: MagnetarError) -> None:
        self._settle_acks(error)
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # whoever waits is told; nobody has to
        self._sink.failed(self, error)

    async def _subscribe(self) -> None:
        connection = await self._context.remote.broker_of(self.segment.topic)
        connection.take_messages()
        consumer_id = self._consumer_id = self._context.new_id()
        self._lost = asyncio.get_running_loop().create_future()
        self._taken = 0
        connection.consumers[consumer_id] = self
        request_id = connection.next_request_id()
        try:
            await connection.request(
                self._subscribing.command(self.segment.topic, consumer_id, request_id, self._last),
                request_id,
                undo=lambda number: client_commands.close_consumer(consumer_id, number),
            )
        except BaseException:
            connection.consumers.pop(consumer_id, None)
            raise
        self._connection = connection
        connection.write(commands.frame(client_commands.flow(consumer_id, self._subscribing.permits)))

    # ---- What the connection says

    def message(self, command: CommandMessage, rest: bytes) -> None:
        place = command.message_id.ledgerId, command.message_id.entryId
        connection = self._connection
        cap_bytes = connection.message_bytes_max if connection is not None else 0
        try:
            found = read_entry(self.segment.id, self.segment.topic, command, rest, cap_bytes)
        except PayloadError as error:
            self.taken(messages_told(command, rest) - 1)  # the application takes the error for all of them
            self._sink.unreadable(self, MessageId(self.segment.id, *place), error)
            return
        last = self._last
        if not self._subscribing.durable and last is not None and last.place == place:
            found = [each for each in found if each.id.batch_index > last.batch_index]
        if not found or found[0].id.batch_index >= 0:
            self.taken(
                messages_told(command, rest) - len(found)
            )  # the server has counted those that nobody takes as well
        if not found:  # the entry at which a reader begins, and of which it has everything
            self._read = place
            self._send_soon()
            return
        if found[0].id.batch_index >= 0:
            self._partial[place] = {each.id.batch_index for each in found}
        self._sink.received(self, found)

    def reached_end(self) -> None:
        self.ended = True
        self._sink.reached_end(self)

    def end(self, error: MagnetarError) -> None:
        for task in self._tasks:  # a server answers no acknowledgement of a consumer that it has closed
            task.cancel()
        self._under_way.clear()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(error)

    # ---- What the consumer does

    def taken(self, count: int) -> None:
        """The application took so many messages: as many more may come, told in lots of half of the window."""
        self._taken += count
        connection = self._connection
        if connection is not None and self._taken >= max(1, self._subscribing.permits // 2):
            connection.write(commands.frame(client_commands.flow(self._consumer_id, self._taken)))
            self._taken = 0

    def read_up_to(self, identifier: MessageId) -> None:
        """Of a reader: what was handed to the application. The server is told of whole entries, since it says that a reader has reached
        the end of a terminated topic only to one who has acknowledged everything."""
        self._last = identifier
        left = self._partial.get(identifier.place)
        if left is not None and max(left) > identifier.batch_index:
            return
        self._partial.pop(identifier.place, None)
        self._read = identifier.place
        self._send_soon()

    def _send_read(self, connection: ClientConnection, place: Place) -> None:
        """Nobody waits for an answer: where a reader stands is the application's to keep."""
        connection.write(commands.frame(client_commands.acknowledge(self._consumer_id, None, [place], cumulative=True)))

    async def acknowledge(self, identifier: MessageId) -> None:
        """Returns once the server has stored it; of a message in a batch at once, as long as others of the batch are not acknowledged.

        A batch that is not known any more (the connection was lost, or its redelivery asked for) comes again as a whole: of its messages
        the application may have got only some.
        """
        place = identifier.place
        known = True
        if identifier.batch_index >= 0:
            left = self._partial.get(place)
            known = left is not None
            if left is not None:
                left.discard(identifier.batch_index)
                if left:
                    return
                del self._partial[place]
        confirmed = self._acks.get(place)
        if confirmed is None and not known:
            return
        if confirmed is None:
            confirmed = self._acks[place] = asyncio.get_running_loop().create_future()
            self._send_soon()
        await asyncio.shield(confirmed)

    async def acknowledge_up_to(self, identifier: MessageId) -> None:
        """Returns once the server has stored it. Within a batch, or in one that is not known any more: up to the entry before it."""
        place = identifier.place
        left = self._partial.get(place)
        if identifier.batch_index >= 0 and (left is None or max(left) > identifier.batch_index):
            place = place[0], place[1] - 1
        if place[1] < 0:
            return
        for each in [each for each in self._partial if each <= place]:
            del self._partial[each]
        before = self._cumulative
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if before is not None:
            if before[0] >= place:
                confirmed = before[1]
            else:
                confirmed.add_done_callback(lambda done: _follow(done, before[1]))
        if before is None or before[0] < place:
            self._cumulative = place, confirmed
            self._send_soon()
        await asyncio.shield(confirmed)

    def redeliver(self, places: list[Place]) -> None:
        """Have them delivered once more."""
        for each in places:
            self._partial.pop(each, None)
        if self._connection is not None:
            self._connection.write(commands.frame(client_commands.redeliver(self._consumer_id, places)))

    # ---- Acknowledgements

    def _send_soon(self) -> None:
        """Those of one turn of the loop go together."""
        if not self._sending:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._send_acks)

    def _send_acks(self) -> None:
        self._sending = False
        connection = self._connection
        if connection is None:
            return  # they are sent when it is back
        if self._read is not None:
            self._send_read(connection, self._read)
            self._read = None
        if self._acks:
            self._send(connection, dict(self._acks), cumulative=False)
        if self._cumulative is not None:
            self._send(connection, dict([self._cumulative]), cumulative=True)

    def _send(
        self, connection: ClientConnection, waiting: dict[Place, asyncio.Future[None]], *, cumulative: bool
    ) -> None:
        unsent = {place: future for place, future in waiting.items() if (connection, future) not in self._under_way}
        if not unsent:
            return
        self._under_way.update((connection, future) for future in unsent.values())
        work = self._confirm(connection, self._consumer_id, unsent, cumulative=cumulative)
        task = self._context.spawn(work, f"acknowledge in {self.segment.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _confirm(
        self,
        connection: ClientConnection,
        consumer_id: int,
        unsent: dict[Place, asyncio.Future[None]],
        *,
        cumulative: bool,
    ) -> None:
        request_id = connection.next_request_id()
        command = client_commands.acknowledge(consumer_id, request_id, list(unsent), cumulative)
        failure: MagnetarError | None = None
        try:
            answer = (await connection.request(command, request_id)).ackResponse
            if answer.HasField("error"):
                failure = RequestRefusedError(answer.error, answer.message)
        except UnreachableError:
            return  # sent again over the next connection
        except MagnetarError as error:
            failure = error
        finally:
            self._under_way.difference_update((connection, future) for future in unsent.values())
        for place, future in unsent.items():
            if self._acks.get(place) is future:
                del self._acks[place]
            if self._cumulative is not None and self._cumulative[1] is future:
                self._cumulative = None
            if not future.done():
                future.set_result(None) if failure is None else future.set_exception(failure)

    def _settle_acks(self, error: MagnetarError | None) -> None:
        waiting = [*self._acks.values(), *([self._cumulative[1]] if self._cumulative is not None else [])]
        self._acks.clear()
        self._cumulative = None
        for future in waiting:
            if not future.done() and error is not None:
                future.set_exception(error)
                future.exception()  # whoever waits is told; nobody has to
            elif not future.done():
                future.set_result(None)


def _follow(done: asyncio.Future[None], before: asyncio.Future[None]) -> None:
    """A later acknowledgement covers what an earlier one did."""
    if before.done():
        return
    if done.cancelled():
        before.cancel()
        return
    error = done.exception()
    before.set_result(None) if error is None else before.set_exception(error)
