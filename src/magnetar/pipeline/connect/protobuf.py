"""Message types of Protocol Buffers: out of a descriptor file or a topic's schema, and what their fields are as columns.

A descriptor file is what `protoc --include_imports --descriptor_set_out=FILE` writes. A topic's schema of the type PROTOBUF_NATIVE holds
the same, in base64 within JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from magnetar.pipeline.connect.errors import SchemaError

FILE_BYTES_MAX: Final = 16 << 20
"""A larger descriptor file is refused."""
_DEEP_MAX: Final = 16

_WELL_KNOWN: Final = {
    each.DESCRIPTOR.name: each.DESCRIPTOR for each in (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}
TIMESTAMP: Final = "google.protobuf.Timestamp"

Field: TypeAlias = Any
"""A FieldDescriptor: what it has depends on its type, which its stubs do not know."""

_F: Final[Any] = FieldDescriptor
_SPELLED: Final = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), "INT"),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_UINT32, _F.TYPE_FIXED32), "BIGINT"),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), "NUMERIC(20, 0)"),
    _F.TYPE_FLOAT: "REAL",
    _F.TYPE_DOUBLE: "DOUBLE PRECISION",
    _F.TYPE_BOOL: "BOOLEAN",
    _F.TYPE_STRING: "VARCHAR",
    _F.TYPE_ENUM: "VARCHAR",
    _F.TYPE_BYTES: "BYTEA",
}
"""As RisingWave has them; an enum is the name of its value."""


@dataclass(frozen=True)
class MessageType:
    """`files`: a FileDescriptorSet, `name`: of the message in it, with its package."""

    files: bytes = field(repr=False)
    name: str

    def descriptor(self) -> Descriptor:
        """Raises SchemaError."""
        return _descriptor(self.files, self.name)


@lru_cache(maxsize=100)
def _descriptor(files: bytes, name: str) -> Descriptor:
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(files)
    except DecodeError:
        raise SchemaError(
            "the file is no descriptor set; make it with protoc --include_imports --descriptor_set_out=FILE"
        ) from None
    pool = descriptor_pool.DescriptorPool()
    by_name = {each.name: each for each in found.file}
    added: set[str] = set()

    def add(file: str, deep: int = 0) -> None:
        if file in added or deep > 1000:
            return
        added.add(file)
        proto = by_name.get(file)
        if proto is None and file in _WELL_KNOWN:
            proto = descriptor_pb2.FileDescriptorProto()
            _WELL_KNOWN[file].CopyToProto(proto)
        if proto is None:
            raise SchemaError(
                f"{file} is imported and not in the descriptor set; make it with protoc --include_imports"
            )
        for each in proto.dependency:
            add(each, deep + 1)
        pool.Add(proto)

    try:
        for each in by_name:
            add(each)
        descriptor: Descriptor = pool.FindMessageTypeByName(name.removeprefix("."))
    except KeyError:
        there = sorted(f"{file.package}.{each.name}".lstrip(".") for file in found.file for each in file.message_type)
        raise SchemaError(f"there is no message {name}; there is {', '.join(there[:20]) or 'none'}") from None
    except (TypeError, ValueError) as error:
        raise SchemaError(f"the descriptor set cannot be used: {error}") from None
    return descriptor


def from_location(location: str, name: str) -> MessageType:
    """Of `file:///path`. Raises SchemaError."""
    parts = urlsplit(location)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise SchemaError(
            f"schema.location is {location!r}; write schema.location = 'file:///path/of/descriptors', which the machine of the pipeline has"
        )
    path = Path(unquote(parts.path))
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise SchemaError(f"{path} is larger than a descriptor file is ({FILE_BYTES_MAX} bytes)")
        return MessageType(path.read_bytes(), name)
    except OSError as error:
        raise SchemaError(f"the descriptor file {path} cannot be read: {error.strerror or error}") from None


def of_schema(definition: str, name: str | None = None) -> MessageType:
    """Of a topic's schema; `name`: another message than its root. Raises SchemaError."""
    try:
        found = json.loads(definition)
        return MessageType(base64.b64decode(found["fileDescriptorSet"]), name or str(found["rootMessageTypeName"]))
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise SchemaError("the topic's schema is not one of the type PROTOBUF_NATIVE") from None


def to_schema(message: MessageType) -> dict[str, str]:
    """As Pulsar registers it."""
    files = base64.b64encode(message.files).decode()
    root = message.descriptor()
    return {
        "fileDescriptorSet": files,
        "rootMessageTypeName": root.full_name,
        "rootFileDescriptorName": root.file.name,
    }


def columns(descriptor: Descriptor) -> list[tuple[str, str]]:
    """The fields as columns: name, and type in RisingWave's spelling. Raises SchemaError for what has no equal."""
    if not descriptor.fields:
        raise SchemaError(f"the message {descriptor.full_name} has no fields")
    return [(each.name, spelled(each)) for each in descriptor.fields]


def spelled(each: Field, above: tuple[str, ...] = ()) -> str:
    """The type of a field."""
    if is_map(each):
        key, value = each.message_type.fields_by_name["key"], each.message_type.fields_by_name["value"]
        return f"MAP({spelled(key, above)}, {spelled(value, above)})"
    found = _SPELLED.get(each.type)
    if found is None:
        inner = each.message_type
        if inner.full_name in above or len(above) >= _DEEP_MAX or not inner.fields:
            what = (
                "contains itself"
                if inner.full_name in above
                else "has no fields"
                if not inner.fields
                else "is too deep"
            )
            raise SchemaError(
                f"the field {each.full_name}: the message {inner.full_name} {what}; name the columns, with {each.name} JSONB, say"
            )
        fields = [f"{part.name} {spelled(part, (*above, inner.full_name))}" for part in inner.fields]
        found = "TIMESTAMPTZ" if inner.full_name == TIMESTAMP else f"STRUCT<{', '.join(fields)}>"
    return f"{found}[]" if each.is_repeated else found


def is_map(each: Field) -> bool:
    return bool(each.type == _F.TYPE_MESSAGE and each.message_type.GetOptions().map_entry)
