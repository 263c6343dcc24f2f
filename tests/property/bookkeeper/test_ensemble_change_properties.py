"""A writer over bookies that acknowledge, refuse, swallow and answer late at random, with a metadata store that fails at random.

Checked after every step: segments ascend; every confirmed entry is on its ack quorum of the bookies that the stored metadata names;
confirmations come in order and none is taken back; the writer never hangs while bookies are well.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ensemble_change import REST_S, Change, EnsembleChanges
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, Segment
from tests.unit.bookkeeper.fake_bookies import Cluster, FakeBookie
from tests.unit.bookkeeper.ledger_helpers import Outcomes, read_all, settle

APPEND, ANSWER, SPOIL, HEAL, GATE, STORE_LOSES, TURN = range(7)
KINDS = [APPEND] * 8 + [ANSWER] * 24 + [SPOIL] * 2 + [HEAL] * 2 + [GATE, STORE_LOSES] + [TURN] * 4
Step = tuple[int, int, int]
STEPS = 120


@dataclass
class Plan:
    spares: int
    quorums: tuple[int, int, int]
    delay: bool
    steps: list[Step]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    ensemble = draw(st.sampled_from([3, 3, 1, 2, 4]))
    write = draw(st.integers(1, ensemble))
    ack = draw(st.integers(1, write))
    # The steps come from a seed: drawn one by one they would mostly be short and dull.
    rng = random.Random(draw(st.integers(0, 2**32)))
    steps = [(rng.choice(KINDS), rng.randrange(8), rng.randrange(50)) for _ in range(STEPS)]
    return Plan(draw(st.integers(0, 4)), (ensemble, write, ack), draw(st.booleans()), steps)


CODES = (ReturnCode.IO_ERROR, ReturnCode.READ_ONLY, -8, -23)


@dataclass
class Run:
    plan: Plan
    cluster: Cluster
    writer: LedgerWriter
    outcomes: Outcomes
    payloads: list[bytes] = field(default_factory=list)
    gate: asyncio.Event | None = None

    def bookie(self, number: int) -> FakeBookie:
        return self.cluster.bookies[number % len(self.cluster.bookies)]

    async def step(self, step: Step) -> None:
        kind, who, number = step
        if kind == APPEND:
            payload = b"%d" % len(self.payloads) * (1 + number % 3)
            if not self.writer.closed:
                self.payloads.append(payload)
                self.outcomes.append(self.writer, payload)
        elif kind == ANSWER:
            busy = [bookie.travelling for bookie in self.cluster.bookies if bookie.travelling]
            if busy:
                travelling = busy[who % len(busy)]
                travelling.pop(number % min(len(travelling), 3))()
        elif kind == SPOIL:
            self.bookie(who).add_code = CODES[number % len(CODES)]
        elif kind == HEAL:
            self.bookie(who).add_code = None
        elif kind == GATE:
            self.toggle_gate()
        elif kind == STORE_LOSES:
            self.cluster.metadata.lost_answers = 1
        else:
            await settle()
        await asyncio.sleep(0)

    def toggle_gate(self) -> None:
        store = self.cluster.metadata
        if store.gate is None:
            store.gate = asyncio.Event()
        else:
            store.gate.set()
            store.gate = None

    async def check(self) -> None:
        writer, cluster = self.writer, self.cluster
        stored = self.outcomes.stored
        assert stored == self.payloads[: len(stored)], "confirmed in order"
        assert writer.last_add_confirmed == len(stored) - 1
        writer._pending.validate()
        writer._changes.validate()
        metadata, _ = await cluster.client._manager.read(writer.ledger_id)
        metadata.validate()
        ensemble_size, write_quorum, ack_quorum = self.plan.quorums
        for entry_id in range(len(stored)):
            ensemble = metadata.segments[metadata.segment_index(entry_id)].ensemble
            indexes = [(entry_id + i) % ensemble_size for i in range(write_quorum)]
            holders = [
                index
                for index in indexes
                if entry_id in cluster.bookie(ensemble[index]).entries.get(writer.ledger_id, {})
            ]
            assert len(holders) >= ack_quorum, f"entry {entry_id} is not on its ack quorum"

    async def end(self) -> None:
        """Every bookie is well and answers, the store too: the writer must come to an end with what it has."""
        store = self.cluster.metadata
        store.lost_answers = 0
        if store.gate is not None:
            self.toggle_gate()
        for bookie in self.cluster.bookies:
            bookie.add_code = None
            travelling, bookie.travelling = bookie.travelling or [], None
            for arrive in travelling:
                arrive()
        async with asyncio.timeout(60):
            while self.writer.pending_count:
                await asyncio.sleep(0)
        assert len(self.outcomes.calls) == len(self.payloads), "every append is answered, once"
        assert self.writer.closed or len(self.outcomes.stored) == len(self.payloads)
        await self.check()
        await self.writer.close()
        confirmed = self.outcomes.stored
        assert await read_all(self.writer) == confirmed
        reader = await self.cluster.new_client(8).open_ledger(self.writer.ledger_id, recover=True)
        assert await read_all(reader) == confirmed
        assert reader.length == sum(map(len, confirmed))


async def play(plan: Plan) -> None:
    ensemble, write, ack = plan.quorums
    cluster = Cluster(ensemble + plan.spares, ClientConfig(delay_ensemble_change=plan.delay))
    writer = await cluster.client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    for bookie in cluster.bookies:
        bookie.travelling = []
    run = Run(plan, cluster, writer, Outcomes())
    for step in plan.steps:
        await run.step(step)
        await run.check()
    await run.end()


@settings(max_examples=80, deadline=None)
@given(plans())
def test_a_writer_keeps_its_promises_through_ensemble_changes(plan: Plan) -> None:
    asyncio.run(play(plan))


@st.composite
def failures(draw: st.DrawFn) -> tuple[int, list[tuple[int, bool]], list[str], float]:
    size = draw(st.integers(1, 5))
    failed = draw(st.lists(st.tuples(st.integers(0, size - 1), st.booleans()), min_size=1, max_size=6))
    spares = draw(st.lists(st.sampled_from([f"s{n}" for n in range(6)]), unique=True))
    return size, failed, spares, draw(st.sampled_from([0.0, REST_S / 2, REST_S]))


@settings(max_examples=300, deadline=None)
@given(failures(), st.integers(-1, 9))
def test_a_plan_replaces_failed_places_with_bookies_that_are_not_there(
    case: tuple[int, list[tuple[int, bool]], list[str], float], lac: int
) -> None:
    size, failed, spares, later_s = case
    before = tuple(f"b{n}" for n in range(size))
    core = EnsembleChanges(before)
    for index, now in failed:
        note: Callable[[int, str, float], None] = core.failed if now else core.failed_later
        note(index, before[index], 10.0)
        note(index, "somebody who left", 10.0)
    core.validate()

    def choose(ensemble: tuple[str, ...], index: int, excluded: frozenset[str]) -> str | None:
        assert set(before) <= excluded
        return next((spare for spare in spares if spare not in excluded), None)

    change = core.plan(lac, 10.0 + later_s, choose)
    places = {index for index, _ in failed}
    if change is None:
        assert not spares
        return
    assert change.first_entry_id == lac + 1
    assert len(change.replacements) == min(len(places), len(spares))
    assert set(change.replacements) <= places
    metadata = LedgerMetadata(size, 1, 1, (Segment(0, before),))
    changed = change.apply(metadata)
    changed.validate()
    after = changed.last_segment.ensemble
    assert len(set(after)) == size, "a bookie has one place"
    for index in range(size):
        assert (after[index] != before[index]) == (index in change.replacements)
    assert change.apply(changed) == changed, "once it is there it changes nothing"
    core.begin()
    assert core.landed(after) is False
    core.end()
    assert core.plan(lac, 20.0, choose) is None, "nothing is replaced twice"
    core.validate()


def test_an_attempt_keeps_what_others_changed() -> None:
    before = LedgerMetadata(3, 2, 2, (Segment(0, ("a", "b", "c")),))
    change = Change(4, {0: ("a", "x"), 1: ("b", "y")})
    other = before.with_ensemble(4, ("z", "b", "c"))
    assert change.apply(other).segments == ((0, ("a", "b", "c")), (4, ("z", "y", "c")))
