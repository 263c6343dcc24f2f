"""Pieces of an unfinished frame, as both protocols hold them until the rest arrives. Pure."""

from __future__ import annotations

from typing import Final

SMALL_BYTES: Final = 4096
"""Pieces below this are gathered in one buffer."""


def hold_piece(pieces: list[bytes | bytearray], data: bytes) -> None:
    """Append to the pieces that are held. Small ones share a buffer: a sender of single bytes costs what it sends, not an object each."""
    if len(data) >= SMALL_BYTES:
        pieces.append(data)
        return
    last = pieces[-1]
    if isinstance(last, bytearray):
        last += data
    else:
        pieces.append(bytearray(data))
