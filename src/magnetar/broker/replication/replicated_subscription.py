"""One replicated subscription: when its progress is told to the other clusters, and what their news mean for it (PIP-33). Pure."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.wire.pulsar.markers import MessageId, Snapshot, SubscriptionUpdate

SNAPSHOTS_MIN: Final = 3
"""A smaller cache has no middle to thin out."""


class SnapshotCache:
    """The snapshots that a subscription has read and not yet passed: few, and spread over all that it lags behind.

    Dropping the oldest ones when there are too many (https://github.com/apache/pulsar/issues/24300) leaves a consumer that acknowledges
    far behind what it reads with none that it could ever reach. Here one in the middle goes, whose loss leaves the smallest gap.

    At most `snapshots_max` snapshots, ordered by their local ids. When it is full, the next one thins them out."""

    __slots__ = ("_ids", "_max", "_numbers", "_read", "_snapshots")

    def __init__(self, snapshots_max: int) -> None:
        if snapshots_max < SNAPSHOTS_MIN:
            raise ValueError(f"a cache of {snapshots_max} snapshots is too small; keep at least {SNAPSHOTS_MIN}")
        self._max = snapshots_max
        self._snapshots: list[Snapshot] = []
        self._ids: list[MessageId] = []
        self._numbers: list[int] = []
        """Number of snapshots read before each one: they are taken at intervals, so this measures distance."""
        self._read = 0

    def __len__(self) -> int:
        return len(self._snapshots)

    @property
    def oldest(self) -> Snapshot | None:
        return self._snapshots[0] if self._snapshots else None

    @property
    def newest(self) -> Snapshot | None:
        return self._snapshots[-1] if self._snapshots else None

    def add(self, snapshot: Snapshot) -> None:
        """A snapshot's marker was read. One that lies before the newest is known already, or was thinned out."""
        if self._ids and snapshot.local_message_id <= self._ids[-1]:
            return
        self._snapshots.append(snapshot)
        self._ids.append(snapshot.local_message_id)
        self._numbers.append(self._read)
        self._read += 1
        if len(self._snapshots) > self._max:
            self._thin()

    def at_or_before(self, mark_delete: MessageId) -> Snapshot | None:
        """The newest snapshot that a subscription with this mark-delete position has passed."""
        count = bisect_right(self._ids, mark_delete)
        return self._snapshots[count - 1] if count else None

    def forget(self, mark_delete: MessageId) -> None:
        """Drop the snapshots that are passed."""
        count = bisect_right(self._ids, mark_delete)
        del self._snapshots[:count], self._ids[:count], self._numbers[:count]

    def clear(self) -> None:
        del self._snapshots[:], self._ids[:], self._numbers[:]

    def _thin(self) -> None:
        """Neither the oldest goes, which a lagging consumer reaches first, nor the newest."""
        numbers = self._numbers
        index = min(range(1, len(numbers) - 1), key=lambda each: numbers[each + 1] - numbers[each - 1])
        del self._snapshots[index], self._ids[index], numbers[index]

    def validate(self) -> None:
        assert len(self._snapshots) == len(self._ids) == len(self._numbers) <= self._max
        assert [each.local_message_id for each in self._snapshots] == self._ids
        assert all(first < second for first, second in pairwise(self._ids))
        assert all(first < second for first, second in pairwise(self._numbers))
        assert all(number < self._read for number in self._numbers)


class MoveCursor(NamedTuple):
    """Everything up to `position` was consumed elsewhere: mark it deleted here."""

    subscription: str
    position: Position


class CreateSubscription(NamedTuple):
    """There is no such subscription here: create it, replicated, with this mark-delete position.

    Not at the topic's end, as Pulsar does: what lies between was consumed by nobody.
    """

    subscription: str
    position: Position


CursorDecision: TypeAlias = MoveCursor | CreateSubscription | None


class ReplicatedSubscription:
    """The side that consumes. An update that comes out is a marker to write, for all clusters."""

    __slots__ = ("_cache", "_mark_delete", "_name", "_told")

    def __init__(self, name: str, snapshots_max: int, mark_delete: MessageId = EARLIEST) -> None:
        self._name = name
        self._cache = SnapshotCache(snapshots_max)
        self._mark_delete = mark_delete
        self._told: MessageId = EARLIEST
        """The local id of the last snapshot that the other clusters were told of, or told us."""

    @property
    def told(self) -> MessageId:
        return self._told

    @property
    def next_snapshot(self) -> Snapshot | None:
        """The first one that the consumers have yet to pass; None: none was read that they have not."""
        return self._cache.oldest

    def snapshot_read(self, snapshot: Snapshot) -> SubscriptionUpdate | None:
        """Reading on for the consumers has met a snapshot's marker."""
        self._cache.add(snapshot)
        return self._tell()

    def mark_deleted(self, position: MessageId) -> SubscriptionUpdate | None:
        """Acknowledgements have moved the cursor."""
        self._mark_delete = max(self._mark_delete, position)
        return self._tell()

    def moved_by_update(self, position: MessageId) -> None:
        """Another cluster's update has moved the cursor: it has told all others, nobody needs to hear it again."""
        self._mark_delete = max(self._mark_delete, position)
        passed = self._cache.at_or_before(self._mark_delete)
        if passed is not None:
            self._told = max(self._told, passed.local_message_id)
        self._cache.forget(self._mark_delete)

    def reset(self, position: MessageId) -> None:
        """A seek: the markers are read anew from there. Other clusters do not go back: PIP-33 has no such message."""
        self._mark_delete = position
        self._cache.clear()

    def _tell(self) -> SubscriptionUpdate | None:
        passed = self._cache.at_or_before(self._mark_delete)
        if passed is None:
            return None
        self._cache.forget(self._mark_delete)
        if passed.local_message_id <= self._told:
            return None
        self._told = passed.local_message_id
        return SubscriptionUpdate(self._name, passed.clusters)

    def validate(self) -> None:
        self._cache.validate()
        oldest = self._cache.oldest
        assert oldest is None or oldest.local_message_id > self._mark_delete


def decide(update: SubscriptionUpdate, cluster: str, mark_delete: MessageId | None) -> CursorDecision:
    """Decides what an update of another cluster changes in `cluster`, where the mark-delete position is `mark_delete` (None: no such
    subscription). Never back: an update that comes late, or twice, means nothing."""
    told = update.clusters.get(cluster)
    if told is None:
        return None
    position = Position(*told)
    if mark_delete is None:
        return CreateSubscription(update.subscription, position)
    return MoveCursor(update.subscription, position) if position > mark_delete else None
