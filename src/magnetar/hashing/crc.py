"""CRC-32 (IEEE, as in zlib): bundles, vnodes and the falcon ring."""

from __future__ import annotations

from zlib import crc32 as _crc32


def crc32(key: bytes | str) -> int:
    """CRC-32 of `key` (text as UTF-8), 0 to 2^32 - 1."""
    return _crc32(key.encode() if isinstance(key, str) else key)
