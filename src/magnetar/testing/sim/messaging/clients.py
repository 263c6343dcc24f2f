"""Producers and consumers as the official clients are: they look the topic up, reconnect, send again what has no receipt, and
drop what they held when their connection is lost."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.testing.sim.messaging.connection import ClientError, Connection
from magnetar.testing.sim.messaging.nodes import ApplicationNode
from magnetar.testing.sim.messaging.promises import (
    Holder,
    Name,
    Place,
    Promises,
    SubscriptionHistory,
    TopicHistory,
    payload_of_message,
)
from magnetar.testing.sim.network import SimTransport
from magnetar.wire.pulsar.headers import parse_metadata, payload_of, with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandAck,
    CommandLookupTopicResponse,
    CommandMessage,
    CommandSubscribe,
    MessageMetadata,
    SingleMessageMetadata,
)

BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 2.0
REDIRECTS_MAX: Final = 10
WORD_MASK: Final = 2**64 - 1


def host_of(url: str) -> str:
    """`pulsar://HOST:PORT` -> `HOST`."""
    return url.removeprefix("pulsar://").partition(":")[0]


async def connect_to_owner(
    node: ApplicationNode, brokers: list[str], topic: str, rng: random.Random
) -> tuple[Connection, str]:
    """A connection to the broker that serves the topic, and that broker's machine. Raises ClientError."""
    host, authoritative = rng.choice(brokers), False
    for _ in range(REDIRECTS_MAX):
        connection = await Connection.open(node.network, host)
        try:
            command = BaseCommand(type=BaseCommand.LOOKUP)
            command.lookupTopic.topic = topic
            command.lookupTopic.authoritative = authoritative
            found = (await connection.ask(command, command.lookupTopic)).lookupTopicResponse
        except ClientError:
            connection.close()
            raise
        if found.response == CommandLookupTopicResponse.Failed:
            connection.close()
            raise ClientError(f"lookup: {found.error} {found.message}")
        owner, authoritative = host_of(found.brokerServiceUrl), found.authoritative
        if found.response == CommandLookupTopicResponse.Connect and owner == host:
            return connection, host
        connection.close()
        if found.response == CommandLookupTopicResponse.Connect:
            return await Connection.open(node.network, owner), owner
        host = owner
    raise ClientError(f"lookup: redirected more than {REDIRECTS_MAX} times")


class Reconnecting:
    """What producers and consumers share: a connection that is made again, with growing pauses, until `stop`."""

    def __init__(self, node: ApplicationNode, brokers: list[str], topic: TopicHistory, rng: random.Random) -> None:
        self.node = node
        self.topic = topic
        self.rng = rng
        self._brokers = brokers
        self.connection: Connection | None = None
        self._lost = asyncio.Event()
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        """Until `stopped` is set."""
        backoff_s = BACKOFF_S
        while not self.stopped.is_set():
            try:
                connection, broker = await connect_to_owner(self.node, self._brokers, self.topic.name, self.rng)
                try:
                    self._lost.clear()
                    connection.on_closed = self._closed
                    connection.on_command = self._command
                    self.connection = connection
                    await self._open(connection, broker)
                    if self.stopped.is_set():
                        connection.close()
                except ClientError:
                    connection.close()
                    raise
            except ClientError:
                await asyncio.sleep(backoff_s * (0.5 + self.rng.random()))
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
                continue
            backoff_s = BACKOFF_S
            await self._lost.wait()
            await asyncio.sleep(BACKOFF_S * self.rng.random())

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()

    def stop(self) -> None:
        self.stopped.set()
        self.disconnect()

    def _closed(self) -> None:
        self.connection = None
        self._lost.set()

    async def _open(self, connection: Connection, broker: str) -> None:
        """Register on the connection. Raises ClientError."""
        raise NotImplementedError

    def _command(self, command: BaseCommand, rest: bytes) -> None:
        raise NotImplementedError


@dataclass
class Pending:
    """An entry without a receipt: a message, or a batch."""

    names: list[Name]
    is_batch: bool
    frame: tuple[BaseCommand, bytes]


