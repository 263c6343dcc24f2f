"""Every scheme behind one face: hash keys once, then ask several memberships for the owners of the same hashes.

Some schemes remember their past (auto-split ranges, vnode mappings): `changed` derives the next membership from the present one by
leaves, then joins, instead of building it afresh.

Published algorithms serve as references:

- jump: Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm" (2014); the same numbers as the `jump-consistent-hash`
  package, which takes one key at a time.
- rendezvous: Thaler and Ravishankar (1998), highest score of hash and member wins.
- bounded: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2016), on a ketama ring.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from magnetar.hashing.consistent import ConsistentHashRanges
from magnetar.hashing.errors import EmptyRingError, HashingError, InvalidWeightError
from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.murmur3 import KEY_SHARED_SLOTS, murmur3_32
from magnetar.hashing.ranges import AutoSplitRanges, Range
from magnetar.hashing.ring import HashRing
from magnetar.hashing.sticky import StickyRanges
from magnetar.hashing.vectorized.crc import crc32_hashes
from magnetar.hashing.vectorized.fnv import fnv1a_64_hashes
from magnetar.hashing.vectorized.md5 import ketama_hashes
from magnetar.hashing.vectorized.murmur3 import finish, key_slots, murmur3_hashes
from magnetar.hashing.vectorized.vnode import vnodes
from magnetar.hashing.vnode import DEFAULT_VNODES

Owners = npt.NDArray[np.int32]
Weights = Mapping[str, float]

RINGS: Final = ("ketama", "crc32")
WEIGHTED: Final = (*RINGS, "vnodes")
ALGORITHMS: Final = (
    *RINGS,
    "autosplit",
    "consistent",
    "consistent-pr-18878",
    "sticky",
    "vnodes",
    "modulo",
    "jump",
    "rendezvous",
    "bounded",
)

LOAD_FACTOR: Final = 1.25
"""How much more than the mean a member takes at most under bounded loads (1 + epsilon)."""

_JUMP_MULTIPLIER: Final = 2_862_933_555_777_941_757


class Scheme(ABC):
    """A membership under one algorithm."""

    def __init__(self, algorithm: str, weights: Weights) -> None:
        self.algorithm = algorithm
        self.weights = dict(weights)

    @property
    def members(self) -> tuple[str, ...]:
        """Names; owners are indices into them."""
        return tuple(self.weights)

    def begin(self, total: int) -> None:  # noqa: B027  # most schemes count nothing
        """Told before a measurement over `total` keys; schemes that count loads start at zero."""

    @abstractmethod
    def hash(self, keys: Any) -> npt.NDArray[Any]:
        """What `owners` wants of the keys; the same for every membership."""

    @abstractmethod
    def owners(self, hashes: npt.NDArray[Any]) -> Owners:
        """Owner of every hash."""

    @abstractmethod
    def changed(self, weights: Weights) -> Scheme:
        """The scheme after the members change."""

    def arcs(self) -> tuple[npt.NDArray[np.uint64], Owners, int] | None:
        """Beginnings of equal-owner stretches of the hash space from 0 up, their owners and the size of the space, if it has any."""
        return None


class RingScheme(Scheme):
    """Ketama and falcon rings."""

    def __init__(self, algorithm: str, weights: Weights, replicas: int | None = None) -> None:
        super().__init__(algorithm, weights)
        self._replicas = replicas
        self.ring = HashRing(weights, "ketama" if algorithm == "ketama" else "crc32", replicas=replicas)

    def hash(self, keys: Any) -> npt.NDArray[Any]:
        return ketama_hashes(keys) if self.algorithm == "ketama" else crc32_hashes(keys)

    def owners(self, hashes: npt.NDArray[Any]) -> Owners:
        return self.ring.owners_of_hashes(hashes)

    def changed(self, weights: Weights) -> Scheme:
        return RingScheme(self.algorithm, weights, self._replicas)

    def arcs(self) -> tuple[npt.NDArray[np.uint64], Owners, int] | None:
        starts = np.array([0, *(point for point, _ in self.ring.points())], np.uint64)
        return starts, self.owners(starts.astype(np.uint32)), 1 << 32


class SlotScheme(Scheme):
    """The three selectors of Key_Shared: a table of 65,536 slots."""

    def __init__(self, algorithm: str, weights: Weights, selector: Any) -> None:
        super().__init__(algorithm, weights)
        self.selector = selector
        self._table = slot_table(selector.ranges(), self.members)

    def hash(self, keys: Any) -> npt.NDArray[Any]:
        return key_slots(keys)

    def owners(self, hashes: npt.NDArray[Any]) -> Owners:
        owners: Owners = self._table[hashes]
        return owners

    def changed(self, weights: Weights) -> Scheme:
        if self.algorithm == "sticky":
            return build(self.algorithm, weights)
        selector = build(self.algorithm, self.weights).selector  # type: ignore[attr-defined]  # slot schemes build their like
        for member in self.members:
            if member not in weights:
                selector.remove(member)
        for member in weights:
            if member not in self.weights:
                selector.add(member)
        return SlotScheme(self.algorithm, weights, selector)

    def arcs(self) -> tuple[npt.NDArray[np.uint64], Owners, int] | None:
        return np.arange(KEY_SHARED_SLOTS, dtype=np.uint64), self._table, KEY_SHARED_SLOTS


class VnodeScheme(Scheme):
    """Vnodes with a mapping; keys are taken as `varchar`."""

    def __init__(self, weights: Weights, mapping: VnodeMapping) -> None:
        super().__init__("vnodes", weights)
        self.mapping = mapping
        position = {name: index for index, name in enumerate(self.members)}
        self._table = np.array([position[mapping.units[owner]] for owner in mapping.owners], np.int32)

    def hash(self, keys: Any) -> npt.NDArray[Any]:
        return vnodes([keys], ["varchar"], self.mapping.vnodes)

    def owners(self, hashes: npt.NDArray[Any]) -> Owners:
        owners: Owners = self._table[hashes]
        return owners

    def changed(self, weights: Weights) -> Scheme:
        return VnodeScheme(weights, self.mapping.rescale(weights))

    def arcs(self) -> tuple[npt.NDArray[np.uint64], Owners, int] | None:
        return np.arange(self.mapping.vnodes, dtype=np.uint64), self._table, self.mapping.vnodes


class ReferenceScheme(Scheme):
    """Published algorithms that the others are compared with: hash modulo n, jump, rendezvous, and a ketama ring with bounded loads."""

    def __init__(self, algorithm: str, weights: Weights) -> None:
        super().__init__(algorithm, weights)
        self._member_hashes = np.array([murmur3_32(member) for member in self.members], np.uint32)
        self._ring = HashRing(weights) if algorithm == "bounded" else None
        self._loads = np.zeros(len(weights), np.int64)
        self._total = 0

    def begin(self, total: int) -> None:
        self._loads[:] = 0
        self._total = total

    def hash(self, keys: Any) -> npt.NDArray[Any]:
        if self.algorithm == "jump":
            return mixed(fnv1a_64_hashes(keys))
        return ketama_hashes(keys) if self.algorithm == "bounded" else murmur3_hashes(keys)

    def owners(self, hashes: npt.NDArray[Any]) -> Owners:
        count = len(self.members)
        if self.algorithm == "modulo":
            return (hashes % np.uint32(count)).astype(np.int32)
        if self.algorithm == "jump":
            return jump_owners(hashes, count)
        if self.algorithm == "rendezvous":
            return rendezvous_owners(hashes, self._member_hashes)
        assert self._ring is not None
        return bounded_owners(self._ring, hashes, self._loads, max(self._total, len(hashes)))

    def changed(self, weights: Weights) -> Scheme:
        return ReferenceScheme(self.algorithm, weights)


def build(
    algorithm: str, weights: Weights, *, replicas: int | None = None, vnode_count: int = DEFAULT_VNODES
) -> Scheme:
    """A scheme over its first members. EmptyRingError, InvalidWeightError, HashingError."""
    if algorithm not in ALGORITHMS:
        raise HashingError(f"unknown algorithm {algorithm!r}: give one of {', '.join(ALGORITHMS)}")
    if not weights:
        raise EmptyRingError("no nodes: name at least one")
    if algorithm not in WEIGHTED and any(weight != 1 for weight in weights.values()):
        raise InvalidWeightError(f"{algorithm} knows no weights: leave them out, or use {', '.join(WEIGHTED)}")
    if algorithm in RINGS:
        return RingScheme(algorithm, weights, replicas)
    if algorithm == "vnodes":
        return VnodeScheme(weights, VnodeMapping.even(weights, vnode_count))
    if algorithm in ("modulo", "jump", "rendezvous", "bounded"):
        return ReferenceScheme(algorithm, weights)
    return SlotScheme(algorithm, weights, _selector(algorithm, weights, replicas))


def slot_table(ranges: list[Range], members: tuple[str, ...]) -> Owners:
    """Owner of every slot, -1 where there is none."""
    index = {member: position for position, member in enumerate(members)}
    table = np.full(KEY_SHARED_SLOTS, -1, np.int32)
    for start, end, member in ranges:
        table[start : end + 1] = index[member]
    return table


def _selector(algorithm: str, weights: Weights, replicas: int | None) -> Any:
    if algorithm == "sticky":
        # Consumers that agree on equal parts by their number.
        sticky, count = StickyRanges(), len(weights)
        for position, member in enumerate(weights):
            start, end = (KEY_SHARED_SLOTS * turn // count for turn in (position, position + 1))
            sticky.add(member, [(start, end - 1)])
        return sticky
    if algorithm == "autosplit":
        selector: AutoSplitRanges | ConsistentHashRanges = AutoSplitRanges()
    else:
        compat = "pr-18878" if algorithm == "consistent-pr-18878" else None
        selector = ConsistentHashRanges(100 if replicas is None else replicas, compat)  # type: ignore[arg-type]  # Literal
    for member in weights:
        selector.add(member)
    return selector


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
