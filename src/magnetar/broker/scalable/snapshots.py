"""How far a subscription is in another cluster whose layout differs: snapshots as vectors over segments, translated by ranges of the hash.

Pure. docs/explanation/scalable-geo-replication.md has the argument why nothing is skipped, and what a replicator has to keep to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from magnetar.broker.scalable.layout import HASH_MAX, SegmentLayout

Position = tuple[int, int]
"""Ledger and entry: everything before it counts."""

PLACES_MAX: Final = 8192
"""Places of a vector that clusters tell each other; what lies behind is left out, which is safe, and one with more is refused."""

NUMBER_MAX: Final = 2**63 - 1
"""Ids of segments, ledgers and entries are signed 64-bit numbers."""

ROUNDS: Final = 2
"""With three clusters or more, a message may be in the second one before it is in the first: the second round waits for it."""


@dataclass(frozen=True, slots=True)
class Place:
    """For the inclusive hashes `start` to `end`: everything in older segments, and in this segment everything before `position`."""

    start: int
    end: int
    segment_id: int
    position: Position

    @property
    def order(self) -> tuple[int, Position]:
        """Of places of one hash, the greater one is further: a segment's descendants have greater ids."""
        return self.segment_id, self.position


Vector = tuple[Place, ...]
"""A place for each hash."""


def vector_of(layout: SegmentLayout, ends: Mapping[int, Position]) -> Vector:
    """A cluster's answer: where its active segments end."""
    return tuple(Place(each.start, each.end, each.id, ends[each.id]) for each in layout.active)


def vector_as_json(vector: Vector) -> list[list[int]]:
    """As clusters tell it each other: first and last hash, segment, ledger and entry of each place."""
    return [[each.start, each.end, each.segment_id, *each.position] for each in vector]


def vector_from_json(document: object) -> Vector:
    """Raises ValueError for what is not a vector: places in the order of their hashes, without overlaps, and not too many."""
    if not isinstance(document, list) or len(document) > PLACES_MAX:
        raise ValueError(f"expected a list of at most {PLACES_MAX} places")
    found, free = [], 0
    for each in document:
        place = _place(each)
        if place.start < free:
            raise ValueError("the places are not in the order of their hashes")
        free = place.end + 1
        found.append(place)
    return tuple(found)


def _place(numbers: Any) -> Place:
    if not isinstance(numbers, list) or len(numbers) != 5 or any(type(each) is not int for each in numbers):
        raise ValueError("expected five numbers for a place: first and last hash, segment, ledger, entry")
    start, end, segment_id, ledger_id, entry_id = numbers
    if not 0 <= start <= end <= HASH_MAX:
        raise ValueError(f"a place has the hashes {start} to {end}, which is not a range within 0 to {HASH_MAX}")
    if not (0 <= segment_id <= NUMBER_MAX and -1 <= ledger_id <= NUMBER_MAX and 0 <= entry_id <= NUMBER_MAX):
        raise ValueError("the ids of a segment, a ledger and an entry are not negative and have 63 bits")
    return Place(start, end, segment_id, (ledger_id, entry_id))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A subscription that has acknowledged everything up to `here` has everything up to `there`, by cluster."""

    here: Vector
    there: Mapping[str, Vector]


@dataclass(slots=True)
class SnapshotRounds:
    """Collects the answers of all other clusters, `ROUNDS` times; a cluster's place is that of its first answer.

    An answer counts when it has arrived behind everything that the cluster had written before it.
    """

    clusters: frozenset[str]
    _first: dict[str, Vector] = field(default_factory=dict)
    _answered: set[str] = field(default_factory=set)
    round: int = 1

    def answered(self, cluster: str, of_round: int, vector: Vector) -> bool:
        """True when all have answered the last round: then `here` may be taken. An answer to another round changes nothing."""
        if self.complete or of_round != self.round or cluster not in self.clusters:
            return self.complete
        self._first.setdefault(cluster, vector)
        self._answered.add(cluster)
        if self._answered == self.clusters:
            self.round += 1
            self._answered = set()
        return self.complete

    @property
    def complete(self) -> bool:
        return self.round > ROUNDS or not self.clusters

    def taken(self, here: Vector) -> Snapshot:
        """`here`: where this cluster's active segments end, asked after the last answer."""
        if not self.complete:
            raise ValueError("not every cluster has answered yet")
        return Snapshot(here, dict(self._first))


