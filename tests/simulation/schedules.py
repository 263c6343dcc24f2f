"""One scripted schedule for each bug that BookKeeper (or a trial of this system) had: random search alone misses most of them.

Those of bookies and their disks are in `schedules_bookies`.
Numbers: BK#n is an issue of apache/bookkeeper; "trap n" a row of the project's list of traps.
"""

from __future__ import annotations

import pytest

from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.metadata import MACHINE
from magnetar.testing.sim.stage import Stage
from magnetar.testing.sim.world import until
from tests.simulation.script_kit import hold_recovery_reads, pause, power_cycle, schedule

# ---- Fencing and recovery


@schedule("recovery reads fence (BK#2614, trap 4)")
async def late_add(stage: Stage) -> None:
    """The fence to one bookie is lost; an add that arrives there after recovery counted it as "not here" must be refused."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger)
    first, second, third = stage.members(writer)
    stage.hold(stage.writer, "add sent", first, 1)
    late = stage.hold(stage.writer, "add sent", third, 1)
    append = await stage.append(writer, ledger)
    await pause(0.1)  # the second bookie has entry 1
    stage.hold(stage.recoverer, "fence sent", third)
    slow = hold_recovery_reads(stage, second, 1)
    reader = stage.world.loop.spawn(stage.world.loop.outside, stage.recover(stage.recoverer, ledger))
    await until(lambda: reader.done() or any(held.waiting for held in slow), 30)
    await pause(0.5)
    for held in (late, *slow):
        held.release()
    await until(lambda: append.done and reader.done())
    (await reader).metadata.validate()


@schedule("a reader hears from every ack quorum (PR 2333, trap 8)")
async def reader_coverage(stage: Stage) -> None:
    """Two of three bookies know that much is confirmed; the third, which answers first, knows nothing."""
    writer, ledger = await stage.create(3, 3, 2)
    third = stage.members(writer)[2]
    stage.hold(stage.writer, "add sent", third)
    await stage.append_acked(writer, ledger)
    await stage.append_acked(writer, ledger)
    await stage.append_acked(writer, ledger)
    slow = [stage.hold(stage.recoverer, "lac answered", bookie) for bookie in stage.members(writer)[:2]]
    task = stage.world.loop.spawn(
        stage.world.loop.outside, stage.by(stage.recoverer, stage.workload.open(stage.recoverer, ledger, recover=False))
    )
    await pause(1)
    for held in slow:
        held.release()
    assert await task is not None


@schedule("a recovery without an answer from every ack quorum waits")
async def coverage(stage: Stage) -> None:
    """With Qa 1 any bookie may hold the only copy: one that cannot be reached stops the recovery."""
    writer, ledger = await stage.create(3, 2, 1)
    members = stage.members(writer)
    only = members[1]
    for bookie in (members[0], members[2]):
        stage.hold(stage.writer, "add sent", bookie, 0)
    append = await stage.append(writer, ledger)
    await until(lambda: append.acked)
    only.pause()
    with pytest.raises(MagnetarError):
        await stage.recover(stage.recoverer, ledger)
    only.resume()
    await pause(12)
    reader = await stage.recover(stage.second, ledger)
    assert reader.last_add_confirmed == 0


@schedule("errors are not negatives (BK#1067, BK#2908, trap 6)")
async def rotten_copy(stage: Stage) -> None:
    """One copy is rotten, one bookie never got the entry, the third is slow: the entry exists."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger)
    first, second, third = stage.members(writer)
    stage.hold(stage.writer, "add sent", third, 1)
    append = await stage.append(writer, ledger)
    await until(lambda: append.acked)
    assert first.bookie is not None
    await first.bookie.checkpoint()
    first.machine.medium.fail_probability["read"] = 1.0
    slow = hold_recovery_reads(stage, second, 1)
    reader = stage.world.loop.spawn(stage.world.loop.outside, stage.recover(stage.recoverer, ledger))
    await pause(2)
    first.machine.medium.fail_probability.clear()
    for held in slow:
        held.release()
    assert (await reader).last_add_confirmed == 1


@schedule("one negative proves nothing when Qa bookies are needed")
async def one_negative(stage: Stage) -> None:
    """Qw 3, Qa 2: the bookie that never got the entry answers first."""
    writer, ledger = await stage.create(3, 3, 2)
    first, second, third = stage.members(writer)
    stage.hold(stage.writer, "add sent", third, 0)
    append = await stage.append(writer, ledger)
    await until(lambda: append.acked)
    slow = [held for bookie in (first, second) for held in hold_recovery_reads(stage, bookie, 0)]
    reader = stage.world.loop.spawn(stage.world.loop.outside, stage.recover(stage.recoverer, ledger))
    await pause(1)
    for held in slow:
        held.release()
    assert (await reader).last_add_confirmed == 0


