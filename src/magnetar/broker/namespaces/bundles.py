"""Bundles: the unit of ownership. A namespace's 32-bit hash space is cut into ranges; a topic's name falls into one of them.

No topic is ever written into a bundle: `hash(topic)` finds it, which is what makes a topic cheap (survey 2.3.2).
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence

from magnetar.broker.naming import TopicName


def topic_hash(topic: TopicName) -> int:
    """CRC32 of the complete name, unsigned."""
    return zlib.crc32(str(topic).encode())


def bundle_of(hash_value: int, boundaries: Sequence[str]) -> str:
    """`0x40000000_0x80000000`: the range that holds the hash. Ranges are [low, high); the last one is closed."""
    edges = [int(boundary, 16) for boundary in boundaries]
    index = min(bisect_right(edges, hash_value), len(edges) - 1)
    return f"{boundaries[index - 1]}_{boundaries[index]}"
