"""What holds for a scalable topic, checked while a run goes on: by what its clients see, and at each write of its record."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.naming import TopicName
from magnetar.broker.scalable.layout import LayoutError, SegmentLayout
from magnetar.broker.scalable.records import TopicRecord, controller_path, path_of
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.messaging.promises import (
    ACKNOWLEDGED,
    KEPT,
    KEY_ORDER,
    STORED,
    Name,
    Place,
    Promises,
    TopicHistory,
    name_of_payload,
)
from magnetar.testing.sim.messaging.promises import SubscriptionHistory as Subscription
from magnetar.testing.sim.metadata import MetadataService, run_now
from magnetar.wire.pulsar.MLDataFormats_pb2 import ManagedLedgerInfo

LAYOUT: Final = "S1 active segments tile the ring, an id is given once, an epoch belongs to one layout"
LEADER: Final = "S2 only the broker that controls the topic writes its layout"
CURSORS: Final = "S3 a segment that takes messages has a cursor of every subscription"
ANCESTORS: Final = "S4 a stream gets nothing of a segment before all of its ancestors are acknowledged"
SEALED: Final = "S5 a segment that is terminated is sealed in the end"

Spot = tuple[int, int]
"""Ledger and entry."""


@dataclass
class SegmentHistory:
    """Entries of one segment that have a receipt, with how many messages each holds."""

    stored: set[Spot] = field(default_factory=set)


@dataclass
class ReaderHistory:
    """What one durable subscription has been sent and has acknowledged, by segment."""

    acknowledged: dict[int, set[Spot]] = field(default_factory=lambda: defaultdict(set))
    """An acknowledgement was sent, whatever became of it."""
    up_to: dict[int, Spot] = field(default_factory=dict)
    """The same, cumulatively."""
    arrived: dict[int, set[Spot]] = field(default_factory=lambda: defaultdict(set))
    settled_s: dict[Spot, float] = field(default_factory=dict)
    """When the receipt of its acknowledgement came."""

    def has_sent(self, segment_id: int, spot: Spot) -> bool:
        return spot in self.acknowledged[segment_id] or self.up_to.get(segment_id, (-1, -1)) >= spot


class ScalablePromises:
    """One scalable topic. `promises` are those of all topics; `topic` and its subscriptions belong to them."""

    def __init__(self, promises: Promises, metadata: MetadataService, name: TopicName, keeper: str | None) -> None:
        self._promises = promises
        self._metadata = metadata
        self.name = name
        self.topic = TopicHistory(str(name), deduplicated=False)
        promises.topics[str(name)] = self.topic
        self._path, self._controller_path = path_of(name), controller_path(name)
        self._record: TopicRecord | None = None
        self._segments: dict[int, SegmentHistory] = defaultdict(SegmentHistory)
        self._readers: dict[str, ReaderHistory] = {}
        self._keeper = keeper
        self._ancestors: dict[int, frozenset[int]] = {}
        self._descriptors: dict[int, str] = {}

    # ---- Subscriptions

    def durable(self, subscription: Subscription) -> None:
        """From now on it has to get everything."""
        self._readers[subscription.name] = ReaderHistory()

    # ---- Clients

    def stored(self, segment_id: int, name: Name, place: Place) -> None:
        """A producer has the receipt of a message."""
        self._segments[segment_id].stored.add(place[:2])
        self._promises.receipt(self.topic, name, place)

    def arrived(self, subscription: str, segment_id: int, spot: Spot, consumer: str, sent_s: float) -> None:
        """An entry has come to a consumer; the broker sent it at `sent_s`."""
        self._promises.history.count("deliveries")
        reader = self._readers.get(subscription)
        if reader is None:
            return
        reader.arrived[segment_id].add(spot)
        settled_s = reader.settled_s.get(spot)
        if settled_s is not None and sent_s > settled_s:
            self._promises.violate(
                ACKNOWLEDGED, f"{subscription}: {spot} of segment {segment_id} came to {consumer} although acknowledged"
            )
        if subscription.startswith("stream"):
            for ancestor in self._ancestors.get(segment_id, ()):
                left = self._unread(reader, ancestor)
                if left:
                    self._promises.violate(
                        ANCESTORS,
                        f"{subscription}: {spot} of segment {segment_id} came to {consumer} while {left[:3]} of its ancestor {ancestor} "
                        "are not acknowledged",
                    )

    def _unread(self, reader: ReaderHistory, segment_id: int) -> list[Spot]:
        stored = self._segments[segment_id].stored if segment_id in self._segments else ()
        return sorted(spot for spot in stored if not reader.has_sent(segment_id, spot))

    def acknowledges(self, subscription: str, segment_id: int, spots: list[Spot], cumulative: bool) -> None:
        """A consumer sends an acknowledgement."""
        reader = self._readers.get(subscription)
        if reader is None:
            return
        if cumulative:
            reader.up_to[segment_id] = max(spots[-1], reader.up_to.get(segment_id, (-1, -1)))
        else:
            reader.acknowledged[segment_id].update(spots)

    def settles(self, subscription: str, segment_id: int, spots: list[Spot], cumulative: bool) -> None:
        """And has its receipt."""
        reader = self._readers.get(subscription)
        if reader is None:
            return
        if cumulative:
            spots = [spot for spot in reader.arrived[segment_id] if spot <= spots[-1]]
        self._promises.history.count("acknowledgements confirmed", len(spots))
        now_s = self._promises.now_s()
        for spot in spots:
            reader.settled_s.setdefault(spot, now_s)

    def received(self, subscription: Subscription, place: Place, payload: bytes, who: str) -> None:
        """An application has taken a message out of its consumer."""
        self._promises.taken(self.topic, subscription, place, payload, who)

    def check_stored(self, entries: list[tuple[Place, bytes]]) -> None:
        """All that the topic holds, read from its beginning, children after their parents."""
        topic, promises = self.topic, self._promises
        places: dict[Name, list[Place]] = {}
        newest: dict[tuple[str, str], int] = {}
        for place, payload in entries:
            name, key = name_of_payload(payload)
            if topic.sent.get(name) != payload:
                promises.violate(STORED, f"{place} does not hold what {name} has sent")
            if name not in places:
                scope = (name.producer, key)
                if name.number < newest.get(scope, -1):
                    promises.violate(KEY_ORDER, f"{name} of key {key} is stored behind number {newest[scope]}")
                newest[scope] = max(newest.get(scope, -1), name.number)
            places.setdefault(name, []).append(place)
        for name, receipt in topic.receipts.items():
            if receipt not in places.get(name, ()):
                promises.violate(STORED, f"{name} has a receipt for {receipt} and is stored at {places.get(name)}")
        promises.history.count("messages read at the end", len(entries))

    # ---- The record

    def changed(self, process: Process, operation: str, path: str) -> None:
        """The metadata service has done something for a process."""
        if operation != "put" or path != self._path:
            return
        node = run_now(self._metadata.eyes.get(path))
        assert node is not None
        try:
            record = TopicRecord.from_json(json.loads(node.value))
        except LayoutError as error:
            self._promises.violate(LAYOUT, f"{process} wrote {node.value[:200]!r}: {error}")
            return
        before, self._record = self._record, record
        for segment in record.layout.segments.values():
            self._descriptors[segment.id] = segment.descriptor
            if segment.id not in self._ancestors:
                # the parents' own ancestors stay known when the parents are forgotten
                found = set(segment.parents).union(*(self._ancestors.get(each, ()) for each in segment.parents))
                self._ancestors[segment.id] = frozenset(found)
        if before is None:
            return
        if (before.layout, before.pending, before.doomed) != (record.layout, record.pending, record.doomed):
            self._check_leader(process)
        if before.layout != record.layout:
            self._promises.history.count("layouts")
            self._check_layout(before.layout, record.layout)
            self._check_cursors(record.layout)
            self._check_deleted(before.layout, record.layout)

    def _check_leader(self, process: Process) -> None:
        node = run_now(self._metadata.eyes.get(self._controller_path))
        if node is None or node.owner is None or self._metadata.owners.get(node.owner) is not process:
            self._promises.violate(LEADER, f"{process} wrote the layout; the controller is {node and node.value!r}")

    def _check_layout(self, before: SegmentLayout, after: SegmentLayout) -> None:
        if after.epoch <= before.epoch:
            self._promises.violate(LAYOUT, f"epoch {after.epoch} follows {before.epoch} for another layout")
        for number, segment in after.segments.items():
            known = before.segments.get(number)
            if known is None and number < before.next_id:
                self._promises.violate(LAYOUT, f"id {number} was given once before: the next one was {before.next_id}")
            if known is not None and (known.start, known.end) != (segment.start, segment.end):
                self._promises.violate(LAYOUT, f"segment {number} was {known.descriptor} and is {segment.descriptor}")
            if known is not None and segment.active and not known.active:
                self._promises.violate(LAYOUT, f"segment {number} was sealed and is active again")
        if after.next_id < before.next_id:
            self._promises.violate(LAYOUT, f"the next id was {before.next_id} and is {after.next_id}")

    def _ledger_path(self, segment_id: int) -> str:
        name = self.name
        return (
            f"/managed-ledgers/{name.tenant}/{name.namespace}/segment/{name.local_name}/{self._descriptors[segment_id]}"
        )

    def _check_cursors(self, layout: SegmentLayout) -> None:
        wanted = {*self._readers, *([self._keeper] if self._keeper else [])}
        for segment in layout.active:
            found = set(run_now(self._metadata.eyes.children(self._ledger_path(segment.id))))
            if not wanted <= found:
                self._promises.violate(
                    CURSORS, f"segment {segment.id} has cursors of {sorted(found)}, not {sorted(wanted)}"
                )

    def _check_deleted(self, before: SegmentLayout, after: SegmentLayout) -> None:
        for number in sorted(set(before.segments) - set(after.segments)):
            self._promises.history.count("sealed segments deleted")
            for subscription, reader in self._readers.items():
                left = self._unread(reader, number)
                if left:
                    self._promises.violate(
                        KEPT, f"segment {number} is deleted and {subscription} has not read {left[:3]}"
                    )

    def unsealed(self) -> list[str]:
        """Active segments that take no messages: ranges of keys that nobody can write."""
        found = []
        for segment in self._record.layout.active if self._record is not None else ():
            node = run_now(self._metadata.eyes.get(self._ledger_path(segment.id)))
            if node is None:
                found.append(f"segment {segment.id} is not there")
            elif ManagedLedgerInfo.FromString(node.value).HasField("terminatedPosition"):
                found.append(f"segment {segment.id} is terminated")
        return found

    @property
    def layout(self) -> SegmentLayout:
        assert self._record is not None
        return self._record.layout
