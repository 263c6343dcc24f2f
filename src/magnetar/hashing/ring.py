"""A hash ring of named nodes with weights: every node has points on a circle of 2^32 places, a key belongs to the first point beyond it.

Two kinds:
- `ketama` (the article "consistent hash ring", github.com/serialx/hashring up to commit 49a4782): node `i` of `n` with weight `w` has
  `floor(40 * n * w / total)` MD5 digests `node-j` of 3 points each; a key is placed by MD5.
- `crc32` (open-falcon, github.com/toolkits/consistent): `replicas * weight` points CRC32(`j` + node); a key is placed by CRC32.

Both search like Go's `sort.Search` for the first point strictly greater than the key and wrap to the first point. The owners depend on
the set of nodes and weights alone: where points of two nodes coincide (the Go libraries let the node added last overwrite the
other, and forget the point when it leaves) the lower name owns the point, and the other gets it back when that one leaves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from math import floor, isfinite
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from magnetar.hashing.crc import crc32
from magnetar.hashing.errors import (
    DuplicateMemberError,
    EmptyRingError,
    HashingError,
    InvalidWeightError,
    UnknownMemberError,
)
from magnetar.hashing.ketama import MAX_POINTS_PER_DIGEST, POINTS_PER_DIGEST, ketama_hash, ketama_points

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from magnetar.hashing.vectorized.ring import PointTable

KETAMA_REPLICAS: Final = 40
"""Digests a node of mean weight has on a ketama ring."""

CRC32_REPLICAS: Final = 20
"""Points a node of weight 1 has on a falcon ring by default (open-falcon's own configuration sets 500)."""

MAX_POINTS: Final = 10_000_000
"""A ring of more points is refused: it would take more than a gigabyte, and balance gains nothing from them."""

RingAlgorithm = Literal["ketama", "crc32"]


class Placement(NamedTuple):
    """Where a key lies: its hash, the points around it and who owns it now and without the owner."""

    key_hash: int
    previous_point: int
    previous_node: str
    point: int
    node: str
    successor: str | None
    """Who takes this key over when `node` leaves; None when nobody is left."""


class HashRing:
    """Nodes on a ring. Mutable; `copy` for a second membership."""

    def __init__(
        self,
        nodes: Iterable[str] | Mapping[str, float] = (),
        algorithm: RingAlgorithm = "ketama",
        *,
        replicas: int | None = None,
        points_per_digest: int = POINTS_PER_DIGEST,
    ) -> None:
        """`nodes`: names, or names with weights (1 otherwise). `points_per_digest` (1 to 4) counts for ketama only.

        DuplicateMemberError, InvalidWeightError; an empty ring can be built but not asked.
        """
        if algorithm not in ("ketama", "crc32"):
            raise HashingError(f"unknown ring algorithm {algorithm!r}: give 'ketama' or 'crc32'")
        self._algorithm: RingAlgorithm = algorithm
        self._replicas = (
            replicas if replicas is not None else (KETAMA_REPLICAS if algorithm == "ketama" else CRC32_REPLICAS)
        )
        if self._replicas < 1:
            raise HashingError(f"{self._replicas} replicas: give at least 1")
        if not 1 <= points_per_digest <= MAX_POINTS_PER_DIGEST:
            raise HashingError(f"{points_per_digest} points of a digest: an MD5 has 1 to {MAX_POINTS_PER_DIGEST}")
        self._points_per_digest = points_per_digest
        self._weights: dict[str, float] = {}
        self._names: tuple[str, ...] = ()
        self._digests: dict[str, list[int]] = {}
        self._points: list[int] = []
        self._owners: list[int] = []
        self._table: PointTable | None = None
        weighted = nodes.items() if isinstance(nodes, Mapping) else ((node, 1) for node in nodes)
        for node, weight in weighted:
            self._admit(node, weight)
        self._rebuild()

    @property
    def algorithm(self) -> RingAlgorithm:
        """`ketama` or `crc32`."""
        return self._algorithm

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names in the order they were given or added; `owners` answers with indices into this."""
        return self._names

    @property
    def weights(self) -> dict[str, float]:
        """Name to weight."""
        return dict(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def copy(self) -> HashRing:
        """A ring of its own with the same nodes and weights."""
        return HashRing(
            self._weights, self._algorithm, replicas=self._replicas, points_per_digest=self._points_per_digest
        )

    def add(self, node: str, weight: float = 1) -> None:
        """Add a node. DuplicateMemberError, InvalidWeightError."""
        self._admit(node, weight)
        self._rebuild()

    def remove(self, node: str) -> None:
        """Remove a node. UnknownMemberError."""
        self._known(node)
        del self._weights[node]
        self._digests.pop(node, None)
        self._rebuild()

    def reweight(self, node: str, weight: float) -> None:
        """Change a node's weight. UnknownMemberError, InvalidWeightError."""
        self._known(node)
        self._weights[node] = _checked_weight(node, weight)
        self._rebuild()

    def points(self) -> list[tuple[int, str]]:
        """All points from the lowest up with the node that owns each."""
        nodes = self.nodes
        return [(point, nodes[owner]) for point, owner in zip(self._points, self._owners, strict=True)]

    def hash(self, key: bytes | str) -> int:
        """Where a key lies, 0 to 2^32 - 1."""
        return ketama_hash(key) if self._algorithm == "ketama" else crc32(key)

    def get(self, key: bytes | str) -> str:
        """The owner of a key. EmptyRingError."""
        return self.owner_of_hash(self.hash(key))

    def owner_of_hash(self, key_hash: int) -> str:
        """The owner of a place on the ring. EmptyRingError."""
        return self.nodes[self._owners[self._position(key_hash)]]

    def get_n(self, key: bytes | str, count: int) -> list[str]:
        """The first `count` distinct nodes clockwise from a key, owner first: replicas. Fewer nodes than `count`: HashingError."""
        if not 1 <= count <= len(self._weights):
            self._nonempty()
            raise HashingError(f"{count} distinct nodes of {len(self._weights)}: give 1 to {len(self._weights)}")
        start = self._position(self.hash(key))
        found: dict[int, None] = {}
        for step in range(len(self._points)):
            found.setdefault(self._owners[(start + step) % len(self._points)])
            if len(found) == count:
                break
        else:
            raise HashingError(f"only {len(found)} nodes have points: the others' weights are too small for one")
        nodes = self.nodes
        return [nodes[index] for index in found]

    def explain(self, key: bytes | str) -> Placement:
        """Where a key lies, its neighbours, its owner and the owner's heir. EmptyRingError."""
        key_hash = self.hash(key)
        position = self._position(key_hash)
        nodes = self.nodes
        owner = nodes[self._owners[position]]
        heir: str | None = None
        if len(self._weights) > 1:
            # Without the owner the others' ketama factors stay as they are only for equal weights, so ask the real thing.
            rest = self.copy()
            rest.remove(owner)
            heir = rest.get(key)
        return Placement(
            key_hash, self._points[position - 1], nodes[self._owners[position - 1]], self._points[position], owner, heir
        )

    def owners(self, keys: Sequence[bytes | str] | npt.NDArray[np.bytes_] | object) -> npt.NDArray[np.int32]:
        """The owner of every key as an index into `nodes`; same answers as `get`, vectorised.

        `keys`: an array of fixed-width bytes or text, a list of `bytes` or `str`, or an Arrow string or binary array.
        """
        from magnetar.hashing.vectorized.ring import owners

        return owners(self._algorithm, self._point_table(), keys)

    def owners_of_hashes(self, hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
        """Like `owners` for places that are hashed already (uint32)."""
        from magnetar.hashing.vectorized.ring import owners_of_hashes

        return owners_of_hashes(self._point_table(), hashes)

    def shares(self) -> dict[str, float]:
        """The part of the circle every node owns; sums to 1. EmptyRingError."""
        self._nonempty()
        totals = [0] * len(self._weights)
        previous = self._points[-1] - (1 << 32)
        for point, owner in zip(self._points, self._owners, strict=True):
            totals[owner] += point - previous
            previous = point
        return {node: total / (1 << 32) for node, total in zip(self._weights, totals, strict=True)}

    def validate(self) -> None:
        """Assert the invariants: points ascending within the circle, one owner each, owners known."""
        assert len(self._points) == len(self._owners)
        assert all(0 <= point < 1 << 32 for point in self._points)
        assert all(low < high for low, high in zip(self._points, self._points[1:], strict=False))
        assert all(0 <= owner < len(self._weights) for owner in self._owners)

    def _position(self, key_hash: int) -> int:
        self._nonempty()
        position = bisect_right(self._points, key_hash)
        return 0 if position == len(self._points) else position

    def _point_table(self) -> PointTable:
        """The points prepared for numpy; a millisecond of work, kept until the points change."""
        from magnetar.hashing.vectorized.ring import PointTable

        self._nonempty()
        if self._table is None:
            self._table = PointTable(self._points, self._owners)
        return self._table

    def _admit(self, node: str, weight: float) -> None:
        if node in self._weights:
            raise DuplicateMemberError(f"node {node!r} is given twice: use reweight() or another name")
        self._weights[node] = _checked_weight(node, weight)

    def _known(self, node: str) -> None:
        if node not in self._weights:
            raise UnknownMemberError(f"node {node!r} is not on the ring")

    def _nonempty(self) -> None:
        if not self._weights:
            raise EmptyRingError("the ring has no nodes: add one first")
        if not self._points:
            raise EmptyRingError("no node has a point: the weights are too small for the number of replicas")

    def _rebuild(self) -> None:
        ordered: dict[int, str] = {}
        counts = {node: self._count(weight) for node, weight in self._weights.items()}
        total = sum(counts.values()) * (self._points_per_digest if self._algorithm == "ketama" else 1)
        if total > MAX_POINTS:
            raise HashingError(f"{total} points on one ring: lower the replicas or the weights (at most {MAX_POINTS})")
        for node, count in counts.items():
            for point in self._node_points(node, count):
                ordered[point] = min(ordered.get(point, node), node)
        self._names = tuple(self._weights)
        index = {node: position for position, node in enumerate(self._names)}
        self._points = sorted(ordered)
        self._owners = [index[ordered[point]] for point in self._points]
        self._table = None

    def _count(self, weight: float) -> int:
        if self._algorithm == "crc32":
            return round(self._replicas * weight)
        return floor(self._replicas * len(self._weights) * weight / sum(self._weights.values()))

    def _node_points(self, node: str, count: int) -> list[int]:
        """The points of the first `count` digests; digests are kept, a change of membership hashes newcomers only."""
        known = self._digests.setdefault(node, [])
        if self._algorithm == "crc32":
            known.extend(crc32(f"{index}{node}") for index in range(len(known), count))
            return known[:count]
        width = self._points_per_digest
        for index in range(len(known) // width, count):
            known.extend(ketama_points(node, index, width))
        return known[: count * width]


def _checked_weight(node: str, weight: float) -> float:
    if not isfinite(weight) or weight <= 0:
        raise InvalidWeightError(f"node {node!r} has weight {weight}: give a number above 0, or remove the node")
    return weight
