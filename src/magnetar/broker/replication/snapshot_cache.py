"""The snapshots that a subscription has read and not yet passed: few, and spread over all that it lags behind. Pure.

Dropping the oldest ones when there are too many (what Pulsar #24300 reports) leaves a consumer that acknowledges far behind what
it reads with none that it could ever reach. Here one in the middle goes, the one whose loss leaves the smallest gap.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

from magnetar.wire.pulsar.markers import MessageId, Snapshot

SNAPSHOTS_MIN: Final = 3
"""A smaller cache has no middle to thin out."""


class SnapshotCache:
    """At most `snapshots_max` snapshots, ordered by their local ids. When it is full, the next one thins them out."""

    __slots__ = ("_ids", "_max", "_numbers", "_read", "_snapshots")

    def __init__(self, snapshots_max: int) -> None:
        if snapshots_max < SNAPSHOTS_MIN:
            raise ValueError(f"a cache of {snapshots_max} snapshots is too small; keep at least {SNAPSHOTS_MIN}")
        self._max = snapshots_max
        self._snapshots: list[Snapshot] = []
        self._ids: list[MessageId] = []
        self._numbers: list[int] = []
        """How many snapshots had been read when each was: they are taken at intervals, so this measures distance."""
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
