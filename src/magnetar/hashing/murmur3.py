"""Murmur3 x86 32-bit, seed 0: the hash of Pulsar's Key_Shared subscriptions and of its partition routers.

The arithmetic is `mmh3`'s (C). This module adds what Pulsar makes of the number: the 31-bit form that Java code works
with and the slot of Key_Shared. `murmur3_numpy` holds the vectorised twin.
"""

from __future__ import annotations

from typing import Final

import mmh3

KEY_SHARED_SLOTS: Final = 65_536
"""Slots of a Key_Shared subscription. Sticky ranges a client sends are numbers of this space, so it is not a setting."""

HASH_SPACE: Final = 1 << 32
"""Values of a 32-bit hash; the circumference of every ring in this package."""

_SLOT_MASK: Final = KEY_SHARED_SLOTS - 1
POSITIVE_SPACE: Final = 1 << 31
"""Values of `murmur3_positive`."""

_POSITIVE_MASK: Final = POSITIVE_SPACE - 1

_digest = mmh3.mmh3_32_uintdigest


def murmur3_32(key: bytes | str) -> int:
    """Murmur3-32 with seed 0 of `key` (text as UTF-8), unsigned: 0 to 2^32 - 1."""
    return _digest(key.encode() if isinstance(key, str) else key, 0)


def murmur3_positive(key: bytes | str) -> int:
    """The hash with its top bit cleared, 0 to 2^31 - 1: what Pulsar's Java classes call `makeHash`."""
    return murmur3_32(key) & _POSITIVE_MASK


def key_slot(key: bytes) -> int:
    """The Key_Shared slot of a key, 1 to 65,535.

    `murmur3 & 0x7fffffff mod 65,536`, which is the low 16 bits of the hash. Brokers since Pulsar 4 give out 1 in
    place of 0, because they need 0 for "no hash"; slot 0 can be part of a range but no key falls on it.
    """
    return (_digest(key, 0) & _SLOT_MASK) or 1
