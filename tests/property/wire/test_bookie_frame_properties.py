"""The bookie protocol's frames: any values come back, any cut of the stream gives the same frames, garbage is refused and not hoarded."""

from __future__ import annotations

import contextlib
import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.frames import BookieFrameError, FrameCutter, encode_frame

I64 = st.integers(-(2**63), 2**63 - 1)
KEY = st.binary(min_size=20, max_size=20)
FLAGS = st.integers(0, 7)


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 3000), max_size=30))
def test_any_split_gives_the_same_frames(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(encode_frame, frames))
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    cutter = FrameCutter(300)
    found = []
    for start, end in pairwise(edges):
        found += cutter.feed(stream[start:end])
    assert found == frames
    assert cutter.buffered_bytes == 0


@given(st.binary(max_size=300), st.integers(1, 50))
def test_garbage_is_refused_or_waited_for_and_never_hoarded(data: bytes, step: int) -> None:
    def refused(pieces: list[bytes]) -> bool:
        cutter = FrameCutter(100)
        for piece in pieces:
            try:
                cutter.feed(piece)
            except BookieFrameError:
                return True
            assert cutter.buffered_bytes <= 104
        return False

    assert refused([data]) == refused([data[start : start + step] for start in range(0, len(data), step)])


@given(FLAGS, KEY, I64, I64, st.binary(max_size=100))
def test_adds_come_back(flags: int, key: bytes, ledger_id: int, entry_id: int, rest: bytes) -> None:
    entry = struct.pack(">qq", ledger_id, entry_id) + rest
    (frame,) = FrameCutter().feed(v2.encode_add_head(flags, key, len(entry)) + entry)
    assert v2.decode_add(frame) == (v2.request_header(v2.ADD, flags), key, ledger_id, entry_id)
    assert frame[v2.ADD_HEAD_BYTES :] == entry


@given(FLAGS, KEY, I64, I64)
def test_reads_come_back(flags: int, key: bytes, ledger_id: int, entry_id: int) -> None:
    (frame,) = FrameCutter().feed(v2.encode_read(ledger_id, entry_id, flags, key))
    expected = key if flags & v2.FLAG_FENCE else b""
    assert v2.decode_read(frame) == (v2.request_header(v2.READ, flags), ledger_id, entry_id, expected)


@given(I64, I64, I64, st.integers(-(2**31), 2**31 - 1), I64)
def test_batch_reads_come_back(ledger_id: int, first: int, request_id: int, count: int, size: int) -> None:
    (frame,) = FrameCutter().feed(v2.encode_batch_read(ledger_id, first, request_id, count, size))
    header = v2.request_header(v2.BATCH_READ, 0)
    assert v2.decode_batch_read(frame) == (header, ledger_id, first, request_id, count, size, b"")


@given(st.integers(-(2**31), 2**31 - 1), I64, I64, I64, st.lists(st.binary(max_size=50), max_size=6))
def test_batch_answers_come_back(code: int, ledger: int, first: int, request: int, entries: list[bytes]) -> None:
    pieces = v2.encode_batch_response(0x02070000, code, ledger, first, request, entries)
    (frame,) = FrameCutter().feed(b"".join(pieces))
    assert v2.decode_response(frame) == (0x02070000, code, ledger, first)
    assert v2.decode_batch_response(frame) == (request, entries)


@given(st.binary(max_size=120))
def test_decoders_refuse_garbage_by_their_own_error(frame: bytes) -> None:
    for decode in (v2.decode_header, v2.decode_read, v2.decode_batch_read, v2.decode_batch_response):
        with contextlib.suppress(BookieFrameError):
            decode(frame)
    for decode in (v2.decode_add, v2.decode_response):
        with contextlib.suppress(struct.error):
            decode(frame)
