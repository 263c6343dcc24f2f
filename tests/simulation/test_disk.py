"""The disk: what a power cut leaves, what a killed process leaves, and its faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.base.errors import DiskFullError, DiskIOError
from magnetar.bookkeeper.bookie.storage.disk import write_file
from magnetar.testing.sim.disk import SECTOR_BYTES, SimDisk
from magnetar.testing.sim.executor import SimExecutor
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.world import World


def on_disk(test: Callable[[World, SimDisk], None], seed: int = 1) -> None:
    with World(seed) as world:
        machine = world.machine("m")
        disk = SimDisk(machine.medium, world.start(machine, "p"))
        disk.make_dir("/d")
        test(world, disk)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_keeps_what_was_synced_and_tears_the_rest_by_sectors(seed: int) -> None:
    def test(world: World, disk: SimDisk) -> None:
        file = disk.open_append("/d/file")
        old = bytes([1]) * 3000
        file.write_at(0, (old,))
        file.fsync()
        disk.fsync_dir("/d")
        file.write_at(1000, (bytes([2]) * 4000,))
        world.cut_power(world.machine("m"))
        content = bytes(disk.medium.directory("/d").names["file"].content)
        assert content[:1000] == old[:1000]
        for offset in range(1000, len(content), 1):
            sector = offset // SECTOR_BYTES
            first = max(1000, sector * SECTOR_BYTES)
            assert content[offset] == content[first] or offset >= 3000 > first
            assert content[offset] in (0, 1, 2)
        assert len(content) >= 3000

    on_disk(test, seed)


def test_names_are_lost_unless_the_directory_was_synced_and_replaced_atomically() -> None:
    outcomes: set[tuple[str, ...]] = set()

    def test(world: World, disk: SimDisk) -> None:
        write_file(disk, "/d/mark", b"old")
        file = disk.open_append("/d/mark.tmp")
        file.truncate(0)
        file.write_at(0, (b"new",))
        file.fsync()
        disk.rename("/d/mark.tmp", "/d/mark")
        world.cut_power(world.machine("m"))
        names = disk.medium.directory("/d").names
        assert bytes(names["mark"].content) in (b"old", b"new")
        outcomes.add((*sorted(names), bytes(names["mark"].content).decode()))

    for seed in range(30):
        on_disk(test, seed)
    assert outcomes == {("mark", "old"), ("mark", "new"), ("mark", "mark.tmp", "old")}


def test_a_kill_keeps_what_was_written() -> None:
    def test(world: World, disk: SimDisk) -> None:
        disk.open_append("/d/file").write_at(0, (b"page cache",))
        machine = world.machine("m")
        world.kill(machine.processes[0])
        again = SimDisk(machine.medium, world.start(machine, "p again"))
        assert again.open_read("/d/file").read_at(0, 100) == b"page cache"

    on_disk(test)


def test_a_failed_fsync_poisons_its_file_and_the_next_one_lies() -> None:
    def test(world: World, disk: SimDisk) -> None:
        file = disk.open_append("/d/file")
        disk.fsync_dir("/d")
        file.write_at(0, (b"gone",))
        disk.medium.fail_next.add("fsync")
        with pytest.raises(DiskIOError, match="simulated"):
            file.fsync()
        with pytest.raises(DiskIOError, match="not used any more"):
            file.write_at(0, (b"x",))
        other = disk.open_append("/d/file")
        assert other.read_at(0, 10) == b"gone"
        other.fsync()
        world.cut_power(world.machine("m"))
        assert not disk.medium.directory("/d").names["file"].content

    on_disk(test)


def test_a_full_disk_and_room_again() -> None:
    def test(world: World, disk: SimDisk) -> None:
        disk.medium.capacity_bytes = 1000
        file = disk.open_append("/d/file")
        file.write_at(0, (bytes(900),))
        with pytest.raises(DiskFullError):
            file.write_at(900, (bytes(101),))
        assert disk.free("/d").free_bytes == 100
        file.truncate(0)
        file.write_at(0, (bytes(1000),))

    on_disk(test)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_synced_bytes_survive_any_sequence(data: st.DataObject) -> None:
    """A model: whatever was synced last and not written since reads back after a power cut."""

    def test(world: World, disk: SimDisk) -> None:
        file = disk.open_append("/d/file")
        disk.fsync_dir("/d")
        model = bytearray()
        synced: bytearray = bytearray()
        dirty_from = 1 << 30
        for step in data.draw(st.lists(st.sampled_from(("write", "sync", "truncate")), max_size=12)):
            if step == "write":
                offset, size = data.draw(st.integers(0, 2000)), data.draw(st.integers(1, 1500))
                model.extend(bytes(max(0, offset + size - len(model))))
                model[offset : offset + size] = b"w" * size
                file.write_at(offset, (b"w" * size,))
                dirty_from = min(dirty_from, offset)
            elif step == "truncate":
                size = data.draw(st.integers(0, len(model)))
                del model[size:]
                file.truncate(size)
                dirty_from = min(dirty_from, size)
            else:
                file.fsync()
                synced, dirty_from = bytearray(model), 1 << 30
            assert file.read_at(0, 10_000) == bytes(model)
        world.cut_power(world.machine("m"))
        content = bytes(disk.medium.directory("/d").names["file"].content)
        assert content[: min(dirty_from, len(synced))] == bytes(synced[: min(dirty_from, len(synced))])

    on_disk(test, data.draw(st.integers(0, 1000)))


def test_blocking_calls_of_two_threads_interleave_and_stop_with_their_process() -> None:
    steps: list[str] = []
    with World(3) as world:
        machine = world.machine("m")
        process = world.start(machine, "p")
        disk = SimDisk(machine.medium, process)
        disk.make_dir("/d")

        def work(name: str) -> str:
            file = disk.open_append(f"/d/{name}")
            try:
                for number in range(5):
                    file.write_at(0, (b"x",))
                    file.fsync()
                    steps.append(f"{name}{number}")
                return name
            finally:
                steps.append(f"{name} ends")

        async def main() -> None:
            executors = [SimExecutor(world.loop, process) for _ in range(2)]
            tasks = [
                world.loop.spawn(process, executor.run(work, name))
                for executor, name in zip(executors, "ab", strict=True)
            ]
            assert [await task for task in tasks] == ["a", "b"]
            assert steps != sorted(steps)
            steps.clear()
            world.loop.spawn(process, executors[0].run(work, "c"))

            def kill_c(who: Process, moment: str) -> None:
                if moment == "disk fsync after c" and len(steps) == 2:
                    world.kill(who)

            world.moments.listeners.append(kill_c)
            await asyncio.sleep(10)
            assert steps == ["c0", "c1"]

        world.run(main())
