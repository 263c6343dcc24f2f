"""Deliberate bugs in replication between clusters, patched into the running code. Each undoes one rule that a promise rests on.

Every one has a script, a fixed scenario that catches it, and a focus: a change of the seeds' own configurations in which its rule matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from magnetar.broker.replication import incoming
from magnetar.broker.replication.replicated_subscription import (
    CreateSubscription,
    CursorDecision,
    MoveCursor,
    ReplicatedSubscription,
    decide,
)
from magnetar.broker.replication.replicated_subscriptions import ReplicatedSubscriptions
from magnetar.broker.replication.snapshot_builder import SnapshotBuilder
from magnetar.broker.replicators import outgoing
from magnetar.broker.replicators.link import Link
from magnetar.broker.replicators.names import REPLICATOR_PREFIX, SOURCE_POSITION_PROPERTY
from magnetar.broker.topics.deduplication import Deduplicator, DuplicateStatus
from magnetar.broker.topics.topic_deduplication import DedupCursor
from magnetar.managed_ledger.position import Position
from magnetar.testing.sim.geo.scenario import GeoScenario
from magnetar.testing.sim.mutations import patch_attribute
from magnetar.wire.pulsar.markers import Snapshot, SnapshotRequest, SubscriptionUpdate

Patch = Callable[[ExitStack], None]


class Mutation(NamedTuple):
    """One deliberate bug. `script` and `focus`: fields of the scenario; `broker` is merged into the other settings."""

    patch: Patch
    script: Mapping[str, Any]
    focus: Mapping[str, Any]


MUTATIONS: dict[str, Mutation] = {}
"""By name."""

BROKER: Final[Mapping[str, Any]] = {
    "managed_ledger_ensemble_size": 2,
    "managed_ledger_write_quorum": 2,
    "managed_ledger_ack_quorum": 2,
    "load_balancer_enabled": False,
    "transaction_coordinator_enabled": False,
    "replication_start_at": "earliest",
    "replicated_subscriptions_snapshot_frequency_ms": 50,
}


def script_of(name: str) -> GeoScenario:
    """Two sites with a producer each, a subscription that is consumed in the one and then in the other, and what the bug's script says."""
    fields = dict(MUTATIONS[name].script)
    base = GeoScenario(
        name,
        bookies=2,
        brokers=1,
        producers=1,
        subscriptions=(("Exclusive", 1),),
        duration_s=3.0,
        messages_max=150,
        gap_s=0.02,
        failovers=((1.5, "east"), (3.0, "west")),
        broker={**BROKER, **fields.pop("broker", {})},
    )
    return replace(base, **fields)


