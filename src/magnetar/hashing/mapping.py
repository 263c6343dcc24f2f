"""Which unit (actor, worker, consumer) serves which vnode: an immutable, versioned mapping, and plans that move as little as possible.

Quotas: unit `u` of weight `w` serves the floor or the ceiling of `V * w / total` vnodes, so equal units differ by at most one.
Least movement: of all mappings with such quotas a plan picks one that keeps the most vnodes where they are. A unit keeps at most
`min(now, quota)`; the units with surplus vnodes are given the ceilings first, which makes the sum of these minima the largest
possible, and only surplus vnodes move. (RisingWave's serving placement works like this, as its design document says; its streaming
placement no longer does.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from math import isfinite
from typing import Any, Final, NamedTuple

from magnetar.hashing.errors import (
    DuplicateMemberError,
    EmptyRingError,
    HashingError,
    InvalidWeightError,
    UnknownMemberError,
    VnodeCountError,
)
from magnetar.hashing.vnode import DEFAULT_VNODES, check_vnode_count

JSON_FORMAT: Final = 1
"""Version of the JSON form; a reader refuses what it does not know."""


class Move(NamedTuple):
    """One vnode that changes its unit."""

    vnode: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class VnodeMapping:
    """`owners[vnode]` is an index into `units`; `weights` go with `units`; `version` grows by one a change."""

    units: tuple[str, ...]
    owners: tuple[int, ...]
    weights: tuple[float, ...]
    version: int = 1

    @staticmethod
    def even(
        units: int | Iterable[str] | Mapping[str, float], vnodes: int = DEFAULT_VNODES, version: int = 1
    ) -> VnodeMapping:
        """The first mapping: contiguous blocks, as even as the weights allow, larger ones first (RisingWave's uniform mapping).

        `units`: a number (names are then `0`, `1`, ...), names, or names with weights. EmptyRingError, DuplicateMemberError,
        InvalidWeightError, VnodeCountError (also with more units than vnodes).
        """
        names, weights = _units(units)
        check_vnode_count(vnodes)
        quotas = _quotas(weights, vnodes, [0] * len(names))
        owners = tuple(index for index, quota in enumerate(quotas) for _ in range(quota))
        return VnodeMapping(names, owners, weights, version)

    @property
    def vnodes(self) -> int:
        """How many vnodes there are: fixed for the life of a table."""
        return len(self.owners)

    def owner(self, vnode: int) -> str:
        """The unit of a vnode. VnodeCountError outside 0 to vnodes - 1."""
        if not 0 <= vnode < len(self.owners):
            raise VnodeCountError(f"vnode {vnode} is outside 0 to {len(self.owners) - 1}")
        return self.units[self.owners[vnode]]

    def counts(self) -> dict[str, int]:
        """Vnodes of every unit."""
        numbers = [0] * len(self.units)
        for owner in self.owners:
            numbers[owner] += 1
        return dict(zip(self.units, numbers, strict=True))

    def vnodes_of(self, unit: str) -> list[int]:
        """The vnodes of one unit, ascending. UnknownMemberError."""
        index = self._index(unit)
        return [vnode for vnode, owner in enumerate(self.owners) if owner == index]

    def rescale(self, units: int | Iterable[str] | Mapping[str, float]) -> VnodeMapping:
        """The mapping for other units with the least movement; units with the same name keep what they can. Errors as `even`.

        A number `n` keeps the first `n` units or appends units named by the next free numbers, all of weight 1 as far as new.
        """
        if isinstance(units, int) and not isinstance(units, bool):
            units = self._resized(units)
        names, weights = _units(units)
        now: list[list[int]] = [[] for _ in names]
        index = {name: position for position, name in enumerate(names)}
        homeless: list[int] = []
        for vnode, owner in enumerate(self.owners):
            position = index.get(self.units[owner])
            (homeless if position is None else now[position]).append(vnode)
        quotas = _quotas(weights, len(self.owners), [len(kept) for kept in now])
        owners = [-1] * len(self.owners)
        for position, (kept, quota) in enumerate(zip(now, quotas, strict=True)):
            for vnode in kept[:quota]:
                owners[vnode] = position
            homeless.extend(kept[quota:])
        free = iter(sorted(homeless))
        for position, (kept, quota) in enumerate(zip(now, quotas, strict=True)):
            for _ in range(quota - len(kept)):
                owners[next(free)] = position
        return VnodeMapping(names, tuple(owners), weights, self.version + 1)

    def add(self, unit: str, weight: float = 1) -> VnodeMapping:
        """The mapping with one more unit; vnodes move to it only. DuplicateMemberError and errors as `even`."""
        if unit in self.units:
            raise DuplicateMemberError(f"unit {unit!r} is there already")
        return self.rescale({**dict(zip(self.units, self.weights, strict=True)), unit: weight})

    def remove(self, unit: str) -> VnodeMapping:
        """The mapping without a unit; only its vnodes move when weights are equal. UnknownMemberError, EmptyRingError."""
        self._index(unit)
        return self.rescale({name: weight for name, weight in self.weighted().items() if name != unit})

    def reweight(self, unit: str, weight: float) -> VnodeMapping:
        """The mapping with another weight for a unit. UnknownMemberError, InvalidWeightError."""
        self._index(unit)
        return self.rescale({**self.weighted(), unit: weight})

    def weighted(self) -> dict[str, float]:
        """Units with their weights."""
        return dict(zip(self.units, self.weights, strict=True))

    def groups(self, per_unit: int = 1) -> list[tuple[str, list[int]]]:
        """Partitions for a batch scan: every unit's vnodes cut into at most `per_unit` parts that differ by at most one vnode.

        Parts hold neighbouring vnodes of the unit, since storage is ordered by vnode; empty parts are left out.
        """
        if per_unit < 1:
            raise HashingError(f"{per_unit} groups a unit: give at least 1")
        found = []
        for unit in self.units:
            held = self.vnodes_of(unit)
            for part in range(per_unit):
                low, high = len(held) * part // per_unit, len(held) * (part + 1) // per_unit
                if low < high:
                    found.append((unit, held[low:high]))
        return found

    def ranges(self) -> list[tuple[int, int, str]]:
        """Neighbouring vnodes of one unit as (first, last inclusive, unit)."""
        found, start = [], 0
        for owner, run in groupby(self.owners):
            length = len(list(run))
            found.append((start, start + length - 1, self.units[owner]))
            start += length
        return found

    def sql_array(self) -> str:
        """The owners as one SQL literal, for `get(array(...), vnode)`: 400 times cheaper than a literal expression per vnode."""
        return f"array({','.join(map(str, self.owners))})"

    def to_json(self) -> str:
        """One line of JSON; the owners as runs [index, length], which are short."""
        runs = [[owner, len(list(run))] for owner, run in groupby(self.owners)]
        units = [{"name": name, "weight": weight} for name, weight in self.weighted().items()]
        document = {"format": JSON_FORMAT, "version": self.version, "vnodes": self.vnodes, "units": units, "runs": runs}
        return json.dumps(document, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> VnodeMapping:
        """The mapping of `to_json`. HashingError for anything else."""
        try:
            document = json.loads(text)
            if document["format"] != JSON_FORMAT:
                raise HashingError(f"vnode mapping of format {document['format']}: this version reads {JSON_FORMAT}")
            mapping = _from_document(document)
        except (ValueError, KeyError, TypeError) as bad:
            if isinstance(bad, HashingError):
                raise
            raise HashingError(f"not a vnode mapping: {bad!r}") from bad
        if mapping.vnodes != document["vnodes"]:
            raise HashingError(f"not a vnode mapping: runs cover {mapping.vnodes} vnodes of {document['vnodes']}")
        return mapping

    def validate(self) -> None:
        """Assert the invariants: every vnode owned, units distinct, counts within one of each unit's exact share."""
        assert len(set(self.units)) == len(self.units) == len(self.weights)
        assert all(0 <= owner < len(self.units) for owner in self.owners)
        total = sum(map(Fraction, self.weights))
        for count, weight in zip(self.counts().values(), self.weights, strict=True):
            assert abs(count - Fraction(weight) * self.vnodes / total) < 1

    def _index(self, unit: str) -> int:
        if unit not in self.units:
            raise UnknownMemberError(f"unit {unit!r} is not in the mapping")
        return self.units.index(unit)

    def _resized(self, count: int) -> dict[str, float]:
        kept = dict(list(self.weighted().items())[:count])
        number = 0
        while len(kept) < count and len(kept) <= len(self.owners):
            if str(number) not in kept:
                kept[str(number)] = 1
            number += 1
        return kept


def diff(old: VnodeMapping, new: VnodeMapping) -> list[Move]:
    """The vnodes whose unit's name changes, ascending. VnodeCountError between mappings of different sizes."""
    if old.vnodes != new.vnodes:
        raise VnodeCountError(f"{old.vnodes} vnodes against {new.vnodes}: the count of a table never changes")
    pairs = zip(old.owners, new.owners, strict=True)
    return [
        Move(vnode, old.units[source], new.units[target])
        for vnode, (source, target) in enumerate(pairs)
        if old.units[source] != new.units[target]
    ]


def _units(units: int | Iterable[str] | Mapping[str, float]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    if isinstance(units, int):
        units = [str(number) for number in range(units)]
    weighted: Sequence[tuple[str, float]]
    weighted = list(units.items()) if isinstance(units, Mapping) else [(name, 1) for name in units]
    if not weighted:
        raise EmptyRingError("no units: somebody has to serve the vnodes")
    names = tuple(name for name, _ in weighted)
    if len(set(names)) < len(names):
        twice = next(name for position, name in enumerate(names) if name in names[:position])
        raise DuplicateMemberError(f"unit {twice!r} is given twice")
    for name, weight in weighted:
        if not isfinite(weight) or weight <= 0:
            raise InvalidWeightError(f"unit {name!r} has weight {weight}: give a number above 0, or leave the unit out")
    return names, tuple(weight for _, weight in weighted)


def _quotas(weights: Sequence[float], vnodes: int, now: Sequence[int]) -> list[int]:
    """Vnodes per unit: floors of the exact shares, and ceilings where they save a move first, then by largest remainder."""
    if len(weights) > vnodes:
        raise VnodeCountError(f"{len(weights)} units for {vnodes} vnodes: some would have nothing, take fewer units")
    total = sum(map(Fraction, weights))
    shares = [Fraction(weight) * vnodes / total for weight in weights]
    quotas = [int(share) for share in shares]
    # A whole share has no ceiling above it.
    candidates = [unit for unit, share in enumerate(shares) if share != quotas[unit]]
    candidates.sort(key=lambda unit: (now[unit] <= quotas[unit], quotas[unit] - shares[unit], unit))
    for unit in candidates[: vnodes - sum(quotas)]:
        quotas[unit] += 1
    return quotas


def _from_document(document: dict[str, Any]) -> VnodeMapping:
    names, weights = _units({str(unit["name"]): unit["weight"] for unit in document["units"]})
    if len(names) != len(document["units"]):
        raise DuplicateMemberError("a unit is given twice")
    owners: list[int] = []
    for owner, length in document["runs"]:
        if not 0 <= owner < len(names) or length < 1:
            raise HashingError(f"run [{owner}, {length}] names no unit or no vnode")
        owners.extend([owner] * length)
    check_vnode_count(len(owners))
    return VnodeMapping(names, tuple(owners), weights, int(document["version"]))
