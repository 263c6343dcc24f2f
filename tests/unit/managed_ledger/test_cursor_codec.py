"""The stored form of a cursor: both forms of holes, parts, old and foreign values."""

from __future__ import annotations

import struct
import zlib

import pytest

from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.cursor.codec import decode_entries, encode_entries, parse_entry, parts_of, restore
from magnetar.managed_ledger.errors import CursorStateError
from magnetar.managed_ledger.ledger_index import LedgerIndex, LedgerSummary
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.stored_value import StoredValueError, plain_value
from magnetar.wire.pulsar.MLDataFormats_pb2 import LongProperty, MessageRange, NestedPositionInfo, PositionInfo


def space(ledgers: int, entries: int) -> LedgerIndex:
    index = LedgerIndex()
    for ledger_id in range(ledgers):
        index.add(LedgerSummary(ledger_id, entries, entries, 1))
    return index


def again(
    acks: AckRanges, index: LedgerIndex, properties: dict[str, int], max_bytes: int = 1 << 22
) -> tuple[int, AckRanges]:
    """(parts, what a restart makes of them)."""
    entries = encode_entries(acks, properties, max_bytes)
    assert all(len(entry) <= max_bytes for entry in entries)
    state = decode_entries([parse_entry(entry) for entry in entries])
    assert state.properties == properties
    restored = restore(state, index, index.ledger_ids)
    restored.validate()
    return len(entries), restored


def same(one: AckRanges, other: AckRanges) -> bool:
    return (
        one.mark_delete == other.mark_delete
        and list(one.ranges()) == list(other.ranges())
        and list(one.partial_batches()) == list(other.partial_batches())
    )


def test_few_holes_are_ranges_and_many_are_bitmaps() -> None:
    index = space(3, 2000)
    acks = AckRanges(index, Position(0, 4))
    acks.add_range(0, 10, 20)
    acks.add_range(2, 0, 5)
    acks.add_batch(1, 7, [0b101, -1], 128)
    info = parse_entry(encode_entries(acks, {"seq": 3})[0])
    assert len(info.individualDeletedMessages) == 2
    assert not info.individualDeletedMessageRanges
    assert same(acks, again(acks, index, {"seq": 3})[1])
    for entry_id in range(0, 2000, 2):
        acks.add(1, entry_id)
    info = parse_entry(encode_entries(acks, {"seq": 3})[0])
    assert not info.individualDeletedMessages
    assert len(info.individualDeletedMessageRanges) == 3
    assert same(acks, again(acks, index, {"seq": 3})[1])


def test_one_million_alternating_acknowledgements_fit_and_survive() -> None:
    index = space(20, 50_000)
    acks = AckRanges(index, Position(0, -1))
    for ledger_id in range(20):
        for entry_id in range(1, 50_000, 2):
            acks.add(ledger_id, entry_id)
    assert acks.range_count() == 500_000
    parts, restored = again(acks, index, {})
    assert parts == 1
    assert restored.acked_count == 500_000
    assert all(not restored.contains(ledger_id, 2 * number) for ledger_id in range(20) for number in range(25_000))


@pytest.mark.parametrize("max_bytes", [2000, 5000, 8000])
def test_large_states_are_split_and_nothing_is_dropped(max_bytes: int) -> None:
    index = space(4, 5000)
    acks = AckRanges(index, Position(0, 17))
    for ledger_id in range(4):
        for entry_id in range(ledger_id, 5000, 3):
            acks.add(ledger_id, entry_id)
    for entry_id in range(100, 200):
        acks.add_batch(3, entry_id, [-1, -2], 128)
    properties = {f"producer-{number}": number for number in range(200)}
    parts, restored = again(acks, index, properties, max_bytes)
    assert parts > 1
    assert same(acks, restored)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    index = space(1, 5000)
    acks = AckRanges(index, Position(0, -1))
    for entry_id in range(1, 5000, 2):
        acks.add(0, entry_id)
    parts = [parse_entry(entry) for entry in encode_entries(acks, {}, 300)]
    assert len(parts) > 2
    with pytest.raises(CursorStateError):
        decode_entries(parts[:-1])
    with pytest.raises(CursorStateError):
        decode_entries([parts[1], parts[0], *parts[2:]])
    broken = PositionInfo(ledgerId=1, entryId=1, properties=[LongProperty(name="magnetar.part", value=7)])
    with pytest.raises(CursorStateError):
        parts_of(broken)
    with pytest.raises(CursorStateError):
        parse_entry(b"\xff\xff")


def test_ranges_across_ledgers_are_split_and_both_forms_are_merged() -> None:
    index = space(3, 10)
    info = PositionInfo(ledgerId=0, entryId=2)
    info.individualDeletedMessages.append(
        MessageRange(
            lowerEndpoint=NestedPositionInfo(ledgerId=0, entryId=6),
            upperEndpoint=NestedPositionInfo(ledgerId=2, entryId=3),
        )
    )
    info.individualDeletedMessageRanges.add(key=2, values=[1 << 8 | 1 << 60])
    acks = restore(decode_entries([info]), index, index.ledger_ids)
    assert list(acks.ranges()) == [
        (Position(0, 6), Position(0, 9)),
        (Position(1, -1), Position(1, 9)),
        (Position(2, -1), Position(2, 3)),
        (Position(2, 7), Position(2, 8)),
    ]
    acks.validate()


def test_compressed_znode_values() -> None:
    info = PositionInfo(ledgerId=5, entryId=6).SerializeToString()

    def packed(kind: int, payload: bytes) -> bytes:
        metadata = bytes([8, kind, 16, len(info)])
        return struct.pack(">Hi", 0x4778, len(metadata)) + metadata + payload

    assert plain_value(info, "/x") == info
    assert plain_value(packed(0, info), "/x") == info
    assert plain_value(packed(2, zlib.compress(info)), "/x") == info
    for bad in (packed(3, b"?"), packed(2, b"?"), packed(2, zlib.compress(info)[:-3])):
        with pytest.raises(StoredValueError):
            plain_value(bad, "/x")
