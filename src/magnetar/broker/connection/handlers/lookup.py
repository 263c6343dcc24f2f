"""PARTITIONED_METADATA, LOOKUP, GET_TOPICS_OF_NAMESPACE.

Failures of the first two are answered inside their own responses: after an ERROR the client would wait until its time-out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from magnetar.base.errors import MagnetarError
from magnetar.broker.connection.error_codes import answer_code_of, text_of
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.naming import NamespaceName, TopicName
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

logger = logging.getLogger(__name__)


def partitioned_metadata(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.partitionMetadata
    session.spawn(
        _partitioned_metadata(session, request.topic, request.request_id, request.metadata_auto_creation_enabled),
        "partitioned metadata",
    )


async def _partitioned_metadata(session: Session, topic: str, request_id: int, auto_create: bool) -> None:
    answer = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    response = answer.partitionMetadataResponse
    response.request_id = request_id
    try:
        name = TopicName.parse(topic)
        partitions = await session.context.lookup.partitions(name, auto_create)
        if not partitions and not auto_create and not await _exists(session, name):
            # Clients look this way for topics of old names, and would share them if they seemed to be there.
            raise TopicNotFoundError(f"topic {name} does not exist")
        response.partitions = partitions
        response.response = CommandPartitionedTopicMetadataResponse.Success
    except Exception as error:
        _log_unexpected(session, error)
        response.response = CommandPartitionedTopicMetadataResponse.Failed
        response.error = answer_code_of(error, session.client_version)  # type: ignore[assignment]  # the stubs want the enum's own type
        response.message = text_of(error)
    session.write(commands.frame(answer))


async def _exists(session: Session, name: TopicName) -> bool:
    """Whether a plain topic, or one partition, is there. One that is not persistent exists where it is used."""
    context = session.context
    if name.persistent:
        return await context.lookup.stored(name)
    if context.topics.get_loaded(name) is not None:
        return True
    return str(name) in await context.non_persistent.elsewhere(name.namespace_name)


def lookup(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.lookupTopic
    session.spawn(_lookup(session, request), "lookup")


async def _lookup(session: Session, request: CommandLookupTopic) -> None:
    answer = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = answer.lookupTopicResponse
    response.request_id = request.request_id
    try:
        listener_name = request.advertised_listener_name
        if listener_name:
            # The C++ client ends its call at once on exactly this code and text.
            raise ServiceNotReadyError(f"the broker do not have {listener_name} listener")
        found = await session.context.lookup.find(TopicName.parse(request.topic, scalable=True), request.authoritative)
        if found.address.service_url:
            response.brokerServiceUrl = found.address.service_url
        if found.address.service_url_tls:  # some clients take an empty one for an address
            response.brokerServiceUrlTls = found.address.service_url_tls
        response.authoritative = found.authoritative
        if session.context.config.only_broker:
            response.proxy_through_service_url = True
        response.response = (
            CommandLookupTopicResponse.Redirect if found.redirect else CommandLookupTopicResponse.Connect
        )
    except Exception as error:
        _log_unexpected(session, error)
        response.response = CommandLookupTopicResponse.Failed
        response.error = answer_code_of(error, session.client_version)  # type: ignore[assignment]  # as above
        response.message = text_of(error)
    session.write(commands.frame(answer))


def _log_unexpected(session: Session, error: Exception) -> None:
    if not isinstance(error, MagnetarError):
        logger.error("lookup failed address=%s", session.address, exc_info=error)


def topics_of_namespace(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.getTopicsOfNamespace
    session.request(_topics_of_namespace(session, request), request.request_id, "topics of namespace")


async def _topics_of_namespace(session: Session, request: CommandGetTopicsOfNamespace) -> None:
    """A missing namespace has no topics: as in Pulsar, the answer is an empty list, not an error.

    The client's pattern is not applied here: it filters the list itself in any case, and a hostile expression stays with it.
    """
    context = session.context
    name = NamespaceName.parse(request.namespace)
    stored: Sequence[str] = ()
    others: list[str] = []
    if request.mode != CommandGetTopicsOfNamespace.NON_PERSISTENT:
        stored = await context.namespaces.persistent_topics(name)
    if request.mode != CommandGetTopicsOfNamespace.PERSISTENT:
        own = context.topics.loaded_non_persistent(name)
        others = list(dict.fromkeys([*own, *await context.non_persistent.elsewhere(name)]))
    answer = await context.list_answers.of(f"{name} {request.mode}", stored, others)
    changed = not request.topics_hash or request.topics_hash != answer.digest
    topics = answer.topics if changed else b""
    session.write(commands.topics_of_namespace(request.request_id, topics, answer.digest, False, changed))
