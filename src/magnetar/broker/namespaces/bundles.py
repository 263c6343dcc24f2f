"""Bundles: the unit of ownership. A namespace's 32-bit hash space is cut into ranges; a topic's name falls into one of them.

No topic is ever written into a bundle: `hash(topic)` finds it, which is what makes a topic cheap (survey 2.3.2). The arithmetic is
`magnetar.hashing.bundles`; here boundaries are text, as the namespace's JSON has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.broker.naming import TopicName
from magnetar.hashing.bundles import bundle_boundaries, bundle_range


def boundaries_text(num_bundles: int) -> list[str]:
    """Equal parts of the hash space, as Pulsar writes them: `0x00000000` up to `0xffffffff`."""
    return [f"0x{boundary:08x}" for boundary in bundle_boundaries(num_bundles)]


def bundle_of(topic: TopicName, boundaries: Sequence[str]) -> str:
    """`0x40000000_0x80000000`: the range that the complete name's CRC32 falls into."""
    return bundle_range(str(topic), [int(boundary, 16) for boundary in boundaries])
