"""Vnodes of many rows: `vnode.vnode` for numpy and Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

import numpy as np

from magnetar.hashing.errors import KeyEncodingError
from magnetar.hashing.key_encoding import NULL_BYTES
from magnetar.hashing.key_types import KeyType, as_key_type
from magnetar.hashing.vectorized.batch import ROWS_PER_BATCH, Hashes
from magnetar.hashing.vectorized.columns import Column, column
from magnetar.hashing.vectorized.crc import crc_of_zeros, narrow_lane_table, update
from magnetar.hashing.vectorized.murmur3 import murmur3_hashes
from magnetar.hashing.vnode import (
    DEFAULT_VNODES,
    ROW_ID_SHIFT_BITS,
    SEGMENT_NULL_VNODE,
    VnodeHash,
    check_segment_key,
    check_vnode_count,
    row_id_vnode_bits,
    vnode_of_bytes,
)

if TYPE_CHECKING:
    import numpy.typing as npt

_LANE_ROWS: Final = 4 * ROWS_PER_BATCH
"""Rows at a time on the integer path, which needs a few bytes of cache a row only."""

Vnodes: TypeAlias = "npt.NDArray[np.uint16]"


def segment_vnodes_of(keys: Any, count: int = DEFAULT_VNODES) -> Vnodes:
    """`vnode.segment_vnode` of every key of an Arrow array of text."""
    if hasattr(keys, "combine_chunks"):
        keys = keys.combine_chunks()
    there = None
    if keys.null_count:
        there = np.asarray(keys.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        keys = keys.fill_null("")
    found = (murmur3_hashes(keys).astype(np.uint64) * np.uint64(count) >> np.uint64(32)).astype(np.uint16)
    if there is not None:
        found[~there] = SEGMENT_NULL_VNODE
    return found


def vnodes(
    columns: Any,
    types: Sequence[str | KeyType] | None = None,
    count: int = DEFAULT_VNODES,
    hash: VnodeHash = "crc32",
) -> Vnodes:
    """The vnode of every row, uint16.

    `columns`: one array per key column (numpy, masked numpy, Arrow, or a list with `types`), or an Arrow table or record batch.
    KeyEncodingError, VnodeCountError.
    """
    check_vnode_count(count)
    arrays = columns.columns if hasattr(columns, "schema") else list(columns)
    if types is not None and len(types) != len(arrays):
        raise KeyEncodingError(f"{len(types)} types for {len(arrays)} columns")
    if not arrays:
        raise KeyEncodingError("a key has at least one column; a table without a key is one vnode, 0")
    if hash == "segment":
        check_segment_key([KeyType.from_arrow(array.type) for array in arrays])
        return segment_vnodes_of(arrays[0], count)
    kinds = [as_key_type(kind) for kind in types] if types is not None else [None] * len(arrays)
    prepared = [column(array, kind) for array, kind in zip(arrays, kinds, strict=True)]
    rows = prepared[0].rows
    if any(other.rows != rows for other in prepared):
        raise KeyEncodingError(f"columns are of different lengths: {[other.rows for other in prepared]}")
    first = prepared[0]
    if len(prepared) == 1 and first.key_type.name == "serial":
        return _row_ids(first, arrays[0], count)
    if len(prepared) == 1 and first.integers is not None and first.integers.dtype.itemsize > 1:
        return _integers(first.integers, count)
    out = np.empty(rows, np.uint16)
    for start in range(0, rows, ROWS_PER_BATCH):
        stop = min(start + ROWS_PER_BATCH, rows)
        state = np.full(stop - start, 0xFFFFFFFF, np.uint32)
        for part in prepared:
            state = _append(state, part, start, stop)
        out[start:stop] = ~state % np.uint32(count)
    return out


def _append(state: Hashes, part: Column, start: int, stop: int) -> Hashes:
    """Carry the CRC registers of these rows over one column."""
    after = state
    for matrix, lengths, long_rows in part.segments(start, stop):
        before = after
        after = update(after, matrix, lengths)
        for row, whole in long_rows:
            after[row] = crc32(whole, int(before[row]) ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
    if part.valid is None:
        return after
    null = np.frombuffer(NULL_BYTES, np.uint8)[None, :]
    return np.where(part.valid[start:stop], after, update(state, null, len(NULL_BYTES)))


def _integers(values: npt.NDArray[Any], count: int) -> Vnodes:
    """Whole numbers: a table entry per 16-bit lane, XORed. Lanes that are the same in all rows of a batch cost nothing."""
    width = values.dtype.itemsize
    lanes = width // 2
    power_of_two = count & (count - 1) == 0
    dtype = "u1" if power_of_two and count <= 256 else "u2" if power_of_two else "u4"
    mask = np.dtype(dtype).type(count - 1) if power_of_two and count not in (256, 65_536) else None
    tables = [narrow_lane_table(width - 2 - 2 * lane, dtype) for lane in range(lanes)]
    constant = crc_of_zeros(width) & ((1 << 8 * np.dtype(dtype).itemsize) - 1)
    out = np.empty(len(values), np.uint16)
    rows = min(_LANE_ROWS, max(len(values), 1))
    index, entries, sums = np.empty(rows, np.intp), np.empty(rows, dtype), np.empty(rows, dtype)
    for start in range(0, len(values), rows):
        part = np.ascontiguousarray(values[start : start + rows])
        cut = slice(0, len(part))
        least, greatest = int(part.min()), int(part.max())
        varying = _varying_lanes(least, greatest, lanes)
        total, lane_index, entry = sums[cut], index[cut], entries[cut]
        total[:] = _common_part(tables, constant, least, varying)
        for lane in range(varying):
            np.right_shift(part, 16 * lane, lane_index)
            if lane + 1 < varying or least < 0 or greatest >> 16 * varying:
                np.bitwise_and(lane_index, 0xFFFF, lane_index)
            # No index is out of a table of 65,536; `clip` only spares numpy the check.
            np.take(tables[lane], lane_index, out=entry, mode="clip")
            np.bitwise_xor(total, entry, total)
        if mask is not None:
            np.bitwise_and(total, mask, total)
        out[start : start + len(part)] = total if power_of_two else total % np.uint32(count)
    return out


def _varying_lanes(least: int, greatest: int, lanes: int) -> int:
    """How many low 16-bit lanes can differ: above the highest bit in which least and greatest differ all values agree."""
    differing = (least ^ greatest) & ((1 << 16 * lanes) - 1)
    return (differing.bit_length() + 15) // 16


def _common_part(tables: list[npt.NDArray[np.generic]], constant: int, value: int, varying: int) -> int:
    """What the lanes add that are the same in all rows."""
    for lane in range(varying, len(tables)):
        constant ^= int(tables[lane][(value >> 16 * lane) & 0xFFFF])
    return constant


def _row_ids(part: Column, values: Any, count: int) -> Vnodes:
    """A single serial column: the vnode lies in the bits of the row id."""
    bits = row_id_vnode_bits(count)
    out = np.empty(part.rows, np.uint16)
    for start in range(0, part.rows, ROWS_PER_BATCH):
        stop = min(start + ROWS_PER_BATCH, part.rows)
        if isinstance(values, (list, tuple)):
            ids = np.array([value if value is not None else 0 for value in values[start:stop]], np.int64)
        else:
            ids = part.segments(start, stop)[0][0].view("<i8").reshape(stop - start)
        picked = (ids >> (ROW_ID_SHIFT_BITS - bits)) & ((1 << bits) - 1)
        out[start:stop] = picked % count
    null = vnode_of_bytes(NULL_BYTES, count)
    if isinstance(values, (list, tuple)):
        out[[row for row, value in enumerate(values) if value is None]] = null
    elif part.valid is not None:
        out[~part.valid] = null
    return out
