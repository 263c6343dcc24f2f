"""Producers and consumers as the official clients are: they look the topic up, reconnect, send again what has no receipt, and
drop what they held when their connection is lost."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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
    CommandSubscribe,
    MessageMetadata,
)

BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 2.0
REDIRECTS_MAX: Final = 10


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
    """A message without a receipt."""

    name: Name
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

    def send(self, key: str, padding: bytes) -> None:
        """One message; it is sent now or as soon as there is a connection, and again until it has a receipt."""
        name = Name(self.name, self._next_number())
        payload = payload_of_message(name, key, padding)
        metadata = MessageMetadata(
            producer_name=self.name,
            sequence_id=name.number,
            publish_time=1,
            partition_key=key,
            partition_key_b64_encoded=False,
        )
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id, command.send.num_messages = 1, name.number, 1
        pending = Pending(name, (command, with_checksum(metadata, payload)))
        self._promises.sent(self.topic, name, payload)
        self.pending.append(pending)
        if self._registered and self.connection is not None:
            self.connection.send(*pending.frame)

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
        if not self.pending or receipt.sequence_id < self.pending[0].name.number:
            return  # of a message that was sent twice
        first = self.pending.popleft()
        if receipt.sequence_id > first.name.number:
            self._promises.violate(
                "P2 receipts come in the order of sending", f"{receipt.sequence_id} before {first.name}"
            )
            return
        place = Place(receipt.message_id.ledgerId, receipt.message_id.entryId)
        self._promises.receipt(self.topic, first.name, place)


@dataclass
class Message:
    """A delivered message."""

    place: Place
    payload: bytes


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
    ) -> None:
        super().__init__(node, brokers, topic, rng)
        assert node.process is not None
        self.name = node.process.name
        self.subscription = subscription
        self.inbox: deque[Message] = deque()
        self.arrived = asyncio.Event()
        self._promises = promises
        self._queue = queue
        self._taken = 0
        self._incarnation = 0
        self.registered = False
        """It has subscribed at least once."""
        self._holder = Holder(self.name, "", lambda: False)

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
        self._promises.left(self.subscription, self._holder.consumer)
        super()._closed()

    def _command(self, command: BaseCommand, rest: bytes) -> None:
        if command.type == BaseCommand.CLOSE_CONSUMER:
            self.disconnect()
        elif command.type == BaseCommand.MESSAGE:
            where = command.message.message_id
            message = Message(Place(where.ledgerId, where.entryId), payload_of(rest))
            metadata = parse_metadata(rest)
            assert not metadata.HasField("num_messages_in_batch")
            self.inbox.append(message)
            self._promises.delivered(self.topic, self.subscription, message.place, message.payload, self._holder)
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
        """Individual, or cumulative up to the last of `places`. With `receipt` it is waited for; ClientError when there is none."""
        connection = self.connection
        if connection is None:
            raise ClientError("not connected")
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = 1
        command.ack.ack_type = CommandAck.Cumulative if cumulative else CommandAck.Individual
        for place in places[-1:] if cumulative else places:
            command.ack.message_id.add(ledgerId=place.ledger_id, entryId=place.entry_id)
        self._promises.let_go(self.subscription, places)
        if not receipt:
            connection.send(command)
            return
        answer = await connection.ask(command, command.ack)
        if answer.ackResponse.HasField("error"):
            raise ClientError(f"acknowledgement: {answer.ackResponse.message}")
        self._promises.settled(self.subscription, places, self._holder.consumer)

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
