"""Protobuf native schemas: JSON around a FileDescriptorSet, and whether one message type reads what another one wrote. Pure.

Pulsar asks only that the root message keeps its name. Here fields are compared as well, by what the Protobuf language guide says of
the wire: a number keeps its meaning or is not used again.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from magnetar.broker.schemas.avro_schema import parse_json
from magnetar.broker.schemas.types import InvalidSchemaError

COMPARISONS_MAX = 50_000
"""Pairs of fields compared for one answer; beyond it the schemas are refused."""

_Field = FieldDescriptorProto

_WIRE_GROUPS = (
    {_Field.TYPE_INT32, _Field.TYPE_INT64, _Field.TYPE_UINT32, _Field.TYPE_UINT64, _Field.TYPE_BOOL, _Field.TYPE_ENUM},
    {_Field.TYPE_SINT32, _Field.TYPE_SINT64},
    {_Field.TYPE_FIXED32, _Field.TYPE_SFIXED32},
    {_Field.TYPE_FIXED64, _Field.TYPE_SFIXED64},
    {_Field.TYPE_STRING, _Field.TYPE_BYTES},
)
"""Types that read each other's bytes. Any other type reads only its own."""

_NESTED = (_Field.TYPE_MESSAGE, _Field.TYPE_GROUP)


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """`messages`: descriptors by complete name, without the leading dot."""

    root: str
    messages: dict[str, DescriptorProto] = field(repr=False)


def parse_protobuf(data: bytes) -> ProtobufSchema:
    """Parses the JSON that clients send. Raises InvalidSchemaError."""
    document = parse_json(data)
    root = document.get("rootMessageTypeName") if isinstance(document, dict) else None
    packed = document.get("fileDescriptorSet") if isinstance(document, dict) else None
    if not isinstance(root, str) or not isinstance(packed, str):
        raise InvalidSchemaError("a Protobuf schema needs the texts 'fileDescriptorSet' and 'rootMessageTypeName'")
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(packed, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise InvalidSchemaError("'fileDescriptorSet' is not a FileDescriptorSet in base64") from None
    messages = {
        name: message for file in files.file for name, message in _messages(file.package, list(file.message_type))
    }
    if root not in messages:
        raise InvalidSchemaError(f"the root message {root[:80]!r} is not in 'fileDescriptorSet'")
    return ProtobufSchema(root, messages)


def _messages(scope: str, messages: list[DescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
    waiting = deque((scope, message) for message in messages)
    while waiting:
        outer, message = waiting.popleft()
        name = f"{outer}.{message.name}" if outer else message.name
        yield name, message
        waiting.extend((name, nested) for nested in message.nested_type)


def why_unreadable(reader: ProtobufSchema, writer: ProtobufSchema) -> str | None:
    """None when `reader` reads what `writer` writes, else the first reason. Raises InvalidSchemaError beyond the bounds."""
    if reader.root != writer.root:
        return f"the root message changed from {writer.root[:80]} to {reader.root[:80]}"
    pairs = deque([(reader.root, writer.root)])
    seen = {(reader.root, writer.root)}
    left = COMPARISONS_MAX
    while pairs:
        mine, theirs = pairs.popleft()
        read, written = reader.messages.get(mine), writer.messages.get(theirs)
        if read is None or written is None:
            return f"the message {mine[:80] if read is None else theirs[:80]} is not defined"
        left -= 1 + len(read.field) + len(written.field)
        if left < 0:
            raise InvalidSchemaError("the schemas are too complex to be compared")
        problem = _fields(read, written)
        if problem is not None:
            return f"{mine[:80]}: {problem}"
        for pair in _nested(read, written):
            if pair not in seen:
                seen.add(pair)
                pairs.append(pair)
    return None


def _fields(read: DescriptorProto, written: DescriptorProto) -> str | None:
    sources = {source.number: source for source in written.field}
    names = {source.name: source for source in written.field}
    for mine in read.field:
        theirs = sources.get(mine.number)
        if theirs is None:
            if mine.label == _Field.LABEL_REQUIRED:
                return f"the required field {mine.name} is not written"
            if mine.name in names:
                return f"the field {mine.name} changed its number from {names[mine.name].number} to {mine.number}"
        elif not _same_wire_type(mine, theirs):
            return f"field {mine.number} ({mine.name}) changed its type"
        elif mine.label == _Field.LABEL_REQUIRED and theirs.label != _Field.LABEL_REQUIRED:
            return f"the required field {mine.name} is not always written"
    return None


def _same_wire_type(mine: FieldDescriptorProto, theirs: FieldDescriptorProto) -> bool:
    if (mine.label == _Field.LABEL_REPEATED) != (theirs.label == _Field.LABEL_REPEATED):
        return False
    return mine.type == theirs.type or any(mine.type in group and theirs.type in group for group in _WIRE_GROUPS)


def _nested(read: DescriptorProto, written: DescriptorProto) -> Iterator[tuple[str, str]]:
    """Message types of fields with the same number."""
    sources = {source.number: source for source in written.field}
    for mine in read.field:
        if mine.type in _NESTED and mine.number in sources:
            yield mine.type_name.lstrip("."), sources[mine.number].type_name.lstrip(".")
