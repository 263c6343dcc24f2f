"""Requests in good form with hostile content: limits hold, answers are errors, and no acknowledgement ever skips a message."""

from __future__ import annotations

import urllib.request
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.base.checksum import crc32c
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.headers import MAGIC_CRC32C, payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandAck, KeyValue, ServerError
from tests.integration.connection.conftest import Raw
from tests.support.compaction import compact, hold
from tests.support.process import MIB, peak_resident_bytes, reset_peak, resident_bytes
from tests.support.raw import ClosedByServer, RawClient, send_command, send_frame

U32_MAX = 2**32 - 1
I64_MAX = 2**63 - 1
U64_MAX = 2**64 - 1
FINAL_CODES = (ServerError.TopicNotFound, ServerError.NotAllowedError, ServerError.InvalidTopicName)


def filled(raw: Raw, topic: str, count: int = 10, kind: str = "Exclusive") -> tuple[RawClient, int]:
    """A client that produces to and is subscribed to a topic with `count` messages; the ledger's id."""
    client = raw()
    assert client.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
    receipts = [client.publish(b"%d" % number, number) for number in range(count)]
    assert client.subscribe(topic, kind=kind).type == BaseCommand.SUCCESS
    return client, receipts[0].send_receipt.message_id.ledgerId


def left(raw: Raw, client: RawClient, topic: str, count: int = 10) -> list[int]:
    """Close the client; what a new consumer of its subscription gets, up to `count`."""
    client.send(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer={"consumer_id": 1, "request_id": 99}))
    client.until(BaseCommand.SUCCESS)
    other = raw()
    assert other.subscribe(topic, kind="Exclusive").type == BaseCommand.SUCCESS
    other.flow(1000)
    return [command.message.message_id.entryId for command, _ in other.messages(count)]


# ---- Producing


def test_send_on_an_unknown_producer_ends_the_connection(raw: Raw) -> None:
    client = raw()
    client.send_bytes(send_frame(b"x", producer_id=77))
    (said,) = client.closed_within(8)
    assert said.type == BaseCommand.ERROR


def test_sends_behind_a_close_are_dropped_quietly(raw: Raw, topic: str) -> None:
    client = raw()
    client.producer(topic)
    client.send(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer={"producer_id": 1, "request_id": 9}))
    client.send_bytes(send_frame(b"late"))
    client.expect(BaseCommand.SUCCESS)
    client.ping()


def test_ids_in_use_are_not_taken_over(raw: Raw, topic: str) -> None:
    client = raw()
    first = client.producer(topic).producer_success.producer_name
    assert client.producer(topic).producer_success.producer_name == first
    assert client.subscribe(topic).type == BaseCommand.SUCCESS
    assert client.subscribe(topic).type == BaseCommand.SUCCESS
    client.flow(10)
    client.publish(b"once")
    assert payload_of(client.message()[1]) == b"once"
    client.no_message()


def test_the_same_id_opened_twice_at_once(raw: Raw, topic: str) -> None:
    client = raw()
    command = BaseCommand(type=BaseCommand.PRODUCER, producer={"topic": topic, "producer_id": 5, "request_id": 1})
    frame = encode_frame(command.SerializeToString())
    client.send_bytes(frame * 20)
    answers = [client.receive()[0] for _ in range(20)]
    assert any(answer.type == BaseCommand.PRODUCER_SUCCESS for answer in answers)
    names = {answer.producer_success.producer_name for answer in answers if answer.type == BaseCommand.PRODUCER_SUCCESS}
    assert len(names) == 1


