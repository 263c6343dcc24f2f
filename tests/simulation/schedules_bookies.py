"""Scripted schedules of bookies and their disks. See `schedules`."""

from __future__ import annotations

import asyncio

from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.errors import CookieError
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.stage import Stage
from magnetar.testing.sim.world import until
from tests.simulation.script_kit import fresh, pause, power_cycle, schedule

# ---- Bookies and their disks


@schedule("a wiped bookie may not come back under its name (BK#2612, trap 14)", 4)
async def wiped(stage: Stage) -> None:
    """It would deny entries that it has acknowledged."""
    writer, ledger = await stage.create(3, 2, 2)
    await stage.append_acked(writer, ledger, 6)
    victim = stage.members(writer)[0]
    victim.cut_power()
    victim.machine.medium.wipe()
    victim.stays_down = True
    stage.cluster.given_up.add(victim.name)
    victim.start()
    await until(lambda: victim.refused is not None or victim.serving)
    await pause(6)
    stage.writer.kill()
    reader = await stage.recover(stage.recoverer, ledger)
    assert reader.last_add_confirmed == 5
    assert isinstance(victim.refused, CookieError)


@schedule("a failed fsync acknowledges nothing and stops the bookie", 4)
async def failed_fsync(stage: Stage) -> None:
    """The ledger moves on; the bookie starts again from its journal."""
    writer, ledger = await stage.create(3, 3, 3)
    await stage.append_acked(writer, ledger)
    victim = stage.members(writer)[0]
    victim.machine.medium.fail_next.add("fsync")
    append = await stage.append(writer, ledger)
    await until(lambda: append.done, 60)
    await pause(0.1)
    stage.check()
    await until(lambda: victim.serving and victim.starts == 2)
    await stage.read_all(stage.recoverer, ledger)


@schedule("the checkpoint mark never passes what is not flushed (BK#3329, BK#4844, trap 16)")
async def early_mark(stage: Stage) -> None:
    """Power fails at each step of a checkpoint."""
    for moment in (
        "disk rename after checkpoint",
        "disk fsync_dir after current",
        "disk fsync before index.sim",
        "disk fsync after index.sim",
        "disk rename before checkpoint",
    ):
        writer, ledger = await fresh(stage)
        await stage.append_acked(writer, ledger, 3)
        victim = stage.members(writer)[1]
        struck: list[str] = []

        def strike(process: Process, told: str, moment: str = moment, struck: list[str] = struck) -> None:
            if not struck and told.startswith(moment) and process is victim.process:  # noqa: B023 (used in this turn only)
                struck.append(told)
                victim.cut_power()  # noqa: B023

        stage.world.moments.listeners.append(strike)
        await until(lambda struck=struck: struck, 30)  # type: ignore[misc]
        stage.world.moments.listeners.clear()
        stage.check()
        victim.start()
        await until(lambda victim=victim: victim.serving)  # type: ignore[misc]
        await stage.read_all(stage.recoverer, ledger)


