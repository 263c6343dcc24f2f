"""Deliberate bugs in the broker's layers, patched into the running code. Each undoes one rule that a promise rests on.

Every mutation has a `focus`: the configuration in which the rule matters, as a change of the seeds' own ones. Search with the
seeds as they are takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.lanes import Draining, Lanes
from magnetar.broker.dispatch.receiver import HELD_SLOT_MASK
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.dispatch.turns import DispatchTurns
from magnetar.broker.topics import topic_deduplication
from magnetar.broker.topics.deduplication import Deduplicator, DuplicateStatus
from magnetar.managed_ledger import handover
from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.cursor import registry
from magnetar.managed_ledger.cursor.codec import CursorState
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.cursor.persister import CursorPersister
from magnetar.managed_ledger.cursor.store import CursorStore
from magnetar.managed_ledger.ledger_index import LedgerSummary
from magnetar.managed_ledger.list_store import LedgerListStore
from magnetar.managed_ledger.position import LATEST
from magnetar.testing.sim.messaging.scenario import MessagingScenario
from magnetar.testing.sim.mutations import patch_attribute

Patch = Callable[[ExitStack], None]


class Mutation(NamedTuple):
    """One deliberate bug."""

    patch: Patch
    focus: Mapping[str, Any]
    """Fields of the scenario; `broker` is merged into the seed's own settings."""


MUTATIONS: dict[str, Mutation] = {}
"""By name."""

KEY_SHARED: Mapping[str, Any] = {
    "subscriptions": (("Key_Shared", 3),),
    "keys": 3,
    "hoard": 0.5,
    "leave": 0.1,
    "queue": 10,
    "gap_s": 0.005,
    "work_s": 0.002,
}
RESTARTS: Mapping[str, Any] = {
    "batch_max": 1,
    "faults": ("client kill", "session expiry"),
    "fault_gap_s": 0.5,
    "outage_s": 0.2,
    "keeper": True,
    "receipts": 1.0,
    "gap_s": 0.005,
    "work_s": 0.002,
}
CRASHES: Mapping[str, Any] = {
    **RESTARTS,
    "topics": 1,
    "producers": 1,
    "brokers": 2,
    "subscriptions": (("Shared", 1),),
    "duration_s": 8.0,
    "messages_max": 400,
    "fault_gap_s": 0.3,
    "fsync_s": 0.02,
    "queue": 10,
    "leave": 0.0,
    "hoard": 0.0,
    "only_brokers": True,
}
"""A broker is killed every second, while its writes take 20 ms."""

ZOMBIES: Mapping[str, Any] = {
    **CRASHES,
    "producers": 2,
    "subscriptions": (("Shared", 3),),
    "fsync_s": 0.0005,
    "faults": ("client pause",),
    "fault_gap_s": 2.0,
    "outage_s": 4.0,
    "session_timeout_s": 2.0,
    "leave": 0.05,
}
"""A broker stands still for longer than its session lasts, and goes on with what its clients have sent meanwhile."""

