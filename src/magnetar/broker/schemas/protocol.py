"""Schemas between the binary protocol's messages and ours."""

from __future__ import annotations

from magnetar.broker.schemas.types import Schema, SchemaId, SchemaType, StoredSchema
from magnetar.wire.pulsar import PulsarApi_pb2 as api

_FROM_WIRE = {
    api.Schema.Bool: SchemaType.BOOLEAN,
    api.Schema.AutoConsume: SchemaType.AUTO_CONSUME,
    **{number: SchemaType(number) for number in range(SchemaType.INT8, SchemaType.PROTOBUF_NATIVE + 1)},
    **{number: SchemaType(number) for number in range(SchemaType.STRING, SchemaType.AVRO + 1)},
    api.Schema.External: SchemaType.EXTERNAL,
}


def from_message(message: api.Schema) -> Schema | None:
    """None for a type that says nothing about the bytes."""
    type_ = _FROM_WIRE.get(message.type)
    if type_ is None:
        return None
    return Schema(type_, message.schema_data, {pair.key: pair.value for pair in message.properties})


def fill_message(message: api.Schema, schema_id: SchemaId, stored: StoredSchema) -> None:
    """What GET_SCHEMA answers."""
    message.name = schema_id.text
    message.type = int(stored.schema.type)  # type: ignore[assignment]  # the stubs want the enum's own type
    message.schema_data = stored.schema.data
    for key, value in stored.schema.properties.items():
        message.properties.add(key=key, value=value)
