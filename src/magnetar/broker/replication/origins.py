"""The clusters where a topic's messages were published, and those they were meant for. Pure.

A message has one name everywhere: the cluster where it was published and its place there. Positions differ between clusters;
names do not, and each cluster's messages come in the order of their names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.wire.pulsar.markers import Run
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

SOURCE_POSITION_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
"""The place of a message as a replicator writes it into the message: in the cluster that it came from, `ledger:entry`."""

NAMES_MAX: Final = 200_000
"""Messages whose names are kept in memory; above it the older half is forgotten, and what was acknowledged among them out of order
is given again after a failover."""


class Origin(NamedTuple):
    """`cluster` is empty for a message of this cluster; `source` None for one that came without saying where it was.
    `audience`: the clusters that may have it, empty for all."""

    cluster: str
    source: Position | None
    audience: frozenset[str]

    def seen_by(self, cluster: str) -> bool:
        """True if `cluster` may have had the message."""
        return not self.audience or cluster in self.audience or cluster == self.cluster


def origin_of(metadata: MessageMetadata) -> Origin | None:
    """None for a marker."""
    if metadata.HasField("marker_type"):
        return None
    audience = frozenset(metadata.replicate_to) if metadata.replicate_to else frozenset[str]()
    if not metadata.replicated_from:
        return Origin("", None, audience)
    source = None
    for pair in metadata.properties:
        if pair.key == SOURCE_POSITION_PROPERTY:
            source = _position(pair.value)
    return Origin(metadata.replicated_from, source, audience)


def _position(text: str) -> Position | None:
    ledger, colon, entry = text.partition(":")
    return Position(int(ledger), int(entry)) if colon and ledger.isdecimal() and entry.isdecimal() else None


class _Named:
    """The messages of one cluster: both lists ascend."""

    __slots__ = ("here", "there")

    def __init__(self) -> None:
        self.there: list[Position] = []
        self.here: list[Position] = []

    def forget(self, count: int) -> None:
        del self.there[:count], self.here[:count]


class Origins:
    """Origins of a stretch of the log: everything behind `start` up to `noted`."""

    def __init__(self, start: Position, names_max: int = NAMES_MAX) -> None:
        self.start = start
        self.noted = start
        self._names_max = names_max
        self._named: dict[str, _Named] = {}
        self._count = 0
        self._restricted: list[tuple[Position, Origin]] = []

    def note(self, position: Position, origin: Origin | None) -> None:
        """The next entry of the log; None: a marker."""
        self.noted = position
        if origin is None:
            return
        if origin.audience:
            self._restricted.append((position, origin))
        if origin.source is None:
            return
        named = self._named.setdefault(origin.cluster, _Named())
        if not named.there or origin.source > named.there[-1]:  # else it was sent again
            named.there.append(origin.source)
            named.here.append(position)
            self._count += 1
            if self._count > self._names_max:
                self._halve()

    def restricted(self, after: Position, upto: Position, sender: str) -> list[Position]:
        """The messages in (after, upto] that `sender` cannot have had."""
        first = bisect_right(self._restricted, after, key=lambda each: each[0])
        last = bisect_right(self._restricted, upto, key=lambda each: each[0])
        return [position for position, origin in self._restricted[first:last] if not origin.seen_by(sender)]

    def places(self, cluster: str, run: Run) -> list[Position]:
        """Positions here of the messages of a run, as far as they have arrived."""
        named = self._named.get(cluster)
        if named is None:
            return []
        ledger_id, first, last = run
        low = bisect_left(named.there, (ledger_id, first))
        return named.here[low : bisect_right(named.there, (ledger_id, last))]

    def complete(self, cluster: str, run: Run) -> bool:
        """True if everything of the run has arrived that ever will."""
        named = self._named.get(cluster)
        return named is not None and bool(named.there) and named.there[-1] >= (run[0], run[2])

    def forget_upto(self, position: Position) -> None:
        """Nobody asks about anything up to there any more."""
        if position <= self.start:
            return
        self.start = min(position, self.noted)
        del self._restricted[: bisect_right(self._restricted, position, key=lambda each: each[0])]
        for named in self._named.values():
            # The last one stays: `complete` needs to know how far the cluster's messages have come.
            count = min(bisect_right(named.here, position), len(named.here) - 1)
            named.forget(count)
            self._count -= count

    def _halve(self) -> None:
        for named in self._named.values():
            count = len(named.here) // 2
            named.forget(count)
            self._count -= count

    def validate(self) -> None:
        assert EARLIEST <= self.start <= self.noted
        assert self._count == sum(len(named.here) for named in self._named.values()) <= self._names_max + 1
        for named in self._named.values():
            assert len(named.here) == len(named.there)
            assert named.there == sorted(set(named.there))
            assert named.here == sorted(set(named.here))


def runs_of(places: list[Position]) -> tuple[Run, ...]:
    """Ascending places as runs without gaps."""
    runs: list[Run] = []
    for ledger_id, entry_id in places:
        if runs and runs[-1][0] == ledger_id and runs[-1][2] + 1 == entry_id:
            runs[-1] = (ledger_id, runs[-1][1], entry_id)
        else:
            runs.append((ledger_id, entry_id, entry_id))
    return tuple(runs)
