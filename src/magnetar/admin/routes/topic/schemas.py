"""Schemas: show, upload, delete, compare. A schema belongs to a topic with its partitions; the topic need not exist yet."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.topics import (
    Compatibility,
    SchemaInfo,
    SchemaList,
    SchemaMetadata,
    SchemaPayload,
    SchemaVersion,
    Version,
)
from magnetar.admin.errors import BadRequestError
from magnetar.admin.operation import FORCE, documented
from magnetar.admin.routing import ADMIN, Route
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.naming import PERSISTENT
from magnetar.broker.schemas import key_value
from magnetar.broker.schemas.admission import strategy_of
from magnetar.broker.schemas.compatibility import Strategy
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.types import Schema, SchemaId, SchemaType, StoredSchema
from magnetar.wire.pulsar.SchemaStorage_pb2 import IndexEntry

NOT_FOUND = "Schema not found"
NO_VERSION = -1
"""What POST version answers for a schema that the topic does not have."""


@documented("The latest schema.", answer=SchemaInfo)
async def get_latest(call: Call) -> Response:
    stored = await _registry(call).latest(await _schema_id(call))
    return as_json(_document(_found(stored)))


@documented("One version.", answer=SchemaInfo)
async def get_version(call: Call) -> Response:
    stored = await _registry(call).version(await _schema_id(call), call.number("version"))
    return as_json(_document(_found(stored)))


@documented(answer=SchemaList)
async def get_all(call: Call) -> Response:
    """The versions since the last deletion."""
    versions = await _registry(call).living(await _schema_id(call))
    return as_json({"getSchemaResponses": [_document(stored) for stored in versions]})


@documented(answer=SchemaMetadata, may_be_unset=True)
async def get_metadata(call: Call) -> Response:
    """Ledger and entry of each version; 204 where there is no schema."""
    entries = (await _registry(call).catalogue(await _schema_id(call))).entries
    if not entries:
        return done()
    return as_json({"info": _place(entries[-1]), "index": [_place(entry) for entry in entries]})


@documented(body=SchemaPayload, answer=SchemaVersion, errors=(422,))
async def upload(call: Call) -> Response:
    """Added whatever `isAllowAutoUpdateSchema` says: that one is about clients."""
    schema_id, schema = await _schema_id(call), await _payload(call)
    version = await _registry(call).put(schema_id, schema, await _strategy(call))
    return as_json({"version": {"version": version}})


@documented("Delete the schema; with `force` all its versions.", answer=Version, query=FORCE)
async def delete(call: Call) -> Response:
    """The answer has one level less than that of an upload, as Pulsar's."""
    version = await _registry(call).delete(await _schema_id(call), force=call.flag("force"))
    if version is None:
        raise TopicNotFoundError(NOT_FOUND)
    return as_json({"version": version})


@documented("The version that a schema has, -1 without.", body=SchemaPayload, answer=Version, errors=(422,))
async def version_of(call: Call) -> Response:
    version = await _registry(call).find(await _schema_id(call), await _payload(call))
    return as_json({"version": NO_VERSION if version is None else version})


@documented("Would the schema be taken?", body=SchemaPayload, answer=Compatibility, errors=(422,))
async def compatibility(call: Call) -> Response:
    strategy = await _strategy(call)
    compatible = await _registry(call).is_compatible(await _schema_id(call), await _payload(call), strategy)
    return as_json({"compatibility": compatible, "schemaCompatibilityStrategy": strategy.value})


def _registry(call: Call) -> SchemaRegistry:
    return call.broker.schemas.registry


async def _schema_id(call: Call) -> SchemaId:
    """Raises NamespaceNotFoundError."""
    name = call.topic
    await call.broker.namespaces.effective(name.namespace_name)
    return SchemaId.of(name)


async def _strategy(call: Call) -> Strategy:
    return strategy_of(await call.broker.namespaces.effective_of(call.topic))


async def _payload(call: Call) -> Schema:
    """`{"type": ..., "schema": ..., "properties": {...}}`. Raises BadRequestError, InvalidSchemaError."""
    document = await call.json()
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise BadRequestError('expected {"type": "...", "schema": "...", "properties": {}}')
    kind, text, properties = document["type"].upper(), document.get("schema"), document.get("properties")
    if kind not in SchemaType.__members__:
        raise BadRequestError(f"type must be one of {', '.join(SchemaType.__members__)}")
    if not isinstance(text, str | None) or not _texts(properties):
        raise BadRequestError("schema must be a text, and properties an object of texts")
    type_ = SchemaType[kind]
    text = text or ""
    if type_ is SchemaType.KEY_VALUE:
        return Schema(type_, key_value.from_text(text), properties or {})
    return Schema(type_, text.encode("utf-8", "replace"), properties or {})


def _texts(value: Any) -> bool:
    """None, or an object whose names and values are texts that UTF-8 can hold."""
    if not isinstance(value, dict):
        return value is None
    try:
        return all(isinstance(item, str) and f"{name}{item}".encode() is not None for name, item in value.items())
    except UnicodeEncodeError:
        return False


def _found(stored: StoredSchema | None) -> StoredSchema:
    if stored is None:
        raise TopicNotFoundError(NOT_FOUND)
    return stored


def _document(stored: StoredSchema) -> dict[str, object]:
    schema = stored.schema
    is_pair = schema.type is SchemaType.KEY_VALUE
    return {
        "version": stored.version,
        "type": schema.type.name,
        "timestamp": stored.timestamp_ms,
        "data": key_value.to_text(schema) if is_pair else schema.data.decode("utf-8", "replace"),
        "properties": dict(schema.properties),
    }


def _place(entry: IndexEntry) -> dict[str, int]:
    return {"ledgerId": entry.position.ledgerId, "entryId": entry.position.entryId, "version": entry.version}


_TOPIC = f"{ADMIN}/schemas/{{tenant}}/{{namespace}}/{{topic}}"
_FIXED = {"domain": PERSISTENT}

ROUTES = (
    Route("GET", f"{_TOPIC}/schema", Access.LOOKUP, get_latest, _FIXED),
    Route("POST", f"{_TOPIC}/schema", Access.PRODUCE, upload, _FIXED),
    Route("DELETE", f"{_TOPIC}/schema", Access.TENANT, delete, _FIXED),
    Route("GET", f"{_TOPIC}/schema/{{version}}", Access.LOOKUP, get_version, _FIXED),
    Route("GET", f"{_TOPIC}/schemas", Access.LOOKUP, get_all, _FIXED),
    Route("GET", f"{_TOPIC}/metadata", Access.LOOKUP, get_metadata, _FIXED),
    Route("POST", f"{_TOPIC}/version", Access.PRODUCE, version_of, _FIXED),
    Route("POST", f"{_TOPIC}/compatibility", Access.PRODUCE, compatibility, _FIXED),
)
