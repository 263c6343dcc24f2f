"""Rows as the bytes of messages: JSON or Avro, and the schema that is registered for them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import _pulsar
import msgspec
import pulsar.schema
import pyarrow as pa

from magnetar.pipeline.connect.writing.avro_schema import record_of

Encode = Callable[[Mapping[str, Any]], bytes]
_JSON: Final = msgspec.json.Encoder(decimal_format="number")


class Encoded(pulsar.schema.Schema):  # type: ignore[misc]
    """A schema to be registered; what is sent is encoded already."""

    def __init__(self, kind: Any, definition: Mapping[str, Any]) -> None:
        super().__init__(bytes, kind, definition, str(definition.get("name") or definition["rootMessageTypeName"]))

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


def json_bytes(row: Any) -> bytes:
    """Times in ISO 8601 (UTC ends with Z), decimals as numbers, bytes in base64; NaN and infinities are null."""
    return _JSON.encode(row)


def json_schema(schema: pa.Schema, name: str) -> Encoded:
    """Raises SchemaError."""
    return Encoded(_pulsar.SchemaType.JSON, record_of(schema, name, json_text=True))


def avro(schema: pa.Schema, name: str) -> tuple[Encode, Encoded]:
    """How to encode rows of these columns, and their schema. Raises SchemaError."""
    import fastavro

    definition = record_of(schema, name)
    parsed = fastavro.parse_schema(definition)

    def encode(row: Mapping[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        return out.getvalue()

    return encode, Encoded(_pulsar.SchemaType.AVRO, definition)
