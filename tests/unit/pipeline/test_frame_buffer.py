"""Frames out of a socket, however the bytes are cut into packets."""

from __future__ import annotations

import socket
import threading
from unittest import mock

import pytest

from magnetar.pipeline.connect.raw import frame_buffer
from magnetar.pipeline.connect.raw.frame_buffer import FrameBuffer
from magnetar.wire.pulsar.frames import FrameError, encode_frame


def received(data: bytes, piece: int, frame_max: int = 1 << 24) -> list[tuple[bytes, bytes]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def send() -> None:
            for at in range(0, len(data), piece):
                theirs.sendall(data[at : at + piece])
            theirs.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            buffer, found = FrameBuffer(frame_max, 1000), []
            while (frames := buffer.receive(ours)) is not None:
                found += frames
        finally:
            sender.join()
    return found


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20])
def test_frames_are_those_that_were_sent(piece: int) -> None:
    """The buffer is small here, so that frames lie across its end and one of them makes it grow."""
    sizes = [0, 5, 300, 70_000 if piece > 1 else 3_000, 1, 2_000]
    frames = [(bytes([number]) * 3, bytes([number]) * size) for number, size in enumerate(sizes)]
    data = b"".join(encode_frame(*frame) for frame in frames)
    with mock.patch.multiple(frame_buffer, BUFFER_BYTES=2048, RECEIVE_BYTES=1024):
        assert received(data, piece) == frames


def test_a_frame_beyond_the_bounds_ends_the_connection() -> None:
    with pytest.raises(FrameError, match="is not allowed"):
        received(encode_frame(b"c" * 2000), 4096)
    with pytest.raises(FrameError, match="is not allowed"):
        received(encode_frame(b"c", b"x" * 2000), 4096, frame_max=1000)
