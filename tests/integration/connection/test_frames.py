"""What is not a frame or not a command, or too much of either: that connection ends, nothing is allocated for it, nobody else notices."""

from __future__ import annotations

import os
import random
import struct

import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.headers import payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, KeyValue, ServerError
from tests.integration.connection.conftest import Raw
from tests.support.process import MIB, peak_resident_bytes, reset_peak, resident_bytes
from tests.support.raw import ClosedByServer, RawClient, connect_command, headers_and_payload, send_command, send_frame

BEFORE_CONNECT_BYTES_MAX = 64 * 1024
COMMAND_BYTES_MAX = 1024 * 1024
MESSAGE_BYTES_MAX = 5 * 1024 * 1024
PADDING_BYTES = 10 * 1024

IMPOSSIBLE = [
    (0, 0),
    (3, 0),
    (3, 3),
    (2**31 - 1, 10),
    (2**32 - 1, 10),
    (2**32 - 1, 2**32 - 1),
    (10, 7),
    (10, 2**32 - 1),
]


def refused(client: RawClient) -> None:
    """Closed soon, with at most an ERROR of nobody's request before."""
    said = client.closed_within(8)
    assert [command.type for command in said] in ([], [BaseCommand.ERROR])
    assert all(command.error.request_id == 2**64 - 1 for command in said)


@pytest.mark.parametrize("connected", [False, True], ids=["stranger", "client"])
@pytest.mark.parametrize(("total", "command"), IMPOSSIBLE)
def test_impossible_sizes(raw: Raw, connected: bool, total: int, command: int) -> None:
    client = raw(connected=connected)
    client.send_bytes(struct.pack(">II", total, command))
    refused(client)


@pytest.mark.parametrize("connected", [False, True], ids=["stranger", "client"])
def test_sizes_cost_nothing_before_their_bytes_arrive(raw: Raw, server: ServerProcess, connected: bool) -> None:
    """A hundred clients announce the largest frame allowed, and wait."""
    clients = [raw(connected=connected) for _ in range(100)]
    reset_peak(server.pid)
    before = resident_bytes(server.pid)
    allowed = MESSAGE_BYTES_MAX if connected else BEFORE_CONNECT_BYTES_MAX
    for client in clients:
        client.send_bytes(struct.pack(">II", allowed, 20) + b"x")
    raw().ping()
    assert peak_resident_bytes(server.pid) - before < 10 * MIB


def test_a_strangers_command_has_64_kib(raw: Raw) -> None:
    largest = connect_command(client_version="v" * (BEFORE_CONNECT_BYTES_MAX - 100))
    assert largest.ByteSize() < BEFORE_CONNECT_BYTES_MAX
    client = raw(connected=False)
    client.send(largest)
    client.expect(BaseCommand.CONNECTED)
    client = raw(connected=False)
    client.send_bytes(struct.pack(">II", BEFORE_CONNECT_BYTES_MAX + 5, BEFORE_CONNECT_BYTES_MAX + 1))
    refused(client)


def test_a_strangers_frame_has_no_payload(raw: Raw) -> None:
    client = raw(connected=False)
    client.send_bytes(struct.pack(">II", MESSAGE_BYTES_MAX, 20))
    refused(client)


def test_a_clients_command_has_1_mib(raw: Raw, topic: str) -> None:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic, command.producer.producer_id, command.producer.request_id = topic, 1, 1
    command.producer.metadata.append(KeyValue(key="k", value="v" * (COMMAND_BYTES_MAX - 200)))
    assert COMMAND_BYTES_MAX - 200 < command.ByteSize() <= COMMAND_BYTES_MAX
    client = raw()
    client.send(command)
    client.expect(BaseCommand.PRODUCER_SUCCESS)
    client.send_bytes(struct.pack(">II", COMMAND_BYTES_MAX + 5, COMMAND_BYTES_MAX + 1))
    refused(client)


def test_the_largest_message_is_stored_and_a_larger_frame_is_not(raw: Raw, topic: str) -> None:
    client = raw()
    client.producer(topic)
    client.subscribe(topic)
    client.flow(1)
    payload = os.urandom(MESSAGE_BYTES_MAX - 1000)
    assert client.publish(payload).type == BaseCommand.SEND_RECEIPT
    assert payload_of(client.message()[1]) == payload
    client.send_bytes(struct.pack(">II", MESSAGE_BYTES_MAX + PADDING_BYTES + 1, 20))
    refused(client)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(raw: Raw, seed: int) -> None:
    rng = random.Random(seed)
    client = raw(connected=seed % 2 == 0)
    try:
        client.send_bytes(rng.randbytes(rng.choice((8, 100, 10_000, 1_000_000))))
        client.half_close()
        client.closed_within(8)
    except (ClosedByServer, OSError):
        pass  # refused before all of it was sent


