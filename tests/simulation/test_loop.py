"""The loop: virtual time, processes that are paused and killed, and the same order for the same seed."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings

import pytest

from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.testing.sim.loop import SimulationError
from magnetar.testing.sim.world import World, until


def test_hours_pass_at_once() -> None:
    with World(1) as world:

        async def main() -> float:
            await asyncio.sleep(7200)
            return asyncio.get_running_loop().time()

        assert 7200 <= world.run(main(), 10_000) < 7200.1


def test_who_waits_for_nobody_is_told() -> None:
    with World(1) as world, pytest.raises(SimulationError, match="waits for ever"):
        world.run(asyncio.Event().wait())


def test_a_run_has_an_end() -> None:
    with World(1) as world, pytest.raises(SimulationError, match="not done"):
        world.run(asyncio.sleep(100), limit_s=10)


def test_a_killed_process_runs_no_finally_and_a_paused_one_catches_up() -> None:
    seen: list[str] = []

    async def work(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append(name)
        finally:
            seen.append(f"{name} ends")

    with World(1) as world:
        machine = world.machine("one")
        first, second = world.start(machine, "first"), world.start(machine, "second")

        async def main() -> None:
            world.loop.spawn(first, work("first"))
            world.loop.spawn(second, work("second"))
            await asyncio.sleep(2.5)
            world.kill(first)
            world.loop.pause(second)
            await asyncio.sleep(10)
            assert sorted(seen) == ["first", "first", "second", "second"]
            world.loop.resume(second)
            await asyncio.sleep(0.5)
            assert seen.count("second") == 3

        world.run(main())
    assert "first ends" in seen  # only when the world is over


def test_what_ends_with_the_world_begins_nothing_new() -> None:
    """`finally` blocks of a process that was killed run when its world is closed: what they would have begun is no warning later."""
    kept: list[TaskScope] = []

    async def more() -> None:
        raise AssertionError("nothing runs any more")

    async def work() -> None:
        async with TaskScope("work") as scope:
            kept.append(scope)
            try:
                await asyncio.Event().wait()
            finally:
                scope.spawn(more(), "more", REPORTED)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with World(1) as world:
            process = world.start(world.machine("one"), "first")

            async def main() -> None:
                world.loop.spawn(process, work())
                await asyncio.sleep(1)
                world.kill(process)

            world.run(main())
        kept.clear()
        gc.collect()
    assert not told


def test_an_unhandled_error_is_a_finding() -> None:
    async def broken() -> None:
        raise ValueError("on purpose")

    with World(1) as world:
        process = world.start(world.machine("one"), "broken")

        async def main() -> None:
            world.loop.spawn(process, broken())
            await until(lambda: not process.tasks)

        world.run(main())
        assert "broken/main" in world.loop.crashes[0]
        assert "on purpose" in world.loop.crashes[0]


_SCRIPT = """
import asyncio
from magnetar.testing.sim.world import World

def universe(seed):
    with World(seed) as world:
        names = [world.start(world.machine("m"), f"p{n}") for n in range(5)]
        rng = world.rng("delays")
        async def work(name):
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(step(name, number))
                if name == "p3":
                    raise_later = group.create_task(fail())
        async def fail():
            await asyncio.sleep(0.004)
            raise ValueError
        async def step(name, number):
            try:
                await asyncio.sleep(rng.random() * 0.01)
                world.note(name, f"step {number}")
            except asyncio.CancelledError:
                world.note(name, f"cancelled {number}")
                raise
        async def main():
            tasks = [world.loop.spawn(p, work(p.name)) for p in names]
            await asyncio.wait(tasks)
            for task in tasks:
                task.exception()
        world.run(main())
        return world.trace.digest()
print(universe(1), universe(1), universe(2))
"""


def test_the_same_seed_is_the_same_run_in_every_process() -> None:
    outputs = set()
    for hash_seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    first, again, other = outputs.pop().split()
    assert first == again != other