@pytest.mark.parametrize(
    "metadata",
    [
        {"num_messages_in_batch": 2**31 - 1},
        {"num_messages_in_batch": 2**31 - 1, "compression": 1, "uncompressed_size": U32_MAX},
        {"num_messages_in_batch": 1000},
        {"num_messages_in_batch": -1},
        {"num_messages_in_batch": 0},
        {"num_messages_in_batch": -(2**31)},
        {"uncompressed_size": U32_MAX, "compression": 1},
        {"deliver_at_time": -1},
        {"num_chunks_from_msg": 2**31 - 1, "chunk_id": 2**31 - 2, "uuid": "u", "total_chunk_msg_size": 2**31 - 1},
        {"chunk_id": -5, "num_chunks_from_msg": -5, "uuid": "u"},
        {"partition_key": "not base64 !", "partition_key_b64_encoded": True},
        {"ordering_key": bytes(60_000)},
        {"event_time": U64_MAX, "publish_time": U64_MAX},
        {"sequence_id": U64_MAX, "highest_sequence_id": U64_MAX},
        {"txnid_least_bits": U64_MAX, "txnid_most_bits": U64_MAX},
    ],
    ids=lambda fields: next(iter(fields)) + "=" + str(next(iter(fields.values())))[:12],
)
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_hostile_metadata_stalls_no_subscription(raw: Raw, topic: str, metadata: dict[str, Any], kind: str) -> None:
    """Whatever such an entry says of itself, it is stored or refused; what comes behind it is delivered all the same."""
    producer, consumer = raw(), raw()
    producer.producer(topic)
    assert consumer.subscribe(topic, kind=kind).type == BaseCommand.SUCCESS
    sequence_id = metadata.pop("sequence_id", 1) if "sequence_id" in metadata else 1
    answer = producer.publish(b"hostile", sequence_id, **metadata)
    assert answer.type in (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)
    assert producer.publish(b"good", 2).type == BaseCommand.SEND_RECEIPT
    consumer.flow(1000)
    got = [payload_of(consumer.message()[1]) for _ in range(2 if answer.type == BaseCommand.SEND_RECEIPT else 1)]
    assert b"good" in got


@pytest.mark.parametrize("is_chunk", [False, True])
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        (2**31 - 1).to_bytes(4, "big") + b"short",
        U32_MAX.to_bytes(4, "big"),
        (4).to_bytes(4, "big") + b"\xff\xff\xff\xff",
        (0).to_bytes(4, "big") + b"no metadata",
        b"\x0e\x02\xff\xff\xff\xff" + bytes(20),
        b"\x0e\x02\x00\x00\x00\x02\x08\x01" + (0).to_bytes(4, "big"),
    ],
    ids=["empty", "short", "size-2^31", "size-2^32", "not-protobuf", "none", "broker-part", "forged-broker-part"],
)
@pytest.mark.parametrize("checksum", [True, False])
def test_entries_that_are_no_messages(
    raw: Raw, topic: str, body: bytes, kind: str, is_chunk: bool, checksum: bool
) -> None:
    producer, consumer = raw(), raw()
    producer.producer(topic)
    assert consumer.subscribe(topic, kind=kind).type == BaseCommand.SUCCESS
    command = send_command(1)
    command.send.is_chunk = is_chunk
    producer.send(command, MAGIC_CRC32C + crc32c(body).to_bytes(4, "big") + body if checksum else body)
    assert producer.receive()[0].type in (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)
    producer.publish(b"good", 2)
    consumer.flow(1000)
    entries = [consumer.message()[1]]
    if not entries[0].endswith(b"good"):
        entries.append(consumer.message()[1])
    assert payload_of(entries[-1]) == b"good"


@pytest.mark.parametrize("num_messages", [-1, 0, -(2**31), 2**31 - 1])
def test_hostile_message_counts_in_send(raw: Raw, topic: str, num_messages: int) -> None:
    client = raw()
    client.producer(topic)
    frame = send_frame(b"x")
    rest = frame[8 + int.from_bytes(frame[4:8], "big") :]
    command = send_command(0)
    command.send.num_messages = num_messages
    command.send.highest_sequence_id = U64_MAX
    client.send(command, rest)
    assert client.receive()[0].type in (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)


# ---- Consuming


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared", "Failover"])
def test_permits_saturate(raw: Raw, topic: str, kind: str) -> None:
    client, _ = filled(raw, topic, 10, kind)
    client.flow(0)
    client.no_message(0.1)
    for _ in range(50):
        client.flow(U32_MAX)
    assert [payload_of(client.message()[1]) for _ in range(10)] == [b"%d" % number for number in range(10)]
    for _ in range(50):
        client.flow(U32_MAX)
    client.publish(b"more", 11)
    assert payload_of(client.message()[1]) == b"more"


