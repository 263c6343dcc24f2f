"""Schemas with the official client: what producers and consumers may bring, and that messages are read with the schema they carry."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar
import pytest
import requests
from google.protobuf import struct_pb2, wrappers_pb2
from pulsar.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)

from magnetar.testing.server import ServerProcess
from tests.support.messages import ends_at_once, receive_all
from tests.support.types import Connect, StartServer

_names = itertools.count()

VERSION_0, VERSION_1 = (struct.pack(">q", version).decode("latin-1") for version in (0, 1))
"""The Python client shows the eight bytes as a text."""


class User(Record):
    name = String()


class UserWithAge(Record):
    name = String()
    age = Integer(default=7, required_default=True)


class UserWithAddress(Record):
    name = String()
    address = String(required=True)


class Numbered(Record):
    name = Integer(required=True)


@pytest.fixture
def namespace(server: ServerProcess) -> str:
    name = f"public/schemas{next(_names)}"
    call(server, "PUT", f"namespaces/{name}")
    return name


def call(server: ServerProcess, method: str, path: str, body: Any = None) -> None:
    requests.request(method, f"{server.http_url}/admin/v2/{path}", json=body, timeout=60).raise_for_status()


def strategy(server: ServerProcess, namespace: str, name: str) -> None:
    call(server, "PUT", f"namespaces/{namespace}/schemaCompatibilityStrategy", name)


@pytest.mark.parametrize("make", [AvroSchema, JsonSchema])
def test_messages_are_read_with_the_schema_they_were_written_with(
    server: ServerProcess, client: pulsar.Client, namespace: str, make: Any
) -> None:
    topic = f"{namespace}/t"
    consumer = client.subscribe(topic, "s", schema=make(User))
    old = client.create_producer(topic, schema=make(User))
    new = client.create_producer(topic, schema=make(UserWithAge))
    old.send(User(name="a"))
    new.send(UserWithAge(name="b", age=3))
    messages = [consumer.receive(30_000) for _ in range(2)]
    assert [message.value().name for message in messages] == ["a", "b"]
    assert [message.schema_version() for message in messages] == [VERSION_0, VERSION_1]
    later = client.subscribe(topic, "t", schema=make(UserWithAge), initial_position=pulsar.InitialPosition.Earliest)
    assert [later.receive(30_000).value().age for _ in range(2)] == [7, 3]


def test_incompatible_schemas_are_refused_at_once(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(User))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(UserWithAddress))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Numbered))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=JsonSchema(User))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=JsonSchema(User))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=AvroSchema(UserWithAddress))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())
    client.subscribe(topic, "s", schema=AvroSchema(UserWithAge))
    client.subscribe(topic, "raw")
    client.create_producer(topic).send(b"without a schema")


def test_strategies_decide(server: ServerProcess, client: pulsar.Client, namespace: str) -> None:
    topic = f"{namespace}/t"
    strategy(server, namespace, "FORWARD")
    client.create_producer(topic, schema=AvroSchema(User))
    client.create_producer(topic, schema=AvroSchema(UserWithAddress))
    strategy(server, namespace, "ALWAYS_INCOMPATIBLE")
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(UserWithAge))
    client.create_producer(topic, schema=AvroSchema(User))
    strategy(server, namespace, "ALWAYS_COMPATIBLE")
    client.create_producer(topic, schema=JsonSchema(Numbered))
    strategy(server, namespace, "UNDEFINED")
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Numbered))


def test_enforcement_takes_only_producers_with_a_schema(
    server: ServerProcess, client: pulsar.Client, namespace: str
) -> None:
    call(server, "POST", f"namespaces/{namespace}/schemaValidationEnforced", True)
    client.create_producer(f"{namespace}/plain").send(b"no schema here")
    client.create_producer(f"{namespace}/t", schema=AvroSchema(User))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(f"{namespace}/t")
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(f"{namespace}/t", schema=BytesSchema())
    client.subscribe(f"{namespace}/t", "s")


def test_without_auto_update_only_the_admin_adds(server: ServerProcess, client: pulsar.Client, namespace: str) -> None:
    call(server, "POST", f"namespaces/{namespace}/isAllowAutoUpdateSchema", False)
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(f"{namespace}/t", schema=StringSchema())
    call(server, "POST", f"schemas/{namespace}/t/schema", {"type": "STRING", "schema": "", "properties": {}})
    client.create_producer(f"{namespace}/t", schema=StringSchema()).send("text")


def test_the_first_consumer_on_an_unused_topic_brings_the_schema(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s", schema=AvroSchema(User))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())
    used = f"{topic}-used"
    client.create_producer(used).send(b"bytes")
    with ends_at_once(pulsar.IncompatibleSchema):
        client.subscribe(used, "s", schema=AvroSchema(User))


def test_partitions_and_both_domains_share_one_schema(
    server: ServerProcess, client: pulsar.Client, namespace: str
) -> None:
    call(server, "PUT", f"persistent/{namespace}/split/partitions", 3)
    producer = client.create_producer(f"{namespace}/split", schema=AvroSchema(User))
    consumer = client.subscribe(f"{namespace}/split", "s", schema=AvroSchema(User))
    for number in range(6):
        producer.send(User(name=str(number)))
    assert sorted(consumer.receive(30_000).value().name for _ in range(6)) == list("012345")
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(f"persistent://{namespace}/split-partition-1", schema=StringSchema())
    client.create_producer(f"non-persistent://{namespace}/np", schema=AvroSchema(User))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(f"non-persistent://{namespace}/np", schema=StringSchema())


def test_strings_and_protobuf(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("text")
    assert receive_all(consumer, 1) == [b"text"]
    native = f"{topic}-native"
    reader = client.subscribe(native, "s", schema=ProtobufNativeSchema(wrappers_pb2.StringValue))
    producer = client.create_producer(native, schema=ProtobufNativeSchema(wrappers_pb2.StringValue))
    producer.send(wrappers_pb2.StringValue(value="in a message"))
    message = reader.receive(30_000)
    assert message.value().value == "in a message"
    assert message.schema_version() == VERSION_0
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(native, schema=ProtobufNativeSchema(struct_pb2.Struct))


def test_schemas_survive_kill_9(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server()
    client = connect(server.service_url)
    producer = client.create_producer(topic, schema=AvroSchema(User))
    producer.send(User(name="before"))
    client.close()
    server.kill()
    server.start()
    client = connect(server.service_url)
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(UserWithAddress))
    client.create_producer(topic, schema=AvroSchema(UserWithAge)).send(UserWithAge(name="after", age=1))
    consumer = client.subscribe(
        topic, "s", schema=AvroSchema(UserWithAge), initial_position=pulsar.InitialPosition.Earliest
    )
    assert [
        (message.value().name, message.value().age) for message in (consumer.receive(30_000), consumer.receive(30_000))
    ] == [
        ("before", 7),
        ("after", 1),
    ]


def test_the_broker_settings_are_the_defaults(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server(schemaCompatibilityStrategy="FORWARD", isSchemaValidationEnforced="true")
    client = connect(server.service_url)
    client.create_producer(topic, schema=AvroSchema(User))
    client.create_producer(topic, schema=AvroSchema(UserWithAddress))
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic)


def test_a_deleted_topic_takes_its_schema_along(server: ServerProcess, client: pulsar.Client, namespace: str) -> None:
    call(server, "PUT", f"persistent/{namespace}/split/partitions", 2)
    for name in ("t", "split"):
        client.create_producer(f"{namespace}/{name}", schema=AvroSchema(User)).close()
    call(server, "DELETE", f"persistent/{namespace}/t?force=true")
    call(server, "DELETE", f"persistent/{namespace}/split/partitions?force=true")
    for name in ("t", "split"):
        client.create_producer(f"{namespace}/{name}", schema=StringSchema()).close()


@pytest.fixture
def crowd(connect: Callable[..., pulsar.Client], server: ServerProcess) -> list[pulsar.Client]:
    return [connect(server.service_url) for _ in range(4)]


def test_producers_that_start_at_once_agree_on_one_version(crowd: list[pulsar.Client], topic: str) -> None:
    with ThreadPoolExecutor(len(crowd)) as pool:
        producers = list(pool.map(lambda client: client.create_producer(topic, schema=AvroSchema(User)), crowd))
    consumer = crowd[0].subscribe(topic, "s", schema=AvroSchema(User))
    for producer in producers:
        producer.send(User(name="x"))
    assert {consumer.receive(30_000).schema_version() for _ in producers} == {VERSION_0}
