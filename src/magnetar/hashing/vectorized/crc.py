"""CRC-32 of many keys, by tables: a byte at a time for text, two bytes at a time and without order for fixed widths.

CRC-32 is linear over bits, so the CRC of a message of fixed length is a constant XOR one table entry per 16-bit lane, in any order.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from magnetar.hashing.crc import crc32
from magnetar.hashing.vectorized.batch import Bytes, Hashes, KeyBatch, Lengths, hash_in_batches

if TYPE_CHECKING:
    import numpy.typing as npt

_POLYNOMIAL: Final = 0xEDB88320


def crc32_hashes(keys: object) -> Hashes:
    """`crc.crc32` of every key."""
    return hash_in_batches(keys, crc32_batch, crc32)


def crc32_batch(batch: KeyBatch) -> Hashes:
    """CRC-32 of every row."""
    state = np.full(len(batch), 0xFFFFFFFF, np.uint32)
    return ~update(state, batch.matrix, batch.lengths if batch.uniform is None else batch.uniform)


def update(state: Hashes, matrix: Bytes, lengths: Lengths | int) -> Hashes:
    """Carry a CRC register over the first `lengths` bytes of each row. Registers are inverted CRCs, all ones to begin with."""
    table = byte_table()
    uniform = isinstance(lengths, int)
    for position in range(lengths if isinstance(lengths, int) else int(lengths.max(initial=0))):
        index = (state ^ matrix[:, position]) & np.uint32(0xFF)
        turned = table[index] ^ (state >> np.uint32(8))
        state = turned if uniform else np.where(position < lengths, turned, state)
    return state


@cache
def byte_table() -> Hashes:
    """The CRC of every byte (256)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    table.setflags(write=False)
    return table


@cache
def lane_table(bytes_behind: int) -> Hashes:
    """What a 16-bit little-endian lane (65,536 values) adds to the CRC when `bytes_behind` bytes follow it."""
    values = np.arange(65_536, dtype=np.uint32)
    state = np.zeros(65_536, np.uint32)
    pair = np.stack((values & 0xFF, values >> 8), axis=1).astype(np.uint8)
    state = update(state, pair, 2)
    zeros = np.zeros((65_536, 1), np.uint8)
    for _ in range(bytes_behind):
        state = update(state, zeros, 1)
    state.setflags(write=False)
    return state


def crc_of_zeros(length: int) -> int:
    """CRC-32 of `length` zero bytes: the constant part for messages of that length."""
    return crc32(bytes(length))


@cache
def narrow_lane_table(bytes_behind: int, dtype: str) -> npt.NDArray[np.generic]:
    """`lane_table` cut to its low bits, which fit a smaller cache."""
    table = lane_table(bytes_behind).astype(dtype)
    table.setflags(write=False)
    return table
