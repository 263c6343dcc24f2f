"""Commands about a consumer: SUBSCRIBE, CLOSE_CONSUMER, UNSUBSCRIBE, SEEK, GET_LAST_MESSAGE_ID, CONSUMER_STATS; and its channel.

The C++ client does not send SUBSCRIBE again after a retriable error: this broker waits for whatever is transient itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from magnetar.base import limits
from magnetar.base.clock import iso_time
from magnetar.base.errors import MetadataError
from magnetar.broker.connection.refusals import remembered
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import MetadataRefusedError, NotAllowedError, ServiceNotReadyError
from magnetar.broker.naming import PERSISTENT, TopicName, subscription_name
from magnetar.broker.scalable.records import QUEUE, STREAM
from magnetar.broker.schemas.types import Schema, SchemaType, from_message
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.broker.topics.subscribe import SubscribeRequest, check_request
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.frequent import MessageHeads
from magnetar.wire.pulsar.headers import MAGIC_BROKER_ENTRY_METADATA, without_broker_metadata
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandSeek,
    CommandSubscribe,
    KeySharedMode,
    MessageIdData,
    ServerError,
)

_SIGN = 1 << 63
_WRAP = 1 << 64


def subscribe(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.subscribe
    session.request(
        remembered(session, command, partial(_subscribe, session, request)), request.request_id, "subscribe"
    )


async def _subscribe(session: Session, request: CommandSubscribe) -> None:
    consumer_id = request.consumer_id
    key = ("consumer", consumer_id)
    if key in session.opening:
        raise NotAllowedError(f"consumer {consumer_id} is being created already")
    if consumer_id in session.consumers:
        session.write(commands.success(request.request_id))
        return
    if len(session.consumers) >= limits.CONSUMERS_PER_CONNECTION_MAX:
        raise NotAllowedError(f"more than {limits.CONSUMERS_PER_CONNECTION_MAX} consumers on one connection")
    session.opening.add(key)
    try:
        await _open(session, request)
    except (ServiceNotReadyError, MetadataError) as error:
        if not error.retriable:
            raise
        if session.client_version.startswith("Pulsar-CPP"):
            # It sends a first SUBSCRIBE only once, but looks up again for a consumer that is closed: it is sent both.
            session.write(commands.close_consumer(consumer_id))
        raise error if isinstance(error, ServiceNotReadyError) else ServiceNotReadyError(str(error)) from error
    finally:
        session.opening.discard(key)


async def _open(session: Session, request: CommandSubscribe) -> None:
    name = TopicName.parse(request.topic)
    topic = await session.context.topics.get(name, create=request.force_topic_creation)
    migrated = False
    if topic.terminated and request.durable and name.domain == PERSISTENT:
        migrated = await _is_migrated(session, request, name)
    schema = from_message(request.schema) if request.HasField("schema") else None
    await session.context.schemas.consumer(name, schema, lambda: not topic.used_without_schema)
    if migrated or (name.is_segment and request.durable):
        # last of all: what is refused leaves nothing behind in the other segments
        policies = await session.context.namespaces.effective_of(name)
        check_request(_request(session, request, schema), policies.subscription_types)
        await _establish(session, request, name)
    channel = SessionConsumerChannel(session, request.consumer_id, name.partition)
    consumer = await topic.subscribe(_request(session, request, schema), channel)
    if name.is_segment and request.durable and request.replicate_subscription_state:
        clusters = session.context.scalable.cluster_requests
        await clusters.replicate(name.partitioned_name, subscription_name(request.subscription), _kind(request))
    if session.closed:
        await topic.consumer_left(consumer)
        return
    session.consumers[request.consumer_id] = consumer
    session.consumer_topics[request.consumer_id] = topic
    session.write(commands.success(request.request_id))


async def _establish(session: Session, request: CommandSubscribe, name: TopicName) -> None:
    earliest = request.initialPosition == CommandSubscribe.Earliest
    subscription = subscription_name(request.subscription)
    await session.context.scalable.subscriptions.before_subscribe(name, subscription, _kind(request), earliest)


def _kind(request: CommandSubscribe) -> str:
    return QUEUE if SubscriptionType(request.subType).holds_entries else STREAM


async def _is_migrated(session: Session, request: CommandSubscribe, name: TopicName) -> bool:
    """A terminated topic may have become a segment of a scalable one. Raises NotAllowedError if the client does not know of that."""
    metadata = {pair.key: pair.value for pair in request.metadata}
    subscription, migrations = subscription_name(request.subscription), session.context.scalable.migrations
    return await migrations.check_consumer(name, subscription, request.consumer_name, metadata) is not None


def _request(session: Session, request: CommandSubscribe, schema: Schema | None) -> SubscribeRequest:
    meta = request.keySharedMeta
    return SubscribeRequest(
        subscription=request.subscription,
        type=SubscriptionType(request.subType),
        consumer_id=request.consumer_id,
        consumer_name=request.consumer_name or f"{session.address}-{request.consumer_id}",
        durable=request.durable,
        start=position_of(request.start_message_id) if request.HasField("start_message_id") else None,
        start_rollback_s=request.start_message_rollback_duration_sec,
        earliest=request.initialPosition == CommandSubscribe.Earliest,
        priority_level=request.priority_level,
        metadata={pair.key: pair.value for pair in request.metadata},
        sticky=request.HasField("keySharedMeta") and meta.keySharedMode == KeySharedMode.STICKY,
        sticky_ranges=tuple((part.start, part.end) for part in meta.hashRanges),
        allow_out_of_order=meta.allowOutOfOrderDelivery,
        read_compacted=request.read_compacted,
        replicated=request.replicate_subscription_state and not request.topic.startswith("segment://"),
        subscription_properties={pair.key: pair.value for pair in request.subscription_properties},
        auto_consume=schema is not None and schema.type is SchemaType.AUTO_CONSUME,
        client_address=session.address,
        client_version=session.client_version,
    )


def close_consumer(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.close_consumer
    session.request(_close(session, request.consumer_id, request.request_id), request.request_id, "close consumer")


async def _close(session: Session, consumer_id: int, request_id: int) -> None:
    consumer = session.consumers.pop(consumer_id, None)
    if consumer is not None:
        await session.consumer_topics.pop(consumer_id).consumer_left(consumer)
    session.write(commands.success(request_id))


def unsubscribe(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.unsubscribe
    session.request(
        _unsubscribe(session, request.consumer_id, request.request_id, request.force), request.request_id, "unsubscribe"
    )


async def _unsubscribe(session: Session, consumer_id: int, request_id: int, force: bool) -> None:
    consumer = session.consumers.get(consumer_id)
    if consumer is None or consumer.subscription is None:
        raise MetadataRefusedError("Consumer not found")
    topic, name = session.consumer_topics[consumer_id], consumer.subscription.name
    session.unsubscribing.add(consumer_id)
    try:
        await topic.unsubscribe(name, force)
    finally:
        session.unsubscribing.discard(consumer_id)
    if topic.name.is_segment or (topic.terminated and topic.name.domain == PERSISTENT):
        await session.context.scalable.subscriptions.after_unsubscribe(topic.name, name)
    session.consumers.pop(consumer_id, None)
    session.consumer_topics.pop(consumer_id, None)
    session.write(commands.success(request_id))


class SessionConsumerChannel:
    """Implements `dispatch.ports.ConsumerChannel`. `partition` is that of the topic, -1 for a plain one."""

    __slots__ = ("_consumer_id", "_heads", "_partition", "_session")

    def __init__(self, session: Session, consumer_id: int, partition: int) -> None:
        self._session = session
        self._consumer_id = consumer_id
        self._partition = partition
        self._heads = MessageHeads(consumer_id, partition)

    @property
    def writable(self) -> bool:
        return self._session.output_open

    def deliver(
        self, entry: Entry, redelivery_count: int, ack_set: list[int] | None, consumer_epoch: int | None
    ) -> None:
        data = entry.data
        if data[:2] == MAGIC_BROKER_ENTRY_METADATA:
            data = without_broker_metadata(data)
        if not redelivery_count and not ack_set and consumer_epoch is None:
            self._session.write_message(self._heads.head(entry.ledger_id, entry.entry_id, len(data)), data)
            return
        header = commands.message_header(
            self._consumer_id,
            entry.ledger_id,
            entry.entry_id,
            self._partition,
            redelivery_count,
            ack_set,
            consumer_epoch,
            len(data),
        )
        self._session.write_message(header, data)

    def deliver_run(self, entries: Sequence[Entry]) -> None:
        self._session.write_messages(self._heads, entries)

    def active_changed(self, is_active: bool) -> None:
        if not self._session.closed:
            self._session.write(commands.active_consumer_change(self._consumer_id, is_active))

    def close(self) -> None:
        session = self._session
        session.consumers.pop(self._consumer_id, None)
        topic = session.consumer_topics.pop(self._consumer_id, None)
        if not session.closed and self._consumer_id not in session.unsubscribing:
            session.write(commands.close_consumer(self._consumer_id, session.context.destinations.of(topic)))

    def end_of_topic(self) -> None:
        """Sent only to clients that know the command: the C++ and Go clients close the connection on it."""
        session = self._session
        if not session.closed and not session.client_version.startswith(("Pulsar-CPP", "Pulsar-Go", "Pulsar Go")):
            session.write(commands.reached_end_of_topic(self._consumer_id))


def signed(value: int) -> int:
    """An unsigned 64-bit id as the signed one it stands for."""
    return value - _WRAP if value >= _SIGN else value


def position_of(message_id: MessageIdData) -> Position:
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))


def set_message_id(message_id: MessageIdData, position: Position, partition: int, batch_index: int = -1) -> None:
    """Fill a message id of an answer; -1 becomes 2^64-1."""
    message_id.ledgerId = position.ledger_id % _WRAP
    message_id.entryId = position.entry_id % _WRAP
    message_id.partition = partition
    message_id.batch_index = batch_index


def seek(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.seek
    session.request(_seek(session, request), request.request_id, "seek")


async def _seek(session: Session, request: CommandSeek) -> None:
    """The consumers are closed before SUCCESS is sent: the Go client relies on this order."""
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None or consumer.subscription is None:
        raise MetadataRefusedError("Consumer not found")
    topic = session.consumer_topics[request.consumer_id]
    if request.HasField("message_id"):
        await topic.seek(consumer.subscription.name, position_of(request.message_id))
    elif request.HasField("message_publish_time"):
        await topic.seek_to_time(consumer.subscription.name, request.message_publish_time)
    else:
        raise MetadataRefusedError("Message id and message publish time were not present")
    session.write(commands.success(request.request_id))


def last_message_id(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.getLastMessageId
    session.request(
        _last_message_id(session, request.consumer_id, request.request_id), request.request_id, "last message id"
    )


async def _last_message_id(session: Session, consumer_id: int, request_id: int) -> None:
    consumer = session.consumers.get(consumer_id)
    if consumer is None or consumer.subscription is None:
        raise MetadataRefusedError("Consumer not found")
    topic = session.consumer_topics[consumer_id]
    position, batch_size = await topic.last_message(consumer.read_compacted)
    answer = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    response = answer.getLastMessageIdResponse
    response.request_id = request_id
    set_message_id(response.last_message_id, position, topic.name.partition, batch_size - 1)
    mark_delete = topic.mark_delete_position(consumer.subscription.name)
    if mark_delete is not None:
        place = response.consumer_mark_delete_position
        place.ledgerId, place.entryId = mark_delete.ledger_id % _WRAP, mark_delete.entry_id % _WRAP
    session.write(commands.frame(answer))


def consumer_stats(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.consumerStats
    answer = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    response = answer.consumerStatsResponse
    response.request_id = request.request_id
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None or consumer.subscription is None:
        response.error_code = ServerError.ConsumerNotFound
        response.error_message = f"Consumer {request.consumer_id} not found"
    else:
        stats = consumer.stats()
        response.msgRateOut = stats["msgRateOut"]
        response.msgThroughputOut = stats["msgThroughputOut"]
        response.msgRateRedeliver = stats["msgRateRedeliver"]
        response.messageAckRate = stats["messageAckRate"]
        response.consumerName = consumer.name
        response.availablePermits = max(0, consumer.permits)
        response.unackedMessages = consumer.unacked_messages
        response.blockedConsumerOnUnackedMsgs = consumer.blocked_on_unacked
        response.address = consumer.client_address
        response.connectedSince = iso_time(consumer.connected_since_ms)
        response.type = consumer.type.name
        response.msgRateExpired = 0.0
        response.msgBacklog = session.consumer_topics[request.consumer_id].backlog_of(consumer.subscription.name)
    session.write(commands.frame(answer))
