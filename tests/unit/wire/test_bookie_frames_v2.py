"""Version 2 of the bookie protocol byte for byte as Apache BookKeeper's client writes it, and what is refused."""

from __future__ import annotations

import struct

import pytest

from magnetar.bookkeeper.entry_format import Digest, DigestType, master_key, pack_entry
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.frames import BookieFrameError, FrameCutter, encode_frame

KEY = master_key(b"secret")
ENTRY = pack_entry(7, 3, 2, 11, b"hello", Digest(DigestType.CRC32C, b"secret"))
KEY_HEX = "e793cbc379107648537183605cd361d3bb789a39"
ENTRY_HEX = "000000000000000700000000000000030000000000000002000000000000000bcfc6a4f868656c6c6f"


def test_the_add_frame() -> None:
    frame = v2.encode_add_head(0, KEY, len(ENTRY)) + ENTRY
    assert frame.hex() == "0000004102010000" + KEY_HEX + ENTRY_HEX
    assert v2.decode_add(frame[4:]) == (0x02010000, KEY, 7, 3)
    assert frame[4 + v2.ADD_HEAD_BYTES :] == ENTRY
    assert v2.encode_add_head(6, KEY, len(ENTRY)).hex().startswith("0000004102010006"), "a recovery add"


def test_the_read_frames() -> None:
    plain = v2.encode_read(7, 3, 0, KEY)
    assert plain.hex() == "000000140202000000000000000000070000000000000003"
    assert v2.decode_read(plain[4:]) == (0x02020000, 7, 3, b"")
    fencing = v2.encode_read(7, -1, 5, KEY)
    assert fencing.hex() == "00000028020200050000000000000007ffffffffffffffff" + KEY_HEX
    assert v2.decode_read(fencing[4:]) == (0x02020005, 7, -1, KEY)


def test_the_batch_read_frame() -> None:
    frame = v2.encode_batch_read(7, 3, 9, 100, 65536)
    assert frame.hex() == (
        "00000028"
        + "02070000"
        + "0000000000000007"
        + "0000000000000003"
        + "0000000000000009"
        + "00000064"
        + "0000000000010000"
    )
    assert v2.decode_batch_read(frame[4:]) == (0x02070000, 7, 3, 9, 100, 65536, b"")
    fencing = struct.pack(">Iqqqiq", 0x02070001, 7, 3, 9, 0, 1) + KEY
    assert v2.decode_batch_read(fencing) == (0x02070001, 7, 3, 9, 0, 1, KEY)


def test_answers() -> None:
    answer = v2.encode_response(v2.RESPONSE_HEAD_BYTES, 0x02010000, 104, 7, 3)
    assert answer.hex() == "00000018" + "02010000" + "00000068" + "0000000000000007" + "0000000000000003"
    assert v2.decode_response(answer[4:]) == (0x02010000, 104, 7, 3)
    read = b"".join(v2.encode_read_response(0x02020000, 7, -1, ENTRY))
    assert read.hex() == "00000041" + "02020000" + "00000000" + "0000000000000007" + "ffffffffffffffff" + ENTRY_HEX
    batch = b"".join(v2.encode_batch_response(0x02070000, 0, 7, 3, 9, [b"one", b"four"]))
    assert batch.hex() == (
        "0000002f" + "02070000" + "00000000" + "0000000000000007" + "0000000000000003" + "0000000000000009"
        "00000003" + b"one".hex() + "00000004" + b"four".hex()
    )
    assert v2.decode_batch_response(batch[4:]) == (9, [b"one", b"four"])


@pytest.mark.parametrize(
    ("header", "operation", "flags", "answer"),
    [
        (0x02010006, v2.ADD, 6, 0x02010000),
        (0x01020001, v2.READ, 1, 0x01020000),
        (0x00000001, v2.ADD, 0, 0x00000001),
        (0x00000002, v2.READ, 0, 0x00000002),
        (0x03020005, v2.READ, 5, 0x03020000),
    ],
)
def test_headers_of_all_versions(header: int, operation: int, flags: int, answer: int) -> None:
    """Version 0's is the operation alone; an answer has its request's version and no flags."""
    assert (v2.operation_of(header), v2.flags_of(header), v2.response_header(header)) == (operation, flags, answer)


def test_what_is_cut_off_is_refused() -> None:
    fencing = v2.encode_read(7, -1, 5, KEY)[4:]
    for size in range(len(fencing)):
        with pytest.raises(BookieFrameError):
            v2.decode_read(fencing[:size])
    batch = b"".join(v2.encode_batch_response(0x02070000, 0, 7, 3, 9, [b"one"]))[4:]
    for size in range(v2.BATCH_HEAD_BYTES):
        with pytest.raises(BookieFrameError):
            v2.decode_batch_response(batch[:size])
    for size in range(v2.BATCH_HEAD_BYTES + 1, len(batch)):
        with pytest.raises(BookieFrameError):
            v2.decode_batch_response(batch[:size])


def test_a_frame_that_is_too_long_is_refused_by_its_length() -> None:
    cutter = FrameCutter(100)
    assert cutter.feed(encode_frame(b"x" * 100)) == [b"x" * 100]
    with pytest.raises(BookieFrameError, match="101 bytes"):
        cutter.feed(struct.pack(">I", 101))
    with pytest.raises(BookieFrameError):
        FrameCutter(100).feed(encode_frame(b"x" * 101))
    with pytest.raises(BookieFrameError):
        FrameCutter().feed(b"GET / HTTP/1.1\r\n\r\n")
