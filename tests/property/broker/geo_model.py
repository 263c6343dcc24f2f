"""Clusters that replicate one topic among each other, as a pure model around the cores of replicated subscriptions.

A topic is a list. A link copies what its source's own clients and brokers wrote, in order; it can lag, stop, and send again what it
has sent. Nothing is deduplicated: what is sent again is stored again. Each step may come at any time. Whenever an update is decided
or applied, the model looks at all the logs, as no real cluster could, and raises Violation if a message would be skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from magnetar.broker.replication.replicated_subscription import (
    CreateSubscription,
    CursorDecision,
    ReplicatedSubscription,
    decide,
)
from magnetar.broker.replication.snapshot_builder import SnapshotBuilder, answer
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.markers import (
    Marker,
    MessageId,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
    decode,
    encode,
)

LEDGER_ENTRIES = 5
TIMEOUT_MS = 6000
SUBSCRIPTION = "s"
OPS = ["publish"] * 4 + ["link"] * 16 + ["write"] * 12 + ["tick"] * 6 + ["read"] * 8 + ["ack"] * 12 + ["pump"] * 8
OPS += ["cut"] * 2 + ["flip", "restart", "subscribe"]

Decide = Callable[[SubscriptionUpdate, str, MessageId | None], CursorDecision]


class Violation(AssertionError):
    """What the PIP promises does not hold."""


class Entry:
    """`body`: a message's number, or a marker. `only_to` as in MessageMetadata.replicate_to."""

    def __init__(self, origin: str, body: int | Marker, only_to: str | None) -> None:
        self.origin = origin
        self.body = body
        self.only_to = only_to


class Subscription:
    """What the broker of one region keeps; indexes into the region's log."""

    def __init__(self, region: Region, mark_delete: int, snapshots_max: int) -> None:
        self.region = region
        self.mark_delete = mark_delete
        self.read = mark_delete + 1
        self.outstanding: list[int] = []
        self.acked: set[int] = set()
        self.core = ReplicatedSubscription(SUBSCRIPTION, snapshots_max, region.position(mark_delete))


class Region:
    def __init__(self, model: Model, number: int) -> None:
        self.model = model
        self.number = number
        self.name = "abcdef"[number]
        self.log: list[Entry] = []
        self.outbox: list[tuple[Marker, str | None]] = []
        self.deaf = 0
        """Markers that are stored and then forgotten, by a broker that dies in between."""
        self.subscription: Subscription | None = None
        self.builder: SnapshotBuilder

    def position(self, index: int) -> Position:
        """Of entry `index`, -1 for the place in front of the first. No id is valid in two regions."""
        ledger_id, entry_id = divmod(index, LEDGER_ENTRIES) if index >= 0 else (0, -1)
        return Position(100 * (self.number + 1) + ledger_id, entry_id)

    def index(self, position: MessageId) -> int:
        ledger_id, entry_id = position
        index = (ledger_id - 100 * (self.number + 1)) * LEDGER_ENTRIES + entry_id
        if not -1 <= index < len(self.log):
            raise Violation(f"{self.name} has no position {position}")
        return index

    def messages(self, last: int) -> set[int]:
        """Up to and with entry `last`."""
        return {entry.body for entry in self.log[: last + 1] if isinstance(entry.body, int)}

    def start_builder(self, partial_after_ms: int | None) -> None:
        names = [other.name for other in self.model.regions]
        self.builder = self.model.builder(self.name, names, TIMEOUT_MS, partial_after_ms)
        for other in self.model.regions:
            if (self.name, other.name) in self.model.down:
                self.builder.disconnected(other.name, self.model.now_ms)