FAILED_WRITES: Mapping[str, Any] = {
    "batch_max": 1,
    "faults": ("bookie kill", "bookie power", "cut"),
    "fault_gap_s": 0.4,
    "outage_s": 0.5,
    "down_max": 2,
    "gap_s": 0.005,
    "window": 16,
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The bug is in the code while this lasts."""
    with ExitStack() as stack:
        MUTATIONS[name].patch(stack)
        yield


def focused(scenario: MessagingScenario, name: str) -> MessagingScenario:
    """The scenario, changed so that the rule which the mutation undoes matters."""
    focus = dict(MUTATIONS[name].focus)
    broker = {**scenario.broker, **focus.pop("broker", {})}
    return replace(scenario, broker=broker, **focus)


def _mutation(name: str, focus: Mapping[str, Any]) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        MUTATIONS[name] = Mutation(patch, focus)
        return patch

    return register


# ---- Dispatch


@_mutation("a draining slot is released while an entry is held", KEY_SHARED)
def _released_too_soon(stack: ExitStack) -> None:
    def settled(self: Any, slot: int) -> None:
        draining = self.draining.get(slot)
        if draining is not None:
            draining.remaining = 0
            self.drained.append(slot)

    patch_attribute(stack, Lanes, "settled", settled)


@_mutation("a slot that moves does not drain", KEY_SHARED)
def _no_draining(stack: ExitStack) -> None:
    def find_draining(self: Any) -> dict[int, Draining]:
        return {}

    patch_attribute(stack, Lanes, "_find_draining", find_draining)


@_mutation("what waited is sent newest first", {**KEY_SHARED, "keys": 1, "window": 16})
def _newest_first(stack: ExitStack) -> None:
    original = KeySharedDispatcher.dispatch_replayed

    def dispatch_replayed(self: Any, entries: list[Any], keys: Sequence[int], now_ms: int) -> None:
        original(self, entries[::-1], keys, now_ms)

    patch_attribute(stack, KeySharedDispatcher, "dispatch_replayed", dispatch_replayed)


@_mutation(
    "Failover serves all its consumers in turn",
    {"subscriptions": (("Failover", 3),), "queue": 10, "gap_s": 0.0, "work_s": 0.002, "faults": (), "aims": ()},
)
def _served_in_turn(stack: ExitStack) -> None:
    original = SingleActiveDispatcher.dispatch

    def dispatch(self: Any, entries: list[Any], now_ms: int) -> None:
        ready = [consumer for consumer in self._consumers if consumer.permits > 0]
        for number, entry in enumerate(entries):
            self._active = ready[number % len(ready)] if ready else self._active
            original(self, [entry], now_ms)
        self._active = self._chosen

    patch_attribute(stack, SingleActiveDispatcher, "dispatch", dispatch)


@_mutation(
    "what a leaving consumer held is forgotten",
    {"subscriptions": (("Shared", 3), ("Key_Shared", 2)), "leave": 0.1, "hoard": 0.5, "faults": (), "aims": ()},
)
def _held_is_forgotten(stack: ExitStack) -> None:
    def taken_back(self: Any, held: Mapping[int, int]) -> None:
        for value in held.values():
            self.settled(0, value & HELD_SLOT_MASK)

    patch_attribute(stack, SharedDispatcher, "taken_back", taken_back)
    patch_attribute(stack, KeySharedDispatcher, "taken_back", taken_back)


@_mutation(
    "the next consumer goes on where the last one stopped reading",
    {"subscriptions": (("Failover", 3),), "leave": 0.1, "queue": 10, "faults": (), "aims": ()},
)
def _no_rewind(stack: ExitStack) -> None:
    def activate(self: Any) -> None:
        self._timer = None
        self._active = self._chosen

    patch_attribute(stack, SingleActiveDispatcher, "_activate", activate)


@_mutation("a former owner sends until it hears that it is one", {**ZOMBIES, "leave": 0.1, "queue": 3, "outage_s": 3.0})
def _sends_as_former_owner(stack: ExitStack) -> None:
    original = DispatchTurns.__init__

    def init(self: Any, loop: Any, clock: Any, proven_until_s: Any = None) -> None:
        original(self, loop, clock)

    patch_attribute(stack, DispatchTurns, "__init__", init)


# ---- Cursors


@_mutation("an acknowledgement is confirmed before it is stored", CRASHES)
def _confirmed_too_soon(stack: ExitStack) -> None:
    original = CursorPersister.changed

    def changed(self: Any, done: Callable[[MagnetarError | None], None] | None) -> None:
        original(self, None)
        if done is not None:
            done(None)

    patch_attribute(stack, CursorPersister, "changed", changed)


@_mutation("a failed write of a cursor counts as stored", ZOMBIES)
def _failed_cursor_write(stack: ExitStack) -> None:
    original = CursorStore.persist

    def persist(self: Any, state: Any, done: Callable[[MagnetarError | None], None]) -> int:
        return original(self, state, lambda error: done(None))

    patch_attribute(stack, CursorStore, "persist", persist)


@_mutation("the mark-delete passes holes", {**RESTARTS, "subscriptions": (("Shared", 3),), "hoard": 0.5, "leave": 0.05})
def _passes_holes(stack: ExitStack) -> None:
    original = AckRanges.add

    def add(self: Any, ledger_id: int, entry_id: int) -> bool:
        changed = original(self, ledger_id, entry_id)
        if changed and ledger_id == self.mark_ledger:
            self.add_range(ledger_id, self.mark_entry + 1, entry_id)
        return changed

    patch_attribute(stack, AckRanges, "add", add)


@_mutation("holes are not restored", {**RESTARTS, "subscriptions": (("Shared", 3),), "hoard": 0.5})
def _holes_forgotten(stack: ExitStack) -> None:
    original = registry._restored

    def restored(context: Any, state: CursorState) -> AckRanges:
        return original(context, CursorState(state.mark_delete, state.properties))

    patch_attribute(stack, registry, "_restored", restored)


@_mutation(
    "a new owner begins at the end",
    {**RESTARTS, "subscriptions": (("Shared", 2), ("Failover", 2)), "gap_s": 0.0, "work_s": 0.05, "only_brokers": True},
)
def _begins_at_the_end(stack: ExitStack) -> None:
    original = registry._restored

    def restored(context: Any, state: CursorState) -> AckRanges:
        acks = original(context, state)
        if state.mark_delete < context.index.end() and context.name.endswith("topic-1"):
            acks.mark_deleted_upto(min(context.index.end(), LATEST))
        return acks

    patch_attribute(stack, registry, "_restored", restored)


@_mutation(
    "a read that was cut short goes on behind it",
    {"subscriptions": (("Exclusive", 1), ("Shared", 1)), "leave": 0.1, "queue": 3, "faults": (), "aims": ()},
)
def _goes_on_behind(stack: ExitStack) -> None:
    def rewind(self: Any) -> None:
        self._reader.seek(self._reader.position)

    patch_attribute(stack, ManagedCursor, "rewind", rewind)


@_mutation(
    "ledgers are trimmed by acknowledgements that are not stored",
    {
        "keeper": False,
        "subscriptions": (("Failover", 1),),
        "broker": {"managed_ledger_max_entries_per_ledger": 5},
        "receipts": 0.0,
        "gap_s": 0.005,
        "work_s": 0.0,
        "hoard": 0.0,
        "faults": (),
        "aims": (),
    },
)
def _trimmed_by_memory(stack: ExitStack) -> None:
    patch_attribute(stack, ManagedCursor, "stored_mark_delete", property(lambda self: self.acks.mark_delete))


BATCHES: Mapping[str, Any] = {
    "subscriptions": (("Shared", 2),),
    "batch_max": 70,
    "messages_max": 400,
    "hoard": 0.5,
    "receipts": 1.0,
    "gap_s": 0.005,
    "work_s": 0.002,
    "broker": {"acknowledgment_at_batch_index_level_enabled": True},
}


@_mutation("what is left of a batch is not told", {**BATCHES, "leave": 0.05, "faults": (), "aims": ()})
def _whole_batches(stack: ExitStack) -> None:
    patch_attribute(stack, ManagedCursor, "ack_set_of", lambda self, position: None)


@_mutation("parts of a batch are not restored", {**RESTARTS, **BATCHES, "only_brokers": True})
def _parts_forgotten(stack: ExitStack) -> None:
    patch_attribute(stack, AckRanges, "restore_batch", lambda self, *args: None)


# ---- Ledgers of a topic


@_mutation(
    "a topic is taken over without fencing", {**RESTARTS, "faults": ("session expiry", "metadata cut", "client pause")}
)
def _no_fencing(stack: ExitStack) -> None:
    original = BookKeeperClient.open_ledger

    async def open_ledger(self: Any, ledger_id: int, *, recover: bool, **more: Any) -> Any:
        return await original(self, ledger_id, recover=False, **more)

    patch_attribute(stack, BookKeeperClient, "open_ledger", open_ledger)


@_mutation("the last entry of a recovered ledger is left out", RESTARTS)
def _one_too_few(stack: ExitStack) -> None:
    original = handover._recover_last

    async def recover_last(context: Any) -> LedgerSummary | None:
        found = await original(context)
        if found is not None and found.entries > 1:
            found.entries -= 1
        return found

    patch_attribute(stack, handover, "_recover_last", recover_last)


@_mutation(
    "a ledger is dropped from the list at a change",
    {**RESTARTS, "broker": {"managed_ledger_max_entries_per_ledger": 5}},
)
def _dropped_from_the_list(stack: ExitStack) -> None:
    original = LedgerListStore.save

    async def save(self: Any, *, add: Any = None, remove: Any = (), closed: Any = None, **more: Any) -> None:
        if add is not None and closed is not None and closed.entries and add.ledger_id % 3 == 0:
            remove = [*remove, closed.ledger_id]
            closed = None
        await original(self, add=add, remove=remove, closed=closed, **more)

    patch_attribute(stack, LedgerListStore, "save", save)


# ---- Deduplication

DEDUPLICATED: Mapping[str, Any] = {
    "deduplicated": True,
    "broker": {"broker_deduplication_enabled": True, "broker_deduplication_entries_interval": 50},
}


@_mutation("what was stored behind the snapshot is not replayed", {**RESTARTS, **DEDUPLICATED, "window": 16})
def _no_replay(stack: ExitStack) -> None:
    patch_attribute(stack, topic_deduplication.DedupCursor, "_replay", lambda self, entry, producers: None)


@_mutation(
    "the snapshot is not restored",
    {
        **CRASHES,
        "fsync_s": 0.0005,
        "deduplicated": True,
        "window": 64,
        "faults": ("client kill", "one-way cut", "cut"),
        "outage_s": 2.0,
        "broker": {"broker_deduplication_enabled": True, "broker_deduplication_entries_interval": 1},
    },
)
def _no_snapshot(stack: ExitStack) -> None:
    patch_attribute(stack, Deduplicator, "restore", lambda self, watermarks: None)


@_mutation("a message counts as stored when it is handed to the ledger", {**FAILED_WRITES, **DEDUPLICATED})
def _pushed_is_persisted(stack: ExitStack) -> None:
    original = Deduplicator.push

    def push(self: Any, producer: str, last_sequence_id: int) -> None:
        original(self, producer, last_sequence_id)
        self.persist(producer, last_sequence_id)

    patch_attribute(stack, Deduplicator, "push", push)


@_mutation("a repeat is not recognized", {**RESTARTS, **DEDUPLICATED, "window": 16})
def _repeats_are_new(stack: ExitStack) -> None:
    original = Deduplicator.check

    def check(self: Any, producer: str, last_sequence_id: int) -> Any:
        found = original(self, producer, last_sequence_id)
        return DuplicateStatus.NEW if found is DuplicateStatus.DUPLICATE else found

    patch_attribute(stack, Deduplicator, "check", check)
