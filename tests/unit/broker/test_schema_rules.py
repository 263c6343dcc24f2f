"""Schemas of the other types, strategies, and when two schemas are the same one."""

from __future__ import annotations

import base64
import json

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from magnetar.broker.errors import IncompatibleSchemaError
from magnetar.broker.schemas import key_value
from magnetar.broker.schemas.compatibility import Strategy, check_pair, consumer_strategy, fingerprint, validate
from magnetar.broker.schemas.types import InvalidSchemaError, Schema, SchemaType, pack_version, unpack_version
from magnetar.broker.settings.broker import SCHEMA_STRATEGIES

F = FieldDescriptorProto


def avro(*fields: tuple[str, str] | tuple[str, str, object]) -> Schema:
    made = [
        {"name": part[0], "type": part[1]} | ({"default": part[2]} if len(part) > 2 else {})  # type: ignore[misc]  # mypy does not narrow tuples by length here
        for part in fields
    ]
    return Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": made}).encode())


def protobuf(*fields: FieldDescriptorProto, root: str = "Root", others: list[DescriptorProto] | None = None) -> Schema:
    file = FileDescriptorProto(
        name="a.proto", package="p", message_type=[DescriptorProto(name=root, field=fields), *(others or [])]
    )
    packed = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    document = {"fileDescriptorSet": packed, "rootMessageTypeName": f"p.{root}", "rootFileDescriptorName": "a.proto"}
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(document).encode())


def field(
    number: int,
    kind: FieldDescriptorProto.Type.ValueType = F.TYPE_INT32,
    name: str = "",
    label: FieldDescriptorProto.Label.ValueType = F.LABEL_OPTIONAL,
    type_name: str = "",
) -> FieldDescriptorProto:
    return F(number=number, type=kind, name=name or f"f{number}", label=label, type_name=type_name)


def pair(key: Schema, value: Schema, encoding: str = "INLINE") -> Schema:
    properties = {
        "key.schema.type": key.type.name,
        "value.schema.type": value.type.name,
        "kv.encoding.type": encoding,
    }
    return Schema(SchemaType.KEY_VALUE, key_value.join(key.data, value.data), properties)


def compatible(new: Schema, old: Schema, strategy: Strategy = Strategy.FULL) -> bool:
    try:
        check_pair(new, old, strategy)
    except IncompatibleSchemaError:
        return False
    return True


ONE = avro(("a", "int"))
TWO = avro(("a", "int"), ("b", "string"))
TWO_DEFAULT = avro(("a", "int"), ("b", "string", ""))
STRING = Schema(SchemaType.STRING)


def test_definitions_by_json_schema_org_are_taken_where_they_are_allowed() -> None:
    """pulsar-rs sends them for type JSON."""

    def by_json_schema(**more: object) -> Schema:
        return Schema(SchemaType.JSON, json.dumps({"type": "object", "properties": {}, **more}).encode())

    one, avros = by_json_schema(), Schema(SchemaType.JSON, ONE.data)
    validate(one, json_schemas=True)
    with pytest.raises(InvalidSchemaError):
        validate(one)
    for refused in (Schema(SchemaType.AVRO, one.data), by_json_schema(type="nothing"), Schema(SchemaType.JSON, b"1")):
        with pytest.raises(InvalidSchemaError):
            validate(refused, json_schemas=True)
    assert compatible(by_json_schema(title="x"), one)
    assert not compatible(by_json_schema(id="x"), one)
    assert compatible(one, avros)
    assert compatible(avros, one)


def test_the_configuration_knows_the_strategies() -> None:
    assert tuple(Strategy) == SCHEMA_STRATEGIES


@pytest.mark.parametrize(
    ("new", "old", "allowed"),
    [
        (ONE, TWO, {"BACKWARD"}),
        (TWO, ONE, {"FORWARD"}),
        (TWO_DEFAULT, ONE, {"BACKWARD", "FORWARD", "FULL"}),
        (avro(("a", "string")), ONE, set()),
        (Schema(SchemaType.JSON, ONE.data), ONE, set()),
        (STRING, ONE, set()),
        (STRING, Schema(SchemaType.INT32), set()),
        (STRING, Schema(SchemaType.STRING, b"null"), {"BACKWARD", "FORWARD", "FULL"}),
        (Schema(SchemaType.JSON, TWO_DEFAULT.data), Schema(SchemaType.JSON, ONE.data), {"BACKWARD", "FORWARD", "FULL"}),
    ],
)
def test_strategies(new: Schema, old: Schema, allowed: set[str]) -> None:
    found = {strategy.value for strategy in Strategy if compatible(new, old, strategy) and strategy != "UNDEFINED"}
    assert found == allowed | {f"{name}_TRANSITIVE" for name in allowed} | {"ALWAYS_COMPATIBLE"}


def test_what_consumers_must_fulfil() -> None:
    reading = {strategy for strategy in Strategy if consumer_strategy(strategy) is Strategy.BACKWARD}
    assert reading == {Strategy.BACKWARD, Strategy.FORWARD, Strategy.FULL, Strategy.FORWARD_TRANSITIVE}
    assert consumer_strategy(Strategy.FULL_TRANSITIVE) is Strategy.FULL_TRANSITIVE


