"""The messages that strangers send, parsed with the rule that a string is valid UTF-8.

The protocol is written in proto2, whose strings may hold any bytes: what is not UTF-8 then comes as `bytes` where `str` is expected, and
fails in whatever compares, sorts, logs or prints it later. Here the same descriptors are built once more with protobuf's own check, which
costs nothing measurable. What is read back from storage is parsed with `PulsarApi_pb2`: it was stored, so it must be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FeatureSet, FieldDescriptorProto

from magnetar.wire.pulsar import PulsarApi_pb2
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, MessageMetadata


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


_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_strict_descriptors().SerializeToString())


def _class_of(name: str) -> type:
    found = _pool.FindMessageTypeByName(f"{PulsarApi_pb2.DESCRIPTOR.package}.{name}")
    return message_factory.GetMessageClass(found)


parse_command = cast("Callable[[bytes], BaseCommand]", _class_of("BaseCommand").FromString)  # type: ignore[attr-defined]
"""A command of a client. Raises DecodeError, also for text that is not UTF-8, however deep it lies."""

parse_metadata = cast("Callable[[bytes], MessageMetadata]", _class_of("MessageMetadata").FromString)  # type: ignore[attr-defined]
"""The metadata of a message that is being published. Raises DecodeError in the same way."""