class Producer(Reconnecting):
    """Sends messages of its own numbering; `next_number` belongs to the history, so that a restarted process goes on behind the last."""

    def __init__(
        self,
        node: ApplicationNode,
        brokers: list[str],
        topic: TopicHistory,
        rng: random.Random,
        promises: Promises,
        name: str,
        next_number: Callable[[], int],
    ) -> None:
        super().__init__(node, brokers, topic, rng)
        self.name = name
        self.pending: deque[Pending] = deque()
        self._promises = promises
        self._next_number = next_number
        self._registered = False

    def send(self, key: str, paddings: list[bytes]) -> None:
        """One message, or a batch if there are several paddings; it is sent now or as soon as there is a connection, and again until it has
        a receipt. All messages of a batch have one key, as with the official clients' key-based batching."""
        names = [Name(self.name, self._next_number()) for _ in paddings]
        payloads = [payload_of_message(name, key, padding) for name, padding in zip(names, paddings, strict=True)]
        for name, payload in zip(names, payloads, strict=True):
            self._promises.sent(self.topic, name, payload)
        pending = Pending(names, len(names) > 1, self._frame(names, key, payloads))
        self.pending.append(pending)
        if self._registered and self.connection is not None:
            self.connection.send(*pending.frame)

    def _frame(self, names: list[Name], key: str, payloads: list[bytes]) -> tuple[BaseCommand, bytes]:
        first, last = names[0].number, names[-1].number
        metadata = MessageMetadata(producer_name=self.name, sequence_id=first, publish_time=1, partition_key=key)
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id, command.send.num_messages = 1, first, len(names)
        if len(names) == 1:
            return command, with_checksum(metadata, payloads[0])
        command.send.highest_sequence_id = metadata.highest_sequence_id = last
        metadata.num_messages_in_batch = len(names)
        return command, with_checksum(metadata, batch_of(names, key, payloads))

    async def _open(self, connection: Connection, broker: str) -> None:
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = self.topic.name
        command.producer.producer_id = 1
        command.producer.producer_name = self.name
        command.producer.user_provided_producer_name = True
        await connection.ask(command, command.producer)
        self._registered = True
        for pending in self.pending:
            connection.send(*pending.frame)

    def _closed(self) -> None:
        self._registered = False
        super()._closed()

    def _command(self, command: BaseCommand, rest: bytes) -> None:
        if command.type == BaseCommand.SEND_RECEIPT:
            self._receipt(command)
        elif command.type in (BaseCommand.CLOSE_PRODUCER, BaseCommand.SEND_ERROR):
            self.disconnect()

    def _receipt(self, command: BaseCommand) -> None:
        receipt = command.send_receipt
        if not self.pending or receipt.sequence_id < self.pending[0].names[0].number:
            return  # of an entry that was sent twice
        first = self.pending.popleft()
        if receipt.sequence_id > first.names[0].number:
            self._promises.violate(
                "P2 receipts come in the order of sending", f"{receipt.sequence_id} before {first.names[0]}"
            )
            return
        where = receipt.message_id
        for index, name in enumerate(first.names):
            place = Place(where.ledgerId, where.entryId, index if first.is_batch else -1)
            self._promises.receipt(self.topic, name, place)


def batch_of(names: list[Name], key: str, payloads: list[bytes]) -> bytes:
    """The payload of a batch: each message behind its own metadata."""
    parts: list[bytes] = []
    for name, payload in zip(names, payloads, strict=True):
        single = SingleMessageMetadata(payload_size=len(payload), partition_key=key, sequence_id=name.number)
        serialized = single.SerializeToString()
        parts += (len(serialized).to_bytes(4, "big"), serialized, payload)
    return b"".join(parts)


def messages_of_batch(data: bytes, count: int) -> list[bytes]:
    """The payloads in the payload of a batch."""
    payloads: list[bytes] = []
    offset = 0
    for _ in range(count):
        size = int.from_bytes(data[offset : offset + 4], "big")
        single = SingleMessageMetadata.FromString(data[offset + 4 : offset + 4 + size])
        start = offset + 4 + size
        offset = start + single.payload_size
        payloads.append(data[start:offset])
    return payloads


@dataclass
class Message:
    """A delivered message."""

    place: Place
    payload: bytes


@dataclass
class Batch:
    """A delivered batch that is not acknowledged as a whole."""

    size: int
    left: int
    """A bit for each message that is not acknowledged."""
    done: list[Place] = field(default_factory=list)
    """Acknowledged messages of which the broker has not been told."""


