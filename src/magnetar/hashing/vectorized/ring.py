"""Owners of many keys on a ring of points.

Binary search costs ten unpredictable branches a key. Instead the circle is cut into 65,536 arcs with a table of the first point beyond
each arc's beginning; the few points inside an arc are stepped over, all keys together, until none moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from magnetar.hashing.vectorized.batch import ROWS_PER_BATCH, Hashes, batches, key_count
from magnetar.hashing.vectorized.crc import crc32_batch
from magnetar.hashing.vectorized.md5 import first_word

_ARC_BITS: Final = 16

Owners = npt.NDArray[np.int32]


class PointTable:
    """Points (ascending, distinct) with their owners, prepared for lookups. A key belongs to the first point strictly beyond it."""

    __slots__ = ("_first", "_owners", "_points", "_steps")

    def __init__(self, points: Sequence[int], owners: Sequence[int]) -> None:
        sorted_points = np.asarray(points, np.uint64)
        begins = np.arange(1 << _ARC_BITS, dtype=np.uint64) << np.uint64(32 - _ARC_BITS)
        first = np.searchsorted(sorted_points, begins, side="right")
        ends = np.append(first[1:], len(sorted_points))
        self._steps = int((ends - first).max())
        self._first = first.astype(np.int32)
        # One entry more than there are points: beyond the last one the first one owns.
        self._points = np.append(sorted_points, np.uint64(1 << 32))
        self._owners = np.append(np.asarray(owners, np.int32), np.int32(owners[0]))

    def owners(self, hashes: Hashes) -> Owners:
        """Owner of every place."""
        positions = self._first[hashes >> np.uint32(32 - _ARC_BITS)]
        for _ in range(self._steps):
            beyond = self._points[positions] <= hashes
            if not beyond.any():
                break
            positions += beyond
        owners: Owners = self._owners[positions]
        return owners


def owners(algorithm: str, points: Sequence[int], point_owners: Sequence[int], keys: object) -> Owners:
    """Owner of every key on a `ketama` or `crc32` ring."""
    from magnetar.hashing.crc import crc32
    from magnetar.hashing.ketama import ketama_hash

    twin, scalar = (first_word, ketama_hash) if algorithm == "ketama" else (crc32_batch, crc32)
    table = PointTable(points, point_owners)
    out = np.empty(key_count(keys), np.int32)
    for start, batch, long_rows in batches(keys):
        hashes = twin(batch)
        for row, key in long_rows:
            hashes[row] = scalar(key)
        out[start : start + len(batch)] = table.owners(hashes)
    return out


def owners_of_hashes(points: Sequence[int], point_owners: Sequence[int], hashes: Hashes) -> Owners:
    """Owner of every place on a ring."""
    table = PointTable(points, point_owners)
    out = np.empty(len(hashes), np.int32)
    for start in range(0, len(hashes), ROWS_PER_BATCH):
        part = np.asarray(hashes[start : start + ROWS_PER_BATCH], np.uint32)
        out[start : start + len(part)] = table.owners(part)
    return out
