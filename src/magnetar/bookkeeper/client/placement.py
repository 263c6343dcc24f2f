"""Which bookies store a ledger: random, rack-aware, region-aware (BookKeeper EnsemblePlacementPolicy). Pure.

Candidates come in the order in which they would be taken if places did not matter; the caller shuffles them, by free space if it
likes. A location is `/rack` or `/region/rack`. Neighbours in an ensemble share write sets (facts of `quorum.write_set`), so what has
to differ are the places of neighbours, the last and the first member being neighbours as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.bookkeeper.errors import NotEnoughBookiesError
from magnetar.bookkeeper.quorum import write_sets

DEFAULT_RACK: Final = "/default-rack"
"""Of bookies whose place nobody knows."""

DEFAULT_REGION: Final = "UnknownRegion"
"""Of bookies whose location has no region."""


WALKS_MAX: Final = 10
"""Attempts to find an ensemble that spans enough racks, each from another first bookie: then the first attempt's is taken, or none."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A writable bookie. `quarantined`: it failed often lately, and is taken only when nothing else will do."""

    bookie_id: str
    location: str = DEFAULT_RACK
    quarantined: bool = False
    free_bytes: int = 0

    @property
    def rack(self) -> str:
        return self.location

    @property
    def region(self) -> str:
        return region_of(self.location)


def region_of(location: str) -> str:
    """`/region/rack` -> `region`."""
    parts = location.strip("/").split("/")
    return parts[0] if len(parts) > 1 else DEFAULT_REGION


class PlacementPolicy:
    """Random placement: any distinct bookies, first come first taken. The base of the others."""

    name = "random"

    def ensemble(self, size: int, write_quorum: int, candidates: Sequence[Candidate]) -> tuple[str, ...]:
        """`size` distinct bookies. Raises NotEnoughBookiesError."""
        for pool in _pools(candidates, frozenset()):
            if len(pool) >= size and (chosen := self._pick(size, write_quorum, pool)) is not None:
                return chosen
        raise NotEnoughBookiesError(
            f"the ensemble needs {size} writable bookies{self._demand()} and there are {len(candidates)}; start more of them"
        )

    def replacement(
        self,
        ensemble: tuple[str, ...],
        index: int,
        write_quorum: int,
        candidates: Sequence[Candidate],
        locations: Mapping[str, str],
        *,
        excluded: frozenset[str],
        avoided: frozenset[str] = frozenset(),
    ) -> str | None:
        """A bookie for the place at `index`, never one of `excluded`, one of `avoided` only in need. None when there is none.

        `locations` names the places of the members that stay.
        """
        left = [candidate for candidate in candidates if candidate.bookie_id not in excluded]
        for pool in _pools(left, avoided):
            chosen = self._pick_one(ensemble, index, write_quorum, pool, locations)
            if chosen is not None:
                return chosen
        return None

    def adheres(self, locations: Sequence[str], write_quorum: int) -> bool:
        """Whether an ensemble at these locations is as the policy wants it."""
        return True

    def _demand(self) -> str:
        return ""

    def _pick(self, size: int, write_quorum: int, pool: Sequence[Candidate]) -> tuple[str, ...] | None:
        return tuple(candidate.bookie_id for candidate in pool[:size])

    def _pick_one(
        self,
        ensemble: tuple[str, ...],
        index: int,
        write_quorum: int,
        pool: Sequence[Candidate],
        locations: Mapping[str, str],
    ) -> str | None:
        return pool[0].bookie_id if pool else None