@schedule("one hung bookie does not hold up a recovery (BK#1067, trap 7)")
async def hung_bookie(stage: Stage) -> None:
    """It is over long before the hung bookie's time-out."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger, 3)
    stage.members(writer)[0].pause()
    before_s = stage.world.loop.now_s
    reader = await stage.recover(stage.recoverer, ledger)
    assert reader.last_add_confirmed == 2
    assert stage.world.loop.now_s - before_s < 1.0


@schedule("the LAC starts below the last segment, the length comes from the one before (BK#2615, traps 3 and 5)", 5)
async def empty_last_segment(stage: Stage) -> None:
    """The last segment's bookies are all new and empty."""
    writer, ledger = await stage.create(2, 2, 2)
    await stage.append_acked(writer, ledger, 4)
    first, second = stage.members(writer)
    first.cut_power()
    second.cut_power()
    for bookie in stage.spares(writer):
        stage.hold(stage.writer, "add sent", bookie)
    append = await stage.append(writer, ledger)
    await until(lambda: not {first.bookie_id, second.bookie_id} & set(writer.metadata.last_segment.ensemble), 60)
    stage.writer.kill()
    assert not append.acked
    first.start()
    second.start()
    await until(lambda: first.serving and second.serving)
    await pause(6)
    reader = await stage.recover(stage.recoverer, ledger)
    assert (reader.last_add_confirmed, reader.length) == (3, sum(map(len, list(ledger.sent.values())[:4])))
    starts = [segment.first_entry_id for segment in reader.metadata.segments]
    assert starts == [0, 4]
    await stage.read_all(stage.recoverer, ledger)


@schedule("ensembles of an unfinished recovery are nobody's business (upstream: newEnsemblesFromRecovery)", 5)
async def second_recoverer(stage: Stage) -> None:
    """The first recoverer replaces a bookie and dies; the second one must not ask the replacement."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger, 2)
    first, second, third = stage.members(writer)
    stage.writer.kill()
    held = [stage.hold(stage.recoverer, "recovery-add sent", bookie) for bookie in (first, second)]
    for bookie in stage.spares(writer):
        stage.hold(stage.recoverer, "recovery-add sent", bookie)
    task = stage.world.loop.spawn(stage.world.loop.outside, _attempt(stage, ledger))
    await until(lambda: all(one.waiting for one in held))
    first.cut_power()  # two members die while their copies are on the way
    second.cut_power()
    for one in held:
        one.release()
    await pause(8)
    stage.recoverer.kill()
    task.cancel()
    first.start()
    second.start()
    await until(lambda: first.serving and second.serving)
    await pause(6)
    slow = stage.hold(stage.second, "recovery-read answered", third)
    again = stage.world.loop.spawn(stage.world.loop.outside, stage.recover(stage.second, ledger))
    await pause(1)
    slow.release()
    assert (await again).last_add_confirmed == 1
    await stage.read_all(stage.second, ledger)


async def _attempt(stage: Stage, ledger: object) -> None:
    try:
        await stage.recover(stage.recoverer, ledger)  # type: ignore[arg-type]
    except MagnetarError:
        return


@schedule("a recovery leaves its tail on Qa bookies")
async def recovered_tail(stage: Stage) -> None:
    """An entry on one bookie only is read by the recovery and becomes part of the ledger: it must then be on Qa."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger)
    _, second, third = stage.members(writer)
    for bookie in (second, third):
        stage.hold(stage.writer, "add sent", bookie, 1)
    await stage.append(writer, ledger)
    await pause(0.1)
    slow = [stage.hold(stage.recoverer, "recovery-add sent", bookie, 1) for bookie in (second, third)]
    # Two answers that the entry is missing may come first, and prove that it has no receipt.
    slow.append(stage.hold(stage.recoverer, "recovery-read sent", third, 1))
    reader = stage.world.loop.spawn(stage.world.loop.outside, stage.recover(stage.recoverer, ledger))
    await pause(2)
    closed = reader.done() and (await reader).last_add_confirmed == 1
    if closed:  # then it has to be readable without the one bookie
        ledger.acked[1] = stage.world.loop.now_s
        stage.check()
    for held in slow:
        held.release()
    await reader


# ---- Fences on disk


@schedule("a fence on a ledger never seen survives a power cut (trap 1)")
async def unknown_fence(stage: Stage) -> None:
    """The bookies know nothing of the ledger but the fence."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.recover(stage.recoverer, ledger)
    await power_cycle(stage)
    for bookie in stage.members(writer):
        assert await stage.late_add(stage.writer, bookie, ledger, 0) == ReturnCode.FENCED


@schedule("a fence survives checkpoints without entries (BK#4843, trap 2)")
async def idle_fence(stage: Stage) -> None:
    """The write cache is empty while the checkpoint mark passes the fence."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.recover(stage.recoverer, ledger)
    for bookie in stage.members(writer):
        assert bookie.bookie is not None
        await bookie.bookie.checkpoint()
    await power_cycle(stage)
    for bookie in stage.members(writer):
        assert await stage.late_add(stage.writer, bookie, ledger, 0) == ReturnCode.FENCED


# ---- The writer


