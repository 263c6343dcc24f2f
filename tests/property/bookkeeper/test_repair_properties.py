"""Bookies come, go and lose entries in any order; between any two of these events a ledger is repaired.

Whatever was readable stays readable, what is called sound is sound, and metadata stays what readers can trust.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.autorecovery.fragments import fragments_of
from magnetar.bookkeeper.autorecovery.repair import Outcome
from magnetar.bookkeeper.autorecovery.service import AutoRecovery
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment
from tests.unit.bookkeeper.recovery_site import RecoverySite

BOOKIES = 6
ENTRIES = 12


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, int, bool, list[tuple[str, int, int]]]:
    """(ensemble size, write quorum, first entry of the last segment, closed, events)."""
    ensemble_size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, ensemble_size))
    kinds = st.sampled_from(["kill", "return", "lose", "damage", "silent", "talk"])
    events = draw(
        st.lists(
            st.tuples(kinds, st.integers(0, BOOKIES - 1), st.integers(0, ENTRIES - 1)),
            max_size=12,
        )
    )
    return ensemble_size, write_quorum, draw(st.integers(0, ENTRIES)), draw(st.booleans()), events


async def readable(site: RecoverySite, ledger_id: int, metadata: LedgerMetadata, alive: set[str]) -> set[int]:
    """Entries of closed fragments with a good copy on a bookie that is there, by the metadata."""
    found = set()
    for part in fragments_of(ledger_id, metadata):
        if part.closed:
            for entry_id in range(part.first_entry_id, part.last_entry_id + 1):
                for name in (part.ensemble[index] for index in part.holders(entry_id)):
                    packed = site.cluster.bookie(name).entries.get(ledger_id, {}).get(entry_id)
                    if name in alive and packed is not None and not packed.endswith(b"!"):
                        found.add(entry_id)
    return found


async def ours() -> bool:
    return True


async def run(history: tuple[int, int, int, bool, list[tuple[str, int, int]]]) -> None:
    ensemble_size, write_quorum, second, closed, events = history
    site = RecoverySite(BOOKIES)
    await site.register_all()
    writer = await site.write(ENTRIES, ensemble=ensemble_size, write_quorum=write_quorum, ack_quorum=1, close=False)
    ledger_id = writer.ledger_id
    metadata, version = await site.manager.read(ledger_id)
    if 0 < second < ENTRIES:  # the same bookies in a second segment: what they hold fits it too
        first = metadata.segments[0]
        metadata = replace(metadata, segments=(first, Segment(second, first.ensemble)))
    if closed:
        metadata = metadata.closed(ENTRIES - 1, writer.length)
    await site.manager.write(ledger_id, metadata, version)
    alive = set(site.names)
    recovery = site.recovery(read_timeout_s=30, store=site.store)
    for kind, bookie, entry_id in events:
        await happen(site, alive, kind, bookie, ledger_id, entry_id)
        await repair_and_check(site, recovery, ledger_id, alive)
    for bookie in site.cluster.bookies:
        bookie.read_code = None
    await repair_and_check(site, recovery, ledger_id, alive)


async def happen(site: RecoverySite, alive: set[str], kind: str, bookie: int, ledger_id: int, entry_id: int) -> None:
    name, fake = f"b{bookie}", site.cluster.bookies[bookie]
    held = fake.entries.get(ledger_id, {})
    if kind == "kill" and name in alive:
        alive.discard(name)
        await site.kill(name)
    elif kind == "return" and name not in alive:
        alive.add(name)
        await site.register(name)
    elif kind == "lose":
        held.pop(entry_id, None)
    elif kind == "damage" and entry_id in held:
        held[entry_id] = held[entry_id][:-1] + b"!"
    elif kind == "silent":
        fake.read_code = ReturnCode.TOO_MANY_REQUESTS
    elif kind == "talk":
        fake.read_code = None


async def repair_and_check(site: RecoverySite, recovery: AutoRecovery, ledger_id: int, alive: set[str]) -> None:
    before = await site.metadata(ledger_id)
    could = await readable(site, ledger_id, before, alive)
    try:
        outcome = (await recovery.repairer.repair(ledger_id, ours)).outcome
    except LedgerError:
        outcome = Outcome.FAILED
    after = await site.metadata(ledger_id)
    after.validate()
    assert await readable(site, ledger_id, after, alive) >= could, "a repair took the last good copy away"
    assert [segment.first_entry_id for segment in after.segments] == [
        segment.first_entry_id for segment in before.segments
    ]
    assert (after.state, after.last_entry_id, after.length) == (before.state, before.last_entry_id, before.length)
    if before.state is not LedgerState.CLOSED:
        assert after.segments[-1] == before.segments[-1], "what is being written belongs to its writer"
    silent = {f"b{number}" for number, bookie in enumerate(site.cluster.bookies) if bookie.read_code is not None}
    for segment, changed in zip(before.segments, after.segments, strict=True):
        assert len(set(changed.ensemble)) == len(changed.ensemble)
        for old, new in zip(segment.ensemble, changed.ensemble, strict=True):
            assert old == new or old not in silent & alive, "a bookie that says nothing was replaced"
    for old, new in zip(fragments_of(ledger_id, before), fragments_of(ledger_id, after), strict=True):
        for index, name in enumerate(new.ensemble):
            if name != old.ensemble[index]:
                held = site.cluster.bookie(name).entries.get(ledger_id, {})
                assert all(not held.get(entry_id, b"!").endswith(b"!") for entry_id in new.stored(index)), (
                    "named too early"
                )
    wanted = {
        entry_id
        for part in fragments_of(ledger_id, before)
        if part.closed
        for entry_id in range(part.first_entry_id, part.last_entry_id + 1)
    }
    if not silent and could == wanted and len(alive) >= before.ensemble_size:
        assert outcome is not Outcome.FAILED, "everything is there to repair it"
    if outcome is Outcome.SOUND:
        for part in fragments_of(ledger_id, after):
            assert set(part.ensemble) <= alive
            for index, name in enumerate(part.ensemble if part.closed else ()):
                ends = {part.first_stored(index), part.last_stored(index)} - {None}
                held = site.cluster.bookie(name).entries.get(ledger_id, {})
                assert all(not held[entry_id].endswith(b"!") for entry_id in ends if entry_id is not None)
        # and then there is nothing left to do
        adds = site.adds()
        assert (await recovery.repairer.repair(ledger_id, ours)).outcome is Outcome.SOUND
        assert site.adds() == adds


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_repairs_lose_nothing_and_touch_nothing_unproven(
    history: tuple[int, int, int, bool, list[tuple[str, int, int]]],
) -> None:
    asyncio.run(run(history))
