"""Frames of the Pulsar binary protocol.

    u32 total size | u32 command size | command | the rest: headers and payload (SEND, MESSAGE only)

Sizes do not count themselves; all integers are big-endian. The decoder refuses a frame by its first eight bytes, so that a
hostile size costs nothing: memory is used only for bytes that have arrived.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.wire.pieces import hold_piece
from magnetar.wire.pulsar.kernel import kernel

_HEADER = struct.Struct(">II")
HEADER_BYTES = _HEADER.size

Frame = tuple[bytes, bytes]
"""Command bytes and the rest (empty for most commands)."""


class FrameError(MagnetarError):
    """The stream is not a sequence of frames, or a frame is larger than allowed; the connection cannot be used further."""

    slug = "frame"


def split_in_python(data: bytes, frame_bytes_max: int, command_bytes_max: int) -> tuple[list[Frame], int]:
    """The frames at the beginning of `data`, and where they end: before one that is not complete, or not allowed."""
    frames: list[Frame] = []
    position, size = 0, len(data)
    while size - position >= HEADER_BYTES:
        total, command_size = _HEADER.unpack_from(data, position)
        end = position + 4 + total
        if total > frame_bytes_max or command_size > command_bytes_max or command_size + 4 > total or end > size:
            break
        split = position + HEADER_BYTES + command_size
        frames.append((data[position + HEADER_BYTES : split], data[split:end]))
        position = end
    return frames, position


split: Final[Callable[[bytes, int, int], tuple[list[Frame], int]]] = kernel.split if kernel else split_in_python


class FrameDecoder:
    """Cuts a byte stream into frames.

    `frame_bytes_max` bounds total size, `command_bytes_max` the command part; both may be changed between calls (the command
    limit grows after authentication).
    """

    __slots__ = ("_chunks", "_have", "_need", "command_bytes_max", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int, command_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.command_bytes_max = command_bytes_max
        self._chunks: list[bytes | bytearray] = []
        self._have = 0
        self._need = HEADER_BYTES

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an unfinished frame held in memory."""
        return self._have

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes, in order. Raises FrameError; frames before the bad one are then lost with it."""
        if self._chunks:
            hold_piece(self._chunks, data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        frames, position = split(data, self.frame_bytes_max, self.command_bytes_max)
        size = len(data)
        self._need = HEADER_BYTES
        if size - position >= HEADER_BYTES:
            total, command_size = _HEADER.unpack_from(data, position)
            if total > self.frame_bytes_max or command_size > self.command_bytes_max or command_size + 4 > total:
                raise FrameError(_problem(total, command_size, self.frame_bytes_max, self.command_bytes_max))
            self._need = 4 + total
        if position < size:
            self._chunks.append(data[position:] if position else data)
        self._have = size - position
        return frames


def _problem(total: int, command_size: int, frame_max: int, command_max: int) -> str:
    if total > frame_max:
        return f"frame of {total} bytes is larger than the {frame_max} allowed"
    if command_size > command_max:
        return f"command of {command_size} bytes is larger than the {command_max} allowed"
    return f"command of {command_size} bytes does not fit its frame of {total}"


def encode_frame(command: bytes, rest: bytes = b"") -> bytes:
    """One frame around a serialized command and, for MESSAGE and SEND, headers and payload."""
    size = len(command)
    return _HEADER.pack(size + 4 + len(rest), size) + command + rest
