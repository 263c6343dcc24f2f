"""Java's `String.hashCode`:

Pulsar's default partition router (`JavaStringHash`) and a few of its namespace and cursor file names use it.

It is defined over UTF-16 code units, so a character beyond U+FFFF counts as its two surrogates.
"""

from __future__ import annotations

from array import array

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
_POSITIVE_MASK = 0x7FFF_FFFF


def java_string_hash(text: str) -> int:
    """`text.hashCode()` as Java gives it: -2^31 to 2^31 - 1. Lone surrogates are hashed as they are."""
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    value = 0
    for unit in units:
        value = (31 * value + unit) & _MASK
    return value - (1 << 32) if value & _SIGN else value


def java_positive_hash(text: str) -> int:
    """The hash with its sign bit cleared, 0 to 2^31 - 1: what Pulsar's routers take modulo the partition count."""
    return java_string_hash(text) & _POSITIVE_MASK