class Consumer(Reconnecting):
    """Delivered messages are in `inbox`; what is there when the connection is lost is dropped, as the broker delivers it again."""

    def __init__(
        self,
        node: ApplicationNode,
        brokers: list[str],
        topic: TopicHistory,
        rng: random.Random,
        promises: Promises,
        subscription: SubscriptionHistory,
        queue: int,
        by_index: bool,
    ) -> None:
        """`queue`: permits. `by_index`: the broker keeps acknowledgements of parts of a batch."""
        super().__init__(node, brokers, topic, rng)
        assert node.process is not None
        self.name = node.process.name
        self.subscription = subscription
        self.inbox: deque[Message] = deque()
        self.by_index = by_index
        self._batches: dict[tuple[int, ...], Batch] = {}
        self.arrived = asyncio.Event()
        self._promises = promises
        self._queue = queue
        self._taken = 0
        self._incarnation = 0
        self.registered = False
        """It has subscribed at least once."""
        self._holder = Holder(self.name, "", lambda: False)
        self.acknowledges: Callable[[str, list[Place], bool], None] = lambda consumer, places, cumulative: None
        """Called before an acknowledgement goes: the present connection's name, places, and whether all before the last are meant."""

    async def _open(self, connection: Connection, broker: str) -> None:
        self._incarnation += 1
        consumer = f"{self.name}/{self._incarnation}"
        transport = connection.transport
        assert isinstance(transport, SimTransport)
        server = transport.pipe_out.target
        self._holder = Holder(consumer, server.process.name, lambda: not server.closed and not server.gone)
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription = self.topic.name, self.subscription.name
        request.subType = CommandSubscribe.SubType.Value(self.subscription.kind)
        request.consumer_id, request.consumer_name = 1, self.name
        request.initialPosition = CommandSubscribe.Earliest
        if self.subscription.replicated:
            request.replicate_subscription_state = True
        await connection.ask(command, request)
        self.registered = True
        self._taken = 0
        self._flow(self._queue)

    def _flow(self, permits: int) -> None:
        if self.connection is not None:
            command = BaseCommand(type=BaseCommand.FLOW)
            command.flow.consumer_id, command.flow.messagePermits = 1, permits
            self.connection.send(command)

    def _closed(self) -> None:
        self.inbox.clear()
        self._batches.clear()
        self._promises.left(self.subscription, self._holder.consumer)
        super()._closed()

    def _command(self, command: BaseCommand, rest: bytes) -> None:
        if command.type == BaseCommand.CLOSE_CONSUMER:
            self.disconnect()
        elif command.type == BaseCommand.MESSAGE:
            self._received(command.message, rest)

    def _received(self, command: CommandMessage, rest: bytes) -> None:
        """An entry: its message, or those of its batch that the broker does not say are acknowledged."""
        assert self.connection is not None
        sent_s = self.connection.sent_s
        where, metadata = command.message_id, parse_metadata(rest)
        payloads, batched = [payload_of(rest)], metadata.HasField("num_messages_in_batch")
        if batched:
            payloads = messages_of_batch(payloads[0], metadata.num_messages_in_batch)
        left = sum((word & WORD_MASK) << 64 * number for number, word in enumerate(command.ack_set))
        if not command.ack_set:
            left = (1 << len(payloads)) - 1
        if batched:
            self._batches[where.ledgerId, where.entryId] = Batch(len(payloads), left)
        for index, payload in enumerate(payloads):
            if left >> index & 1:
                place = Place(where.ledgerId, where.entryId, index if batched else -1)
                self.inbox.append(Message(place, payload))
                self._promises.delivered(self.topic, self.subscription, place, payload, self._holder, sent_s)
        self.arrived.set()

    def take(self) -> Message:
        """The next message of the inbox; gives its permit back in halves of the queue."""
        message = self.inbox.popleft()
        self._taken += 1
        if self._taken >= max(1, self._queue // 2):
            self._flow(self._taken)
            self._taken = 0
        return message

    async def acknowledge(self, places: list[Place], *, cumulative: bool = False, receipt: bool = False) -> None:
        """Individual, or cumulative up to the entry of the last of `places`. With `receipt` it is waited for. Raises ClientError.

        Of a batch that is not finished the broker is told the rest, if it keeps that (`by_index`), else nothing yet.
        """
        connection = self.connection
        if connection is None:
            raise ClientError("not connected")
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = 1
        command.ack.ack_type = CommandAck.Cumulative if cumulative else CommandAck.Individual
        told = self._add_ids(command.ack, places[-1:] if cumulative else places)
        self._promises.let_go(self.subscription, places)
        if not command.ack.message_id:
            return
        self.acknowledges(self._holder.consumer, places if cumulative else told, cumulative)
        if not receipt:
            connection.send(command)
            return
        answer = await connection.ask(command, command.ack)
        if answer.ackResponse.HasField("error"):
            raise ClientError(f"acknowledgement: {answer.ackResponse.message}")
        self._promises.settled(self.subscription, places if cumulative else told, self._holder.consumer)

    def _add_ids(self, ack: CommandAck, places: list[Place]) -> list[Place]:
        """Puts the entries into the command; the places that it acknowledges."""
        told: list[Place] = []
        for place in places:
            batch = self._batches.get(place[:2]) if place.batch_index >= 0 else None
            if batch is None and place.batch_index >= 0:
                continue  # of a former connection: the batch comes again, and others may have its other messages
            if batch is None:
                ack.message_id.add(ledgerId=place.ledger_id, entryId=place.entry_id)
                told.append(place)
                continue
            batch.left &= ~(1 << place.batch_index)
            batch.done.append(place)
            if batch.left and not self.by_index:
                continue
            words = [batch.left >> 64 * number & WORD_MASK for number in range((batch.size + 63) // 64)]
            signed = [word - 2**64 if word >> 63 else word for word in words] if batch.left else []
            ack.message_id.add(ledgerId=place.ledger_id, entryId=place.entry_id, ack_set=signed, batch_size=batch.size)
            told += batch.done
            batch.done = []
            if not batch.left:
                del self._batches[place[:2]]
        return told

    def ask_again(self, places: list[Place]) -> None:
        """Negative acknowledgement: the broker delivers them again."""
        if self.connection is not None:
            command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
            command.redeliverUnacknowledgedMessages.consumer_id = 1
            for place in places:
                command.redeliverUnacknowledgedMessages.message_ids.add(
                    ledgerId=place.ledger_id, entryId=place.entry_id
                )
            self._promises.let_go(self.subscription, places)
            self.connection.send(command)
