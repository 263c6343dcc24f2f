"""FNV-1a of many keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from magnetar.hashing.fnv import FNV32_OFFSET, FNV32_PRIME, FNV64_OFFSET, FNV64_PRIME, fnv1a_32, fnv1a_64
from magnetar.hashing.vectorized.batch import Hashes, KeyBatch, hash_in_batches

if TYPE_CHECKING:
    import numpy.typing as npt


def fnv1a_32_hashes(keys: object) -> Hashes:
    """`fnv.fnv1a_32` of every key."""
    return hash_in_batches(keys, _batch32, fnv1a_32)


def fnv1a_64_hashes(keys: object) -> npt.NDArray[np.uint64]:
    """`fnv.fnv1a_64` of every key."""
    return hash_in_batches(keys, _batch64, fnv1a_64, np.uint64)


def _batch32(batch: KeyBatch) -> Hashes:
    hashes = np.full(len(batch), FNV32_OFFSET, np.uint32)
    for position in range(int(batch.lengths.max(initial=0))):
        turned = (hashes ^ batch.matrix[:, position]) * np.uint32(FNV32_PRIME)
        hashes = turned if batch.uniform is not None else np.where(position < batch.lengths, turned, hashes)
    return hashes


def _batch64(batch: KeyBatch) -> npt.NDArray[np.uint64]:
    hashes = np.full(len(batch), FNV64_OFFSET, np.uint64)
    for position in range(int(batch.lengths.max(initial=0))):
        turned = (hashes ^ batch.matrix[:, position]) * np.uint64(FNV64_PRIME)
        hashes = turned if batch.uniform is not None else np.where(position < batch.lengths, turned, hashes)
    return hashes
