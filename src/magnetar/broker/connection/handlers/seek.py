"""SEEK, GET_LAST_MESSAGE_ID, CONSUMER_STATS."""

from __future__ import annotations

from magnetar.broker.connection.positions import position_of, set_message_id
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import MetadataRefusedError
from magnetar.broker.iso_time import iso_time
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSeek, ServerError


def seek(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.seek
    session.request(_seek(session, request), request.request_id, "seek")


async def _seek(session: Session, request: CommandSeek) -> None:
    """The consumers are closed first, then SUCCESS follows: the order that the Go client is written against (facts 5.11)."""
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None or consumer.subscription is None:
        raise MetadataRefusedError("Consumer not found")
    topic = session.consumer_topics[request.consumer_id]
    if request.HasField("message_id"):
        await topic.seek(consumer.subscription.name, position_of(request.message_id))
    else:
        await topic.seek_to_time(consumer.subscription.name, request.message_publish_time)
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
        set_message_id(response.consumer_mark_delete_position, mark_delete, topic.name.partition)
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