class Model:
    def __init__(
        self,
        count: int,
        builder: type[SnapshotBuilder] = SnapshotBuilder,
        decide_update: Decide = decide,
        partial_after_ms: int | None = None,
        snapshots_max: int = 4,
    ) -> None:
        self.builder = builder
        self.decide = decide_update
        self.partial_after_ms = partial_after_ms
        self.snapshots_max = snapshots_max
        self.now_ms = 0
        self.down: set[tuple[str, str]] = set()
        self.regions: list[Region] = [Region(self, number) for number in range(count)]
        self.by_name = {region.name: region for region in self.regions}
        self.sent = {(x.name, y.name): 0 for x in self.regions for y in self.regions if x is not y}
        """By link: how many entries of the source's log it has passed."""
        self.acknowledged: set[int] = set()
        self.moves = 0
        self.snapshots = 0
        self._messages = 0
        self._ids = 0
        for region in self.regions:
            region.start_builder(partial_after_ms)
        self.subscribe(self.regions[0])

    # ---- What can happen

    def step(self, op: str, i: int, j: int, k: int) -> None:
        """Any numbers mean something."""
        region = self.regions[i % len(self.regions)]
        other = self.regions[(i + 1 + j % (len(self.regions) - 1)) % len(self.regions)]
        match op:
            case "link" | "cut" | "flip":
                getattr(self, op)(region, other, k)
            case "read" | "ack" | "tick" | "restart" | "write":
                getattr(self, op)(region, k)
            case "publish" | "subscribe":
                getattr(self, op)(region)
            case _:
                self.pump(Random(i * 64 + j * 8 + k), k)
        self.validate()

    def publish(self, region: Region) -> int:
        self._messages += 1
        region.log.append(Entry(region.name, self._messages, None))
        return self._messages

    def link(self, source: Region, target: Region, count: int) -> None:
        name = (source.name, target.name)
        while count > 0 and name not in self.down and self.sent[name] < len(source.log):
            entry = source.log[self.sent[name]]
            self.sent[name] += 1
            if entry.origin == source.name and entry.only_to in (None, target.name):
                count -= 1
                target.log.append(Entry(source.name, entry.body, entry.only_to))
                self._arrived(target, entry.body)

    def cut(self, source: Region, target: Region, count: int) -> None:
        """The link's cursor was stored a while ago."""
        self.sent[source.name, target.name] = max(0, self.sent[source.name, target.name] - count)

    def flip(self, source: Region, target: Region, k: int) -> None:
        """Links that are down come back sooner than they go."""
        for x, y in sorted(self.down)[: k % 4]:
            self.start_link(self.by_name[x], self.by_name[y])
        if k < 4:
            self.stop_link(source, target)

    def stop_link(self, source: Region, target: Region) -> None:
        if (source.name, target.name) not in self.down:
            self.down.add((source.name, target.name))
            source.builder.disconnected(target.name, self.now_ms)

    def start_link(self, source: Region, target: Region) -> None:
        self.down.discard((source.name, target.name))
        source.builder.connected(target.name)

    def write(self, region: Region, k: int) -> None:
        """The oldest marker that waits is stored, or fails to be."""
        if not region.outbox:
            return
        marker, only_to = region.outbox.pop(0)
        if k == 7:
            if isinstance(marker, Snapshot | SnapshotRequest):
                region.builder.store_failed(marker.snapshot_id)
            return
        body = decode(encode(marker, self.now_ms, only_to))
        assert body == marker
        region.log.append(Entry(region.name, body, only_to))
        if isinstance(marker, Snapshot):
            self.snapshots += 1
            region.builder.snapshot_stored(marker.snapshot_id)

    def tick(self, region: Region, k: int) -> None:
        self.now_ms += 50 * k
        self._ids += 1
        published = sum(isinstance(entry.body, int) for entry in region.log)
        self._write_all(region, region.builder.tick(self.now_ms, published, f"id-{self._ids}"))

    def subscribe(self, region: Region) -> None:
        if region.subscription is None:
            region.subscription = Subscription(region, -1, self.snapshots_max)

    def read(self, region: Region, count: int) -> None:
        """Entries go to the consumer; a snapshot's marker to the cache."""
        subscription = region.subscription
        for _ in range(count if subscription is not None else 0):
            assert subscription is not None
            if subscription.read >= len(region.log):
                return
            index = subscription.read
            subscription.read += 1
            body = region.log[index].body
            if isinstance(body, int):
                subscription.outstanding.append(index)
                continue
            if isinstance(body, Snapshot):
                self._told(region, subscription.core.snapshot_read(body))
            subscription.acked.add(index)
            self._advance(subscription)

    def ack(self, region: Region, k: int) -> None:
        """Some messages, one in the order of the log, the next not."""
        subscription = region.subscription
        for _ in range(k if subscription is not None else 0):
            if subscription is None or not subscription.outstanding:
                return
            k += 1
            index = subscription.outstanding.pop(k % len(subscription.outstanding) if k % 2 else 0)
            body = region.log[index].body
            assert isinstance(body, int)
            self.acknowledged.add(body)
            subscription.acked.add(index)
            self._advance(subscription)

    def restart(self, region: Region, k: int) -> None:
        """Only what is stored survives."""
        region.outbox.clear()
        region.deaf = k % 3
        region.start_builder(self.partial_after_ms)
        old = region.subscription
        if old is not None:
            region.subscription = Subscription(region, old.mark_delete, self.snapshots_max)
            region.subscription.acked = {index for index in old.acked if index > old.mark_delete}

    def pump(self, rng: Random, count: int) -> None:
        """A stretch of ordinary work: all links, in some order, and all writes."""
        for name in rng.sample(sorted(self.sent), len(self.sent)):
            self.link(self.by_name[name[0]], self.by_name[name[1]], rng.randint(0, count))
            self.write(self.by_name[name[1]], 0)

    def settle(self) -> None:
        """Everything that is on its way arrives."""
        while any(region.outbox for region in self.regions) or any(
            sent < len(self.by_name[name[0]].log) for name, sent in self.sent.items() if name not in self.down
        ):
            self.pump(Random(1), 1000)

    # ---- What follows from it

    def _write_all(self, region: Region, decisions: Iterable[object]) -> None:
        for decision in decisions:
            if isinstance(decision, SnapshotRequest):
                region.outbox.append((decision, None))
            elif isinstance(decision, Snapshot):
                region.outbox.append((decision, region.name))

    def _arrived(self, region: Region, body: int | Marker) -> None:
        if isinstance(body, int):
            return
        if region.deaf:
            region.deaf -= 1
            return
        last = region.position(len(region.log) - 1)
        match body:
            case SnapshotRequest():
                response = answer(body, region.name, last)
                assert response is not None
                region.outbox.append((response, body.source_cluster))
            case SnapshotResponse():
                self._write_all(region, region.builder.response_received(body, last))
            case SubscriptionUpdate():
                self._update(region, body)

    def _advance(self, subscription: Subscription) -> None:
        region = subscription.region
        while (following := subscription.mark_delete + 1) in subscription.acked:
            subscription.acked.discard(following)
            subscription.mark_delete = following
        self._told(region, subscription.core.mark_deleted(region.position(subscription.mark_delete)))

    def _told(self, region: Region, update: SubscriptionUpdate | None) -> None:
        """Assert that everything up to where the source lets others go is consumed here."""
        if update is None:
            return
        assert region.subscription is not None
        consumed = region.messages(region.subscription.mark_delete)
        for name, message_id in update.clusters.items():
            target = self.by_name[name]
            skipped = target.messages(target.index(message_id)) - consumed
            if skipped:
                raise Violation(f"{region.name} lets {name} skip {skipped}")
        region.outbox.append((update, None))

    def _update(self, region: Region, update: SubscriptionUpdate) -> None:
        subscription = region.subscription
        mark_delete = None if subscription is None else region.position(subscription.mark_delete)
        decision = self.decide(update, region.name, mark_delete)
        if decision is None:
            return
        index = region.index(decision.position)
        self._moved(region, index)
        if region.messages(index) - self.acknowledged:
            raise Violation(f"{region.name} skips messages that nobody has acknowledged")
        if isinstance(decision, CreateSubscription):
            region.subscription = Subscription(region, index, self.snapshots_max)
            return
        assert subscription is not None
        if index < subscription.mark_delete:
            raise Violation(f"{region.name} goes back from {subscription.mark_delete} to {index}")
        subscription.mark_delete = index
        subscription.read = max(subscription.read, index + 1)
        subscription.outstanding = [each for each in subscription.outstanding if each > index]
        subscription.acked = {each for each in subscription.acked if each > index}
        subscription.core.moved_by_update(decision.position)
        self._advance(subscription)

    def _moved(self, region: Region, index: int) -> None:
        """The cursor goes to `index`, because another cluster says so."""
        self.moves += 1

    def validate(self) -> None:
        for region in self.regions:
            region.builder.validate()
            if region.subscription is not None:
                region.subscription.core.validate()


def play(model: Model, seed: int, steps: int) -> Model:
    """The same for the same seed."""
    rng = Random(seed)
    for _ in range(steps):
        model.step(rng.choice(OPS), rng.randrange(8), rng.randrange(8), rng.randrange(8))
    return model
