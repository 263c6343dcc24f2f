"""Commands that are read and written by offset, against protobuf: the same fields, the same bytes, and no opinion about anything else."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.frequent import MessageHeads, read_ack, read_send, send_receipts_in_python
from magnetar.wire.pulsar.parsers import parse_command
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

U63 = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
U64 = st.one_of(U63, st.integers(2**63, 2**64 - 1))


def varint(value: int, padding: int = 0) -> bytes:
    """`padding`: bytes more than it takes, which are valid."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def agrees(data: bytes) -> bool:
    """What is read by offset is what protobuf reads; True if anything was."""
    head = read_send(data)
    if head is None:
        return False
    command = parse_command(data)
    send = command.send
    assert command.type == BaseCommand.SEND
    found = (send.producer_id, send.sequence_id, send.highest_sequence_id, send.is_chunk)
    assert found == tuple(head)
    assert not send.txnid_least_bits
    assert not send.txnid_most_bits
    return True


@st.composite
def sends(draw: st.DrawFn) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = draw(U63)
    command.send.sequence_id = draw(U63)
    if draw(st.booleans()):
        command.send.num_messages = draw(st.integers(0, 2**31 - 1))
    if draw(st.booleans()):
        command.send.highest_sequence_id = draw(U63)
    if draw(st.booleans()):
        command.send.is_chunk = draw(st.booleans())
    return command


@given(sends())
def test_a_send_as_clients_write_it_is_read_by_offset(command: BaseCommand) -> None:
    data = command.SerializeToString()
    assert agrees(data)
    for end in range(len(data)):
        assert read_send(data[:end]) is None, "cut off"
    for follows in range(256):
        agrees_or_refused(data + bytes([follows]))


def agrees_or_refused(data: bytes) -> None:
    """Nothing that protobuf refuses is taken."""
    try:
        parse_command(data)
    except DecodeError:
        assert read_send(data) is None
    else:
        agrees(data)


FIELDS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 2), U64, st.integers(0, 3), st.binary(max_size=3)),
    min_size=1,
    max_size=6,
)


@given(FIELDS, st.booleans(), st.integers(0, 3))
def test_any_order_of_any_fields_is_read_as_protobuf_reads_it_or_left_to_it(
    fields: list[tuple[int, int, int, int, bytes]], ascending: bool, padding: int
) -> None:
    """Known and unknown fields, repeated ones, of other kinds, numbers that are longer than they have to be."""
    if ascending:
        fields = sorted(fields)
    body = b""
    for number, kind, value, extra, text in fields:
        if kind < 2:
            body += varint(number << 3) + varint(
                value, min(extra, 9 - (value.bit_length() + 6) // 7) if value < 2**56 else 0
            )
        else:
            body += varint(number << 3 | 2) + varint(len(text)) + text
    agrees_or_refused(b"\x08\x06\x32" + varint(len(body), padding) + body)


@given(sends(), st.data())
def test_damaged_bytes_are_read_as_protobuf_reads_them_or_left_to_it(command: BaseCommand, data: st.DataObject) -> None:
    damaged = bytearray(command.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    agrees_or_refused(bytes(damaged))


@st.composite
def receipts(draw: st.DrawFn) -> tuple[int, list[int], list[int], int, int]:
    count = draw(st.integers(1, 200))
    first = draw(st.one_of(st.integers(0, 40_000), st.integers(0, 2**63 - 300)))
    ids = list(range(first, first + count))
    highest = [0] * count
    if draw(st.booleans()):
        at = draw(st.integers(0, count - 1))
        ids[at], highest[at] = draw(U64), draw(st.one_of(st.just(0), U64))
    entry_id = draw(st.one_of(st.integers(0, 40_000), st.integers(0, 2**62)))
    return draw(U64), ids, highest, draw(U64), entry_id


@given(receipts())
def test_receipts_of_a_run_are_those_of_its_entries(case: tuple[int, list[int], list[int], int, int]) -> None:
    producer_id, ids, highest, ledger_id, entry_id = case
    single = [
        commands.send_receipt(producer_id, sequence_id, last, ledger_id, entry_id + offset)
        for offset, (sequence_id, last) in enumerate(zip(ids, highest, strict=True))
    ]
    assert send_receipts_in_python(*case) == b"".join(single)


# ---- Acknowledgements


@st.composite
def acks(draw: st.DrawFn, plain: bool = True) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = draw(U63)
    command.ack.ack_type = 0 if plain else draw(st.integers(0, 1))
    for _ in range(draw(st.integers(1, 4))):
        named = command.ack.message_id.add()
        named.ledgerId, named.entryId = draw(U63), draw(U63)
        if draw(st.booleans()):
            named.partition = draw(st.integers(0, 2**31 - 1))
        if not plain and draw(st.booleans()):
            named.ack_set.append(draw(st.integers(-(2**63), 2**63 - 1)))
        if not plain and draw(st.booleans()):
            named.batch_size = draw(st.integers(0, 100))
    if not plain:
        for field, value in (
            ("request_id", 1),
            ("txnid_least_bits", 0),
            ("txnid_most_bits", 2),
            ("validation_error", 1),
        ):
            if draw(st.booleans()):
                setattr(command.ack, field, value)
    return command


def ack_agrees_or_is_refused(data: bytes) -> bool:
    """True if it was read by offset: then protobuf reads the same, and nothing besides."""
    found = read_ack(data)
    if found is None:
        return False
    command = parse_command(data)
    ack = command.ack
    assert command.type == BaseCommand.ACK
    assert ack.ack_type == 0
    said = {descriptor.name for descriptor, _ in ack.ListFields()}
    assert said == {"consumer_id", "ack_type", "message_id"}, "nothing that would have been passed over"
    for named in ack.message_id:
        assert {descriptor.name for descriptor, _ in named.ListFields()} <= {"ledgerId", "entryId", "partition"}
    assert found == (ack.consumer_id, [(named.ledgerId, named.entryId, None, 0) for named in ack.message_id])
    return True


@given(acks())
def test_a_plain_ack_is_read_by_offset(command: BaseCommand) -> None:
    data = command.SerializeToString()
    assert ack_agrees_or_is_refused(data)
    for end in range(len(data)):
        assert read_ack(data[:end]) is None, "cut off"
    for follows in range(256):
        assert read_ack(data + bytes([follows])) is None


@given(acks(plain=False))
def test_an_ack_that_says_more_is_left_to_protobuf(command: BaseCommand) -> None:
    ack_agrees_or_is_refused(command.SerializeToString())


@given(acks(plain=False), st.data())
def test_damaged_acks_are_read_as_protobuf_reads_them_or_left_to_it(command: BaseCommand, data: st.DataObject) -> None:
    damaged = bytearray(command.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    ack_agrees_or_is_refused(bytes(damaged))


# ---- Messages


@given(
    st.integers(0, 2**64 - 1),
    st.integers(-1, 2**31 - 1),
    st.lists(st.tuples(U63, U63, st.integers(0, 2**31)), min_size=1, max_size=5),
)
def test_message_heads_are_protobufs(consumer_id: int, partition: int, entries: list[tuple[int, int, int]]) -> None:
    heads = MessageHeads(consumer_id, partition)
    for ledger_id, entry_id, data_bytes in entries:
        for at in (entry_id, entry_id // 2, entry_id % 20_000):
            expected = commands.message_header(consumer_id, ledger_id, at, partition, 0, None, None, data_bytes)
            assert heads.head(ledger_id, at, data_bytes) == expected
