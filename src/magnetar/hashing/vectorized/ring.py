"""Owners of many keys on a ring of points.

Binary search costs ten unpredictable branches a key. Instead the circle is cut into 65,536 arcs with a table of the first point beyond
each arc's beginning; the few points inside an arc are stepped over, all keys together, until none moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from magnetar.hashing.crc import crc32
from magnetar.hashing.ketama import ketama_hash
from magnetar.hashing.vectorized.batch import ROWS_PER_BATCH, Hashes, batches, key_count
from magnetar.hashing.vectorized.crc import crc32_batch
from magnetar.hashing.vectorized.md5 import first_word

if TYPE_CHECKING:
    import numpy.typing as npt

_ARC_BITS: Final = 16

Owners: TypeAlias = "npt.NDArray[np.int32]"


class PointTable:
    """Points (ascending, distinct) with their owners, prepared for lookups. A key belongs to the first point strictly beyond it."""

    __slots__ = ("_first", "_owners", "_points", "_steps")

    def __init__(self, points: Sequence[int], owners: Sequence[int]) -> None:
        sorted_points = np.asarray(points, np.uint32)
        begins = np.arange(1 << _ARC_BITS, dtype=np.uint32) << np.uint32(32 - _ARC_BITS)
        first = np.searchsorted(sorted_points, begins, side="right")
        self._steps = int((np.append(first[1:], len(sorted_points)) - first).max())
        self._first = first.astype(np.intp)
        # Beyond the last point the first one owns; the greatest hash may step on through all of this padding.
        padding = self._steps + 1
        self._points = np.append(sorted_points, np.full(padding, 0xFFFFFFFF, np.uint32))
        self._owners = np.append(np.asarray(owners, np.int32), np.full(padding, owners[0], np.int32))

    def owners(self, hashes: Hashes) -> Owners:
        """Owner of every place."""
        # Places are below 65,536 and positions inside the padding; `clip` only spares numpy the check.
        positions = np.take(self._first, (hashes >> np.uint32(32 - _ARC_BITS)).astype(np.intp), mode="clip")
        for _ in range(self._steps):
            beyond = np.take(self._points, positions, mode="clip") <= hashes
            if not beyond.any():
                break
            positions += beyond
        return np.take(self._owners, positions, mode="clip")


def owners(algorithm: str, table: PointTable, keys: object) -> Owners:
    """Owner of every key on a `ketama` or `crc32` ring."""
    twin, scalar = (first_word, ketama_hash) if algorithm == "ketama" else (crc32_batch, crc32)
    out = np.empty(key_count(keys), np.int32)
    for start, batch, long_rows in batches(keys):
        hashes = twin(batch)
        for row, key in long_rows:
            hashes[row] = scalar(key)
        out[start : start + len(batch)] = table.owners(hashes)
    return out


def owners_of_hashes(table: PointTable, hashes: Hashes) -> Owners:
    """Owner of every place on a ring."""
    out = np.empty(len(hashes), np.int32)
    for start in range(0, len(hashes), ROWS_PER_BATCH):
        part = np.asarray(hashes[start : start + ROWS_PER_BATCH], np.uint32)
        out[start : start + len(part)] = table.owners(part)
    return out