def focused(scenario: GeoScenario, name: str) -> GeoScenario:
    """The scenario, changed so that the rule which the bug undoes matters."""
    focus = dict(MUTATIONS[name].focus)
    broker = {**scenario.broker, **focus.pop("broker", {})}
    return replace(scenario, broker=broker, **focus)


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The bug is in the code while this lasts."""
    with ExitStack() as stack:
        MUTATIONS[name].patch(stack)
        yield


def _mutation(name: str, script: Mapping[str, Any], focus: Mapping[str, Any]) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        MUTATIONS[name] = Mutation(patch, script, focus)
        return patch

    return register


CALM: Final[Mapping[str, Any]] = {"faults": (), "aims": (), "site_faults": ()}

BROKEN_LINKS: Final[Mapping[str, Any]] = {
    "site_faults": ("site reset", "site cut"),
    "site_fault_gap_s": 0.3,
    "outage_s": 0.3,
    "gap_s": 0.005,
    "far_s": 0.02,
    "keeper": True,
}
"""Entries are on their way whenever a link breaks."""

BROKEN_SCRIPT: Final[Mapping[str, Any]] = {**BROKEN_LINKS, "gap_s": 0.02, "far_s": 0.1, "messages_max": 240}

TRAVEL: Final[Mapping[str, Any]] = {
    **CALM,
    "subscriptions": (("Exclusive", 1),),
    "far_s": 0.05,
    "gap_s": 0.01,
    "failover_gap_s": 0.3,
    "quiet_sites": (),
    "broker": {
        "replicated_subscriptions_snapshot_frequency_ms": 50,
        "replicated_subscriptions_snapshot_timeout_s": 30,
        "replication_producer_queue_size": 1000,
    },
}
"""A subscription changes its site all the time, far from the others."""

TRAVEL_SCRIPT: Final[Mapping[str, Any]] = {
    "far_s": 0.05,
    "gap_s": 0.01,
    "messages_max": 300,
    "duration_s": 4.0,
    "failovers": tuple((1.0 + each * 0.2, "east" if each % 2 == 0 else "west") for each in range(13)),
}

LONG_STAYS: Final[Mapping[str, Any]] = {
    "far_s": 0.1,
    "gap_s": 0.02,
    "work_s": 0.0,
    "messages_max": 500,
    "duration_s": 6.0,
    "failovers": tuple((1.0 + each * 0.5, "east" if each % 2 == 0 else "west") for each in range(10)),
}

BEHIND_SCRIPT: Final[Mapping[str, Any]] = {
    "far_s": 0.2,
    "work_s": 0.03,
    "queue": 100,
    "gap_s": 0.04,
    "messages_max": 400,
    "duration_s": 8.0,
    "failovers": ((5.0, ""), (6.0, "east")),
}
"""Consumers are behind what arrives when they leave for good."""

LAZY: Final[Mapping[str, Any]] = {"hoard": 1.0, "queue": 100, "work_s": 0.0, "leave": 0.0}
"""Consumers read far ahead of what they acknowledge."""


# ---- Messages


@_mutation("a replicator's cursor moves before the other cluster has stored", BROKEN_SCRIPT, {**CALM, **BROKEN_LINKS})
def _moved_too_soon(stack: ExitStack) -> None:
    original = Link._send

    def send(self: Any, producer: Any, position: Position, entry: Any) -> None:
        original(self, producer, position, entry)
        if self.failure is None:
            self._done(position)

    patch_attribute(stack, Link, "_send", send)


@_mutation("what came from another cluster is sent on", {}, CALM)
def _sent_on(stack: ExitStack) -> None:
    """Once: a run has to come to an end."""
    original = outgoing._skip

    def skip(metadata: Any, remote: str) -> Any:
        places = sum(pair.key == SOURCE_POSITION_PROPERTY for pair in metadata.properties)
        if metadata.replicated_from and places == 1 and not metadata.HasField("marker_type"):
            return None
        return original(metadata, remote)

    patch_attribute(stack, outgoing, "_skip", skip)


@_mutation("a link goes on where the one before had read to", BROKEN_LINKS, {**CALM, **BROKEN_LINKS})
def _not_rewound(stack: ExitStack) -> None:
    def start(self: Any, producer: Any) -> None:
        self._producer = producer
        self._common.link = self
        self.wake()

    patch_attribute(stack, Link, "start", start)


@_mutation("what a replicator sends again is stored again", BROKEN_LINKS, {**CALM, **BROKEN_LINKS})
def _stored_again(stack: ExitStack) -> None:
    original = Deduplicator.check

    def check(self: Any, producer: str, last_sequence_id: int) -> DuplicateStatus:
        if producer.startswith(REPLICATOR_PREFIX):
            return DuplicateStatus.NEW
        return original(self, producer, last_sequence_id)

    patch_attribute(stack, Deduplicator, "check", check)


@_mutation(
    "a broker that takes the topic over does not know what has come",
    {
        **BROKEN_SCRIPT,
        "far_s": 0.02,
        "faults": ("client kill",),
        "only_brokers": True,
        "fault_gap_s": 0.5,
        "outage_s": 0.2,
    },
    {**CALM, **BROKEN_LINKS, "faults": ("client kill",), "only_brokers": True, "fault_gap_s": 0.5, "outage_s": 0.2},
)
def _places_forgotten(stack: ExitStack) -> None:
    """Neither from the snapshot nor from what was stored behind it."""
    patch_attribute(stack, Deduplicator, "restore", lambda self, watermarks: None)
    patch_attribute(stack, DedupCursor, "_replay", lambda self, entry, producers: None)


# ---- Subscriptions


@_mutation(
    "a snapshot's place is taken when its request is stored",
    BEHIND_SCRIPT,
    {
        **TRAVEL,
        **{field: value for field, value in BEHIND_SCRIPT.items() if field != "failovers"},
        "sites": 2,
        "failover_gap_s": 3.0,
        "between_s": 1.0,
        "hoard": 0.0,
        "leave": 0.0,
    },
)
def _early_place(stack: ExitStack) -> None:
    """What the other clusters had by their answers may still be on its way here then."""
    written, received = ReplicatedSubscriptions._written, SnapshotBuilder.response_received
    asked: dict[str, Position] = {}

    def note(self: Any, marker: Any, error: Any, ledger_id: int, entry_id: int) -> None:
        if isinstance(marker, SnapshotRequest):
            asked[marker.snapshot_id.removesuffix("/2")] = Position(ledger_id, entry_id)
        written(self, marker, error, ledger_id, entry_id)

    def response_received(self: Any, response: Any, position: Any) -> list[Any]:
        return [
            each._replace(local_message_id=asked.get(each.snapshot_id, position))
            if isinstance(each, Snapshot)
            else each
            for each in received(self, response, position)
        ]

    patch_attribute(stack, ReplicatedSubscriptions, "_written", note)
    patch_attribute(stack, SnapshotBuilder, "response_received", response_received)


@_mutation("a snapshot is told when it is read", {**TRAVEL_SCRIPT, **LAZY}, {**TRAVEL, **LAZY})
def _told_too_soon(stack: ExitStack) -> None:
    """And not when everything before it is acknowledged."""

    def tell(self: Any) -> SubscriptionUpdate | None:
        read = self._cache.newest
        if read is None or read.local_message_id <= self._told:
            return None
        self._told = read.local_message_id
        return SubscriptionUpdate(self._name, read.clusters)

    patch_attribute(stack, ReplicatedSubscription, "_tell", tell)


@_mutation(
    "single acknowledgements are taken for places in this log",
    {**TRAVEL_SCRIPT, **LAZY, "subscriptions": (("Shared", 2),), "hoard": 0.3},
    {**TRAVEL, **LAZY, "subscriptions": (("Shared", 2),), "hoard": 0.3},
)
def _not_named(stack: ExitStack) -> None:
    """Each log has places of its own; a message is named by the cluster where it was published."""
    original = incoming.Incoming._apply

    async def applied(self: Any, update: SubscriptionUpdate, sender: str) -> None:
        runs = tuple(run for each in update.acknowledged.values() for run in each)
        await original(self, update._replace(acknowledged={self._context.cluster: runs} if runs else {}), sender)

    patch_attribute(stack, incoming.Incoming, "_apply", applied)


@_mutation(
    "an update moves a cursor back",
    {**LONG_STAYS, "receipts": 1.0},
    {
        **TRAVEL,
        **{field: value for field, value in LONG_STAYS.items() if field != "failovers"},
        "receipts": 1.0,
        "failover_gap_s": 0.5,
        "between_s": 0.0,
        "queue": 10,
        "hoard": 0.0,
        "leave": 0.0,
    },
)
def _backwards(stack: ExitStack) -> None:
    def decided(update: SubscriptionUpdate, cluster: str, mark_delete: Any) -> CursorDecision:
        found = decide(update, cluster, mark_delete)
        told = update.clusters.get(cluster)
        return MoveCursor(update.subscription, Position(*told)) if found is None and told is not None else found

    original = incoming.Incoming._move

    async def move(self: Any, subscription: Any, position: Position, sender: str) -> None:
        if position < subscription.cursor.mark_delete_position:
            await subscription.seek(self._ledger.next_position(position))
            return
        await original(self, subscription, position, sender)

    patch_attribute(stack, incoming, "decide", decided)
    patch_attribute(stack, incoming.Incoming, "_move", move)


@_mutation(
    "a subscription that an update creates begins at the end",
    {**BEHIND_SCRIPT, "everywhere": False},
    {
        **CALM,
        **{field: value for field, value in BEHIND_SCRIPT.items() if field != "failovers"},
        "sites": 2,
        "everywhere": False,
        "keeper": True,
        "far_s": 0.05,
        "failover_gap_s": 4.0,
        "between_s": 1.0,
        "hoard": 0.0,
        "leave": 0.0,
    },
)
def _created_at_the_end(stack: ExitStack) -> None:
    """As in Pulsar."""
    original = incoming.Incoming._create

    async def create(self: Any, decision: CreateSubscription) -> Any:
        return await original(self, decision._replace(position=self._ledger.last_confirmed))

    patch_attribute(stack, incoming.Incoming, "_create", create)


@_mutation("updates are not applied", {"failovers": ((1.0, "west"),)}, {**CALM, "failover_gap_s": 100.0})
def _not_applied(stack: ExitStack) -> None:
    async def applied(self: Any, update: SubscriptionUpdate, sender: str) -> None:
        return None

    patch_attribute(stack, incoming.Incoming, "_apply", applied)