def test_flow_and_ack_for_nobody(raw: Raw) -> None:
    client = raw()
    client.flow(10, consumer_id=123)
    client.ack([(1, 1)], receipt=False, consumer_id=123)
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = 123
    client.send(command)
    client.ping()


FOREIGN = [
    (0, 0),
    (0, U64_MAX),
    (1, 0),
    (I64_MAX, 0),
    (I64_MAX, I64_MAX),
    (U64_MAX, U64_MAX),
    (U64_MAX, 0),
    (2**32, 2**32),
    (2**62, 5),
]


@pytest.mark.parametrize("cumulative", [False, True], ids=["individual", "cumulative"])
@pytest.mark.parametrize("message_id", FOREIGN, ids=str)
def test_acknowledging_what_is_not_there_skips_nothing(
    raw: Raw, topic: str, message_id: tuple[int, int], cumulative: bool
) -> None:
    client, ledger_id = filled(raw, topic)
    assert ledger_id not in (message_id[0], 1)
    answer = client.ack([message_id], cumulative=cumulative)
    assert answer is not None
    client.ack([(ledger_id, U64_MAX), (ledger_id, 10), (ledger_id, 2**40), (ledger_id, I64_MAX)], cumulative=cumulative)
    assert left(raw, client, topic) == list(range(10))


@pytest.mark.parametrize("cumulative", [False, True], ids=["individual", "cumulative"])
def test_acknowledging_in_another_topics_ledger_skips_nothing(raw: Raw, topic: str, cumulative: bool) -> None:
    """Ledgers before, between and behind those of the topic: an id that looks passable by its order alone."""
    before = filled(raw, topic + "-before")[1]
    client, ledger_id = filled(raw, topic)
    behind = filled(raw, topic + "-behind")[1]
    assert before < ledger_id < behind
    client.ack([(before, 5)], cumulative=cumulative)
    client.ack([(behind, 5)], cumulative=cumulative)
    assert left(raw, client, topic) == list(range(10))


def test_acknowledging_between_the_ledgers_of_a_topic_skips_nothing(
    raw: Raw, topic: str, server: ServerProcess
) -> None:
    """Ledgers of other topics lie between two of this one; a cumulative id in such a gap is not an id of this topic."""
    client, first = filled(raw, topic)
    foreign = filled(raw, topic + "-between")[1]
    unload(server, topic)
    client = raw()
    client.producer(topic)
    second = client.publish(b"10", 10).send_receipt.message_id.ledgerId
    assert first < foreign < second
    client.subscribe(topic, kind="Exclusive")
    client.ack([(foreign, 3)], cumulative=True)
    client.ack([(first, 10)], cumulative=True)
    client.ack([(first, 2**40)], cumulative=True)
    assert left(raw, client, topic, 11) == [*range(10), 0]


def test_a_hundred_thousand_ids_in_one_acknowledgement(raw: Raw, topic: str) -> None:
    client, ledger_id = filled(raw, topic)
    ids = [(ledger_id, number % 5) for number in range(30_000)] + [
        (ledger_id, 1000 + number) for number in range(30_000)
    ]
    assert client.ack(ids) is not None
    ids = [(7_000_000 + number, number) for number in range(60_000)]
    assert client.ack(ids) is not None
    assert left(raw, client, topic) == [5, 6, 7, 8, 9]


def test_hostile_acknowledgement_sets(raw: Raw, topic: str) -> None:
    """Words that are too many, all set, for plain messages, with impossible batch sizes: nothing else gets acknowledged."""
    client, ledger_id = filled(raw, topic)
    for words, batch_size in (
        ([-1] * 10_000, 2**31 - 1),
        ([-1], -5),
        ([-1], 0),
        ([0, -1], 2**31 - 1),
        ([-1] * 3, 10),
    ):
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = 1
        command.ack.ack_type = CommandAck.Individual
        command.ack.request_id = client.request_id()
        command.ack.message_id.add(ledgerId=ledger_id, entryId=3, ack_set=words, batch_size=batch_size)
        client.send(command)
        client.until(BaseCommand.ACK_RESPONSE)
    entries = left(raw, client, topic)
    assert [entry for entry in entries if entry != 3] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_an_acknowledgement_without_ids(raw: Raw, topic: str) -> None:
    client, _ = filled(raw, topic)
    assert client.ack([]) is not None
    assert client.ack([], cumulative=True) is not None
    assert left(raw, client, topic) == list(range(10))


