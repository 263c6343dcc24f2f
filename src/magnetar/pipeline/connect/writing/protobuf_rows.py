"""Rows as messages of Protocol Buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from magnetar.pipeline.connect.errors import SchemaError
from magnetar.pipeline.connect.protobuf import TIMESTAMP, Field, MessageType, is_map
from magnetar.pipeline.connect.reading.protobuf_values import reader

_F: Final[Any] = FieldDescriptor
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_WHOLE: Final = frozenset(
    (_F.TYPE_FLOAT, _F.TYPE_DOUBLE, _F.TYPE_BOOL, _F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_ENUM, _F.TYPE_MESSAGE)
)


def encoder(message: MessageType, schema: pa.Schema) -> Callable[[Mapping[str, Any]], bytes]:
    """How to encode rows of these columns, each a field of its name. Raises SchemaError for columns that the message does not have."""
    descriptor = message.descriptor()
    reader(descriptor, list(schema))  # what can be read back can be written
    made: Any = GetMessageClass(descriptor)

    def encode(row: Mapping[str, Any]) -> bytes:
        found = made()
        _fill(found, descriptor, row)
        encoded: bytes = found.SerializeToString(deterministic=True)
        return encoded

    return encode


def _fill(into: Any, descriptor: Descriptor, row: Mapping[str, Any]) -> None:
    """NULL is a field that is not set."""
    by_name = {each.name.lower(): each for each in reversed(descriptor.fields)}
    for name, value in row.items():
        if value is None:
            continue
        each = descriptor.fields_by_name.get(name) or by_name[name.lower()]
        try:
            _set(into, each, value)
        except (TypeError, ValueError, KeyError, json_format.ParseError) as error:
            raise SchemaError(f"{value!r} does not fit the field {each.full_name}: {error}") from error


def _set(into: Any, each: Field, value: Any) -> None:
    if is_map(each):
        inner, target = each.message_type.fields_by_name["value"], getattr(into, each.name)
        for key, item in value.items():
            if inner.type == _F.TYPE_MESSAGE:
                _set_message(target[key], inner, {} if item is None else item)
            else:
                target[key] = _plain(inner, item)
    elif each.is_repeated:
        target = getattr(into, each.name)
        for item in value:
            if each.type == _F.TYPE_MESSAGE:
                _set_message(target.add(), each, item)
            else:
                target.append(_plain(each, item))
    elif each.type == _F.TYPE_MESSAGE:
        _set_message(getattr(into, each.name), each, value)
    else:
        setattr(into, each.name, _plain(each, value))


def _set_message(into: Any, each: Field, value: Any) -> None:
    into.SetInParent()
    if each.message_type.full_name == TIMESTAMP and isinstance(value, datetime):
        since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
        into.seconds, into.nanos = since.days * 86_400 + since.seconds, since.microseconds * 1000
    elif isinstance(value, str):
        json_format.Parse(value, into)
    else:
        _fill(into, each.message_type, value)


def _plain(each: Field, value: Any) -> Any:
    if each.type == _F.TYPE_ENUM and isinstance(value, str):
        found = each.enum_type.values_by_name.get(value)
        return int(value) if found is None else found.number
    return value if each.type in _NOT_WHOLE else int(value)
