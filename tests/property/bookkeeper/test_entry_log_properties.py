"""The entry log's bytes: whatever they are, the reader says what is there, or that it is damaged, and believes no length."""

from __future__ import annotations

import contextlib
import tracemalloc
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.base.checksum import crc32c
from magnetar.base.errors import CorruptionError
from magnetar.bookkeeper.bookie.ledger_state import LedgerState, unpack_state
from magnetar.bookkeeper.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    TRAILER_BYTES,
    TRAILER_MAGIC,
    Location,
    RecordHeaders,
    check_header,
    pack_header,
    pack_seal,
    scan_records,
    unpack_entry_record,
    unpack_map,
    unpack_trailer,
)
from magnetar.bookkeeper.bookie.storage.journal_format import unpack_records

entries = st.lists(st.binary(max_size=60), min_size=1, max_size=8)


def record(entry_id: int, content: bytes) -> bytes:
    entry = pack(">qq", 1, entry_id) + content
    return RecordHeaders().pack([entry], [len(entry)])[0] + entry


@given(contents=entries)
def test_what_is_written_is_scanned_and_read(contents: list[bytes]) -> None:
    data = b"".join(record(number, content) for number, content in enumerate(contents))
    found, consumed, valid = scan_records(data, 100)
    assert valid
    assert consumed == len(data)
    assert [item.entry[16:] for item in found] == contents
    for number, item in enumerate(found):
        location = Location(1, item.offset, len(item.entry))
        assert unpack_entry_record(data, item.offset - 100, location, 1, number) == item.entry
        with pytest.raises(CorruptionError):
            unpack_entry_record(data, item.offset - 100, location, 1, number + 1)


@settings(max_examples=200)
@given(contents=entries, data=st.data())
def test_a_flip_is_noticed_by_scan_and_read(contents: list[bytes], data: st.DataObject) -> None:
    clean = b"".join(record(number, content) for number, content in enumerate(contents))
    truth, _, _ = scan_records(clean, 0)
    offset = data.draw(st.integers(0, len(clean) - 1))
    damaged = bytearray(clean)
    damaged[offset] ^= 1 << data.draw(st.integers(0, 7))
    found, consumed, valid = scan_records(bytes(damaged), 0)
    hit = max(number for number, item in enumerate(truth) if item.offset <= offset)
    assert found == truth[:hit]
    assert not valid or consumed < len(clean), "the scan does not claim to have seen everything"
    location = Location(1, truth[hit].offset, len(truth[hit].entry))
    with pytest.raises(CorruptionError):
        unpack_entry_record(bytes(damaged), location.offset, location, 1, hit)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_parsed_without_large_allocations(data: bytes) -> None:
    tracemalloc.start()
    try:
        scan_records(data, 0)
        if (trailer := unpack_trailer(data[-TRAILER_BYTES:], len(data))) is not None:
            unpack_map(data, trailer)
        for parse in (
            lambda: unpack_records(data, "test"),
            lambda: unpack_state(1, data),
            lambda: check_header(data, 1),
        ):
            with contextlib.suppress(CorruptionError):
                parse()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 15, 0x7FFFFFFF, 0xFFFFFFFF])
def test_lengths_are_not_believed(size: int) -> None:
    body = pack(">I", size) + b"\0" * 40
    assert scan_records(pack(">I", crc32c(body)) + body, 0) == ([], 0, False)
    with pytest.raises(CorruptionError):
        unpack_records(body, "test")


@given(
    ledgers=st.dictionaries(st.integers(0, 2**63 - 1), st.integers(0, 2**40), max_size=20), end=st.integers(24, 2**40)
)
def test_seal(ledgers: dict[int, int], end: int) -> None:
    data = pack_seal(end, ledgers)
    trailer = unpack_trailer(data[-TRAILER_BYTES:], end + len(data))
    assert trailer is not None
    assert unpack_map(data[:-TRAILER_BYTES], trailer) == ledgers
    assert unpack_trailer(data[-TRAILER_BYTES:], end + len(data) + 1) is None
    for offset in range(len(data)):
        damaged = bytearray(data)
        damaged[offset] ^= 1
        found = unpack_trailer(bytes(damaged[-TRAILER_BYTES:]), end + len(data))
        assert found is None or unpack_map(bytes(damaged[:-TRAILER_BYTES]), found) is None


def test_the_trailer_of_an_impossible_map() -> None:
    forged = pack(">QI", HEADER_BYTES, 0xFFFFFFFF) + b"\0" * 4 + TRAILER_MAGIC
    assert unpack_trailer(forged, 1000) is None


def test_headers() -> None:
    check_header(pack_header(5) + b"more", 5)
    for wrong in (b"", pack_header(6), pack_header(5)[:-1]):
        with pytest.raises(CorruptionError):
            check_header(wrong, 5)


@given(
    key=st.binary(min_size=1, max_size=40),
    lac=st.none() | st.binary(min_size=16, max_size=36),
    what=st.sampled_from("ofd"),
)
def test_ledger_states(key: bytes, lac: bytes | None, what: str) -> None:
    state = LedgerState(9, key)
    if lac is not None:
        state.accept_lac(lac)
    if what == "f":
        state.fence()
    if what == "d":
        state.bury(12345)
    found = unpack_state(9, state.pack())
    assert found.master_key == key
    assert found.explicit_lac == (None if what == "d" else lac)
    assert (found.fenced, found.deleted_ms) == (what != "o", 12345 if what == "d" else None)
    assert found.writable == (what == "o")
    with pytest.raises(CorruptionError):
        unpack_state(9, state.pack() + b"\0")


@given(
    keys=st.sets(st.binary(min_size=1, max_size=40)), first=st.binary(min_size=1, max_size=40), deleted=st.booleans()
)
def test_ledger_states_before_the_first_entry(keys: set[bytes], first: bytes, deleted: bool) -> None:
    state = LedgerState(9)
    for key in keys:
        state.fence_under(key, durable=False)
    if deleted:
        state.bury(12345)
    packed = state.pack()
    found = unpack_state(9, packed)
    assert found.keyless
    assert not found.writable
    assert found.fenced_keys == dict.fromkeys(keys, True)
    assert found.deleted_ms == (12345 if deleted else None)
    with pytest.raises(CorruptionError):
        unpack_state(9, packed + b"\0")
    if not deleted:
        found.fix_key(first)
        assert (found.fenced, found.writable) == (first in keys, first not in keys)
