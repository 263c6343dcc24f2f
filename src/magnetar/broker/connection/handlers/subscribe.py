"""SUBSCRIBE, CLOSE_CONSUMER, UNSUBSCRIBE.

A retriable error on SUBSCRIBE is never sent again by the C++ client (facts 0.2): whatever is transient is waited for here.
"""

from __future__ import annotations

from magnetar.base import limits
from magnetar.base.errors import MetadataError
from magnetar.broker.connection.consumer_channel import SessionConsumerChannel
from magnetar.broker.connection.positions import position_of
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import MetadataRefusedError, NotAllowedError, ServiceNotReadyError
from magnetar.broker.naming import TopicName
from magnetar.broker.schemas.protocol import from_message
from magnetar.broker.schemas.types import Schema, SchemaType
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.broker.topics.subscribe import SubscribeRequest
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe, KeySharedMode


def subscribe(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.subscribe
    session.request(_subscribe(session, request), request.request_id, "subscribe")


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
            # It sends a first SUBSCRIBE once only (facts 0.2), but looks up again for a consumer that is closed: so both are said.
            session.write(commands.close_consumer(consumer_id))
        raise error if isinstance(error, ServiceNotReadyError) else ServiceNotReadyError(str(error)) from error
    finally:
        session.opening.discard(key)


async def _open(session: Session, request: CommandSubscribe) -> None:
    name = TopicName.parse(request.topic)
    topic = await session.context.topics.get(name, create=request.force_topic_creation)
    schema = from_message(request.schema) if request.HasField("schema") else None
    await session.context.schemas.consumer(name, schema, lambda: not topic.used_without_schema)
    channel = SessionConsumerChannel(session, request.consumer_id, name.partition)
    consumer = await topic.subscribe(_request(session, request, schema), channel)
    if session.closed:
        await topic.consumer_left(consumer)
        return
    session.consumers[request.consumer_id] = consumer
    session.consumer_topics[request.consumer_id] = topic
    session.write(commands.success(request.request_id))


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
        replicated=request.replicate_subscription_state,
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
    await session.consumer_topics[consumer_id].unsubscribe(consumer.subscription.name, force)
    session.consumers.pop(consumer_id, None)
    session.consumer_topics.pop(consumer_id, None)
    session.write(commands.success(request_id))
