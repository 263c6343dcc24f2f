"""PRODUCER and CLOSE_PRODUCER."""

from __future__ import annotations

from functools import partial

from magnetar.base import limits
from magnetar.broker.connection.refusals import remembered
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import MetadataRefusedError, NotAllowedError, ServiceNotReadyError
from magnetar.broker.naming import TopicName
from magnetar.broker.replicators.names import (
    INSTANCE_METADATA,
    LOG_END_METADATA,
    cluster_of_source,
    is_source,
    log_end,
    source_of_producer,
)
from magnetar.broker.schemas.types import from_message
from magnetar.broker.topics.producer import AccessMode, Producer
from magnetar.broker.topics.registry import AnyTopic
from magnetar.managed_ledger.position import LATEST
from magnetar.wire.pulsar import client_commands, commands
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandProducer


def producer(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.producer
    session.request(remembered(session, command, partial(_producer, session, request)), request.request_id, "producer")


async def _producer(session: Session, request: CommandProducer) -> None:
    producer_id = request.producer_id
    key = ("producer", producer_id)
    if key in session.opening:
        raise NotAllowedError(f"producer {producer_id} is being created already")
    if producer_id in session.producers:
        session.write(_success(request.request_id, session.producers[producer_id], ready=True))
        return
    if len(session.producers) >= limits.PRODUCERS_PER_CONNECTION_MAX:
        raise NotAllowedError(f"more than {limits.PRODUCERS_PER_CONNECTION_MAX} producers on one connection")
    session.opening.add(key)
    try:
        await _open(session, request)
    finally:
        session.opening.discard(key)


async def _open(session: Session, request: CommandProducer) -> None:
    context = session.context
    name = TopicName.parse(request.topic)
    source = source_of_producer(request.producer_name)
    if source is not None:
        await _check_source(session, name, source)
    topic = await context.topics.get(name, create=True)
    if topic.policies.encryption_required and not request.encrypted and source is None:
        raise MetadataRefusedError(f"Encryption is required in {name}")
    if topic.terminated and any(pair.key == client_commands.LAST_SEQUENCE_METADATA for pair in request.metadata):
        session.write(_last_sequence(request, topic, source))
        return
    if topic.terminated:
        await context.scalable.migrations.refuse_producer(name)
    if request.initial_subscription_name:
        await topic.ensure_subscription(request.initial_subscription_name, LATEST)
    schema = from_message(request.schema) if request.HasField("schema") else None
    schema_version = await context.schemas.producer(name, schema)
    newcomer = _newcomer(session, request, topic, context.security.authorizer.owner(session.principal))
    newcomer.schema_version = schema_version
    ready = await topic.publishers.register(newcomer)
    if source is not None:
        await _accept_replicated(topic, newcomer, source)
    if session.closed:
        topic.publishers.remove(newcomer)
        return
    _remember(session, newcomer, topic)
    session.write(_success(request.request_id, newcomer, ready))
    if ready:
        return
    session.opening.discard(("producer", newcomer.producer_id))
    with session.requests.uncounted():
        promoted = await topic.publishers.wait_for_promotion(newcomer)
    if promoted and not session.closed:
        session.write(_success(request.request_id, newcomer, ready=True))


def _last_sequence(request: CommandProducer, topic: AnyTopic, source: str | None) -> bytes:
    """The answer to who only asks for it: a terminated topic has no producers. A replicator gets the last place of its log that is stored
    here, the ledger as the sequence id, and the entry as the topic's epoch."""
    answer = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    response = answer.producer_success
    response.request_id, response.producer_name = request.request_id, request.producer_name
    if source is None:
        response.last_sequence_id = topic.publishers.last_sequence_id(request.producer_name)
    elif (place := topic.publishers.place_of(source)) is not None:
        response.last_sequence_id, response.topic_epoch = place
    response.schema_version = b""
    return commands.frame(answer)


async def _check_source(session: Session, topic: TopicName, source: str) -> None:
    """Raises NotAllowedError unless that cluster may send messages of the topic."""
    if not is_source(source, topic.is_segment):
        raise NotAllowedError(
            f"{source[:80]!r} does not replicate to {topic}: expected a cluster, for a segment also a number"
        )
    context, source = session.context, cluster_of_source(source)
    if await context.namespaces.replicates_from(topic, source):
        return
    raise NotAllowedError(
        f"cluster {source[:80]!r} does not replicate to {topic}: allow it to the tenant (`tenants update --allowed-clusters`), "
        "or, for a producer that does not replicate, choose another name"
    )


async def _accept_replicated(topic: AnyTopic, newcomer: Producer, source: str) -> None:
    """Before its first entry. Registered already, so that no other replicator of that cluster sends meanwhile."""
    told = newcomer.metadata
    try:
        await topic.accept_replicated(source, told.get(INSTANCE_METADATA, ""), log_end(told.get(LOG_END_METADATA, "")))
    except BaseException:
        topic.publishers.remove(newcomer)
        raise
    if newcomer.closed:
        raise ServiceNotReadyError(f"{topic.name} was closed meanwhile: look it up again")


def _newcomer(session: Session, request: CommandProducer, topic: AnyTopic, owner: str | None) -> Producer:
    generated = not request.producer_name or not request.user_provided_producer_name
    return Producer(
        producer_id=request.producer_id,
        name=request.producer_name or session.context.producer_names.next(),
        owner=owner,
        generated_name=generated,
        epoch=request.epoch,
        access_mode=AccessMode(request.producer_access_mode),
        topic_epoch=request.topic_epoch if request.HasField("topic_epoch") else None,
        channel=session,
        topic=topic.publishers,
        metadata={pair.key: pair.value for pair in request.metadata},
        connected_since_ms=session.context.clock.now_ms(),
        encrypted=request.encrypted,
    )


def _remember(session: Session, newcomer: Producer, topic: AnyTopic) -> None:
    session.producers[newcomer.producer_id] = newcomer
    session.producer_topics[newcomer.producer_id] = topic
    session.closed_producers.pop(newcomer.producer_id, None)


def _success(request_id: int, producer: Producer, ready: bool) -> bytes:
    answer = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    response = answer.producer_success
    response.request_id = request_id
    response.producer_name = producer.name
    response.last_sequence_id = producer.topic.last_sequence_id(producer.name)
    response.schema_version = producer.schema_version
    response.producer_ready = ready
    if producer.topic_epoch is not None:
        response.topic_epoch = producer.topic_epoch
    return commands.frame(answer)


def close_producer(session: Session, command: BaseCommand, rest: bytes) -> None:
    """Messages that are under way still get their receipts; the answer follows them."""
    request = command.close_producer
    leaving = session.producers.pop(request.producer_id, None)
    if leaving is not None:
        topic = session.producer_topics.pop(request.producer_id)
        topic.publishers.remove(leaving)
        session.remember_closed(request.producer_id)
    session.write(commands.success(request.request_id))
