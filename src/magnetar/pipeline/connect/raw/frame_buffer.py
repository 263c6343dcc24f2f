"""Frames out of a socket with one copy of each: what is received stays in one buffer until its frames are cut out of it."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Final

from magnetar.wire.pulsar.frames import HEADER_BYTES, Frame, FrameError

BUFFER_BYTES: Final = 4 << 20
"""At first. It grows to twice a frame that does not fit, so to at most twice the largest frame that is allowed."""
RECEIVE_BYTES: Final = 1 << 20
"""Of one read; fewer when less is there."""
_HEADER: Final = Struct(">II")


class FrameBuffer:
    """`frame_bytes_max` bounds a whole frame, `command_bytes_max` its command."""

    __slots__ = ("_begin", "_buffer", "_command_max", "_end", "_frame_max")

    def __init__(self, frame_bytes_max: int, command_bytes_max: int) -> None:
        self._frame_max = frame_bytes_max
        self._command_max = command_bytes_max
        self._buffer = bytearray(BUFFER_BYTES)
        self._begin = 0
        self._end = 0

    def receive(self, source: socket.socket) -> list[Frame] | None:
        """The frames that one read completes, in order; None at the end of the stream. Raises FrameError, and what the socket raises."""
        if len(self._buffer) - self._end < RECEIVE_BYTES:
            self._make_room()
        with memoryview(self._buffer) as view:
            count = source.recv_into(view[self._end : self._end + RECEIVE_BYTES])
            if not count:
                return None
            self._end += count
            return self._cut(view)

    def _cut(self, view: memoryview) -> list[Frame]:
        frames: list[Frame] = []
        while self._end - self._begin >= HEADER_BYTES:
            total, command_size = _HEADER.unpack_from(view, self._begin)
            if total > self._frame_max or command_size > self._command_max or command_size + 4 > total:
                raise FrameError(f"a frame of {total} bytes with a command of {command_size} is not allowed")
            end = self._begin + 4 + total
            if end > self._end:
                break
            split = self._begin + HEADER_BYTES + command_size
            frames.append((bytes(view[self._begin + HEADER_BYTES : split]), bytes(view[split:end])))
            self._begin = end
        return frames

    def _make_room(self) -> None:
        """Move what is left to the front, into a larger buffer when it fills more than half of this one."""
        left = self._buffer[self._begin : self._end]
        if len(left) + RECEIVE_BYTES > len(self._buffer):
            self._buffer = bytearray(2 * len(self._buffer))
        self._buffer[: len(left)] = left
        self._begin, self._end = 0, len(left)
