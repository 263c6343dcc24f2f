"""Deliberate bugs in the control of scalable topics, patched into the running code. Each undoes one rule that a promise rests on.

Every one has a script, a few fixed steps that catch it, and a focus: a change of the seeds' own configurations in which its rule matters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from magnetar.broker.scalable import consumers
from magnetar.broker.scalable.controller import TopicController
from magnetar.broker.scalable.layout import Segment, SegmentLayout
from magnetar.broker.scalable.records import QUEUE, PendingChange, ScalableRecords
from magnetar.broker.scalable.segments import segment_name
from magnetar.testing.sim.mutations import patch_attribute
from magnetar.testing.sim.scalable.scenario import ScalableScenario
from magnetar.testing.sim.swarm import Aim

Patch = Callable[[ExitStack], None]


class Mutation(NamedTuple):
    """One deliberate bug. `script` and `focus`: fields of the scenario; `broker` is merged into the other settings."""

    patch: Patch
    script: Mapping[str, Any]
    focus: Mapping[str, Any]


MUTATIONS: dict[str, Mutation] = {}
"""By name."""

CALM: Final[Mapping[str, Any]] = {"faults": (), "aims": (), "change_gap_s": 0.2, "gap_s": 0.01, "duration_s": 4.0}

BROKER: Final[Mapping[str, Any]] = {
    "managed_ledger_ensemble_size": 2,
    "managed_ledger_write_quorum": 2,
    "managed_ledger_ack_quorum": 2,
    "load_balancer_enabled": False,
    "transaction_coordinator_enabled": False,
    "scalable_consumer_grace_s": 3.0,
    "scalable_auto_scale_enabled": False,
    "scalable_auto_scale_interval_s": 0.3,
}

SPLITS: Final = (("split", (0,)), ("split", (1,)), ("split", (2,)))

TERMINATED: Final = r"metadata put after /managed-ledgers/public/default/segment/[^/]+/0000-ffff-0$"


def script_of(name: str) -> ScalableScenario:
    """Two brokers, a producer, and what the bug's script says."""
    fields = dict(MUTATIONS[name].script)
    broker = {**BROKER, **fields.pop("broker", {})}
    base = ScalableScenario(
        name,
        subscriptions=(("queue-0", 1),),
        producers=1,
        keeper=False,
        duration_s=3.0,
        change_gap_s=0.4,
        broker=broker,
    )
    return replace(base, **{"steps": SPLITS, **fields})


def focused(scenario: ScalableScenario, name: str) -> ScalableScenario:
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


SLOW_STREAM: Final[Mapping[str, Any]] = {
    "subscriptions": (("stream-0", 2),),
    "work_s": 0.05,
    "hoard": 1.0,
    "keys": 30,
    "gap_s": 0.1,
    "change_gap_s": 0.06,
    "merges": 0.0,
}
"""Nothing is acknowledged for a while, and many segments are sealed before they have got a message."""


@_mutation(
    "only direct parents hold a child back",
    {**SLOW_STREAM, "steps": tuple(("split", (each,)) for each in range(12))},
    {**CALM, **SLOW_STREAM},
)
def _only_parents(stack: ExitStack) -> None:
    """As in Pulsar 5.0.0-M1, where what is sealed is read at once."""

    def readable(layout: SegmentLayout, drained: Collection[int]) -> list[Segment]:
        found = [
            each
            for each in layout.segments.values()
            if each.id not in drained
            and (not each.active or all(parent in drained for parent in each.parents if parent in layout.segments))
        ]
        return sorted(found, key=lambda each: (each.start, each.end, each.id))

    patch_attribute(stack, consumers, "readable", readable)


@_mutation(
    "a parent is terminated before that is written down",
    {"brokers": 1, "steps": SPLITS[:1], "aims": (Aim(TERMINATED, 1, "kill self"),)},
    {
        "faults": ("client kill",),
        "only_brokers": True,
        "fault_gap_s": 0.3,
        "outage_s": 0.2,
        "change_gap_s": 0.1,
        "gap_s": 0.02,
    },
)
def _no_intent(stack: ExitStack) -> None:
    original = TopicController.change

    async def change(self: Any, segment_ids: tuple[int, ...]) -> None:
        PendingChange(segment_ids, 0).applied_to(self.layout)
        for each in segment_ids:
            await self._context.segments.terminate(segment_name(self.topic, self.layout.segments[each]))
        await original(self, segment_ids)

    patch_attribute(stack, TopicController, "change", change)


@_mutation(
    "a sealed segment is deleted by listed subscriptions only",
    {"work_s": 0.05, "queue": 1},
    {**CALM, "subscriptions": (("queue-0", 1),), "keeper": False, "work_s": 0.05, "queue": 1},
)
def _only_listed(stack: ExitStack) -> None:
    """And nobody lists those that clients open, as in Pulsar 5.0.0-M1."""
    original = ScalableRecords.add_subscription

    async def add_subscription(self: Any, topic: Any, subscription: str, kind: str) -> None:
        if kind != QUEUE:
            await original(self, topic, subscription, kind)

    async def is_read(self: Any, segment: Any, recorded: set[str]) -> bool:
        name = segment_name(self.topic, segment)
        return all([await self._context.segments.backlog(name, each) <= 0 for each in sorted(recorded)])

    patch_attribute(stack, ScalableRecords, "add_subscription", add_subscription)
    patch_attribute(stack, TopicController, "_is_read", is_read)


@_mutation("an epoch is used for two layouts", {}, CALM)
def _epoch_reused(stack: ExitStack) -> None:
    original = SegmentLayout._replaced

    def replaced(self: Any, *args: Any) -> SegmentLayout:
        made = original(self, *args)
        segments = {
            number: replace(each, created_epoch=min(each.created_epoch, self.epoch))
            for number, each in made.segments.items()
        }
        return SegmentLayout(self.epoch, made.next_id, segments)

    patch_attribute(stack, SegmentLayout, "_replaced", replaced)


@_mutation("a child has its cursors only when it takes messages", {}, CALM)
def _late_cursors(stack: ExitStack) -> None:
    original = TopicController._finish

    async def finish(self: Any, pending: PendingChange) -> None:
        parents = [self.layout.segments[each] for each in pending.segment_ids]
        cursors = await self._cursors(parents)
        after = pending.applied_to(self.layout)
        children = [after.segments[each] for each in sorted(set(after.segments) - set(self.layout.segments))]

        async def none(_: Any) -> set[str]:
            return set()

        self._cursors = none
        try:
            await original(self, pending)
        finally:
            del self._cursors
        for child in children:
            for subscription in sorted(cursors):
                await self._context.segments.subscribe(segment_name(self.topic, child), subscription, False)

    patch_attribute(stack, TopicController, "_finish", finish)


@_mutation(
    "a controller that was deposed goes on writing",
    {"brokers": 1, "steps": SPLITS[:1], "aims": (Aim(TERMINATED, 1, "stop self"),)},
    {
        "faults": ("client stop",),
        "aims": (),
        "only_brokers": True,
        "fault_gap_s": 0.4,
        "change_gap_s": 0.1,
        "gap_s": 0.02,
    },
)
def _deposed(stack: ExitStack) -> None:
    """What it had begun before it gave its node up comes to its end, while somebody else may be elected."""
    patch_attribute(stack, TopicController, "_check_leads", lambda self: None)
