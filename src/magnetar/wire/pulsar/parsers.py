"""Parsers of commands and of message metadata: strict for what clients send, lenient for what is stored.

The protocol is written in proto2, whose strings may hold any bytes: what is not UTF-8 then comes as `bytes` where `str` is expected, and
fails in whatever compares, sorts, logs or prints it later. For clients the same descriptors are built once more with protobuf's own check,
which costs nothing measurable. What is read back from storage is parsed without it: it was stored, so it must be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FeatureSet, FieldDescriptorProto

from magnetar.wire.pulsar import PulsarApi_pb2
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, MessageMetadata

TOGETHER: Final = 256
"""Messages of up to 255 bytes that share an arena: their memory is free when the last of them has gone."""


def _strict_descriptors() -> descriptor_pb2.FileDescriptorProto:
    """The protocol's file in the form of edition 2023, with proto2's behaviour but for strings."""
    file = descriptor_pb2.FileDescriptorProto.FromString(PulsarApi_pb2.DESCRIPTOR.serialized_pb)
    file.name = "magnetar/strict/PulsarApi.proto"
    file.syntax, file.edition = "editions", descriptor_pb2.EDITION_2023
    features = file.options.features
    features.field_presence = FeatureSet.EXPLICIT
    features.enum_type = FeatureSet.CLOSED
    features.repeated_field_encoding = FeatureSet.EXPANDED
    features.utf8_validation = FeatureSet.VERIFY
    features.message_encoding = FeatureSet.LENGTH_PREFIXED
    features.json_format = FeatureSet.LEGACY_BEST_EFFORT
    _convert_fields(file.message_type)
    return file


def _convert_fields(messages: Iterable[descriptor_pb2.DescriptorProto]) -> None:
    """`required` and `packed` are features of a field there."""
    for message in messages:
        for field in message.field:
            if field.label == FieldDescriptorProto.LABEL_REQUIRED:
                field.label = FieldDescriptorProto.LABEL_OPTIONAL
                field.options.features.field_presence = FeatureSet.LEGACY_REQUIRED
            if field.options.packed:
                field.options.ClearField("packed")
                field.options.features.repeated_field_encoding = FeatureSet.PACKED
        _convert_fields(message.nested_type)


def _holders(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """A file with one message for each that is parsed in large numbers: a list of it. See `_transient`."""
    holders = descriptor_pb2.FileDescriptorProto(
        name=f"holders/{file.name}", package=f"{file.package}.holders", syntax="proto2", dependency=[file.name]
    )
    for name in ("BaseCommand", "MessageMetadata"):
        items = holders.message_type.add(name=name).field.add(
            name="items", number=1, type_name=f".{file.package}.{name}"
        )
        items.type, items.label = FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.LABEL_REPEATED
    return holders


def _pool_of(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for each in (file, _holders(file)):
        pool.AddSerializedFile(each.SerializeToString())
    return pool


def _class_of(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _transient(pool: descriptor_pool.DescriptorPool, name: str) -> Callable[[bytes], Any]:
    """A parser for messages that are dropped at once, `TOGETHER` of which share an arena.

    protobuf calls glibc's malloc_trim after each 10,000 arenas, which walks the whole heap and returns pages that are taken again at
    once: with an arena for each message that was 3 of the 20 microseconds that publishing one takes.
    """
    holder = _class_of(pool, f"holders.{name}")
    add, left = holder().items.add, TOGETHER

    def parse(data: bytes) -> Any:
        nonlocal add, left
        if left <= 0:
            add, left = holder().items.add, TOGETHER
        left -= 1 + (len(data) >> 8)  # a large one counts for more
        message = add()
        message.MergeFromString(data)
        return message

    return parse


_PACKAGE: Final = PulsarApi_pb2.DESCRIPTOR.package
_strict = _pool_of(_strict_descriptors())
_lenient = _pool_of(descriptor_pb2.FileDescriptorProto.FromString(PulsarApi_pb2.DESCRIPTOR.serialized_pb))

parse_command: Callable[[bytes], BaseCommand] = _class_of(_strict, "BaseCommand").FromString
"""A command of a client. Raises DecodeError, also for text that is not UTF-8, however deep it lies."""

parse_frequent_command: Callable[[bytes], BaseCommand] = _transient(_strict, "BaseCommand")
"""The same for commands whose handlers are plain calls and keep nothing of them."""

FREQUENT_COMMANDS: Final = frozenset(bytes((8, kind)) for kind in (BaseCommand.SEND, BaseCommand.ACK, BaseCommand.FLOW))
"""First bytes of such commands: the tag of `type` and its value."""

parse_metadata: Callable[[bytes], MessageMetadata] = _transient(_strict, "MessageMetadata")
"""The metadata of a message that is being published. Raises DecodeError in the same way."""

parse_stored_metadata: Callable[[bytes], MessageMetadata] = _transient(_lenient, "MessageMetadata")
"""The metadata of a stored message, for those who keep nothing of it but values. Raises DecodeError."""