class RackAwarePlacement(PlacementPolicy):
    """Each write set spans at least `racks_min` racks (or as many as it has bookies) as far as the candidates allow.

    `enforced`: rather none than one that does not (enforceMinNumRacksPerWriteQuorum).
    """

    name = "rack"

    def __init__(self, racks_min: int = 2, *, enforced: bool = False) -> None:
        assert racks_min >= 1
        self._racks_min = racks_min
        self._enforced = enforced

    def adheres(self, locations: Sequence[str], write_quorum: int) -> bool:
        wanted = min(self._racks_min, write_quorum)
        return all(
            len({locations[index] for index in indexes}) >= wanted
            for indexes in write_sets(len(locations), write_quorum)
        )

    def _demand(self) -> str:
        return f" with {self._racks_min} racks in each write quorum" if self._enforced else ""

    def _cost(
        self, location: str, others: Mapping[int, str], index: int, size: int, write_quorum: int
    ) -> tuple[int, ...]:
        """How badly a place suits: members of the same rack that should differ, then members of it at all."""
        near = _neighbours(index, size, min(self._racks_min, write_quorum) - 1)
        return (
            sum(others.get(other) == location for other in near),
            sum(other == location for other in others.values()),
        )

    def _pick(self, size: int, write_quorum: int, pool: Sequence[Candidate]) -> tuple[str, ...] | None:
        best: tuple[str, ...] | None = None
        possible = len({candidate.location for candidate in pool}) >= min(self._racks_min, write_quorum)
        for start in range(min(len(pool), WALKS_MAX if possible else 1)):
            chosen = self._walk(size, write_quorum, [*pool[start:], *pool[:start]])
            if self.adheres([candidate.location for candidate in chosen], write_quorum):
                return tuple(candidate.bookie_id for candidate in chosen)
            best = best or tuple(candidate.bookie_id for candidate in chosen)
        return None if self._enforced else best

    def _walk(self, size: int, write_quorum: int, pool: list[Candidate]) -> list[Candidate]:
        """Place by place the candidate that suits best, the first of equals."""
        chosen: list[Candidate] = []
        for index in range(size):
            others = {place: candidate.location for place, candidate in enumerate(chosen)}
            best = min(pool, key=lambda candidate: self._cost(candidate.location, others, index, size, write_quorum))
            pool.remove(best)
            chosen.append(best)
        return chosen

    def _pick_one(
        self,
        ensemble: tuple[str, ...],
        index: int,
        write_quorum: int,
        pool: Sequence[Candidate],
        locations: Mapping[str, str],
    ) -> str | None:
        if not pool:
            return None
        size = len(ensemble)
        others = {place: locations.get(member, DEFAULT_RACK) for place, member in enumerate(ensemble) if place != index}
        best = min(pool, key=lambda candidate: self._cost(candidate.location, others, index, size, write_quorum))
        places = others | {index: best.location}
        if self._enforced and not self.adheres([places[place] for place in range(size)], write_quorum):
            return None
        return best.bookie_id


class RegionAwarePlacement(RackAwarePlacement):
    """As rack-aware, with regions before racks: neighbours are in different regions, and regions are used evenly."""

    name = "region"

    def _cost(
        self, location: str, others: Mapping[int, str], index: int, size: int, write_quorum: int
    ) -> tuple[int, ...]:
        region = region_of(location)
        regions = {place: region_of(other) for place, other in others.items()}
        near = _neighbours(index, size, write_quorum - 1)
        return (
            sum(regions.get(other) == region for other in near),
            sum(other == region for other in regions.values()),
            *super()._cost(location, others, index, size, write_quorum),
        )


def _neighbours(index: int, size: int, distance: int) -> set[int]:
    """Places up to `distance` away around the ring, without the place itself."""
    return {(index + step) % size for step in range(-distance, distance + 1)} - {index}


def _pools(candidates: Sequence[Candidate], avoided: frozenset[str]) -> Iterable[Sequence[Candidate]]:
    """The best candidates, then more and more of them; no pool twice."""
    sizes: set[int] = set()
    for pool in (
        [c for c in candidates if not c.quarantined and c.bookie_id not in avoided],
        [c for c in candidates if not c.quarantined],
        list(candidates),
    ):
        if len(pool) not in sizes:
            sizes.add(len(pool))
            yield pool
