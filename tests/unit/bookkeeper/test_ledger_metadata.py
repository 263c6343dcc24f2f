"""The bytes of ledger metadata, byte by byte, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.entry_format import DigestType
from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.ledger_metadata import FORMAT_TEXT, LedgerMetadata, LedgerState, Segment

OPEN = LedgerMetadata(
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=1,
    segments=(Segment(0, ("a:1", "b:2")),),
    password=b"pw",
    ctime_ms=300,
    custom_metadata={"k": b"\x01"},
    c_token=5,
)

# Field by field: quorumSize, ensembleSize, length, lastEntryId -1, state OPEN, segment, digestType CRC32C, password, ackQuorumSize, ctime,
# customMetadata, cToken.
OPEN_BODY = bytes.fromhex(
    "08021002180020ffffffffffffffffff012801320c0a03613a310a03623a321000380342027077480150ac025a060a016b1201016005"
)
OPEN_BYTES = b"BookieMetadataFormatVersion\t3\n" + bytes([len(OPEN_BODY)]) + OPEN_BODY


def test_version_3_bytes() -> None:
    assert OPEN.to_bytes() == OPEN_BYTES
    assert LedgerMetadata.from_bytes(OPEN_BYTES) == OPEN


def test_closing_keeps_everything_but_the_token() -> None:
    closed = OPEN.closed(9, 100)
    assert LedgerMetadata.from_bytes(closed.to_bytes()) == closed
    assert (closed.state, closed.last_entry_id, closed.length, closed.c_token) == (LedgerState.CLOSED, 9, 100, 0)
    assert closed.custom_metadata == OPEN.custom_metadata
    assert OPEN.in_recovery().state is LedgerState.IN_RECOVERY
    assert OPEN.in_recovery().closed(-1, 0).last_entry_id == -1


def test_version_2_is_read_and_stays_version_2() -> None:
    text = (
        b"BookieMetadataFormatVersion\t2\n"
        b'quorumSize: 2 ensembleSize: 2 length: 7 lastEntryId: 3 state: CLOSED digestType: HMAC password: "pw" '
        b'segment { ensembleMember: "a:1" ensembleMember: "b:2" firstEntryId: 0 }'
    )
    metadata = LedgerMetadata.from_bytes(text)
    assert metadata.ack_quorum == 2, "a missing ack quorum is the write quorum"
    assert metadata.digest_type is DigestType.HMAC
    assert metadata.ctime_ms == -1
    assert metadata.format_version == FORMAT_TEXT
    again = metadata.to_bytes()
    assert again.startswith(b"BookieMetadataFormatVersion\t2\n")
    assert LedgerMetadata.from_bytes(again) == metadata


@pytest.mark.parametrize(
    ("last_line", "state", "last_entry_id", "length"),
    [
        (b"", LedgerState.OPEN, -1, 0),
        (b"\n-102\tCLOSED", LedgerState.IN_RECOVERY, -1, 0),
        (b"\n59\tCLOSED", LedgerState.CLOSED, 59, 1200),
    ],
)
def test_version_1_is_read_and_stays_version_1(
    last_line: bytes, state: LedgerState, last_entry_id: int, length: int
) -> None:
    head = b"BookieMetadataFormatVersion\t1\n2\n3\n"
    segments = b"\n0\ta:1\tb:1\tc:1\n47\ta:1\tb:1\td:1"
    data = head + str(length).encode() + segments + last_line
    metadata = LedgerMetadata.from_bytes(data)
    assert (metadata.write_quorum, metadata.ensemble_size, metadata.ack_quorum) == (2, 3, 2)
    assert metadata.segments == (Segment(0, ("a:1", "b:1", "c:1")), Segment(47, ("a:1", "b:1", "d:1")))
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (state, last_entry_id, length)
    assert metadata.password is None
    assert metadata.to_bytes() == data


@pytest.mark.parametrize("body", [b"", b"2\n3", b"2\n3\nx", b"2\n3\n0\n", b"2\n3\n0\n0\ta:1", b"1\n1\n0\nx\ta:1"])
def test_damaged_lines_of_version_1_are_refused(body: bytes) -> None:
    with pytest.raises(LedgerMetadataError):
        LedgerMetadata.from_bytes(b"BookieMetadataFormatVersion\t1\n" + body)


def test_a_missing_password_is_not_an_empty_one() -> None:
    without = LedgerMetadata(1, 1, 1, (Segment(0, ("a:1",)),), password=None)
    read = LedgerMetadata.from_bytes(without.to_bytes())
    assert read.password is None
    assert LedgerMetadata.from_bytes(OPEN_BYTES.replace(b"pw", b"xy")).password == b"xy"


def test_segments_are_found_by_entry() -> None:
    metadata = LedgerMetadata(1, 1, 1, tuple(Segment(first, (f"b{first}",)) for first in (0, 5, 9)))
    assert [metadata.segment_index(entry) for entry in (0, 4, 5, 8, 9, 10**12)] == [0, 0, 1, 1, 2, 2]
    assert metadata.last_segment.first_entry_id == 9


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"BookieMetadataFormatVersion\t3",
        b"BookieMetadataFormatVersion\t3\n",
        b"BookieMetadataFormatVersion\t1\n2\n3\n0\n",
        b"BookieMetadataFormatVersion\t9\n" + OPEN_BYTES[30:],
        OPEN_BYTES[:-1],
        OPEN_BYTES + b"x",
        b"BookieMetadataFormatVersion\t3\n\x00",
        b"BookieMetadataFormatVersion\t3\n" + b"\xff" * 20,
        b"BookieMetadataFormatVersion\t2\nquorumSize: banana",
    ],
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(LedgerMetadataError):
        LedgerMetadata.from_bytes(data)


@pytest.mark.parametrize(
    "metadata",
    [
        LedgerMetadata(1, 2, 1, (Segment(0, ("a",)),)),
        LedgerMetadata(1, 1, 1, ()),
        LedgerMetadata(1, 1, 1, (Segment(3, ("a",)),)),
        LedgerMetadata(1, 1, 1, (Segment(0, ("a",)), Segment(0, ("b",)))),
        LedgerMetadata(2, 1, 1, (Segment(0, ("a",)),)),
        LedgerMetadata(1, 1, 1, (Segment(0, ("a",)),), state=LedgerState.CLOSED, last_entry_id=-2),
    ],
)
def test_contradictions_are_refused(metadata: LedgerMetadata) -> None:
    with pytest.raises(LedgerMetadataError):
        metadata.to_bytes()


@given(st.integers(0, len(OPEN_BYTES) - 1), st.integers(1, 255))
def test_any_flipped_byte_reads_as_metadata_or_as_damage(position: int, flip: int) -> None:
    data = bytearray(OPEN_BYTES)
    data[position] ^= flip
    try:
        LedgerMetadata.from_bytes(bytes(data)).validate()
    except LedgerMetadataError:
        pass
