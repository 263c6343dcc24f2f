"""Text that is not UTF-8 is refused where it arrives; what was stored with it is served, and stops no answer about others."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from magnetar.broker.connection.handlers import send
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, MessageMetadata, ServerError
from tests.integration.connection.conftest import Raw
from tests.support.in_process import InProcessServer
from tests.support.raw_client import RawConnection, message

MARK = "QQQQ"
BAD = [b"\xff\xfe\xff\xfe", b"\xed\xa0\x80a", b"abc\xc3", b"\xf8\x88\x80\x80"]
"""No encoding at all, a surrogate, half a character, a code point beyond Unicode: four bytes each, in the place of the mark."""


def strings_in(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all string fields of a message type, through nested messages."""
    for field in kind.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield (*path, field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.name not in path:  # some messages hold their own kind
            yield from strings_in(field.message_type, (*path, field.name))


def filled(made: Any, path: tuple[str, ...]) -> Any:
    """`made` with the mark in one string field, and something in each field that is required on the way."""
    at = made
    for name in path:
        for field in at.DESCRIPTOR.fields:
            if field.is_required and field.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_ENUM):
                value = {FieldDescriptor.TYPE_STRING: "x", FieldDescriptor.TYPE_BYTES: b"x"}.get(field.type, 1)
                setattr(at, field.name, value)
        field = at.DESCRIPTOR.fields_by_name[name]
        if field.type == FieldDescriptor.TYPE_STRING:
            getattr(at, name).append(MARK) if field.is_repeated else setattr(at, name, MARK)
        else:
            at = getattr(at, name).add() if field.is_repeated else getattr(at, name)
            at.SetInParent()
    return made


def type_of(field: str) -> int | None:
    """The type of the command in a field of BaseCommand."""
    squeezed = field.replace("_", "").lower()
    for name, number in BaseCommand.Type.items():
        if name.replace("_", "").lower() in (squeezed, squeezed.removesuffix("request")):
            return number
    return {"lookupTopic": BaseCommand.LOOKUP, "partitionMetadata": BaseCommand.PARTITIONED_METADATA}.get(field)


COMMANDS = sorted(path for path in strings_in(BaseCommand.DESCRIPTOR) if type_of(path[0]) is not None)


def test_the_paths_are_found() -> None:
    paths = {".".join(path) for path in COMMANDS}
    assert {"connect.client_version", "producer.metadata.key", "lookupTopic.topic", "getSchema.topic"} <= paths
    assert {"subscribe.subscription", "ack.properties.key", "addSubscriptionToTxn.subscription.topic"} <= paths
    assert len(paths) > 60


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: ".".join(path))
def test_a_command_with_such_text_is_refused_at_the_frame(raw: Raw, path: tuple[str, ...]) -> None:
    command = filled(BaseCommand(type=type_of(path[0])), path).SerializePartialToString()  # type: ignore[arg-type]
    assert MARK.encode() in command
    for bad in BAD:
        client = raw(connected=path[0] != "connect")
        client.send_bytes(encode_frame(command.replace(MARK.encode(), bad)))
        said = client.closed_within(8)
        assert [each.type for each in said] == [BaseCommand.ERROR]
        assert "UTF-8" in said[0].error.message


METADATA = sorted(strings_in(MessageMetadata.DESCRIPTOR))


@pytest.mark.parametrize("path", METADATA, ids=lambda path: ".".join(path))
def test_a_message_with_such_text_is_refused(server: ServerProcess, topic: str, path: tuple[str, ...]) -> None:
    """With the code after which its producer goes on."""
    metadata = filled(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), path).SerializeToString()
    with RawConnection(server.port) as client:
        client.producer(topic)
        for bad in BAD:
            damaged = metadata.replace(MARK.encode(), bad)
            client.publish(len(damaged).to_bytes(4, "big") + damaged + b"payload")
            refused = client.receipt()
            assert refused.type == BaseCommand.SEND_ERROR
            assert refused.send_error.error == ServerError.ChecksumError
        client.publish(message(b"good"))
        assert client.receipt().type == BaseCommand.SEND_RECEIPT


def test_text_of_all_planes_passes(server: ServerProcess, topic: str) -> None:
    text = "ü日𝄞\x00\n\x7f\U0010ffff"
    with RawConnection(server.port) as client:
        client.producer(topic, producer_name=text, user_provided_producer_name=True)
        client.publish(message(b"good", producer_name=text, partition_key=text))
        assert client.receipt().type == BaseCommand.SEND_RECEIPT
        with urllib.request.urlopen(f"{server.http_url}/admin/v2/{topic.replace('://', '/')}/stats") as answer:
            assert json.load(answer)["publishers"][0]["producerName"] == text


def test_stored_entries_with_such_text_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """A server that did not look let them in: consumers get them, and every answer about the topic is one."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key=MARK)
    metadata.partition_key_b64_encoded = True
    metadata.properties.add(key=MARK, value=MARK)
    stored = metadata.SerializeToString().replace(MARK.encode(), BAD[0])
    with InProcessServer(tmp_path / "data") as server, RawConnection(server.port) as client:
        client.producer(topic)
        with monkeypatch.context() as patched:
            patched.setattr(send, "parse_metadata", MessageMetadata.FromString, raising=False)
            client.publish(len(stored).to_bytes(4, "big") + stored + b"payload")
            position = client.receipt().send_receipt.message_id
            client.publish(message(b"behind it"))
            client.receipt()
        for number, kind in enumerate((0, 1, 3)):
            client.subscribe(topic, f"sub-{kind}", kind, consumer_id=number)
            assert client.message()[1].endswith(b"payload")
            assert client.message()[1].endswith(b"behind it")
        admin, path = server.http_url, topic.replace("://", "/")
        for route in ("stats", "internalStats", f"ledger/{position.ledgerId}/entry/{position.entryId}"):
            with urllib.request.urlopen(f"{admin}/admin/v2/{path}/{route}") as answer:
                assert answer.status == 200
        for route in ("broker-stats/topics", "broker-stats/metrics"):
            with urllib.request.urlopen(f"{admin}/admin/v2/{route}") as answer:
                json.load(answer)


def test_what_clients_call_themselves_forges_no_line_of_the_log(server: ServerProcess, topic: str) -> None:
    forged = "x\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[2J\x9b31m\u2028\u202e"
    read = len(server.log())
    with RawConnection(server.port, version=forged) as client:
        client.producer(topic, producer_name=forged, user_provided_producer_name=True)
        client.subscribe(topic, "sub", consumer_name=forged)
        client.lookup(f"{topic}-{forged}")
        client.producer(f"persistent://{forged}/x/y", producer_id=2)
    written = server.log()[read:]
    assert r"version=x\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[2J\x9b31m\u2028\u202e" in written
    assert not any(line.startswith("2026-01-01") for line in written.splitlines())
    for character in "\r\x1b\x9b\u2028\u202e":
        assert character not in written
    with urllib.request.urlopen(f"{server.http_url}/metrics") as answer:
        metrics = answer.read().decode()
    assert not any(line.startswith("2026-01-01") for line in metrics.splitlines())
