"""Ketama:

MD5 cut into little-endian 32-bit words. A key is the first word; a node's points are the first words of
MD5(`node-i`).
"""

from __future__ import annotations

from hashlib import md5
from struct import unpack_from
from typing import Final

POINTS_PER_DIGEST: Final = 3
"""Words taken of each digest: 3 in `serialx/hashring` and in the article; libketama and `uhashring` take all 4."""

MAX_POINTS_PER_DIGEST: Final = 4
"""An MD5 digest has four words."""


def ketama_hash(key: bytes | str) -> int:
    """The place of a key on the ring: the first four bytes of its MD5, little-endian. Text as UTF-8."""
    digest = md5(key.encode() if isinstance(key, str) else key, usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "little")


def ketama_points(node: str, index: int, count: int = POINTS_PER_DIGEST) -> tuple[int, ...]:
    """The first `count` words (1 to 4) of MD5(`node-index`)."""
    digest = md5(f"{node}-{index}".encode(), usedforsecurity=False).digest()
    words: tuple[int, ...] = unpack_from("<4I", digest)
    return words[:count]
