"""One ledger is repaired: what is copied, to whom, and what is left alone because nothing is proven."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from magnetar.bookkeeper.autorecovery.repair import Outcome, Repair
from magnetar.bookkeeper.autorecovery.service import AutoRecovery
from magnetar.bookkeeper.codes import FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.entry_format import DigestType
from magnetar.bookkeeper.errors import EntryLostError, EntryUnreadableError, LockLostError, NotEnoughBookiesError
from magnetar.bookkeeper.ledger_metadata import LedgerState, Segment
from magnetar.metadata import paths
from tests.unit.bookkeeper.ledger_helpers import append_all, read_all
from tests.unit.bookkeeper.recovery_site import RecoverySite


@pytest.fixture
async def site() -> RecoverySite:
    made = RecoverySite(4)
    await made.register_all()
    return made


async def ours() -> bool:
    return True


async def repair(site: RecoverySite, ledger_id: int, recovery: AutoRecovery | None = None) -> Repair:
    return await (recovery or site.recovery()).repairer.repair(ledger_id, ours)


async def test_copies_of_a_lost_bookie_are_restored_byte_for_byte(site: RecoverySite) -> None:
    writer = await site.write(50)
    lost = writer.metadata.last_segment.ensemble[1]
    held = dict(site.cluster.bookie(lost).entries[writer.ledger_id])
    await site.kill(lost)
    recovery = site.recovery()
    assert await repair(site, writer.ledger_id, recovery) == Repair(Outcome.SOUND)
    after = (await site.metadata(writer.ledger_id)).last_segment.ensemble
    new = after[1]
    assert new not in writer.metadata.last_segment.ensemble
    assert (after[0], after[2]) == (writer.metadata.last_segment.ensemble[0], writer.metadata.last_segment.ensemble[2])
    assert site.cluster.bookie(new).entries[writer.ledger_id] == held
    assert set(site.cluster.bookie(new).add_flags) == {FLAG_RECOVERY_ADD}
    assert await site.missing(writer.ledger_id) == []
    assert recovery.statistics.entries_copied_total == len(held)
    assert recovery.statistics.bytes_copied_total == sum(map(len, held.values()))
    metadata = await site.metadata(writer.ledger_id)
    assert metadata == replace(writer.metadata, segments=metadata.segments, c_token=0)


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_every_digest_and_a_password(site: RecoverySite, digest_type: DigestType) -> None:
    writer = await site.client.create_ledger(
        ensemble_size=3, write_quorum=2, ack_quorum=2, digest_type=digest_type, password=b"secret"
    )
    await append_all(writer, [b"x" * number for number in range(20)])
    await writer.close()
    await site.kill(writer.metadata.last_segment.ensemble[0])
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    reader = await site.client.open_ledger(writer.ledger_id, recover=False, password=b"secret")
    assert await read_all(reader) == [b"x" * number for number in range(20)]


async def test_a_sound_ledger_is_left_alone(site: RecoverySite) -> None:
    writer = await site.write(20)
    before, adds = await site.manager.read(writer.ledger_id), site.adds()
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    assert (await site.manager.read(writer.ledger_id), site.adds()) == (before, adds)


async def test_a_ledger_without_metadata_is_done(site: RecoverySite) -> None:
    assert await repair(site, 4711) == Repair(Outcome.SOUND)


async def test_an_empty_ledger_loses_its_dead_bookie_too(site: RecoverySite) -> None:
    writer = await site.write(0)
    lost = writer.metadata.last_segment.ensemble[0]
    await site.kill(lost)
    recovery = site.recovery()
    assert await repair(site, writer.ledger_id, recovery) == Repair(Outcome.SOUND)
    assert lost not in (await site.metadata(writer.ledger_id)).last_segment.ensemble
    assert recovery.statistics.entries_copied_total == 0
    assert recovery.statistics.fragments_replaced_without_copy_total == 1


async def test_a_bookie_that_stores_nothing_of_a_fragment_is_replaced_too(site: RecoverySite) -> None:
    writer = await site.write(1)  # entry 0 is on the indexes 0 and 1
    await site.kill(writer.metadata.last_segment.ensemble[2])
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    assert await site.missing(writer.ledger_id) == []


async def test_a_bookie_that_lacks_entries_gets_them_itself(site: RecoverySite) -> None:
    writer = await site.write(30)
    ensemble = writer.metadata.last_segment.ensemble
    held = site.cluster.bookie(ensemble[0]).entries[writer.ledger_id]
    del held[max(held)]
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    assert (await site.metadata(writer.ledger_id)).last_segment.ensemble == ensemble
    assert await site.missing(writer.ledger_id) == []


def spoil(site: RecoverySite, bookie: str, ledger_id: int, entry_id: int) -> bytes:
    """Flip a bit of a copy; answers what it was."""
    held = site.cluster.bookie(bookie).entries[ledger_id]
    good = held[entry_id]
    held[entry_id] = good[:-1] + bytes([good[-1] ^ 1])
    return good


async def test_a_damaged_copy_is_written_anew_where_it_is_and_nothing_else_is(site: RecoverySite) -> None:
    writer = await site.write(30)
    ensemble = writer.metadata.last_segment.ensemble
    first = min(site.cluster.bookie(ensemble[0]).entries[writer.ledger_id])
    good = spoil(site, ensemble[0], writer.ledger_id, first)
    adds = site.adds()
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    assert (await site.metadata(writer.ledger_id)).last_segment.ensemble == ensemble
    assert site.cluster.bookie(ensemble[0]).entries[writer.ledger_id][first] == good
    assert site.adds() == adds + 1


@pytest.mark.parametrize("close", [True, False])
async def test_all_damage_of_a_suspect_is_found_and_repaired(site: RecoverySite, close: bool) -> None:
    writer = await site.write(30, close=close)
    ensemble = writer.metadata.last_segment.ensemble
    held = site.cluster.bookie(ensemble[1]).entries[writer.ledger_id]
    good = dict(held)
    for entry_id in sorted(held)[3:-2:4]:
        spoil(site, ensemble[1], writer.ledger_id, entry_id)
    count = sum(held[each] != good[each] for each in good)
    assert count > 3
    adds, recovery = site.adds(), site.recovery()
    assert await recovery.repairer.repair(writer.ledger_id, ours) == Repair(Outcome.SOUND), (
        "unless somebody suspects it"
    )
    assert site.adds() == adds
    assert await recovery.repairer.repair(writer.ledger_id, ours, {ensemble[1]}) == Repair(Outcome.SOUND)
    assert held == good
    assert site.adds() == adds + count
    assert recovery.statistics.copies_rewritten_total == count
    assert (await site.metadata(writer.ledger_id)).last_segment.ensemble == ensemble


async def test_a_bookie_that_does_not_keep_the_copy_is_replaced(site: RecoverySite) -> None:
    writer = await site.write(30)
    ensemble = writer.metadata.last_segment.ensemble
    bookie = site.cluster.bookie(ensemble[0])
    bad = dict(bookie.entries[writer.ledger_id])
    first = min(bad)
    spoil(site, ensemble[0], writer.ledger_id, first)

    class Forgetful(dict[int, bytes]):
        def __setitem__(self, entry_id: int, entry: bytes) -> None:
            """The disk takes it and gives back what it has."""

    bookie.entries[writer.ledger_id] = Forgetful(bookie.entries[writer.ledger_id])
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    after = (await site.metadata(writer.ledger_id)).last_segment.ensemble
    assert after[0] not in ensemble
    assert await read_all(await site.client.open_ledger(writer.ledger_id, recover=False)) == [
        b"%05d" % number * 20 for number in range(30)
    ]


async def test_an_entry_without_any_good_copy_keeps_no_other_from_its_repair(site: RecoverySite) -> None:
    writer = await site.write(30, ensemble=2)
    one, two = writer.metadata.last_segment.ensemble
    good = {entry: spoil(site, one, writer.ledger_id, entry) for entry in (3, 7, 11)}
    spoil(site, two, writer.ledger_id, 7)
    adds = site.adds()
    found = await site.recovery().repairer.repair(writer.ledger_id, ours, {one, two})
    assert found.outcome is Outcome.FAILED
    assert "entry 7" in found.reason
    assert site.adds() == adds + 2, "nothing is moved for what nobody has"
    held = site.cluster.bookie(one).entries[writer.ledger_id]
    assert [held[entry] == good[entry] for entry in (3, 7, 11)] == [True, False, True]


@pytest.mark.parametrize("code", [ReturnCode.TOO_MANY_REQUESTS, ReturnCode.UNKNOWN_LEDGER_STATE, -8, -23, None])
async def test_nothing_is_copied_on_a_guess(site: RecoverySite, code: int | None) -> None:
    writer = await site.write(30)
    silent = writer.metadata.last_segment.ensemble[0]
    site.cluster.bookie(silent).hung_reads = code is None
    site.cluster.bookie(silent).read_code = code
    before, adds = await site.manager.read(writer.ledger_id), site.adds()
    found = await repair(site, writer.ledger_id, site.recovery(read_timeout_s=0.05))
    assert found.outcome is Outcome.FAILED
    assert silent in found.reason
    assert (await site.manager.read(writer.ledger_id), site.adds()) == (before, adds)


async def test_the_copy_reads_around_a_silent_bookie(site: RecoverySite) -> None:
    writer = await site.write(30, ensemble=3, write_quorum=3)
    ensemble = writer.metadata.last_segment.ensemble
    await site.kill(ensemble[0])
    site.cluster.bookie(ensemble[1]).read_code = ReturnCode.TOO_MANY_REQUESTS
    found = await repair(site, writer.ledger_id)
    assert found.outcome is Outcome.FAILED  # the silent one is asked again later, the lost one is replaced all the same
    site.cluster.bookie(ensemble[1]).read_code = None
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    assert await site.missing(writer.ledger_id) == []


async def test_what_is_gone_for_good_is_told_apart_from_what_may_come_back(site: RecoverySite) -> None:
    writer = await site.write(10, ensemble=1, write_quorum=1, ack_quorum=1)
    only = writer.metadata.last_segment.ensemble[0]
    await site.kill(only)
    with pytest.raises(EntryUnreadableError, match="bring a lost one back"):
        await repair(site, writer.ledger_id)
    await site.register(only)
    del site.cluster.bookie(only).entries[writer.ledger_id][0]
    recovery = site.recovery()
    with pytest.raises(EntryLostError, match="none has it"):
        await repair(site, writer.ledger_id, recovery)
    assert recovery.statistics.entries_lost_total == 1
    assert (await site.metadata(writer.ledger_id)).segments == writer.metadata.segments


async def test_nobody_to_copy_to(site: RecoverySite) -> None:
    writer = await site.write(10, ensemble=4, write_quorum=2)
    await site.kill("b0")
    with pytest.raises(NotEnoughBookiesError, match="start another bookie"):
        await repair(site, writer.ledger_id)
    await site.add_bookie()
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    assert await site.missing(writer.ledger_id) == []


async def test_read_only_bookies_are_read_and_not_written(site: RecoverySite) -> None:
    writer = await site.write(30)
    ensemble = writer.metadata.last_segment.ensemble
    (spare,) = set(site.names) - set(ensemble)
    await site.register(spare, read_only=True)
    await site.store.delete(paths.available_bookie_path(spare))
    await site.register(ensemble[1], read_only=True)
    await site.store.delete(paths.available_bookie_path(ensemble[1]))
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    await site.kill(ensemble[0])
    with pytest.raises(NotEnoughBookiesError):
        await repair(site, writer.ledger_id)


async def test_two_bookies_at_once(site: RecoverySite) -> None:
    await site.add_bookie()
    writer = await site.write(40, ensemble=3, write_quorum=3)
    for name in writer.metadata.last_segment.ensemble[:2]:
        await site.kill(name)
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    assert await site.missing(writer.ledger_id) == []


async def test_closed_fragments_of_a_ledger_that_is_written_are_copied_under_its_writers_feet(
    site: RecoverySite,
) -> None:
    writer = await site.write(20, close=False)
    before = await site.metadata(writer.ledger_id)
    ensemble = before.last_segment.ensemble
    (spare,) = set(site.names) - set(ensemble)
    # as an ensemble change at entry 20 leaves it, the first bookie being lost
    changed = replace(before, segments=(*before.segments, Segment(20, (spare, *ensemble[1:]))))
    await site.manager.write(writer.ledger_id, changed, 0)
    await site.kill(ensemble[0])
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)
    after = await site.metadata(writer.ledger_id)
    assert after.state is LedgerState.OPEN
    assert after.segments == (Segment(0, (spare, *ensemble[1:])), changed.segments[1])
    assert all(entry in site.cluster.bookie(spare).entries[writer.ledger_id] for entry in range(20) if entry % 3 != 1)


async def test_a_member_lost_from_what_is_being_written_is_reported_not_touched(site: RecoverySite) -> None:
    writer = await site.write(20, close=False)
    before, adds = await site.manager.read(writer.ledger_id), site.adds()
    recovery = site.recovery()
    assert not await recovery.repairer.open_members_missing(writer.ledger_id)
    await site.kill(writer.metadata.last_segment.ensemble[0])
    assert await repair(site, writer.ledger_id, recovery) == Repair(Outcome.OPEN)
    assert await recovery.repairer.open_members_missing(writer.ledger_id)
    assert (await site.manager.read(writer.ledger_id), site.adds()) == (before, adds)


async def test_entries_on_their_way_do_not_count_as_missing(site: RecoverySite) -> None:
    writer = await site.write(20, ack_quorum=1, close=False)
    slow = writer.metadata.last_segment.ensemble[0]
    site.cluster.bookie(slow).entries[writer.ledger_id].clear()
    assert await repair(site, writer.ledger_id) == Repair(Outcome.SOUND)


async def test_without_the_lock_the_metadata_stays(site: RecoverySite) -> None:
    writer = await site.write(20)
    await site.kill(writer.metadata.last_segment.ensemble[0])

    async def lost() -> bool:
        return False

    before = await site.manager.read(writer.ledger_id)
    with pytest.raises(LockLostError):
        await site.recovery().repairer.repair(writer.ledger_id, lost)
    assert await site.manager.read(writer.ledger_id) == before


async def test_a_ledger_closed_during_the_copy_keeps_both_changes(site: RecoverySite) -> None:
    writer = await site.write(20, close=False)
    before = await site.metadata(writer.ledger_id)
    ensemble = before.last_segment.ensemble
    (spare,) = set(site.names) - set(ensemble)
    changed = replace(before, segments=(*before.segments, Segment(20, (spare, *ensemble[1:]))))
    await site.manager.write(writer.ledger_id, changed, 0)
    await site.kill(ensemble[0])
    closed = False

    async def close_first() -> bool:
        nonlocal closed
        if not closed:
            closed = True
            await site.manager.write(writer.ledger_id, changed.closed(19, 2_000), 1)
        return True

    assert await site.recovery().repairer.repair(writer.ledger_id, close_first) == Repair(Outcome.SOUND)
    after = await site.metadata(writer.ledger_id)
    assert (after.state, after.last_entry_id, after.length) == (LedgerState.CLOSED, 19, 2_000)
    assert await site.missing(writer.ledger_id) == []


async def test_a_rate_holds_the_copy_back(site: RecoverySite) -> None:
    writer = await site.write(30)
    await site.kill(writer.metadata.last_segment.ensemble[0])
    recovery = site.recovery(replication_rate_by_bytes=40_000, rereplication_entry_batch_size=5)
    began = time.monotonic()
    await repair(site, writer.ledger_id, recovery)
    assert time.monotonic() - began >= recovery.statistics.bytes_copied_total / 40_000 * 0.9
