"""One replicated subscription: when its progress is told to the other clusters, and what their news mean for it (PIP-33). Pure."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from magnetar.broker.replication.snapshot_cache import SnapshotCache
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.wire.pulsar.markers import MessageId, Snapshot, SubscriptionUpdate


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
    """What another cluster's update means in `cluster`, where the subscription's mark-delete position is this (None: no such
    subscription). Never back: an update that comes late, or twice, means nothing."""
    told = update.clusters.get(cluster)
    if told is None:
        return None
    position = Position(*told)
    if mark_delete is None:
        return CreateSubscription(update.subscription, position)
    return MoveCursor(update.subscription, position) if position > mark_delete else None
