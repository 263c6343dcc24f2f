"""Auditor and workers together, over fake bookies that vanish and come back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.errors import ConfigError, MetadataError
from magnetar.base.limits import DAMAGE_REPORTS_WAITING_MAX
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.autorecovery.config import AutoRecoveryConfig
from magnetar.bookkeeper.autorecovery.damage_reports import DamageReports
from magnetar.bookkeeper.autorecovery.underreplication import CHECK_ALL_LEDGERS, CHECK_PLACEMENT
from magnetar.bookkeeper.client.placement import RackAwarePlacement
from magnetar.bookkeeper.client.statistics import ClientStatistics
from magnetar.bookkeeper.codes import FLAG_RECOVERY_ADD
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.metadata import paths
from tests.unit.bookkeeper.ledger_helpers import read_all, settle
from tests.unit.bookkeeper.recovery_site import RecoverySite, eventually


@pytest.fixture
async def site() -> RecoverySite:
    made = RecoverySite(5)
    await made.register_all()
    return made


async def test_a_lost_bookies_ledgers_get_their_copies_back(site: RecoverySite) -> None:
    writers = [await site.write(20) for _ in range(10)]
    async with site.recovery() as recovery:
        await site.kill("b0")

        async def restored() -> bool:
            return not any([await site.missing(writer.ledger_id) for writer in writers]) and not await site.marked()

        await eventually(restored, "all copies")
        statistics = recovery.statistics
        affected = sum("b0" in writer.metadata.last_segment.ensemble for writer in writers)
        assert statistics.ledgers_marked_total == statistics.ledgers_repaired_total == affected
        assert statistics.bookies_lost_total == 1
    assert await site.locks() == []
    assert await site.store.children(f"{paths.UNDERREPLICATION_PATH}/auditorelection") == []


async def test_a_bookie_that_is_back_within_the_delay_costs_nothing(site: RecoverySite) -> None:
    writers = [await site.write(20, write_quorum=3) for _ in range(5)]
    async with site.recovery(lost_bookie_recovery_delay_s=3600) as recovery:

        async def missing() -> bool:
            return recovery.statistics.bookies_missing == 1

        async def nobody_missing() -> bool:
            return recovery.statistics.bookies_missing == 0

        for _ in range(3):
            await site.kill("b0")
            await eventually(missing, "the auditor notices")
            await site.register("b0")
            await eventually(nobody_missing, "the auditor notices")
        assert recovery.statistics.ledgers_marked_total == 0
        assert recovery.statistics.bytes_copied_total == 0
        assert await site.store.get(paths.LOST_BOOKIE_RECOVERY_DELAY_PATH) is not None
        # a second one at the same time is past waiting for
        await site.kill("b0")
        await eventually(missing, "the auditor notices")
        await site.kill("b1")

        async def restored() -> bool:
            return not any([await site.missing(writer.ledger_id) for writer in writers])

        await eventually(restored, "all copies")
        assert recovery.statistics.bookies_lost_total == 2


async def test_a_shorter_delay_in_the_store_holds_at_once(site: RecoverySite) -> None:
    writer = await site.write(20, ensemble=5)
    await site.add_bookie()
    async with site.recovery(lost_bookie_recovery_delay_s=3600) as recovery:
        await site.kill("b0")

        async def missing() -> bool:
            return recovery.statistics.bookies_missing == 1

        await eventually(missing, "the auditor notices")
        await recovery.marks.set_lost_bookie_recovery_delay(0)

        async def restored() -> bool:
            return not await site.missing(writer.ledger_id)

        await eventually(restored, "all copies")


async def test_a_bookie_that_was_lost_before_is_found_at_the_start(site: RecoverySite) -> None:
    writer = await site.write(20)
    await site.kill(writer.metadata.last_segment.ensemble[0])
    async with site.recovery():

        async def restored() -> bool:
            return not await site.missing(writer.ledger_id) and not await site.marked()

        await eventually(restored, "all copies")


async def test_disabled_means_nothing_happens_until_enabled(site: RecoverySite) -> None:
    writer = await site.write(20)
    async with site.recovery() as recovery:
        await recovery.marks.disable()
        await site.kill(writer.metadata.last_segment.ensemble[0])
        await recovery.marks.mark(writer.ledger_id, ["b0"])
        await asyncio.sleep(0.2)  # several polls: there is no event to wait for when nothing may happen
        assert recovery.statistics.bytes_copied_total == 0
        assert await site.locks() == []
        await recovery.marks.enable()

        async def restored() -> bool:
            return not await site.missing(writer.ledger_id) and not await site.marked()

        await eventually(restored, "all copies")


async def test_two_workers_never_copy_an_entry_twice(site: RecoverySite) -> None:
    writers = [await site.write(30) for _ in range(20)]
    added: Counter[tuple[str, int, int]] = Counter()
    for number, bookie in enumerate(site.cluster.bookies):
        store = bookie._store

        def count(ledger_id, entry_id, entry, flags, done, name=f"b{number}", store=store):  # type: ignore[no-untyped-def]
            if flags & FLAG_RECOVERY_ADD:
                added[name, ledger_id, entry_id] += 1
            store(ledger_id, entry_id, entry, flags, done)

        bookie._store = count  # type: ignore[method-assign]
    async with site.recovery("worker-1") as first, site.recovery("worker-2") as second:
        await site.kill("b0")

        async def restored() -> bool:
            return not any([await site.missing(writer.ledger_id) for writer in writers]) and not await site.marked()

        await eventually(restored, "all copies")
        assert min(first.statistics.ledgers_repaired_total, second.statistics.ledgers_repaired_total) > 0
        assert first.statistics.auditor_elected != second.statistics.auditor_elected
    assert set(added.values()) == {1}
    assert len({(ledger, entry) for _, ledger, entry in added}) == len(added)


async def test_the_next_auditor_takes_over_and_a_dead_workers_lock_goes_with_its_session(site: RecoverySite) -> None:
    writer = await site.write(20)
    ensemble = writer.metadata.last_segment.ensemble
    session = site.session()
    async with site.recovery("worker-2") as second:
        async with site.recovery("worker-1", session, replication_worker_enabled=False) as first:

            async def one_leads() -> bool:
                return first.statistics.auditor_elected != second.statistics.auditor_elected

            await eventually(one_leads, "one auditor is elected")
            await first.marks.mark(writer.ledger_id, ["nobody"])
            # the process dies in the middle of a copy
            for name in ensemble:
                site.cluster.bookie(name).hung_reads = True
            await first.marks.lock(writer.ledger_id)
            session.abandon()
            session.expire_session()
        for name in ensemble:
            site.cluster.bookie(name).hung_reads = False
        await site.kill(ensemble[0])

        async def restored() -> bool:
            return not await site.missing(writer.ledger_id) and not await site.marked()

        await eventually(restored, "all copies")
        assert second.statistics.auditor_elected
    assert await site.locks() == []


async def test_a_stopped_worker_leaves_no_lock(site: RecoverySite) -> None:
    writer = await site.write(20)
    await site.kill(writer.metadata.last_segment.ensemble[0])
    for name in writer.metadata.last_segment.ensemble[1:]:
        site.cluster.bookie(name).hung_reads = True

    async def locked() -> bool:
        return bool(await site.locks())

    async with site.recovery(read_timeout_s=60):
        await eventually(locked, "the worker is at work")
    assert await site.locks() == []
    assert await site.marked() == [f"urL{writer.ledger_id:010d}"]


async def test_what_cannot_be_repaired_is_reported_and_not_tried_in_a_circle(site: RecoverySite) -> None:
    writer = await site.write(20, ensemble=1, write_quorum=1, ack_quorum=1)
    only = writer.metadata.last_segment.ensemble[0]
    async with site.recovery(failed_ledger_backoff_s=600, failed_ledger_backoff_max_s=600) as recovery:
        await site.kill(only)

        async def failed() -> bool:
            return recovery.statistics.ledgers_failed_total > 0

        await eventually(failed, "the worker gives up")
        await asyncio.sleep(0.2)  # several polls
        assert recovery.statistics.ledgers_failed_total == 1
        assert "bring a lost one back" in recovery.worker.unrepairable()[writer.ledger_id]
        assert await site.locks() == []
        assert await site.marked() == [f"urL{writer.ledger_id:010d}"]
        # the bookie is back: that is tried at once
        await site.register(only)

        async def clean() -> bool:
            return not await site.marked()

        await eventually(clean, "the mark goes")
        assert recovery.worker.unrepairable() == {}
        assert recovery.statistics.entries_copied_total == 0


async def test_a_new_bookie_lets_waiting_ledgers_be_repaired_at_once(site: RecoverySite) -> None:
    writer = await site.write(20, ensemble=5)
    async with site.recovery(failed_ledger_backoff_s=600, failed_ledger_backoff_max_s=600) as recovery:
        await site.kill("b2")

        async def failed() -> bool:
            return recovery.statistics.ledgers_waiting == 1

        await eventually(failed, "the worker gives up")
        new = await site.add_bookie()

        async def restored() -> bool:
            return not await site.missing(writer.ledger_id)

        await eventually(restored, "all copies")
        assert new in (await site.metadata(writer.ledger_id)).last_segment.ensemble


async def test_a_writer_that_replaces_the_bookie_itself_is_left_alone(site: RecoverySite) -> None:
    writer = await site.write(20, close=False)
    ensemble = writer.metadata.last_segment.ensemble
    async with site.recovery(open_ledger_rereplication_grace_period_s=0.5) as recovery:
        await site.kill(ensemble[0])

        async def deferred() -> bool:
            return recovery.statistics.ledgers_deferred == 1

        await eventually(deferred, "the grace period runs")
        spare = next(name for name in site.names if name not in ensemble and name != "b0")
        metadata, version = await site.manager.read(writer.ledger_id)
        segments = (*metadata.segments, metadata.last_segment._replace(first_entry_id=20))
        segments = (*segments[:-1], segments[-1]._replace(ensemble=(spare, *ensemble[1:])))
        await site.manager.write(writer.ledger_id, replace(metadata, segments=segments), version)

        async def restored() -> bool:
            return not await site.missing(writer.ledger_id) and not await site.marked()

        await eventually(restored, "all copies")
        assert (await site.metadata(writer.ledger_id)).state is LedgerState.OPEN
        assert recovery.statistics.ledgers_taken_over_total == 0
        assert not any(writer.ledger_id in bookie.fenced for bookie in site.cluster.bookies)


async def test_a_writer_that_does_not_is_fenced_after_the_grace_period(site: RecoverySite) -> None:
    writer = await site.write(20, write_quorum=3, close=False)
    async with site.recovery() as recovery:
        await site.kill(writer.metadata.last_segment.ensemble[0])

        async def restored() -> bool:
            return not await site.missing(writer.ledger_id) and not await site.marked()

        await eventually(restored, "all copies")
        metadata = await site.metadata(writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 19, 2_000)
        assert recovery.statistics.ledgers_taken_over_total == 1
    outcome: list[object] = []
    writer.append(b"late", outcome.append)
    await settle()
    assert outcome != [None]


async def test_the_check_of_all_ledgers_finds_what_no_lost_bookie_explains(site: RecoverySite) -> None:
    writers = [await site.write(20) for _ in range(3)]
    victim = writers[1]
    holder = site.cluster.bookie(victim.metadata.last_segment.ensemble[0])
    held = holder.entries[victim.ledger_id]
    del held[max(held)]
    async with site.recovery(auditor_enabled=False) as recovery:
        assert await recovery.auditor.audit_bookies() == 0
        assert await recovery.auditor.check_all_ledgers() == 1

        async def restored() -> bool:
            return not await site.missing(victim.ledger_id) and not await site.marked()

        await eventually(restored, "all copies")
        assert recovery.statistics.ledgers_checked_total == 3


async def test_a_percentage_of_the_entries_between_is_read_too(site: RecoverySite) -> None:
    writer = await site.write(60)
    holder = site.cluster.bookie(writer.metadata.last_segment.ensemble[0])
    held = holder.entries[writer.ledger_id]
    for entry_id in sorted(held)[1:-1]:
        del held[entry_id]
    plain = site.recovery(auditor_ledger_verification_percentage=0)
    assert await plain.auditor.check_all_ledgers() == 0
    thorough = site.recovery(auditor_ledger_verification_percentage=50)
    assert await thorough.auditor.check_all_ledgers() == 1


async def test_the_check_of_all_ledgers_comes_after_its_interval_whoever_audits(site: RecoverySite) -> None:
    await site.write(5)
    recovery = site.recovery(auditor_periodic_check_interval_s=1.0)
    await recovery.marks.prepare()
    await recovery.auditor.check_copies_when_due()
    assert recovery.statistics.all_ledgers_checks_total == 0
    await site.store.put(paths.CHECK_ALL_LEDGERS_TIME_PATH, b"\x08\x01")
    other = site.recovery("worker-2", auditor_periodic_check_interval_s=1.0)
    await other.auditor.check_copies_when_due()
    assert other.statistics.all_ledgers_checks_total == 1
    await recovery.auditor.check_copies_when_due()
    assert recovery.statistics.all_ledgers_checks_total == 0


async def test_ledgers_that_lie_elsewhere_than_the_policy_wants_are_counted_and_not_marked(
    site: RecoverySite, caplog: pytest.LogCaptureFixture
) -> None:
    directory = site.cluster.directory
    directory.policy = RackAwarePlacement(2)
    directory.set_locations({name: f"/r{number % 2}" for number, name in enumerate(site.names)})
    spread = await site.write(5, ensemble=2)
    open_ = await site.write(5, ensemble=2, close=False)
    recovery = site.recovery(auditor_placement_check_interval_s=1.0)
    await recovery.marks.prepare()
    assert await recovery.auditor.check_placement() == 0
    # the bookies of both ledgers turn out to stand in one rack
    members = {*spread.metadata.last_segment.ensemble, *open_.metadata.last_segment.ensemble}
    directory.set_locations(dict.fromkeys(members, "/r0"))
    await site.store.put(paths.PLACEMENT_POLICY_CHECK_TIME_PATH, b"\x08\x01")
    await recovery.auditor.audit()
    assert recovery.statistics.placement_checks_total == 2
    assert recovery.statistics.ledgers_not_adhering_to_placement_policy == 1
    assert f"ledger {spread.ledger_id} does not adhere to the rack placement policy" in caplog.text
    assert await recovery.marks.check_time_ms(CHECK_PLACEMENT) > 1
    assert await site.marked() == []
    await recovery.auditor.audit()
    assert recovery.statistics.placement_checks_total == 2


async def test_a_check_whose_last_time_lies_in_the_future_is_due(site: RecoverySite) -> None:
    """Written by an auditor whose clock was an hour ahead; found by the simulator."""
    await site.write(5)
    recovery = site.recovery(auditor_periodic_check_interval_s=3600.0)
    await recovery.marks.prepare()
    ahead_ms = SystemClock().now_ms() + 3_600_000
    await recovery.marks.set_check_time_ms(CHECK_ALL_LEDGERS, ahead_ms)
    await recovery.auditor.check_copies_when_due()
    assert recovery.statistics.all_ledgers_checks_total == 1
    assert await recovery.marks.check_time_ms(CHECK_ALL_LEDGERS) < ahead_ms
    await recovery.auditor.check_copies_when_due()
    assert recovery.statistics.all_ledgers_checks_total == 1


async def test_unreadable_metadata_hides_no_other_ledger(site: RecoverySite) -> None:
    broken = await site.write(5)
    whole = await site.write(5)
    await site.store.put(paths.ledger_path(broken.ledger_id), b"nonsense")
    await site.kill(whole.metadata.last_segment.ensemble[0])
    recovery = site.recovery()
    assert await recovery.auditor.audit_bookies() == 1
    assert recovery.statistics.ledgers_unreadable_metadata_total == 1


async def test_a_metadata_store_that_is_cut_off_is_waited_for(site: RecoverySite) -> None:
    writer = await site.write(20)
    session = site.session()
    async with site.recovery("worker-1", session) as recovery:

        async def elected() -> bool:
            return recovery.statistics.auditor_elected

        await eventually(elected, "the auditor is elected")
        session.disconnect()
        await site.kill(writer.metadata.last_segment.ensemble[0])

        async def failing() -> bool:
            return recovery.statistics.audits_failed_total > 0

        await eventually(failing, "the auditor notices")
        session.expire_session()
        session.reconnect()

        async def restored() -> bool:
            return not await site.missing(writer.ledger_id) and not await site.marked()

        await eventually(restored, "all copies")


async def test_an_audit_that_failed_is_repeated(site: RecoverySite) -> None:
    writer = await site.write(20)
    recovery = site.recovery(store=site.store)
    await recovery.auditor.audit()
    await site.kill(writer.metadata.last_segment.ensemble[0])
    listing = recovery.auditor._manager.list_ids
    recovery.auditor._manager.list_ids = _cut_off  # type: ignore[method-assign]
    with pytest.raises(MetadataError):
        await recovery.auditor.audit()
    recovery.auditor._manager.list_ids = listing  # type: ignore[method-assign]
    assert await recovery.auditor.audit() <= recovery.auditor._config.auditor_second_look_s
    assert await site.marked() == [f"urL{writer.ledger_id:010d}"]


async def _cut_off() -> list[int]:
    raise MetadataError("the metadata store is cut off")


async def test_ledgers_that_name_the_bookie_after_the_audit_are_found_by_the_second_look(site: RecoverySite) -> None:
    await site.write(20)
    async with site.recovery(auditor_second_look_s=0.2) as recovery:

        async def elected() -> bool:
            return recovery.statistics.bookie_audits_total == 1

        await eventually(elected, "the first audit")
        await site.store.delete(paths.available_bookie_path("b0"))

        async def audited() -> bool:
            return recovery.statistics.bookie_audits_total == 2

        await eventually(audited, "the audit after the loss")
        late = await site.write(0, ensemble=5)  # a client whose directory still has b0
        site.cluster.directory.unregister("b0")
        await site.add_bookie()

        async def restored() -> bool:
            return not await site.missing(late.ledger_id)

        await eventually(restored, "the late ledger")


@pytest.mark.parametrize(
    "settings",
    [
        {"poll_interval_s": 0},
        {"lost_bookie_recovery_delay_s": -1},
        {"auditor_ledger_verification_percentage": 101},
        {"failed_ledger_backoff_s": 10, "failed_ledger_backoff_max_s": 5},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="auto-recovery"):
        AutoRecoveryConfig(**settings)  # type: ignore[arg-type]


async def test_damage_that_a_read_meets_is_repaired_at_once(site: RecoverySite) -> None:
    writer = await site.write(30)
    ensemble = writer.metadata.last_segment.ensemble
    held = site.cluster.bookie(ensemble[0]).entries[writer.ledger_id]
    good = dict(held)
    spoilt = next(
        entry for entry in sorted(held) if entry > 3 and entry % len(ensemble) == 0
    )  # asked of this bookie first
    held[spoilt] = held[spoilt][:-1] + bytes([held[spoilt][-1] ^ 1])
    async with site.recovery(auditor_enabled=False) as recovery, TaskScope("reports") as scope:
        statistics = ClientStatistics()
        reports = DamageReports(recovery.marks, SystemClock(), statistics)
        scope.supervise(reports.run, "reports")
        site.cluster.directory.on_damage = reports.note
        for _ in range(20):
            await read_all(await site.client.open_ledger(writer.ledger_id, recover=False))

        async def repaired() -> bool:
            return held == good and not await site.marked()

        await eventually(repaired, "the copy is good again")
        assert statistics.damage_reports == 1, "told once, however often it was read"
        assert recovery.statistics.copies_rewritten_total == 1
        assert await recovery.marks.damaged(writer.ledger_id) is None


async def test_reports_of_damage_are_bounded(site: RecoverySite) -> None:
    statistics = ClientStatistics()
    reports = DamageReports(site.recovery().marks, SystemClock(), statistics)
    for ledger_id in range(DAMAGE_REPORTS_WAITING_MAX + 5):
        reports.note(ledger_id, "b0")
        reports.note(ledger_id, "b0")
    assert statistics.damage_reports_dropped == 10


async def test_damage_reported_while_the_mark_goes_is_not_forgotten(site: RecoverySite) -> None:
    writer = await site.write(10)
    first, second, *_ = writer.metadata.last_segment.ensemble
    marks = site.recovery().marks
    await marks.prepare()
    assert await marks.report_damage(writer.ledger_id, first)
    assert not await marks.report_damage(writer.ledger_id, first)
    note = await marks.damaged(writer.ledger_id)
    assert note is not None
    assert await marks.report_damage(writer.ledger_id, second)
    assert not await marks.damage_repaired(note), "there is more of it than was known"
    note = await marks.damaged(writer.ledger_id)
    assert note is not None
    assert note.bookies == {first, second}
    assert await marks.damage_repaired(note)


async def test_a_check_of_all_copies_goes_on_where_it_was(site: RecoverySite) -> None:
    writers = [await site.write(4) for _ in range(5)]
    recovery = site.recovery()
    await recovery.marks.prepare()
    await recovery.marks.set_copies_check_progress(writers[2].ledger_id)
    await recovery.auditor.check_all_ledgers()
    assert recovery.statistics.ledgers_checked_total == 2
    assert await recovery.marks.copies_check_progress() == -1
    await recovery.auditor.check_all_ledgers()
    assert recovery.statistics.ledgers_checked_total == 2 + 5
    assert recovery.statistics.copies_read_total == (2 + 5) * 4 * 2


async def test_the_check_of_all_copies_keeps_to_its_rate(site: RecoverySite) -> None:
    await site.write(40)
    recovery = site.recovery(auditor_verification_rate_by_bytes=300 * 1024)
    before_s = time.monotonic()
    await recovery.auditor.check_all_ledgers()
    assert recovery.statistics.copies_read_total == 80
    assert time.monotonic() - before_s > 0.2, "80 copies count more than 80 KiB"
