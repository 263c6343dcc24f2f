"""Murmur3-32 of many keys, and the Key_Shared slots of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from magnetar.hashing.murmur3 import KEY_SHARED_SLOTS, murmur3_32
from magnetar.hashing.vectorized.batch import Hashes, KeyBatch, hash_in_batches

if TYPE_CHECKING:
    import numpy.typing as npt

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_N = np.uint32(0xE6546B64)


def murmur3_hashes(keys: object) -> Hashes:
    """`murmur3.murmur3_32` of every key."""
    return hash_in_batches(keys, murmur3_batch, murmur3_32)


def key_slots(keys: object) -> npt.NDArray[np.uint16]:
    """`murmur3.key_slot` of every key."""
    slots = (murmur3_hashes(keys) & np.uint32(KEY_SHARED_SLOTS - 1)).astype(np.uint16)
    slots[slots == 0] = 1
    return slots


def murmur3_batch(batch: KeyBatch) -> Hashes:
    """Murmur3-32, seed 0, of every row."""
    width = (int(batch.lengths.max(initial=0)) // 4 + 1) * 4
    words = batch.padded(width).view("<u4")
    whole = batch.lengths // 4
    hashes = np.zeros(len(batch), np.uint32)
    for index in range(words.shape[1]):
        mixed = _mix(words[:, index])
        if batch.uniform is not None:
            hashes ^= mixed
            if index < batch.uniform // 4:
                hashes = _turn(hashes)
            continue
        # Beyond a row's last word there are zeros, whose mix is zero: the tail needs no case of its own.
        hashes ^= mixed
        hashes = np.where(index < whole, _turn(hashes), hashes)
    hashes ^= batch.lengths.astype(np.uint32)
    return finish(hashes)


def finish(hashes: Hashes) -> Hashes:
    """Murmur3's avalanche of 32 bits, in place."""
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _mix(words: npt.NDArray[np.uint32]) -> Hashes:
    mixed = words * _C1
    mixed = (mixed << np.uint32(15)) | (mixed >> np.uint32(17))
    mixed *= _C2
    return mixed


def _turn(hashes: Hashes) -> Hashes:
    return ((hashes << np.uint32(13)) | (hashes >> np.uint32(19))) * np.uint32(5) + _N