def test_protobuf_roots_must_stay() -> None:
    assert compatible(protobuf(field(1)), protobuf(field(1)))
    assert not compatible(protobuf(field(1), root="Other"), protobuf(field(1)))


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ([field(1)], [field(1), field(2)], True),
        ([field(1), field(2)], [field(1)], True),
        ([field(1, F.TYPE_INT32)], [field(1, F.TYPE_INT64)], True),
        ([field(1, F.TYPE_INT32)], [field(1, F.TYPE_SINT32)], False),
        ([field(1, F.TYPE_INT32)], [field(1, F.TYPE_STRING)], False),
        ([field(1, F.TYPE_STRING)], [field(1, F.TYPE_BYTES)], True),
        ([field(1, F.TYPE_FIXED32)], [field(1, F.TYPE_FLOAT)], False),
        ([field(1)], [field(1, label=F.LABEL_REPEATED)], False),
        ([field(1, name="id")], [field(2, name="id")], False),
        ([field(1)], [field(1), field(2, label=F.LABEL_REQUIRED)], False),
        ([field(1)], [field(1, label=F.LABEL_REQUIRED)], False),
    ],
)
def test_protobuf_fields(old: list[FieldDescriptorProto], new: list[FieldDescriptorProto], allowed: bool) -> None:
    assert compatible(protobuf(*new), protobuf(*old)) is allowed


def test_protobuf_messages_inside_are_compared() -> None:
    def tree(kind: FieldDescriptorProto.Type.ValueType) -> Schema:
        node = DescriptorProto(name="Node", field=[field(1, kind), field(2, F.TYPE_MESSAGE, type_name=".p.Node")])
        return protobuf(field(1, F.TYPE_MESSAGE, type_name=".p.Node"), others=[node])

    assert compatible(tree(F.TYPE_INT64), tree(F.TYPE_INT32))
    assert not compatible(tree(F.TYPE_STRING), tree(F.TYPE_INT32))


def test_key_value_parts_are_compared() -> None:
    assert compatible(pair(STRING, TWO_DEFAULT), pair(STRING, ONE))
    assert not compatible(pair(STRING, TWO), pair(STRING, ONE))
    assert not compatible(pair(TWO, STRING), pair(ONE, STRING))
    assert not compatible(pair(Schema(SchemaType.INT32), ONE), pair(STRING, ONE))
    assert key_value.split(pair(ONE, STRING)) == (ONE, STRING)


def test_key_value_as_text() -> None:
    both = pair(ONE, STRING)
    text = key_value.to_text(both)
    assert json.loads(text) == {"key": json.loads(ONE.data), "value": ""}
    again = Schema(SchemaType.KEY_VALUE, key_value.from_text(text), both.properties)
    assert fingerprint(again) == fingerprint(both)


def test_fingerprints() -> None:
    indented = Schema(SchemaType.AVRO, json.dumps(json.loads(ONE.data), indent=1).encode())
    assert fingerprint(indented) == fingerprint(ONE)
    assert fingerprint(STRING) == fingerprint(Schema(SchemaType.STRING, b"null"))
    different = [
        ONE,
        TWO,
        Schema(SchemaType.JSON, ONE.data),
        STRING,
        Schema(SchemaType.INT8),
        pair(ONE, STRING),
        pair(ONE, STRING, "SEPARATED"),
        pair(STRING, ONE),
        protobuf(field(1)),
        protobuf(field(2)),
    ]
    assert len({fingerprint(schema) for schema in different}) == len(different)


@pytest.mark.parametrize(
    "schema",
    [
        Schema(SchemaType.AVRO),
        Schema(SchemaType.JSON, b"{}"),
        Schema(SchemaType.JSON, b" " * 1024 * 1024 + b'"int"'),
        Schema(SchemaType.PROTOBUF_NATIVE, b"[]"),
        Schema(SchemaType.PROTOBUF_NATIVE, b'{"fileDescriptorSet": "!", "rootMessageTypeName": "p.R"}'),
        Schema(SchemaType.PROTOBUF_NATIVE, b'{"fileDescriptorSet": "", "rootMessageTypeName": "p.R"}'),
        Schema(SchemaType.KEY_VALUE),
        Schema(SchemaType.KEY_VALUE, b"\0\0\0\5abc"),
        Schema(SchemaType.KEY_VALUE, key_value.join(b"", b"") + b"x"),
        Schema(SchemaType.KEY_VALUE, key_value.join(b"{", b""), {"key.schema.type": "AVRO"}),
        Schema(SchemaType.KEY_VALUE, key_value.join(b"", b""), {"key.schema.type": "KEY_VALUE"}),
        Schema(SchemaType.KEY_VALUE, key_value.join(b"", b""), {"value.schema.type": "NOTHING"}),
    ],
)
def test_nonsense_is_refused(schema: Schema) -> None:
    with pytest.raises(InvalidSchemaError):
        validate(schema)


def test_an_empty_part_may_be_written_as_minus_one() -> None:
    """The C++ client does."""
    assert key_value.split(Schema(SchemaType.KEY_VALUE, b"\xff\xff\xff\xff\0\0\0\0"))[0].data == b""


def test_versions_on_the_wire() -> None:
    assert pack_version(258) == b"\0\0\0\0\0\0\1\2"
    assert unpack_version(pack_version(7)) == 7
    assert unpack_version(b"\xff" * 8) == -1
    assert unpack_version(b"") is None
    assert unpack_version(b"\0" * 9) is None
