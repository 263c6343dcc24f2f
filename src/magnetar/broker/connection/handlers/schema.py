"""GET_SCHEMA and GET_OR_CREATE_SCHEMA. Failures are answered inside their own responses."""

from __future__ import annotations

import logging

from magnetar.base.errors import MagnetarError
from magnetar.broker.connection.error_codes import code_of, text_of
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import IncompatibleSchemaError, TopicNotFoundError
from magnetar.broker.naming import TopicName
from magnetar.broker.schemas.types import (
    SchemaId,
    StoredSchema,
    fill_message,
    from_message,
    pack_version,
    unpack_version,
)
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandGetOrCreateSchema, CommandGetSchema

logger = logging.getLogger(__name__)


def get_schema(session: Session, command: BaseCommand, rest: bytes) -> None:
    session.spawn(_get(session, command.getSchema), "get schema")


async def _get(session: Session, request: CommandGetSchema) -> None:
    answer = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
    response = answer.getSchemaResponse
    response.request_id = request.request_id
    try:
        schema_id = SchemaId.of(TopicName.parse(request.topic))
        found = await _found(session, schema_id, request)
        fill_message(response.schema, schema_id, found)
        response.schema_version = pack_version(found.version)
    except Exception as error:
        _log_unexpected(session, error)
        response.error_code = code_of(error)  # type: ignore[assignment]  # the stubs want the enum's own type
        response.error_message = text_of(error)
    session.write(commands.frame(answer))


async def _found(session: Session, schema_id: SchemaId, request: CommandGetSchema) -> StoredSchema:
    """The version asked for, the latest one when none is. Raises TopicNotFoundError, IncompatibleSchemaError."""
    registry = session.context.schemas.registry
    if request.HasField("schema_version"):
        version = unpack_version(request.schema_version)
        if version is None:
            raise IncompatibleSchemaError("Invalid schema version: it must be 8 bytes")
        found = await registry.version(schema_id, version)
    else:
        found = await registry.latest_or_deletion(schema_id)
    if found is None:
        raise TopicNotFoundError("Topic not found or no-schema")
    return found


def get_or_create_schema(session: Session, command: BaseCommand, rest: bytes) -> None:
    session.spawn(_get_or_create(session, command.getOrCreateSchema), "get or create schema")


async def _get_or_create(session: Session, request: CommandGetOrCreateSchema) -> None:
    answer = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    response = answer.getOrCreateSchemaResponse
    response.request_id = request.request_id
    try:
        name = TopicName.parse(request.topic)
        await session.context.topics.get(name, create=False)
        response.schema_version = await session.context.schemas.producer(name, from_message(request.schema))
    except Exception as error:
        _log_unexpected(session, error)
        response.error_code = code_of(error)  # type: ignore[assignment]  # as above
        response.error_message = text_of(error)
    session.write(commands.frame(answer))


def _log_unexpected(session: Session, error: Exception) -> None:
    if not isinstance(error, MagnetarError):
        logger.error("schema request failed address=%s", session.address, exc_info=error)