class SnapshotsTaken:
    """The snapshots of a topic that some subscription has yet to pass, and the newest one: at most `snapshots_max`.

    When there are more, one in the middle goes whose loss leaves the smallest gap, so that a subscription that lags far behind still
    finds one that it passes soon.
    """

    def __init__(self) -> None:
        self._taken: list[Snapshot] = []
        self._numbers: list[int] = []
        """Number of snapshots taken before each one: they are taken at intervals, so this measures distance."""
        self._count = 0

    @property
    def all(self) -> list[Snapshot]:
        """The oldest first."""
        return list(self._taken)

    @property
    def newest(self) -> Snapshot | None:
        return self._taken[-1] if self._taken else None

    def add(self, snapshot: Snapshot, snapshots_max: int) -> None:
        self._taken.append(snapshot)
        self._numbers.append(self._count)
        self._count += 1
        while len(self._taken) > max(3, snapshots_max):
            numbers = self._numbers
            index = min(range(1, len(numbers) - 1), key=lambda each: numbers[each + 1] - numbers[each - 1])
            del self._taken[index], numbers[index]

    def forget_before(self, snapshot: Snapshot) -> None:
        """Every subscription has passed it: those before it say nothing more."""
        index = next((number for number, each in enumerate(self._taken) if each is snapshot), 0)
        del self._taken[:index], self._numbers[:index]

    def clear(self) -> None:
        self._taken.clear()
        self._numbers.clear()


def passed(
    here: Vector, layout: SegmentLayout, acknowledged: Mapping[int, Position], drained: Collection[int]
) -> Vector:
    """The places that the subscription is behind. `drained`: sealed segments in which it has acknowledged everything.

    A segment that is in the layout no more was drained before it was deleted.
    """
    found = []
    for place in here:
        if place.segment_id in layout.segments:
            if not layout.ancestors(place.segment_id) <= set(drained):
                continue
            if place.segment_id not in drained and acknowledged.get(place.segment_id, (-1, -1)) < place.position:
                continue
        found.append(place)
    return tuple(found)


def translated(steps: Iterable[tuple[Snapshot, Vector]], cluster: str) -> Vector:
    """What is safe in `cluster`, for each hash that has anything: of each snapshot, with the places in it that are `passed`."""
    steps = list(steps)
    every = [place for snapshot, done in steps for place in (*done, *snapshot.there.get(cluster, ()))]
    bounds = sorted({0, HASH_MAX + 1, *(each.start for each in every), *(each.end + 1 for each in every)})
    found: list[Place] = []
    for start, after in pairwise(bounds):
        safe = [
            _at(snapshot.there[cluster], start)
            for snapshot, done in steps
            if cluster in snapshot.there and any(each.start <= start <= each.end for each in done)
        ]
        if safe:
            best = max(safe, key=lambda place: place.order)
            before = found[-1] if found else None
            if before is not None and before.end == start - 1 and before.order == best.order:
                found[-1] = Place(before.start, after - 1, best.segment_id, best.position)
            else:
                found.append(Place(start, after - 1, best.segment_id, best.position))
    return tuple(found)


def projected(safe: Vector, layout: SegmentLayout) -> dict[int, Position | None]:
    """In the cluster that is told: how far each of its segments may be acknowledged; None is everything in a sealed one.

    Of the hashes of a segment the one that is least far decides. Segments of which nothing is safe are left out.
    """
    found: dict[int, Position | None] = {}
    for segment in layout.segments.values():
        inside = [each for each in safe if each.end >= segment.start and each.start <= segment.end]
        if not _covers(inside, segment.start, segment.end):
            continue
        least = min(inside, key=lambda each: each.order)
        if least.segment_id == segment.id:
            found[segment.id] = least.position
        elif least.segment_id > segment.id and not segment.active:
            found[segment.id] = None
    return found


def _at(vector: Vector, key_hash: int) -> Place:
    return next(each for each in vector if each.start <= key_hash <= each.end)


def _covers(places: Sequence[Place], start: int, end: int) -> bool:
    at = start
    for each in sorted(places, key=lambda each: each.start):
        if each.start > at:
            return False
        at = max(at, each.end + 1)
    return at > end
