"""Values of Protocol Buffers as rows of the columns that are wanted."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as at
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from magnetar.pipeline.connect.errors import SchemaError
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.connect.protobuf import TIMESTAMP, Field, MessageType, is_map, of_schema
from magnetar.pipeline.connect.reading.record_values import RecordValues, Row
from magnetar.pipeline.connect.registered import registered

_F: Final[Any] = FieldDescriptor
_EPOCH: Final = datetime(1970, 1, 1)
_WHOLE: Final = frozenset(
    (_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32, _F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_UINT32)
) | {_F.TYPE_FIXED32, _F.TYPE_UINT64, _F.TYPE_FIXED64}

Convert = Callable[[Any], Any]


class ProtobufValues(RecordValues):
    """Reads each value as `given`, or as the message of the schema that it was written with; `name`: another one than its root."""

    def __init__(self, connection: Connection, schema: pa.Schema, given: MessageType | None, name: str | None) -> None:
        super().__init__(connection, schema)
        self._given = given
        self._name = name

    def _reader(self, topic: str, version: int) -> Callable[[bytes], Row]:
        key = ("", 0) if self._given is not None else (topic, version)
        if key not in self._readers:
            found = self._given
            if found is None:
                known = registered(self._connection, topic, version)
                if known is None or known.kind != "PROTOBUF_NATIVE":
                    raise SchemaError(
                        f"{topic} has no schema of the type PROTOBUF_NATIVE; give message and schema.location"
                    )
                found = of_schema(known.definition, self._name)
            self._readers[key] = reader(found.descriptor(), self._fields)
        return self._readers[key]


def reader(descriptor: Descriptor, fields: list[pa.Field]) -> Callable[[bytes], Row]:
    """Raises SchemaError for columns that the message does not have, or has as something else."""
    message: Any = GetMessageClass(descriptor)
    read = _of_message(descriptor, fields)
    return lambda value: read(message.FromString(value))


def _of_message(descriptor: Descriptor, fields: list[pa.Field]) -> Convert:
    by_name = {each.name.lower(): each for each in reversed(descriptor.fields)}
    parts: list[tuple[str, Field, Convert]] = []
    for column in fields:
        found = descriptor.fields_by_name.get(column.name) or by_name.get(column.name.lower())
        if found is None:
            there = ", ".join(each.name for each in descriptor.fields)
            raise SchemaError(f"the message {descriptor.full_name} has no field {column.name}; it has {there}")
        parts.append((column.name, found, _of_field(found, column.type)))

    def convert(message: Any) -> Row:
        return {
            name: None
            if found.has_presence and not message.HasField(found.name)
            else value(getattr(message, found.name))
            for name, found, value in parts
        }

    return convert


def _of_field(found: Field, kind: pa.DataType) -> Convert:
    if is_map(found) and at.is_map(kind):
        inner = found.message_type.fields_by_name
        key, value = _of_one(inner["key"], kind.key_type), _of_one(inner["value"], kind.item_type)
        return lambda given: [(key(name), value(given[name])) for name in given]
    if found.is_repeated and not is_map(found) and (at.is_list(kind) or at.is_large_list(kind)):
        one = _of_one(found, kind.value_type)
        return lambda given: [one(each) for each in given]
    if found.is_repeated:
        raise _unfit(found, kind)
    return _of_one(found, kind)


def _of_one(found: Field, kind: pa.DataType) -> Convert:
    if found.type in _WHOLE:
        if at.is_integer(kind):
            return _same
        if at.is_decimal(kind):
            return Decimal
        if at.is_floating(kind):
            return float
    elif (
        (found.type in (_F.TYPE_FLOAT, _F.TYPE_DOUBLE) and at.is_floating(kind))
        or (found.type == _F.TYPE_BOOL and at.is_boolean(kind))
        or (found.type == _F.TYPE_STRING and (at.is_string(kind) or at.is_large_string(kind)))
        or (found.type == _F.TYPE_BYTES and (at.is_binary(kind) or at.is_large_binary(kind)))
    ):
        return _same
    elif found.type == _F.TYPE_ENUM:
        if at.is_integer(kind):
            return _same
        if at.is_string(kind) or at.is_large_string(kind):
            names = {number: value.name for number, value in found.enum_type.values_by_number.items()}
            return lambda number: names.get(number, str(number))
    elif found.type in (_F.TYPE_MESSAGE, _F.TYPE_GROUP):
        if at.is_timestamp(kind) and found.message_type.full_name == TIMESTAMP:
            zone = UTC if kind.tz is not None else None
            return lambda given: (_EPOCH + timedelta(seconds=given.seconds, microseconds=given.nanos // 1000)).replace(
                tzinfo=zone
            )
        if at.is_struct(kind):
            return _of_message(found.message_type, [kind.field(place) for place in range(kind.num_fields)])
        if at.is_string(kind) or at.is_large_string(kind):
            return _as_json
    raise _unfit(found, kind)


def _same(given: Any) -> Any:
    return given


def _as_json(given: Any) -> str:
    return json.dumps(json_format.MessageToDict(given, preserving_proto_field_name=True), ensure_ascii=False)


def _unfit(found: Field, kind: pa.DataType) -> SchemaError:
    return SchemaError(
        f"the field {found.full_name} cannot be a column of the type {kind}; leave the columns out to have those of the message"
    )
