"""Schema commands as raw frames: versions, absent and empty ones, the types that the Python client cannot send, hostile schemas."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe, Schema, ServerError
from tests.support.process import cpu_seconds
from tests.support.raw_client import RawConnection

REFUSAL_S_MAX = 3.0


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawConnection]:
    with RawConnection(server.port) as connection:
        yield connection


def schema(kind: int, data: bytes = b"", **properties: str) -> Schema:
    made = Schema(name="", type=kind, schema_data=data)  # type: ignore[arg-type]  # the stubs want the enum's own type
    for key, value in properties.items():
        made.properties.add(key=key.replace("_", "."), value=value)
    return made


def record(*fields: tuple[str, object]) -> bytes:
    made = [{"name": name, "type": kind, "default": "" if kind == "string" else 0} for name, kind in fields]
    return json.dumps({"type": "record", "name": "R", "fields": made}).encode()


def produce(raw: RawConnection, topic: str, definition: Schema | None, producer_id: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = topic
    command.producer.producer_id = producer_id
    command.producer.request_id = raw.next_request_id()
    if definition is not None:
        command.producer.schema.CopyFrom(definition)
    raw.send(command)
    return raw.expect(BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR)[0]


def subscribe(raw: RawConnection, topic: str, definition: Schema, consumer_id: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.topic = topic
    command.subscribe.subscription = f"s{consumer_id}"
    command.subscribe.subType = CommandSubscribe.Exclusive
    command.subscribe.consumer_id = consumer_id
    command.subscribe.request_id = raw.next_request_id()
    command.subscribe.schema.CopyFrom(definition)
    raw.send(command)
    return raw.expect(BaseCommand.SUCCESS, BaseCommand.ERROR)[0]


def get(raw: RawConnection, topic: str, version: bytes | None = None) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_SCHEMA)
    command.getSchema.topic = topic
    command.getSchema.request_id = raw.next_request_id()
    if version is not None:
        command.getSchema.schema_version = version
    raw.send(command)
    return raw.expect(BaseCommand.GET_SCHEMA_RESPONSE)[0]


def get_or_create(raw: RawConnection, topic: str, definition: Schema) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA)
    command.getOrCreateSchema.topic = topic
    command.getOrCreateSchema.request_id = raw.next_request_id()
    command.getOrCreateSchema.schema.CopyFrom(definition)
    raw.send(command)
    return raw.expect(BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)[0]


def packed(version: int) -> bytes:
    return struct.pack(">q", version)


def test_versions_by_number_and_latest(raw: RawConnection, topic: str) -> None:
    first, second = (
        schema(Schema.Avro, record(("a", "string"))),
        schema(Schema.Avro, record(("a", "string"), ("b", "int"))),
    )
    assert produce(raw, topic, first).producer_success.schema_version == packed(0)
    assert produce(raw, topic, first).producer_success.schema_version == packed(0), "asked again by the same producer"
    assert produce(raw, topic, second, producer_id=2).producer_success.schema_version == packed(1)
    latest = get(raw, topic).getSchemaResponse
    assert latest.schema_version == packed(1)
    assert latest.schema.schema_data == second.schema_data
    assert latest.schema.type == Schema.Avro
    assert latest.schema.name == topic.removeprefix("persistent://")
    assert get(raw, topic, packed(0)).getSchemaResponse.schema.schema_data == first.schema_data


def test_what_is_not_there(raw: RawConnection, topic: str) -> None:
    assert get(raw, topic).getSchemaResponse.error_code == ServerError.TopicNotFound
    produce(raw, topic, schema(Schema.String, b"null"))
    for version in (packed(1), packed(-1), packed(2**63 - 1)):
        assert get(raw, topic, version).getSchemaResponse.error_code == ServerError.TopicNotFound
    for version in (b"", b"\0" * 7, b"\0" * 9):
        assert get(raw, topic, version).getSchemaResponse.error_code == ServerError.IncompatibleSchema
    assert get(raw, "persistent://a/b/c/d/e").getSchemaResponse.HasField("error_code")


def test_producers_without_schema_have_no_version(raw: RawConnection, topic: str) -> None:
    assert produce(raw, topic, None).producer_success.schema_version == b""


def test_the_schema_none_has_a_version(raw: RawConnection, topic: str) -> None:
    """The Go client sends it for bytes, and looks the version of each message up."""
    nothing = schema(getattr(Schema, "None"))
    assert produce(raw, topic, nothing).producer_success.schema_version == packed(0)
    assert get(raw, topic, packed(0)).getSchemaResponse.schema.type == getattr(Schema, "None")


def test_get_or_create(raw: RawConnection, topic: str) -> None:
    text = schema(Schema.String)
    assert get_or_create(raw, topic, text).getOrCreateSchemaResponse.error_code == ServerError.TopicNotFound
    produce(raw, topic, None)
    for _ in range(2):
        answer = get_or_create(raw, topic, text).getOrCreateSchemaResponse
        assert answer.schema_version == packed(0)
        assert not answer.HasField("error_code")
    refused = get_or_create(raw, topic, schema(Schema.Int32)).getOrCreateSchemaResponse
    assert refused.error_code == ServerError.IncompatibleSchema
    assert "INT32" in refused.error_message


def key_value(key: bytes, value: bytes, kind: str = "AVRO") -> Schema:
    data = struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    return schema(Schema.KeyValue, data, key_schema_type="STRING", value_schema_type=kind, kv_encoding_type="SEPARATED")


def test_key_value(raw: RawConnection, topic: str) -> None:
    one, two = record(("a", "string")), record(("a", "string"), ("b", "int"))
    assert produce(raw, topic, key_value(b"", one)).producer_success.schema_version == packed(0)
    assert produce(raw, topic, key_value(b"", two), 2).producer_success.schema_version == packed(1)
    changed = produce(raw, topic, key_value(b"", record(("a", "int"))), 3)
    assert changed.error.error == ServerError.IncompatibleSchema
    assert "value" in changed.error.message
    assert produce(raw, topic, key_value(b"", b"", "INT32"), 4).error.error == ServerError.IncompatibleSchema
    answer = get(raw, topic, packed(0)).getSchemaResponse.schema
    assert {pair.key: pair.value for pair in answer.properties}["kv.encoding.type"] == "SEPARATED"


@pytest.mark.parametrize("kind", range(Schema.Bool, Schema.Timestamp + 1))
def test_every_primitive_type(raw: RawConnection, topic: str, kind: int) -> None:
    assert produce(raw, topic, schema(kind)).producer_success.schema_version == packed(0)
    assert get(raw, topic).getSchemaResponse.schema.type == kind
    other = Schema.String if kind != Schema.String else Schema.Bool
    assert subscribe(raw, topic, schema(other)).error.error == ServerError.IncompatibleSchema
    assert subscribe(raw, topic, schema(kind)).type == BaseCommand.SUCCESS


def test_auto_consume_takes_whatever_there_is(raw: RawConnection, topic: str) -> None:
    automatic = schema(Schema.AutoConsume)
    assert subscribe(raw, topic, automatic).type == BaseCommand.SUCCESS
    assert get(raw, topic).getSchemaResponse.error_code == ServerError.TopicNotFound
    assert subscribe(raw, topic, schema(Schema.String), 2).type == BaseCommand.SUCCESS, "nobody uses the topic yet"
    assert get(raw, topic).getSchemaResponse.schema_version == packed(0)
    assert subscribe(raw, topic, automatic, 3).type == BaseCommand.SUCCESS


def nested(depth: int) -> bytes:
    return b'{"type":"array","items":' * depth + b'"int"' + b"}" * depth


HOSTILE = {
    "no json": b"\xff" * 100,
    "deep": nested(30_000),
    "deep brackets": b"[" * 900_000,
    "a wide union": json.dumps(["null"] * 100_000).encode(),
    "many symbols": json.dumps({"type": "enum", "name": "E", "symbols": [f"S{n}" for n in range(60_000)]}).encode(),
    "a huge number": b"1" * 900_000,
    "halves of surrogate pairs": b'{"type":"record","name":"\\ud800","fields":[{"name":"\\udfff","type":"\\ud83d"}]}',
    "huge names": json.dumps({"type": "x" * 900_000}).encode(),
}


@pytest.mark.parametrize("kind", [Schema.Avro, Schema.Json, Schema.Protobuf, Schema.ProtobufNative, Schema.KeyValue])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_soon(
    raw: RawConnection, server: ServerProcess, topic: str, kind: int, name: str
) -> None:
    used_s = cpu_seconds(server.pid)
    answer = produce(raw, topic, schema(kind, HOSTILE[name]))
    assert answer.error.error == ServerError.IncompatibleSchema
    assert len(answer.error.message) < 1000
    assert cpu_seconds(server.pid) - used_s < REFUSAL_S_MAX
    assert get(raw, topic).getSchemaResponse.error_code == ServerError.TopicNotFound
