"""Recovery over random fates of every copy of every entry, checked against the promises to clients."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.errors import LedgerRecoveryError
from tests.unit.bookkeeper.fake_bookies import Cluster
from tests.unit.bookkeeper.ledger_helpers import Outcomes, read_all, settle

ACKED, SILENT, LOST = "acked", "silent", "lost"


@dataclass
class Plan:
    sizes: dict[str, int]
    fates: list[list[str]]
    """Per entry and ensemble index: stored and acknowledged, stored without an answer, or lost on the way."""
    attempts: list[list[int | None]]
    """Per recovery attempt and ensemble index: the error of all its reads, or None."""
    delays: list[int]
    """Per ensemble index: how much later than others it answers."""


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    ensemble_size = draw(st.sampled_from([3, 3, 1, 2, 4]))
    write_quorum = draw(st.integers(1, ensemble_size))
    ack_quorum = draw(st.integers(1, write_quorum))
    per_index = ensemble_size
    fate = st.sampled_from([ACKED, ACKED, SILENT, LOST])
    fates = draw(st.lists(st.lists(fate, min_size=per_index, max_size=per_index), max_size=8))
    answer = st.sampled_from([None, None, int(ReturnCode.IO_ERROR), -8])
    attempts = draw(st.lists(st.lists(answer, min_size=per_index, max_size=per_index), max_size=3))
    delays = draw(st.lists(st.integers(0, 3), min_size=per_index, max_size=per_index))
    sizes = {"ensemble_size": ensemble_size, "write_quorum": write_quorum, "ack_quorum": ack_quorum}
    return Plan(sizes, fates, attempts, delays)


async def play(plan: Plan) -> None:
    cluster = Cluster(plan.sizes["ensemble_size"])
    writer = await cluster.client.create_ledger(**plan.sizes)
    bookies = [cluster.bookie(bookie_id) for bookie_id in writer.metadata.last_segment.ensemble]
    outcomes = Outcomes()
    payloads = [b"%d" % n * (n + 1) for n in range(len(plan.fates))]
    for payload, fates in zip(payloads, plan.fates, strict=True):
        for bookie, fate in zip(bookies, fates, strict=True):
            bookie.hung_adds, bookie.lost_add_answers = fate == LOST, fate == SILENT
        outcomes.append(writer, payload)
        await settle()
    for bookie in bookies:
        bookie.hung_adds = bookie.lost_add_answers = False
    for bookie, delay in zip(bookies, plan.delays, strict=True):
        bookie.delay = delay

    for codes in [*plan.attempts, [None] * len(bookies)]:
        for bookie, code in zip(bookies, codes, strict=True):
            bookie.read_code = code
        try:
            reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
            break
        except LedgerRecoveryError:
            assert codes.count(None) < len(codes), "with every bookie well a recovery succeeds"
    for bookie in bookies:
        bookie.read_code = None

    confirmed = len(outcomes.stored)
    assert outcomes.stored == payloads[:confirmed], "completed in order"
    end = reader.last_add_confirmed + 1
    assert end >= confirmed, "nothing confirmed is cut off"
    assert await read_all(reader) == payloads[:end], "everything up to the end is readable and right"
    assert reader.length == sum(map(len, payloads[:end]))

    outcomes.append(writer, b"after the recovery")
    await settle()
    assert b"after the recovery" not in outcomes.stored, "no add is confirmed once the ledger is closed"
    again = await cluster.new_client(9).open_ledger(writer.ledger_id, recover=True)
    assert (again.last_add_confirmed, again.length) == (reader.last_add_confirmed, reader.length)
    ack_quorum, write_sets = plan.sizes["ack_quorum"], writer._source.write_sets
    held = [bookie.entries.get(writer.ledger_id, {}) for bookie in bookies]
    for entry_id in range(end):
        copies = [index for index in write_sets[entry_id % len(write_sets)] if entry_id in held[index]]
        assert len(copies) >= ack_quorum, f"entry {entry_id} is on its ack quorum"


@settings(max_examples=400, deadline=None)
@given(plans())
def test_recovery_keeps_the_promises(plan: Plan) -> None:
    asyncio.run(play(plan))
