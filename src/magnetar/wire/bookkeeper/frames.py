"""Frames of the bookie protocol: `int32 length | bytes`, big-endian. Pure.

A frame is refused by its length field, so that a hostile one costs nothing: memory is used only for bytes that have arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import BOOKIE_FRAME_BYTES_MAX
from magnetar.wire.pieces import hold_piece

FRAME_BYTES_MAX: Final = BOOKIE_FRAME_BYTES_MAX
"""Pulsar's setting of nettyMaxFrameSizeBytes: a message of 5 MiB and its headers. A longer frame closes the connection.

BookKeeper's own default is 5 MiB; a plain BookKeeper client takes no longer answer than that."""

_LENGTH = Struct(">I")
_unpack_length = _LENGTH.unpack_from
pack_length = _LENGTH.pack


class BookieFrameError(MagnetarError):
    """The stream is not a sequence of frames, or a frame is longer than allowed; the connection cannot be used further."""

    slug = "bookie-frame"


class FrameCutter:
    """Cuts a byte stream into frames of at most `frame_bytes_max` (without the length field)."""

    __slots__ = ("_chunks", "_have", "_need", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._chunks: list[bytes | bytearray] = []
        self._have = 0
        self._need = _LENGTH.size

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an unfinished frame held in memory."""
        return self._have

    def feed(self, data: bytes, take: Callable[[bytes, int], int] | None = None) -> list[bytes]:
        """The frames that `data` completes, in order, without their lengths.

        `take(data, position)` is asked before each frame and answers up to where it has dealt with whole frames by itself.
        Raises BookieFrameError; frames before the bad one are then lost with it.
        """
        return self.cut(self.gather(data), 0, take)

    def gather(self, data: bytes) -> bytes:
        """What is held and `data`, for `cut`; empty, and all of it held, while the first frame is not complete."""
        if self._chunks:
            hold_piece(self._chunks, data)
            self._have += len(data)
            if self._have < self._need:
                return b""
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._have = 0
        return data

    def cut(self, data: bytes, position: int = 0, take: Callable[[bytes, int], int] | None = None) -> list[bytes]:
        """The frames of what `gather` answered from `position` on; the rest is held. See `feed`."""
        if not data:
            return []
        frames: list[bytes] = []
        size = len(data)
        self._need = 4
        while size - position >= 4:
            if take is not None:
                position = take(data, position)
                if size - position < 4:
                    break
            (length,) = _unpack_length(data, position)
            end = position + 4 + length
            if end > size:
                if length > self.frame_bytes_max:
                    raise self._too_long(length)
                self._need = 4 + length
                break
            if length > self.frame_bytes_max:
                raise self._too_long(length)
            frames.append(data[position + 4 : end])
            position = end
        if position < size:
            self._chunks.append(data[position:] if position else data)
        self._have = size - position
        return frames

    def _too_long(self, length: int) -> BookieFrameError:
        return BookieFrameError(f"frame of {length} bytes is longer than the {self.frame_bytes_max} allowed")


def encode_frame(body: bytes) -> bytes:
    """One frame around `body`."""
    return pack_length(len(body)) + body
