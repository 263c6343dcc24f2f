"""What clusters that replicate to each other did, as the events of ReplicatedSubscriptions.tla.

The clusters are those of tests/property/broker/geo_model: topics and links in memory around the real cores of snapshots and of the
subscription. A trace begins with `("clusters", count)`. `("publish", r)`, `("copy", from, to)` and `("back", from, to, passed)` are about
logs and links, `("request", r, id, round)`, `("answer", r, to, id, round, place)`, `("snapshot", r, id, place, places by cluster)` and
`("update", r, places by cluster)` about markers when they are stored, `("ack", r, place)`, `("consumed", r, place)` and
`("move", r, place)` about the subscription. Clusters and places are numbered from 1, 0 is the place before the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from magnetar.broker.replication.snapshot_builder import SECOND_ROUND
from magnetar.wire.pulsar.markers import (
    Marker,
    MessageId,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
)
from tests.models.recording import Numbers, Trace
from tests.property.broker.geo_model import Model, Region, Subscription, Violation, play

STEPS = 400


class RecordedModel(Model):
    """Every change of it is an event."""

    def __init__(self, count: int, *words: Any, **more: Any) -> None:
        self.trace: Trace = [("clusters", count)]
        self._ids_seen = Numbers()
        self._noted: dict[int, set[int]] = {}
        self._copying = 0, 0
        super().__init__(count, *words, **more)

    # ---- Numbers

    def _number(self, name: str) -> int:
        return self.by_name[name].number + 1

    def _place(self, region: Region, position: MessageId) -> int:
        return region.index(position) + 1

    def _places(self, ids: Mapping[str, MessageId]) -> list[int]:
        return [self._place(each, ids[each.name]) if each.name in ids else 0 for each in self.regions]

    # ---- Events

    def publish(self, region: Region) -> int:
        self.trace.append(("publish", region.number + 1))
        return super().publish(region)

    def link(self, source: Region, target: Region, count: int) -> None:
        """One entry at a time, so that what an arrival brings about comes after it and before the next one."""
        while count > 0:
            before = len(target.log)
            self._copying = source.number + 1, target.number + 1
            super().link(source, target, 1)
            if len(target.log) == before:
                return
            count -= 1

    def _arrived(self, region: Region, body: int | Marker) -> None:
        self.trace.append(("copy", *self._copying))
        super()._arrived(region, body)

    def cut(self, source: Region, target: Region, count: int) -> None:
        super().cut(source, target, count)
        passed = self.sent[source.name, target.name]
        self.trace.append(("back", source.number + 1, target.number + 1, passed))

    def write(self, region: Region, k: int) -> None:
        """The event comes first: what a marker brings about when it is stored follows it."""
        if region.outbox and k != 7:
            marker, only_to = region.outbox[0]
            self.trace.append(self._written(region.number + 1, marker, only_to))
        super().write(region, k)

    def _written(self, number: int, marker: Marker, only_to: str | None) -> tuple[Any, ...]:
        region = self.regions[number - 1]
        match marker:
            case SnapshotRequest(snapshot_id):
                return ("request", number, *self._round(snapshot_id))
            case SnapshotResponse(snapshot_id, _, message_id):
                assert only_to is not None
                place = self._place(region, message_id)
                return ("answer", number, self._number(only_to), *self._round(snapshot_id), place)
            case Snapshot(snapshot_id, local, clusters):
                ids = self._places(clusters)
                return ("snapshot", number, self._round(snapshot_id)[0], self._place(region, local), ids)
            case SubscriptionUpdate():
                return ("update", number, self._places(marker.clusters))
        raise TypeError(f"no event is known for {marker}")

    def _round(self, snapshot_id: str) -> tuple[int, int]:
        first = snapshot_id.removesuffix(SECOND_ROUND)
        return self._ids_seen[first], 1 if first == snapshot_id else 2

    def _advance(self, subscription: Subscription) -> None:
        region, before = subscription.region, subscription.mark_delete
        fresh = {index for index in subscription.acked if isinstance(region.log[index].body, int)}
        noted = self._noted.setdefault(region.number, set())
        self.trace += [("ack", region.number + 1, index + 1) for index in sorted(fresh - noted)]
        noted |= fresh
        upto = before
        while upto + 1 in subscription.acked:
            upto += 1
        if upto > before:
            self.trace.append(("consumed", region.number + 1, upto + 1))
        super()._advance(subscription)

    def _told(self, region: Region, update: SubscriptionUpdate | None) -> None:
        """Written, whether it is right or not: that is for the model to say."""
        if update is not None:
            region.outbox.append((update, None))

    def _moved(self, region: Region, index: int) -> None:
        self.trace.append(("move", region.number + 1, index + 1))
        super()._moved(region, index)


def clusters_of(seed: str, count: int = 0, steps: int = STEPS, **words: Any) -> Trace:
    """The trace of a seed's clusters, two to six unless `count` says how many; as far as it comes if a message is skipped."""
    model = RecordedModel(count or 2 + int(seed) % 5, **words)
    with suppress(Violation):
        play(model, int(seed), steps)
    return model.trace