@schedule("an add is durable before it is acknowledged")
async def power_after_ack(stage: Stage) -> None:
    """All power fails the moment the acknowledgement is there."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger, 20)
    for bookie in stage.cluster.bookies:
        bookie.cut_power()
    stage.check()
    for bookie in stage.cluster.bookies:
        bookie.start()
    await until(lambda: all(bookie.serving for bookie in stage.cluster.bookies))
    await pause(6)
    await stage.read_all(stage.recoverer, ledger)


@schedule("a torn journal tail is cut off once")
async def torn_tail(stage: Stage) -> None:
    """Power fails in the middle of a commit, again and again; what is acknowledged in between stays."""
    writer, ledger = await stage.create(3, 3, 2)
    for _ in range(8):
        await stage.append_acked(writer, ledger)
        struck: list[str] = []

        def strike(process: Process, told: str, struck: list[str] = struck) -> None:
            if len(struck) < 3 and told.startswith("disk write after") and told.endswith(".journal"):
                struck.append(told)
                for bookie in stage.cluster.bookies:
                    if bookie.process is process:
                        bookie.cut_power()

        stage.world.moments.listeners.append(strike)
        await stage.append(writer, ledger, b"x" * 3000)
        await pause(1)
        stage.world.moments.listeners.clear()
        stage.check()
        for bookie in stage.cluster.bookies:
            bookie.start()
        await until(lambda: all(bookie.serving for bookie in stage.cluster.bookies))
        await pause(6)
        writer, ledger = await stage.create(3, 3, 2)
    for one in list(stage.history.ledgers.values()):
        await stage.read_all(stage.recoverer, one)


@schedule("compaction loses nothing, wherever the power fails (BK#1534, trap 20)")
async def compaction(stage: Stage) -> None:
    """Half of the ledgers are deleted; the logs of the others are rewritten."""
    kept = []
    for number in range(6):
        writer, ledger = await stage.create(3, 3, 3)
        await stage.append_acked(writer, ledger, 8)
        await stage.by(stage.writer, writer.close())
        if number % 2:
            ledger.deleted = True
            await stage.by(stage.writer, stage.writer.client.delete_ledger(ledger.ledger_id))
        else:
            kept.append(ledger)
    victim = stage.cluster.bookies[0]
    for moment in ("disk fsync before index", "disk fsync after index", "disk unlink before", "disk unlink after"):
        assert victim.bookie is not None
        await victim.bookie.checkpoint()
        struck: list[str] = []

        def strike(process: Process, told: str, moment: str = moment, struck: list[str] = struck) -> None:
            if not struck and told.startswith(moment) and process is victim.process:
                struck.append(told)
                victim.cut_power()

        stage.world.moments.listeners.append(strike)
        assert victim.process is not None
        stage.world.loop.spawn(victim.process, victim.bookie.collect_garbage())
        await pause(3)
        stage.world.moments.listeners.clear()
        stage.check()
        victim.start()
        await until(lambda: victim.serving)
    for ledger in kept:
        await stage.read_all(stage.recoverer, ledger)


@schedule("a ledger created during a collection is not collected")
async def young_ledger(stage: Stage) -> None:
    """Its entries arrive while the metadata is being listed."""
    old, old_ledger = await stage.create(3, 3, 3)
    await stage.append_acked(old, old_ledger, 2)
    struck: list[str] = []
    created: list[asyncio.Task[None]] = []

    async def create_another() -> None:
        writer, ledger = await stage.create(3, 3, 3)
        await stage.append_acked(writer, ledger, 3)

    def strike(process: Process, told: str) -> None:
        if told.startswith("list after") and len(struck) < 3:
            struck.append(told)
            created.append(stage.world.loop.spawn(stage.world.loop.outside, create_another()))

    stage.world.moments.listeners.append(strike)
    for bookie in stage.cluster.bookies:
        assert bookie.bookie is not None
        assert bookie.process is not None
        await stage.world.loop.spawn(bookie.process, bookie.bookie.collect_garbage())
    assert created
    await asyncio.gather(*created)
    for bookie in stage.cluster.bookies:
        assert bookie.bookie is not None
        await bookie.bookie.checkpoint()
    stage.check()
    for ledger in list(stage.history.ledgers.values()):
        await stage.read_all(stage.recoverer, ledger)


@schedule("a late add does not bring a deleted ledger back (BK#4462, trap 21)")
async def late_add_after_delete(stage: Stage) -> None:
    """The zombie's entry arrives after the bookies collected the ledger."""
    writer, ledger = await stage.create(3, 3, 2)
    await stage.append_acked(writer, ledger, 2)
    ledger.deleted = True
    await stage.by(stage.second, stage.second.client.delete_ledger(ledger.ledger_id))
    for bookie in stage.cluster.bookies:
        assert bookie.bookie is not None
        assert bookie.process is not None
        await stage.world.loop.spawn(bookie.process, bookie.bookie.collect_garbage())
    await power_cycle(stage)
    for bookie in stage.cluster.bookies:
        assert await stage.late_add(stage.writer, bookie, ledger, 2) == ReturnCode.FENCED
        assert bookie.bookie is not None
        assert ledger.ledger_id not in bookie.bookie.ledger_ids()
