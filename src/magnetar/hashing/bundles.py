"""Namespace bundles: Pulsar's partition of a namespace's topics by CRC-32 of the full topic name.

A range is `0xLOW_0xHIGH`, low inclusive, high exclusive; the last one is closed, so that 0xffffffff belongs to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from magnetar.hashing.crc import crc32
from magnetar.hashing.errors import InvalidRangeError

LAST_BOUNDARY: Final = 0xFFFF_FFFF
"""The upper end of the last bundle; inclusive, unlike the other ends."""

MAX_BUNDLES: Final = 65_536
"""More bundles than this in one namespace are refused: every one of them is a lookup entry and a lock."""


def bundle_boundaries(count: int) -> list[int]:
    """The `count + 1` boundaries of an even split, as a new namespace gets them.

    InvalidRangeError beyond 1 to 65,536.
    """
    if not 1 <= count <= MAX_BUNDLES:
        raise InvalidRangeError(f"{count} bundles: give 1 to {MAX_BUNDLES}")
    width = (1 << 32) // count
    return [*(index * width for index in range(count)), LAST_BOUNDARY]


def check_boundaries(boundaries: Sequence[int]) -> None:
    """InvalidRangeError unless `boundaries` run strictly upwards from 0 to 0xffffffff."""
    if len(boundaries) < 2 or boundaries[0] != 0 or boundaries[-1] != LAST_BOUNDARY:
        raise InvalidRangeError("bundle boundaries must begin with 0x00000000 and end with 0xffffffff")
    if any(low >= high for low, high in pairwise(boundaries)):
        raise InvalidRangeError("bundle boundaries must run strictly upwards")


def bundle_index(topic: str, boundaries: Sequence[int]) -> int:
    """Which bundle, from 0 on, the full topic name (`persistent://tenant/namespace/topic`) falls into."""
    return min(bisect_right(boundaries, crc32(topic)), len(boundaries) - 1) - 1


def bundle_range(topic: str, boundaries: Sequence[int]) -> str:
    """The bundle of a full topic name in Pulsar's spelling, such as `0x40000000_0x80000000`."""
    index = bundle_index(topic, boundaries)
    return f"0x{boundaries[index]:08x}_0x{boundaries[index + 1]:08x}"