@pytest.mark.parametrize("seed", range(30))
def test_frames_around_random_commands(raw: Raw, seed: int) -> None:
    """Right sizes, then noise: a type without its message, required fields missing, wrong wire types."""
    rng = random.Random(seed)
    client = raw()
    kind = rng.choice([value for value in BaseCommand.Type.values() if value != BaseCommand.PING])
    noise = rng.randbytes(rng.randrange(40)) if seed % 3 else b""
    command = b"\x08" + bytes([kind]) + noise
    try:
        for _ in range(3):
            client.send_bytes(encode_frame(command, rng.randbytes(rng.randrange(30)) if seed % 2 else b""))
        client.half_close()
        client.closed_within(8)
    except ClosedByServer:
        pass


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.0\r\nAccept: */*\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes.fromhex("16030100f8010000f40303") + bytes(240),
        b"\x00\x00\x00\x2a\x00\x12\x00\x04\x00\x00\x00\x01\x00\x07console" + bytes(30),
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["http1", "http2", "tls", "kafka", "ssh"],
)
def test_other_protocols(raw: Raw, hello: bytes) -> None:
    client = raw(connected=False)
    client.send_bytes(hello)
    client.half_close()
    client.closed_within(8)


def test_half_a_frame_and_gone(raw: Raw, topic: str) -> None:
    frame = send_frame(b"x" * 1000)
    for length in (1, 4, 7, 8, 9, 30, len(frame) - 1):
        client = raw()
        client.producer(topic)
        client.send_bytes(frame[:length])
        client.close()
    client = raw()
    client.subscribe(topic)
    client.flow(10)
    client.no_message()


def test_byte_by_byte(raw: Raw, topic: str) -> None:
    client = raw(connected=False)
    for byte in encode_frame(connect_command().SerializeToString()):
        client.send_bytes(bytes([byte]))
    client.expect(BaseCommand.CONNECTED)
    client.producer(topic)
    for byte in send_frame(b"slowly"):
        client.send_bytes(bytes([byte]))
    assert client.receive()[0].type == BaseCommand.SEND_RECEIPT
    client.subscribe(topic)
    client.flow(1)
    assert payload_of(client.message()[1]) == b"slowly"


def test_many_frames_in_one_segment(raw: Raw, topic: str) -> None:
    client = raw()
    client.producer(topic)
    client.send_bytes(b"".join(send_frame(b"x", number) for number in range(5000)))
    receipts = [client.receive()[0].send_receipt for _ in range(5000)]
    assert [receipt.sequence_id for receipt in receipts] == list(range(5000))
    assert [receipt.message_id.entryId for receipt in receipts] == list(range(5000))


def test_an_unfinished_frame_in_small_pieces_costs_what_it_holds(raw: Raw, server: ServerProcess) -> None:
    """An object for each piece of two bytes would cost twenty times as much."""
    client = raw()
    before = resident_bytes(server.pid)
    client.send_bytes(struct.pack(">II", MESSAGE_BYTES_MAX, 20))
    for _ in range(30_000):
        client.send_bytes(b"ab")
    raw().ping()
    assert resident_bytes(server.pid) - before < 5 * MIB


@pytest.mark.parametrize(
    "kind",
    [
        BaseCommand.CONNECTED,
        BaseCommand.SEND_RECEIPT,
        BaseCommand.MESSAGE,
        BaseCommand.SUCCESS,
        BaseCommand.LOOKUP_RESPONSE,
        BaseCommand.AUTH_CHALLENGE,
        BaseCommand.ACTIVE_CONSUMER_CHANGE,
    ],
    ids=BaseCommand.Type.Name,
)
def test_commands_that_only_a_server_says(raw: Raw, kind: int) -> None:
    client = raw()
    client.send(_minimal(kind))
    (said,) = client.closed_within(8)
    assert said.type == BaseCommand.ERROR


def test_a_command_type_from_the_future(raw: Raw) -> None:
    client = raw()
    client.send_bytes(encode_frame(b"\x08\xe7\x07"))
    refused(client)


@pytest.mark.parametrize("flip", [2, 5, 6, 9, 12, -1])
def test_a_damaged_message_is_refused_and_the_connection_lives(raw: Raw, topic: str, flip: int) -> None:
    """In the checksum, in the size of the metadata, in the metadata and in the payload."""
    client = raw()
    client.producer(topic)
    damaged = bytearray(headers_and_payload(b"payload", 7))
    damaged[flip] ^= 0x40
    client.send(send_command(7), bytes(damaged))
    error = client.expect(BaseCommand.SEND_ERROR).send_error
    assert (error.producer_id, error.sequence_id, error.error) == (1, 7, ServerError.ChecksumError)
    assert client.publish(b"payload", 7).send_receipt.message_id.entryId == 0


def test_a_flood_of_refused_connections(raw: Raw) -> None:
    for _ in range(500):
        client = raw(connected=False)
        client.send_bytes(struct.pack(">II", 2**31, 4))
        client.close()


def _minimal(kind: int) -> BaseCommand:
    command = BaseCommand(type=kind)  # type: ignore[arg-type]  # the stubs want the enum's own type
    command.connected.server_version = "x"
    return command