@pytest.mark.parametrize(("kind", "expected"), [("Exclusive", 10), ("Shared", 10), ("Key_Shared", 10)])
def test_an_empty_redelivery_list_means_all_that_is_held(raw: Raw, topic: str, kind: str, expected: int) -> None:
    client, _ = filled(raw, topic, 10, kind)
    client.flow(1000)
    first = [payload_of(client.message()[1]) for _ in range(10)]
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = 1
    client.send(command)
    assert sorted(payload_of(client.message()[1]) for _ in range(expected)) == sorted(first)
    client.no_message(0.1)


def test_redelivery_of_what_was_never_held(raw: Raw, topic: str) -> None:
    client, ledger_id = filled(raw, topic, 10, "Shared")
    client.flow(3)
    for _ in range(3):
        client.message()
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    request = command.redeliverUnacknowledgedMessages
    request.consumer_id = 1
    for ledger, entry in [
        (ledger_id, 7),
        (ledger_id, I64_MAX),
        (U64_MAX, U64_MAX),
        (0, 0),
        *((9, n) for n in range(20_000)),
    ]:
        request.message_ids.add(ledgerId=ledger, entryId=entry)
    client.send(command)
    client.no_message(0.2)
    client.flow(7)
    assert [client.message()[0].message.message_id.entryId for _ in range(7)] == list(range(3, 10))


@pytest.mark.parametrize(
    ("message_id", "expected"),
    [
        ((0, 0), range(10)),
        ((I64_MAX, I64_MAX), range(0)),
        ((U64_MAX, U64_MAX), range(10)),
        ((2**62, 3), range(0)),
        ((0, I64_MAX), range(10)),
    ],
    ids=str,
)
def test_seeking_to_a_foreign_ledger_stays_inside_the_topic(
    raw: Raw, topic: str, message_id: tuple[int, int], expected: range
) -> None:
    client, _ = filled(raw, topic)
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id = 1
    command.seek.request_id = 50
    command.seek.message_id.ledgerId, command.seek.message_id.entryId = message_id
    client.send(command)
    assert client.until(BaseCommand.SUCCESS).success.request_id == 50
    other = raw()
    other.subscribe(topic, kind="Exclusive")
    other.flow(100)
    got = [command.message.message_id.entryId for command, _ in other.messages(10)]
    assert got == list(expected)


@pytest.mark.parametrize("publish_time", [0, 1, U64_MAX, I64_MAX])
def test_seeking_to_the_ends_of_time(raw: Raw, topic: str, publish_time: int) -> None:
    client, _ = filled(raw, topic)
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id, command.seek.message_publish_time = 1, 50, publish_time
    client.send(command)
    assert client.until(BaseCommand.SUCCESS).success.request_id == 50


@pytest.mark.parametrize(
    "number", [BaseCommand.SEEK, BaseCommand.UNSUBSCRIBE, BaseCommand.GET_LAST_MESSAGE_ID, BaseCommand.CONSUMER_STATS]
)
def test_requests_for_a_consumer_that_is_not_there(raw: Raw, number: int) -> None:
    client = raw()
    client.send(
        {
            BaseCommand.SEEK: BaseCommand(type=BaseCommand.SEEK, seek={"consumer_id": 8, "request_id": 3}),
            BaseCommand.UNSUBSCRIBE: BaseCommand(
                type=BaseCommand.UNSUBSCRIBE, unsubscribe={"consumer_id": 8, "request_id": 3}
            ),
            BaseCommand.GET_LAST_MESSAGE_ID: BaseCommand(
                type=BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId={"consumer_id": 8, "request_id": 3}
            ),
            BaseCommand.CONSUMER_STATS: BaseCommand(
                type=BaseCommand.CONSUMER_STATS, consumerStats={"consumer_id": 8, "request_id": 3}
            ),
        }[number]
    )
    answer = client.receive()[0]
    assert answer.error.request_id == 3 or answer.consumerStatsResponse.error_code == ServerError.ConsumerNotFound


