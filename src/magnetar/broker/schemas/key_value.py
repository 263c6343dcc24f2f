"""KEY_VALUE schemas: two schemas in one, on the wire and in the admin API. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from magnetar.broker.schemas.avro_schema import parse_json
from magnetar.broker.schemas.types import STRUCTURED, InvalidSchemaError, Schema, SchemaType

_LENGTH = struct.Struct(">i")

ENCODING_PROPERTY = "kv.encoding.type"


def split(schema: Schema) -> tuple[Schema, Schema]:
    """Key's and value's schema; without a type property they are BYTES. Raises InvalidSchemaError."""
    key, rest = _take(schema.data)
    value, rest = _take(rest)
    if rest:
        raise InvalidSchemaError("a key/value schema has bytes behind its value")
    return _part("key", key, schema.properties), _part("value", value, schema.properties)


def _take(data: bytes) -> tuple[bytes, bytes]:
    """A length, -1 for nothing, and as many bytes; then the rest."""
    if len(data) < _LENGTH.size:
        raise InvalidSchemaError("a key/value schema is truncated")
    size = max(0, _LENGTH.unpack_from(data)[0])
    end = _LENGTH.size + size
    if len(data) < end:
        raise InvalidSchemaError("a key/value schema is truncated")
    return data[_LENGTH.size : end], data[end:]


def _part(which: str, data: bytes, properties: Mapping[str, str]) -> Schema:
    name = properties.get(f"{which}.schema.type", "BYTES")
    if name not in SchemaType.__members__ or name == "KEY_VALUE":
        raise InvalidSchemaError(f"{which}.schema.type is {name[:40]!r}")
    return Schema(SchemaType[name], data)


def join(key: bytes, value: bytes) -> bytes:
    """The definition on the wire."""
    return _LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value


def to_text(schema: Schema) -> str:
    """The definition in the admin API: `{"key": ..., "value": ...}`, each a schema's JSON, or `""` for a primitive one."""
    key, value = split(schema)
    return json.dumps({"key": _document(key), "value": _document(value)}, separators=(",", ":"))


def _document(part: Schema) -> Any:
    return parse_json(part.data) if part.type in STRUCTURED and part.data else ""


def from_text(text: str) -> bytes:
    """The inverse of `to_text`. Raises InvalidSchemaError."""
    document = parse_json(text.encode("utf-8", "replace"))
    if not isinstance(document, dict) or not {"key", "value"} <= document.keys():
        raise InvalidSchemaError('a key/value schema must be {"key": ..., "value": ...}')
    return join(_definition(document["key"]), _definition(document["value"]))


def _definition(document: Any) -> bytes:
    return document.encode("utf-8", "replace") if isinstance(document, str) else json.dumps(document).encode()
