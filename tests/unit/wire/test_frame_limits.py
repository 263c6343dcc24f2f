"""Frames that are refused by their first eight bytes, and those at the limit."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from magnetar.wire.pulsar.frames import FrameDecoder, FrameError, encode_frame

FRAME_MAX, COMMAND_MAX = 1000, 100


def decoder() -> FrameDecoder:
    return FrameDecoder(FRAME_MAX, COMMAND_MAX)


@pytest.mark.parametrize(
    ("total", "command"),
    [
        (0, 0),
        (3, 0),
        (4, 1),
        (10, 7),
        (FRAME_MAX + 1, 10),
        (2**31 - 1, 10),
        (2**32 - 1, 10),
        (500, COMMAND_MAX + 1),
        (2**32 - 1, 2**32 - 1),
        (10, 2**32 - 1),
    ],
)
def test_refused_by_the_header_alone(total: int, command: int) -> None:
    with pytest.raises(FrameError):
        decoder().feed(struct.pack(">II", total, command))


def test_http_and_tls_are_refused() -> None:
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
        with pytest.raises(FrameError):
            decoder().feed(greeting)


def test_frames_at_the_limits_pass() -> None:
    command = b"c" * COMMAND_MAX
    rest = b"r" * (FRAME_MAX - 4 - COMMAND_MAX)
    assert decoder().feed(encode_frame(command, rest)) == [(command, rest)]
    assert decoder().feed(struct.pack(">II", 4, 0)) == [(b"", b"")]


def test_a_large_announcement_costs_nothing_before_its_bytes_come() -> None:
    large = FrameDecoder(2**32, COMMAND_MAX)
    tracemalloc.start()
    try:
        assert large.feed(struct.pack(">II", 2**31, 10)) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert large.buffered_bytes == 8


def test_the_command_limit_may_grow_between_frames() -> None:
    small = decoder()
    assert small.feed(encode_frame(b"x" * 50)) == [(b"x" * 50, b"")]
    small.command_bytes_max = 200
    assert small.feed(encode_frame(b"x" * 150)) == [(b"x" * 150, b"")]
