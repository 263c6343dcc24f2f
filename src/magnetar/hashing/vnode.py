"""Virtual nodes: `vnode = CRC32(key bytes) mod V`, RisingWave's rule, for one or several typed columns.

One exception, also RisingWave's: a key of a single `serial` column (a row id) carries its vnode in its bits.

The other function, `segment`, takes one text, the key of a message: `Murmur3(UTF-8) * V / 2^32`. Neighbouring vnodes are neighbouring
hashes, so the range of a segment of a scalable topic (the high 16 bits of the same hash) is a range of vnodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias
from zlib import crc32

from magnetar.hashing.errors import KeyEncodingError, VnodeCountError
from magnetar.hashing.key_encoding import encode_key, encoder
from magnetar.hashing.key_types import KeyType, as_key_type
from magnetar.hashing.murmur3 import HASH_SPACE, murmur3_32

DEFAULT_VNODES: Final = 256
MIN_VNODES: Final = 2
MAX_VNODES: Final = 32_768
"""Storage keys hold a vnode in 16 bits of which the top one is kept free."""

VnodeHash: TypeAlias = Literal["crc32", "segment"]
"""Which function gives a key's vnode."""

SEGMENT_NULL_VNODE: Final = 0
"""Of a message without a key, by the function `segment`."""

ROW_ID_SHIFT_BITS: Final = 22
ROW_ID_VNODE_BITS: Final = 10


def check_vnode_count(count: int) -> int:
    """`count` itself. VnodeCountError outside 2 to 32,768."""
    if isinstance(count, bool) or not isinstance(count, int) or not MIN_VNODES <= count <= MAX_VNODES:
        raise VnodeCountError(f"{count} vnodes: give a whole number from {MIN_VNODES} to {MAX_VNODES}")
    return count


def vnode_of_bytes(key: bytes, count: int = DEFAULT_VNODES) -> int:
    """The vnode of encoded key bytes, 0 to count - 1. The count is not checked here: this is the inner loop."""
    return crc32(key) % count


def segment_vnode(key: str | None, count: int = DEFAULT_VNODES) -> int:
    """The vnode of a message's key by the function `segment`."""
    return SEGMENT_NULL_VNODE if key is None else murmur3_32(key) * count // HASH_SPACE


def segment_vnodes(start: int, end: int, count: int = DEFAULT_VNODES) -> range:
    """The vnodes that keys of a segment can have. `start`, `end`: its places on the ring of 65,536, both included."""
    return range((start << 16) * count // HASH_SPACE, (end << 16 | 0xFFFF) * count // HASH_SPACE + 1)


def vnode(
    values: Sequence[Any],
    types: Sequence[str | KeyType] | None = None,
    count: int = DEFAULT_VNODES,
    hash: VnodeHash = "crc32",
) -> int:
    """The vnode of one key. Without `types`, integers are `integer` if they fit 4 bytes (else `bigint`), other types follow the value.

    KeyEncodingError, VnodeCountError.
    """
    check_vnode_count(count)
    key_types = [guess_type(value) for value in values] if types is None else [as_key_type(kind) for kind in types]
    if hash == "segment":
        check_segment_key(key_types)
        return segment_vnode(values[0], count)
    if not key_types:
        return 0
    if len(key_types) == 1 and key_types[0].name == "serial" and values[0] is not None:
        return vnode_of_row_id(values[0], count)
    return vnode_of_bytes(encode_key(values, key_types), count)


def check_segment_key(types: Sequence[KeyType]) -> None:
    """KeyEncodingError unless it is one text."""
    if [kind.name for kind in types] != ["varchar"]:
        raise KeyEncodingError(
            f"the vnode function 'segment' takes one varchar, the key of a message, not ({', '.join(map(str, types))})"
        )


def vnode_function(types: Sequence[str | KeyType], count: int = DEFAULT_VNODES) -> Callable[[Sequence[Any]], int]:
    """`vnode` with types and count fixed and looked up once: for loops over rows."""
    check_vnode_count(count)
    key_types = [as_key_type(kind) for kind in types]
    if len(key_types) == 1 and key_types[0].name == "serial":
        null = vnode_of_bytes(encoder(key_types[0])(None), count)
        return lambda row: null if row[0] is None else vnode_of_row_id(row[0], count)
    encoders = [encoder(kind) for kind in key_types]
    if len(encoders) == 1:
        only = encoders[0]
        return lambda row: crc32(only(row[0])) % count

    def of_row(row: Sequence[Any]) -> int:
        state = 0
        for encode, value in zip(encoders, row, strict=True):
            state = crc32(encode(value), state)
        return state % count if encoders else 0

    return of_row


def vnode_of_row_id(row_id: int, count: int = DEFAULT_VNODES) -> int:
    """The vnode in the bits of a RisingWave row id: 41 bits of time, then 10 (more above 1,024 vnodes) of vnode, then a sequence."""
    bits = row_id_vnode_bits(count)
    return ((row_id >> (ROW_ID_SHIFT_BITS - bits)) & ((1 << bits) - 1)) % count


def row_id_vnode_bits(count: int) -> int:
    """How many bits of a row id hold the vnode: 10 up to 1,024 vnodes, else as many as they need."""
    return max(ROW_ID_VNODE_BITS, (count - 1).bit_length())


def guess_type(value: Any) -> KeyType:
    """The type a plain Python value most likely has. KeyEncodingError when that is not clear (NULL, lists, dicts)."""
    from datetime import date, datetime, time, timedelta
    from decimal import Decimal

    if isinstance(value, bool):
        return KeyType("boolean")
    if isinstance(value, int):
        return KeyType("integer" if -(1 << 31) <= value < 1 << 31 else "bigint")
    if isinstance(value, datetime):
        return KeyType("timestamp" if value.tzinfo is None else "timestamptz")
    for python_type, name in (
        (str, "varchar"),
        (bytes, "bytea"),
        (float, "double"),
        (Decimal, "decimal"),
        (date, "date"),
        (time, "time"),
        (timedelta, "interval"),
    ):
        if isinstance(value, python_type):
            return KeyType(name)
    raise KeyEncodingError(f"cannot tell the column type of {value!r}: pass types")
