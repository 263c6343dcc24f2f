"""One simulated world: loop, wires, machines and the metadata service, all from one seed."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import random
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import CoroutineType, TracebackType
from typing import Any, TypeVar

from magnetar.base.tasks import FAILURES, TURN_CLOCK, TURN_S
from magnetar.testing.sim.disk import Medium
from magnetar.testing.sim.loop import Process, SimClock, SimLoop
from magnetar.testing.sim.metadata import MetadataService
from magnetar.testing.sim.moments import Moments
from magnetar.testing.sim.trace import Trace
from magnetar.testing.sim.wires import Wires

T = TypeVar("T")

ITEMS_OF_A_TURN = 3
"""Steps of a background task that a turn of the loop has time for: few, so that others come in between."""


class Machine:
    """Has a name (its address), a disk, clocks, and the processes that run on it."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.medium = Medium(name, world.rng(f"disk of {name}"), world.moments)
        self.clock = SimClock(world.loop)
        self.processes: list[Process] = []
        self.on = True


class World:
    """`with World(seed) as world: world.run(main())`."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.trace = Trace()
        self.loop = SimLoop(self.rng("schedule"), self.trace)
        self.wires = Wires(self.loop, self.rng("wires"))
        self.moments = Moments()
        self.metadata = MetadataService(self.wires, self.moments)
        self.machines: dict[str, Machine] = {}
        self._collects = False
        """Garbage was collected in this process before."""

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose: drawing more for one changes nothing for another."""
        return random.Random(f"{self.seed}/{purpose}")

    def note(self, who: str, what: str) -> None:
        """Into the trace."""
        self.trace.add(self.loop.now_s, who, what)

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = 3600.0) -> T:
        """Everything happens until `work` is done. Raises SimulationError when it is not done in time."""
        self.loop.time_limit_s = self.loop.now_s + limit_s
        reported, FAILURES.raises = FAILURES.raises, True  # no bug may hide in a log
        steps = itertools.count(step=TURN_S / ITEMS_OF_A_TURN)
        turn_clock, TURN_CLOCK.now_s = TURN_CLOCK.now_s, lambda: next(steps)
        self._collects = self._collects or gc.isenabled()
        gc.disable()  # when it would run depends on everything else in this process; until `close`, which minds what is left then
        try:
            with _unbegun_tasks_are_no_news():
                return self.loop.run(work)
        finally:
            FAILURES.raises = reported
            TURN_CLOCK.now_s = turn_clock

    # ---- Machines and processes

    def machine(self, name: str) -> Machine:
        """The machine of this name, new or not, switched on."""
        found = self.machines.get(name)
        if found is None:
            found = self.machines[name] = Machine(self, name)
            self.wires.boot(name)
        return found

    def start(self, machine: Machine, name: str) -> Process:
        """A process without work yet: see `SimLoop.spawn`."""
        assert machine.on, f"{machine.name} is off"
        process = self.loop.process(name)
        machine.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        if process.alive:
            self.note(process.name, "is killed")
            self.loop.kill(process)
            self.wires.killed(process)

    def cut_power(self, machine: Machine) -> None:
        """All processes die, what the disk had not synced is lost or torn, nobody is told."""
        if not machine.on:
            return
        self.note(machine.name, "loses power")
        machine.on = False
        for process in machine.processes:
            if process.alive:
                self.loop.kill(process)
                self.wires.killed(process, silently=True)
        self.wires.cut_power(machine.name)
        machine.medium.cut_power()

    def power_on(self, machine: Machine) -> None:
        """The machine boots, with nothing running."""
        if not machine.on:
            self.note(machine.name, "boots")
            machine.on = True
            machine.processes.clear()
            self.wires.boot(machine.name)

    # ---- The end

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free everything. What killed processes held runs its `finally` blocks only now, when nothing can be touched any more."""
        quiet, sys.unraisablehook = sys.unraisablehook, _ignore
        try:
            for machine in self.machines.values():
                machine.medium.closed = True
            with _unbegun_tasks_are_no_news():
                self.loop.bury()
                self.loop.close()
                _close_what_never_began()
                gc.collect(1)  # what a run allocates is young: nothing was collected meanwhile
        finally:
            sys.unraisablehook = quiet
            if self._collects:
                gc.enable()


def _close_what_never_began() -> None:
    """Requests that waited for their turn in a process when it was killed, or when the run ended: freed later, each would be warned of
    where somebody else is at work. They are young, since nothing was collected during the run."""
    for found in (*gc.get_objects(generation=0), *gc.get_objects(generation=1)):
        if isinstance(found, CoroutineType) and inspect.getcoroutinestate(found) == inspect.CORO_CREATED:
            found.close()


@contextmanager
def _unbegun_tasks_are_no_news() -> Iterator[None]:
    """A killed process leaves tasks behind that had not begun."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"coroutine '.*' was never awaited", RuntimeWarning)
        yield


async def when(condition: Callable[[], object], step_s: float = 0.01) -> None:
    """Wait, in virtual time, until a condition holds."""
    while not condition():  # noqa: ASYNC110 (whose change it would be is not known here, and waiting costs nothing)
        await asyncio.sleep(step_s)


async def until(condition: Callable[[], object], timeout_s: float = 60.0, step_s: float = 0.01) -> None:
    """The same, for so long. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        await when(condition, step_s)


def _ignore(unraisable: Any) -> None:
    """Generators of killed processes complain that they cannot finish."""
