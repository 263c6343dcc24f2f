"""A set of vnodes as an int with a bit for each, and as text for manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def of(vnodes: Iterable[int]) -> int:
    """The set of these vnodes."""
    bits = 0
    for vnode in vnodes:
        bits |= 1 << vnode
    return bits


def members(bits: int) -> Iterator[int]:
    """Ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def to_text(bits: int) -> str:
    return format(bits, "x")


def from_text(text: str) -> int:
    return int(text, 16)
