"""Schemes to measure against, vectorised.

- jump: Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm" (2014); the same numbers as the `jump-consistent-hash`
  package, which takes one key at a time.
- rendezvous: Thaler and Ravishankar (1998), highest score of hash and member wins.
- bounded: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2016), on a ketama ring.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from magnetar.hashing.ring import HashRing
from magnetar.hashing.vectorized.murmur3 import finish

LOAD_FACTOR: Final = 1.25
"""How much more than the mean a member takes at most under bounded loads (1 + epsilon)."""

_JUMP_MULTIPLIER: Final = 2_862_933_555_777_941_757

Owners = npt.NDArray[np.int32]


def mixed(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Murmur3's avalanche of 64 bits, in place: FNV leaves the high bits of short keys almost equal, which jump decides by."""
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    hashes ^= hashes >> np.uint64(33)
    return hashes


def jump_owners(hashes: npt.NDArray[np.uint64], count: int) -> Owners:
    """Jump consistent hash: the bucket, 0 to count - 1, of every 64-bit hash."""
    buckets = np.zeros(len(hashes), np.int64)
    jumping = np.arange(len(hashes))
    keys = hashes.astype(np.uint64)
    while len(jumping):
        keys = keys * np.uint64(_JUMP_MULTIPLIER) + np.uint64(1)
        divisor = ((keys >> np.uint64(33)) + np.uint64(1)).astype(np.float64)
        target = ((buckets[jumping] + 1).astype(np.float64) * ((1 << 31) / divisor)).astype(np.int64)
        inside = target < count
        jumping, keys = jumping[inside], keys[inside]
        buckets[jumping] = target[inside]
    return buckets.astype(np.int32)


def rendezvous_owners(hashes: npt.NDArray[np.uint32], member_hashes: npt.NDArray[np.uint32]) -> Owners:
    """The member with the highest score for every hash; the earlier one of equals."""
    best = finish(hashes ^ member_hashes[0])
    owners = np.zeros(len(hashes), np.int32)
    for index in range(1, len(member_hashes)):
        score = finish(hashes ^ member_hashes[index])
        better = score > best
        owners[better] = index
        best = np.maximum(best, score)
    return owners


def bounded_owners(ring: HashRing, hashes: npt.NDArray[Any], loads: npt.NDArray[np.int64], total: int) -> Owners:
    """Keys in order of arrival: the first member clockwise that holds less than 1.25 times the mean of `total` keys. `loads` grows.

    One key depends on all before it, so a batch that fills a member is done key by key.
    """
    capacity = ceil(LOAD_FACTOR * total / len(ring))
    owners = ring.owners_of_hashes(hashes)
    counts = np.bincount(owners, minlength=len(ring))
    if bool((loads + counts <= capacity).all()):
        loads += counts
        return owners
    points = ring.points()
    index = {node: position for position, node in enumerate(ring.nodes)}
    circle = [index[node] for _, node in points]
    positions = np.searchsorted(np.array([point for point, _ in points], np.uint64), hashes, side="right").tolist()
    free = (capacity - loads).tolist()
    chosen = []
    for position in positions:
        while free[member := circle[position % len(circle)]] <= 0:
            position += 1
        free[member] -= 1
        chosen.append(member)
    loads[:] = capacity - np.array(free)
    return np.array(chosen, np.int32)
