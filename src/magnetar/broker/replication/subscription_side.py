"""A replicated subscription where it is consumed: the core beside the cursor and the dispatcher that it listens to.

A message costs one comparison here, and only while a snapshot waits to be passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.replication.marker_log import marker_in
from magnetar.broker.replication.origin_log import origin_in
from magnetar.broker.replication.origins import runs_of
from magnetar.broker.replication.replicated_subscription import ReplicatedSubscription
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import EntryNotFoundError
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.wire.pulsar.markers import MessageId, Snapshot, SubscriptionUpdate
from magnetar.wire.pulsar.PulsarMarkers_pb2 import MarkerType

RANGES_MAX: Final = 10_000
"""Ranges of a cursor that are looked at, the first ones; what lies behind is told when the ranges before it have closed."""

ENTRIES_PER_UPDATE_MAX: Final = 20_000
"""Messages that one update tells of; the next one goes on."""

SNAPSHOT = int(MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT)


class OutgoingAcks:
    """Messages of one subscription that were acknowledged out of order, as other clusters are told of them: by name, each once.

    PIP-33 carries a position only. Messages behind it that are consumed already would be delivered again after a failover: any number
    of them, on a Shared subscription with one slow consumer. Call `again` when another cluster may have missed what was told.
    """

    def __init__(self, subscription: Subscription, ledger: ManagedLedger, cluster: str) -> None:
        self._subscription = subscription
        self._ledger = ledger
        self._cluster = cluster
        self._told: set[tuple[Position, Position]] = set()
        self._seen: tuple[Position, int] = EARLIEST, 0

    def again(self) -> None:
        self._told.clear()
        self._seen = EARLIEST, 0

    def followed(self) -> None:
        """Note that what is acknowledged now came from another cluster, which has told all."""
        if not self._subscription.consumers:
            self._told = set(self._subscription.cursor.individual_ranges(RANGES_MAX))

    @property
    def untold(self) -> int:
        """Entries acknowledged out of order of which the others do not know yet."""
        ranges = self._subscription.cursor.individual_ranges(RANGES_MAX)
        return sum(self._ledger.index.entries_between(*each) for each in ranges if each not in self._told)

    async def update(self) -> SubscriptionUpdate | None:
        """An update with what was acknowledged since the last one, None if that is nothing. Raises what reading raised."""
        cursor = self._subscription.cursor
        seen = cursor.mark_delete_position, cursor.acks.acked_count
        if seen == self._seen:
            return None
        complete = True
        held = cursor.individual_ranges(RANGES_MAX) if seen[1] else []
        told = self._told.intersection(held)
        found: dict[str, list[Position]] = {}
        left = ENTRIES_PER_UPDATE_MAX
        for each in held:
            if each in told:
                continue
            left -= self._ledger.index.entries_between(*each)
            if left < 0 and found:
                complete = False
                break
            await self._collect(*each, found)
            told.add(each)
        self._told = told
        if complete:
            self._seen = seen
        if not found:
            return None
        acknowledged = {cluster: runs_of(sorted(places)) for cluster, places in found.items()}
        return SubscriptionUpdate(self._subscription.name, {}, acknowledged)

    async def _collect(self, after: Position, upto: Position, found: dict[str, list[Position]]) -> None:
        position = self._ledger.next_position(after)
        while position <= upto:
            try:
                origin = origin_in(await self._ledger.read_entry(position))
            except EntryNotFoundError:
                origin = None
            if origin is not None and not origin.cluster:
                found.setdefault(self._cluster, []).append(position)
            elif origin is not None and origin.source is not None:
                found.setdefault(origin.cluster, []).append(origin.source)
            position = self._ledger.next_position(position)


Tell = Callable[[SubscriptionUpdate], None]


class SubscriptionSide:
    """`tell` writes an update. Give the subscription back with `detach`."""

    def __init__(self, subscription: Subscription, snapshots_max: int, tell: Tell, acks: OutgoingAcks) -> None:
        self.subscription = subscription
        self.acks = acks
        self._tell = tell
        self._following = False
        self._told_once = False
        self._newest: Snapshot | None = None
        self._mark_delete: Position = subscription.cursor.mark_delete_position
        self._core = ReplicatedSubscription(subscription.name, snapshots_max, self._mark_delete)
        self._next: MessageId = LATEST
        """Position of the next snapshot to pass."""
        subscription.cursor.moved = self._moved
        subscription.dispatch.on_markers(self._markers_read)

    def detach(self) -> None:
        self.subscription.cursor.moved = None
        self.subscription.dispatch.on_markers(None)

    @property
    def next_snapshot(self) -> Snapshot | None:
        return self._core.next_snapshot

    @property
    def told(self) -> MessageId:
        """The local id of the last snapshot that the others know of; before everything: of none."""
        return self._core.told

    def snapshot_stored(self, snapshot: Snapshot) -> None:
        """The topic's newest one. Who has consumed as much has passed it, whether or not its marker was read: an update or an
        operator may have acknowledged the marker."""
        self._newest = snapshot
        if self._mark_delete >= snapshot.local_message_id:
            self._snapshot_read(snapshot)
        else:
            self._look_ahead()

    def _snapshot_read(self, snapshot: Snapshot) -> None:
        passed = self._core.mark_deleted(self._mark_delete)
        self._out(self._core.snapshot_read(snapshot) or passed)

    def follow(self, move: Callable[[], None], quiet: bool = True) -> None:
        """`move` acknowledges what another cluster's update says. It was told to all, but for messages that its sender never had:
        with those consumed here the others must hear it from here, and `quiet` is false."""
        self._following = True
        try:
            move()
        finally:
            self._following = False
        self.acks.followed()
        if not quiet:
            self._moved()
            return
        self._mark_delete = self.subscription.cursor.mark_delete_position
        if self._newest is not None and self._mark_delete >= self._newest.local_message_id:
            self._newest = None
        self._core.moved_by_update(self._mark_delete)
        self._look_ahead()

    def _markers_read(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if metadata_of(entry).marker_type == SNAPSHOT:
                marker = marker_in(entry)
                if isinstance(marker, Snapshot):
                    self._snapshot_read(marker)

    def _moved(self) -> None:
        if self._following:
            return
        mark_delete = self.subscription.cursor.mark_delete_position
        if mark_delete < self._mark_delete:
            self._core.reset(mark_delete)
            self._look_ahead()
        self._mark_delete = mark_delete
        if mark_delete < self._next:
            return
        newest = self._newest
        if newest is not None and mark_delete >= newest.local_message_id:
            self._snapshot_read(newest)
        else:
            self._out(self._core.mark_deleted(mark_delete))

    def _out(self, update: SubscriptionUpdate | None) -> None:
        self._look_ahead()
        if update is None:
            return
        if not self._told_once:
            self._told_once = True
            self.acks.again()  # the others may not have had the subscription
        self._tell(update)

    def _look_ahead(self) -> None:
        following, newest = self._core.next_snapshot, self._newest
        self._next = LATEST if following is None else following.local_message_id
        if newest is not None and newest.local_message_id > self._core.told:
            self._next = min(self._next, newest.local_message_id)