# ---- Names

HOSTILE_NAMES = [
    "",
    "..",
    "persistent://public/default/..",
    "persistent://public/default/",
    "persistent://public/default/a/../../etc",
    "persistent://../default/t",
    "persistent://public/..%2f/t",
    "persistent://public/default/nul\x00byte",
    "persistent://public/default/line\nbreak",
    "persistent://public/default/" + "x" * 10_000,
    "file:///etc/passwd",
    "persistent://public/default",
    "persistent://public//t",
    "://public/default/t",
    "persistent://public/default/t/../t",
    "persistent://" + "a/" * 1000,
]

ODD_BUT_LEGAL = [
    "persistent://public/default/%2e%2e%2fetc",
    "persistent://public/default/\u202egnp.exe",
    "persistent://public/default/\U0001f525",
    "persistent://public/default/a b%20c+d?e#f",
    "persistent://public/default/...",
    "persistent://public/default/'; DROP TABLE nodes; --",
    "persistent://public/default/" + "y" * 200,
    "persistent://public/default/t-partition-",
    "persistent://public/default/t-partition-x",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: repr(name)[:40])
def test_hostile_topic_names_are_refused_everywhere(raw: Raw, name: str) -> None:
    client = raw()
    assert client.producer(name).error.error in FINAL_CODES
    assert client.subscribe(name).error.error in FINAL_CODES
    client.send(BaseCommand(type=BaseCommand.LOOKUP, lookupTopic={"topic": name, "request_id": 7}))
    assert client.expect(BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse.error in FINAL_CODES
    client.send(BaseCommand(type=BaseCommand.PARTITIONED_METADATA, partitionMetadata={"topic": name, "request_id": 8}))
    assert client.expect(BaseCommand.PARTITIONED_METADATA_RESPONSE).partitionMetadataResponse.error in FINAL_CODES


@pytest.mark.parametrize("name", ODD_BUT_LEGAL, ids=lambda name: repr(name)[-40:])
def test_odd_names_are_names_of_their_own(raw: Raw, name: str) -> None:
    client = raw()
    answer = client.producer(name)
    if answer.type == BaseCommand.ERROR:
        assert answer.error.error in FINAL_CODES
        return
    client.publish(name.encode())
    client.subscribe(name)
    client.flow(5)
    assert payload_of(client.message()[1]) == name.encode()
    client.no_message(0.05)


@pytest.mark.parametrize(
    "topic_name",
    ["persistent://nobody/nowhere/t", "persistent://public/nowhere/t"],
)
def test_topics_that_may_not_come_into_being(raw: Raw, topic_name: str) -> None:
    answer = raw().producer(topic_name)
    assert answer.type == BaseCommand.ERROR
    assert answer.error.error in (ServerError.TopicNotFound, ServerError.MetadataError)


@pytest.mark.parametrize("name", ["", "..", ".", "a\x00b", "a\nb", "s" * 10_000], ids=lambda name: repr(name)[:20])
def test_hostile_subscription_names_are_refused(raw: Raw, topic: str, name: str) -> None:
    answer = raw().subscribe(topic, name)
    assert answer.type == BaseCommand.ERROR


@pytest.mark.parametrize("name", ["../..", "%2e%2e", "a/b", "pulsar.dedup", "\U0001f525", "s" * 200, "a b'c\"d"])
def test_odd_subscription_names_stay_apart(raw: Raw, topic: str, name: str) -> None:
    client = raw()
    client.producer(topic)
    client.publish(b"x")
    answer = client.subscribe(topic, name)
    if answer.type == BaseCommand.ERROR:
        return
    client.flow(5)
    assert payload_of(client.message()[1]) == b"x"


@pytest.mark.parametrize("namespace", ["", "public", "public/default/x", "../..", "public/\x00", "a" * 100_000])
def test_hostile_namespaces_in_topic_lists(raw: Raw, namespace: str) -> None:
    client = raw()
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
    command.getTopicsOfNamespace.namespace = namespace
    command.getTopicsOfNamespace.request_id = 4
    command.getTopicsOfNamespace.topics_pattern = "(a+)+$"
    client.send(command)
    answer = client.receive()[0]
    assert answer.type in (BaseCommand.ERROR, BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)


# ---- Numbers


def test_a_million_properties_cost_a_bounded_amount(raw: Raw, topic: str, server: ServerProcess) -> None:
    """The command part is bounded, and with it what its parse may cost (5 MB would be 50 MB and 80 ms)."""
    client = raw()
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic, command.producer.producer_id, command.producer.request_id = topic, 1, 1
    for _ in range(150_000):
        command.producer.metadata.append(KeyValue(key="", value=""))
    reset_peak(server.pid)
    before = resident_bytes(server.pid)
    client.send(command)
    client.until(BaseCommand.PRODUCER_SUCCESS)
    assert peak_resident_bytes(server.pid) - before < 40 * MIB


@pytest.mark.parametrize("group", [b"\x7b", b"\x7a"], ids=["unknown groups", "unknown messages"])
def test_deep_nesting_is_refused(raw: Raw, group: bytes) -> None:
    """A parser that follows nesting without a bound would end the process, not the connection."""
    depth = 100_000
    command = b"\x08\x12"  # PING, and then what nobody knows
    if group == b"\x7b":
        command += group * depth + b"\x7c" * depth
    else:
        for _ in range(60):
            command = b"\x08\x12\x7a" + _varint(len(command)) + command
    client = raw()
    client.send_bytes(encode_frame(command))
    try:
        client.half_close()
        client.closed_within(8)
    except ClosedByServer:
        pass


@pytest.mark.parametrize("declared", [1000, 300 * MIB], ids=["says less", "says it"])
def test_a_bomb_is_compacted_around(raw: Raw, topic: str, server: ServerProcess, declared: int) -> None:
    """The server unpacks batches only to compact them. One that holds 300 MB of zeros in 300 kB stays as it was."""
    hold(server)
    client = raw()
    client.producer(topic)
    assert client.subscribe(topic).type == BaseCommand.SUCCESS
    bomb = zlib.compress(bytes(300 * MIB), 9)
    client.publish(bomb, 1, compression=2, uncompressed_size=declared, num_messages_in_batch=3)
    client.publish(b"behind it", 2, partition_key="k")
    reset_peak(server.pid)
    before = resident_bytes(server.pid)
    compact(server, topic)
    assert peak_resident_bytes(server.pid) - before < 40 * MIB
    client.flow(10)
    assert payload_of(client.message()[1]) == bomb
    assert payload_of(client.message()[1]) == b"behind it"


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def test_producers_on_one_connection_are_bounded(start_server: Callable[..., ServerProcess], topic: str) -> None:
    """Ten thousand and no more; they leave nothing behind that a second ten thousand would add to."""
    server = start_server()
    resident = []
    for _ in range(2):
        with RawClient(server.port) as client:
            client.connect()
            assert sum(_open_producers(client, topic, start) for start in range(1, 10_101, 1000)) == 10_000
        with RawClient(server.port) as other:
            other.connect()
            assert other.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
        resident.append(resident_bytes(server.pid))
    assert resident[1] - resident[0] < 5 * MIB
    assert "Traceback" not in server.log()


def _open_producers(client: RawClient, topic: str, start: int) -> int:
    """Ask for a thousand; how many were granted."""
    command = BaseCommand(type=BaseCommand.PRODUCER)
    frames = []
    for number in range(start, start + 1000):
        command.producer.topic, command.producer.producer_id, command.producer.request_id = topic, number, number
        frames.append(encode_frame(command.SerializeToString()))
    client.send_bytes(b"".join(frames))
    return sum(client.receive(20)[0].type == BaseCommand.PRODUCER_SUCCESS for _ in range(1000))


def unload(server: ServerProcess, topic: str) -> None:
    """The topic is closed; its next user opens a new ledger."""
    path = topic.replace("://", "/")
    request = urllib.request.Request(f"{server.http_url}/admin/v2/{path}/unload", method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 204
