"""Java's `String.hashCode` of many keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from magnetar.hashing.java_hash import java_string_hash
from magnetar.hashing.vectorized.batch import KeyBatch, hash_in_batches

if TYPE_CHECKING:
    import numpy.typing as npt


def java_string_hashes(keys: object) -> npt.NDArray[np.int32]:
    """`java_hash.java_string_hash` of every key; byte keys are taken as UTF-8."""
    return hash_in_batches(keys, _batch, _scalar, np.int32)


def _scalar(key: bytes) -> int:
    return java_string_hash(key.decode())


def _batch(batch: KeyBatch) -> npt.NDArray[np.int32]:
    hashes = np.zeros(len(batch), np.uint32)
    for position in range(int(batch.lengths.max(initial=0))):
        turned = hashes * np.uint32(31) + batch.matrix[:, position]
        hashes = turned if batch.uniform is not None else np.where(position < batch.lengths, turned, hashes)
    signed = hashes.view(np.int32)
    # A byte is a UTF-16 unit in ASCII only; the other rows are done one by one.
    for row in np.flatnonzero((batch.matrix >= 0x80).any(axis=1)).tolist():
        signed[row] = _scalar(batch.matrix[row, : batch.lengths[row]].tobytes())
    return signed