@schedule("nothing is acknowledged on a bookie that the metadata does not name (BK#1591, trap 9)", 5)
async def metadata_first(stage: Stage) -> None:
    """The writer cannot reach the metadata when a bookie fails; somebody else takes over meanwhile."""
    writer, ledger = await stage.create(2, 2, 2)
    await stage.append_acked(writer, ledger, 2)
    first, second = stage.members(writer)
    for pair in ((stage.writer.name, MACHINE), (MACHINE, stage.writer.name)):
        stage.world.wires.cut(*pair)
    first.cut_power()
    append = await stage.append(writer, ledger)
    await pause(8)
    assert not append.acked
    first.start()
    await until(lambda: first.serving)
    await pause(6)
    slow = hold_recovery_reads(stage, second, 2)  # it alone has the entry, and one negative is enough with Qw = Qa
    reader = await stage.recover(stage.recoverer, ledger)
    assert reader.last_add_confirmed == 1
    for held in slow:
        held.release()
    for pair in ((stage.writer.name, MACHINE), (MACHINE, stage.writer.name)):
        stage.world.wires.heal(*pair)
    await until(lambda: append.done, 120)
    assert not append.acked


@schedule("an entry counts its bookies anew after a change (BK#3005, trap 10)", 5)
async def stale_acks(stage: Stage) -> None:
    """Entry 1 has one acknowledgement, of a bookie that is then replaced."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger)
    first, second, third = stage.members(writer)
    late = [stage.hold(stage.writer, "add sent", bookie, 1) for bookie in (second, third, *stage.spares(writer))]
    one = await stage.append(writer, ledger)
    await pause(0.1)
    first.cut_power()
    two = await stage.append(writer, ledger)
    await until(lambda: first.bookie_id not in writer.metadata.last_segment.ensemble, 60)
    await pause(1)
    late[0].release()
    await pause(1)
    assert not one.acked
    for held in late:
        held.release()
    await until(lambda: one.done and two.done)
    assert one.acked


@schedule("failures one after the other end in acknowledgements (BK#4261, BK#4459, trap 11)", 6)
async def repeated_failures(stage: Stage) -> None:
    """The replacement fails as well, while the change is under way."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger)
    for _ in range(3):
        victim = stage.members(writer)[0]
        victim.cut_power()
        while victim.bookie_id in writer.metadata.last_segment.ensemble:
            await stage.append_acked(writer, ledger)
            await pause(1)
        victim.start()
    await stage.append_acked(writer, ledger, 5)
    await stage.by(stage.writer, writer.close())


@schedule("an ensemble change whose answer is lost is not made twice", 5)
async def lost_answer(stage: Stage) -> None:
    """The metadata write is done, its answer never comes."""
    writer, ledger = await stage.create(3, 3, 3)
    await stage.append_acked(writer, ledger)
    victim = stage.members(writer)[0]

    def drop(process: Process, moment: str) -> None:
        if process is stage.writer.process and moment.startswith("metadata put after /ledgers/00"):
            stage.writer.store.drop_connection()

    stage.world.moments.listeners.append(drop)
    victim.cut_power()
    appends = [await stage.append(writer, ledger) for _ in range(5)]
    await until(lambda: all(one.done for one in appends), 60)
    assert all(one.acked for one in appends)
    stage.world.moments.listeners.clear()
    assert len(writer.metadata.segments) == 2
    await stage.by(stage.writer, writer.close())


@schedule("entries are acknowledged in order")
async def in_order(stage: Stage) -> None:
    """The second entry is on its bookies long before the first."""
    writer, ledger = await stage.create(3, 3, 2)
    held = [stage.hold(stage.writer, "add sent", bookie, 0) for bookie in stage.members(writer)]
    first, second = await stage.append(writer, ledger), await stage.append(writer, ledger)
    await pause(1)
    assert not first.done
    assert not second.done
    for one in held:
        one.release()
    await until(lambda: first.acked and second.acked)


@schedule("a zombie writer is told that it is one", 5)
async def zombie(stage: Stage) -> None:
    """Paused for long, taken over, and back with appends and a failed bookie."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger, 3)
    pending = await stage.append(writer, ledger)
    stage.writer.pause()
    await pause(20)
    reader = await stage.recover(stage.recoverer, ledger)
    stage.members(writer)[0].cut_power()
    stage.writer.resume()
    await pause(1)
    late = [await stage.append(writer, ledger) for _ in range(3)]
    await until(lambda: pending.done and all(one.done for one in late), 120)
    assert not any(one.acked for one in late)
    assert reader.metadata.state is LedgerState.CLOSED


@schedule("a writer and a recovery that close at once agree")
async def close_race(stage: Stage) -> None:
    """Whoever is first decides; the other accepts it or says so."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger, 3)
    held = [stage.hold(stage.recoverer, "fence answered", bookie) for bookie in stage.members(writer)]
    task = stage.world.loop.spawn(stage.world.loop.outside, stage.recover(stage.recoverer, ledger))
    await until(lambda: all(one.waiting for one in held))
    await stage.by(stage.writer, writer.close())
    stage.checkers.closed(ledger, writer.last_add_confirmed, writer.length)
    for one in held:
        one.release()
    assert (await task).last_add_confirmed == 2
