"""FNV-1a, 32 and 64 bits: the hash of many peers' rings (and of `jump` and rendezvous here, which want 64 bits)."""

from __future__ import annotations

from typing import Final

FNV32_OFFSET: Final = 0x811C_9DC5
FNV32_PRIME: Final = 0x0100_0193
FNV64_OFFSET: Final = 0xCBF2_9CE4_8422_2325
FNV64_PRIME: Final = 0x0000_0100_0000_01B3

_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1


def fnv1a_32(key: bytes | str) -> int:
    """FNV-1a of `key` (text as UTF-8), 0 to 2^32 - 1."""
    value = FNV32_OFFSET
    for byte in key.encode() if isinstance(key, str) else key:
        value = ((value ^ byte) * FNV32_PRIME) & _MASK32
    return value


def fnv1a_64(key: bytes | str) -> int:
    """FNV-1a of `key` (text as UTF-8), 0 to 2^64 - 1."""
    value = FNV64_OFFSET
    for byte in key.encode() if isinstance(key, str) else key:
        value = ((value ^ byte) * FNV64_PRIME) & _MASK64
    return value
