"""What scripted schedules share: their register, pauses, power cycles."""

from __future__ import annotations

import asyncio

from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.testing.sim.history import LedgerHistory
from magnetar.testing.sim.stage import Held, Schedule, Stage
from magnetar.testing.sim.world import until

SCHEDULES: dict[str, tuple[Schedule, int]] = {}
"""Name -> (script, bookies)."""


def schedule(name: str, bookies: int = 3):  # type: ignore[no-untyped-def]
    """Register a script."""

    def register(script: Schedule) -> Schedule:
        SCHEDULES[name] = (script, bookies)
        return script

    return register


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def power_cycle(stage: Stage) -> None:
    """All bookies lose power and come back; clients have to connect anew."""
    for bookie in stage.cluster.bookies:
        bookie.cut_power()
        bookie.start()
    await until(lambda: all(bookie.serving for bookie in stage.cluster.bookies))
    for bookie in stage.cluster.bookies:
        for client in stage.cluster.clients:
            stage.world.wires.reset(client.name, bookie.name)
    await pause(6)


async def fresh(stage: Stage) -> tuple[LedgerWriter, LedgerHistory]:
    """A ledger on all of three bookies, once the writer has connected to them again."""
    while True:
        await pause(1)
        try:
            writer, ledger = await stage.create(3, 3, 3)
        except MagnetarError:
            continue
        append = await stage.append(writer, ledger)
        await until(lambda append=append: append.done)  # type: ignore[misc]
        if append.acked:
            return writer, ledger


def hold_recovery_reads(stage: Stage, *arguments: object) -> list[Held]:
    """Answers to recovery reads, whether they fence (as they must) or not."""
    return [stage.hold(stage.recoverer, f"{what} answered", *arguments) for what in ("recovery-read", "read")]  # type: ignore[arg-type]
