"""A message of Protocol Buffers with fields of every kind, as protoc would describe it."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F

from magnetar.pipeline.connect.protobuf import MessageType

SCALARS = {
    "i32": F.TYPE_INT32, "s64": F.TYPE_SINT64, "u32": F.TYPE_UINT32, "u64": F.TYPE_UINT64, "f": F.TYPE_FLOAT, "d": F.TYPE_DOUBLE,
    "flag": F.TYPE_BOOL, "word": F.TYPE_STRING, "raw": F.TYPE_BYTES,
}  # fmt: skip


def order_type() -> MessageType:
    """`shop.Order`, whose imported file is left to the library."""
    file = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    kinds = file.enum_type.add(name="Kind")
    for number, name in enumerate(("UNKNOWN", "NEW", "PAID")):
        kinds.value.add(name=name, number=number)
    place = file.message_type.add(name="Place")
    place.field.add(name="city", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    place.field.add(name="lat", number=2, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    number = 0
    for name, kind in SCALARS.items():
        number += 1
        order.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    for name, kind, of, label in (
        ("kind", F.TYPE_ENUM, ".shop.Kind", F.LABEL_OPTIONAL),
        ("at", F.TYPE_MESSAGE, ".google.protobuf.Timestamp", F.LABEL_OPTIONAL),
        ("place", F.TYPE_MESSAGE, ".shop.Place", F.LABEL_OPTIONAL),
        ("places", F.TYPE_MESSAGE, ".shop.Place", F.LABEL_REPEATED),
        ("amounts", F.TYPE_MESSAGE, ".shop.Order.AmountsEntry", F.LABEL_REPEATED),
    ):
        number += 1
        order.field.add(name=name, number=number, type=kind, type_name=of, label=label)
    order.field.add(name="words", number=number + 1, type=F.TYPE_STRING, label=F.LABEL_REPEATED)
    order.oneof_decl.add(name="_perhaps")
    order.field.add(
        name="perhaps",
        number=number + 2,
        type=F.TYPE_INT32,
        label=F.LABEL_OPTIONAL,
        oneof_index=0,
        proto3_optional=True,
    )
    entry = order.nested_type.add(name="AmountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    node = file.message_type.add(name="Node")
    node.field.add(name="id", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    node.field.add(name="next", number=2, type=F.TYPE_MESSAGE, type_name=".shop.Node", label=F.LABEL_OPTIONAL)
    return MessageType(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), "shop.Order")
