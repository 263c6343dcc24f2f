"""The bookie on bad disks: full, failing, dying at every single step. What it acknowledged stays."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magnetar.base.errors import CorruptionError, DiskIOError, StorageError
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.storage.disk import OsDisk
from magnetar.bookkeeper.codes import FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.entry_format import pack_lac
from tests.unit.bookkeeper.bookie_helpers import (
    DIGEST,
    FaultDisk,
    Fuse,
    add,
    add_many,
    entry,
    eventually,
    fence,
    fused_index,
    open_bookie,
    read,
    read_batch,
    read_lac,
    write_lac,
)


async def test_after_a_failed_fsync_nothing_is_acknowledged_and_the_owner_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultDisk()
    fatal: list[StorageError] = []
    async with open_bookie(tmp_path, disk, on_fatal=fatal.append) as bookie:
        assert await add(bookie, 1, 0) == ReturnCode.OK
        disk.fail_fsync_of = "journal"
        codes = await add_many(bookie, 1, range(1, 10))
        assert codes == [ReturnCode.IO_ERROR] * 9
        disk.fail_fsync_of = None
        assert await add(bookie, 1, 10) == ReturnCode.IO_ERROR, "a later fsync that works proves nothing"
        assert await fence(bookie, 1) == ReturnCode.IO_ERROR
        assert (await read(bookie, 1, 5))[0] == ReturnCode.IO_ERROR, (
            "not an explicit negative, nor what may not be durable"
        )
        assert (await read_lac(bookie, 1))[0] == ReturnCode.IO_ERROR
        assert len(fatal) == 1
        assert isinstance(fatal[0], DiskIOError)
        assert bookie.statistics().failed
    assert len([record for record in caplog.records if record.levelno >= logging.CRITICAL]) == 1
    async with open_bookie(tmp_path) as bookie:
        assert (await read(bookie, 1, 0))[0] == ReturnCode.OK


async def test_a_failed_fsync_of_an_entry_log_stops_the_bookie_before_the_mark_moves(tmp_path: Path) -> None:
    disk = FaultDisk()
    fatal: list[StorageError] = []
    async with open_bookie(tmp_path, disk, on_fatal=fatal.append) as bookie:
        await add_many(bookie, 1, range(10))
        disk.fail_fsync_of = ".log"
        await bookie.checkpoint()
        assert len(fatal) == 1
        assert bookie.statistics().checkpoint_sequence == 0
    async with open_bookie(tmp_path) as bookie:
        assert await read_batch(bookie, 1, 0) == (ReturnCode.OK, [entry(1, number) for number in range(10)])


def test_a_poisoned_file_refuses_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsDisk().open_append(str(tmp_path / "file"))
    file.write_at(0, (b"data",))

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", broken)
        with pytest.raises(DiskIOError):
            file.fsync()
    for use in (file.fsync, lambda: file.write_at(0, (b"x",)), lambda: file.read_at(0, 1), lambda: file.truncate(0)):
        with pytest.raises(DiskIOError):
            use()


async def test_a_full_disk_makes_the_bookie_read_only_until_there_is_room(tmp_path: Path) -> None:
    disk = FaultDisk()
    changes: list[bool] = []
    async with open_bookie(tmp_path, disk, on_read_only_change=changes.append) as bookie:
        await add_many(bookie, 1, range(5))
        disk.full = True
        assert await add(bookie, 2, 0) == ReturnCode.READ_ONLY, "the write that found the disk full"
        assert await add(bookie, 1, 5) == ReturnCode.READ_ONLY
        assert await write_lac(bookie, 1, pack_lac(1, 0, DIGEST)) == ReturnCode.READ_ONLY
        assert (bookie.read_only, changes) == (True, [True])
        assert (await read(bookie, 1, 4))[0] == ReturnCode.OK
        await bookie.checkpoint()
        assert bookie.statistics().checkpoint_sequence == 0
        await bookie.check_disk()
        assert bookie.read_only
        disk.full = False
        await bookie.check_disk()
        assert (bookie.read_only, changes) == (False, [True, False])
        assert await add(bookie, 2, 1) == ReturnCode.OK
        disk.fuse.limit = disk.fuse.burnt  # dies: only the journal knows
    async with open_bookie(tmp_path) as bookie:
        assert await read(bookie, 2, 1) == (ReturnCode.OK, entry(2, 1)), (
            "the key of the refused add went with the next commit"
        )
        assert (await read_batch(bookie, 1, 0))[1] == [entry(1, number) for number in range(5)]


async def test_a_full_disk_during_a_flush_loses_nothing_that_came_after_the_swap(tmp_path: Path) -> None:
    disk = FaultDisk()
    async with open_bookie(tmp_path, disk) as bookie:
        await add_many(bookie, 1, range(5))
        disk.full = True
        await bookie.checkpoint()
        disk.full = False
        bookie._adds.set_read_only(False, True)  # as the monitor does, but without asking for a flush
        assert await add_many(bookie, 1, range(5, 10)) == [ReturnCode.OK] * 5
        await bookie.checkpoint()
        assert bookie.statistics().flushes_total == 1
        disk.fuse.limit = disk.fuse.burnt  # dies before the second half is flushed
    async with open_bookie(tmp_path) as bookie:
        for number in range(10):
            assert await read(bookie, 1, number) == (ReturnCode.OK, entry(1, number))


async def test_little_room_by_the_ratio_lets_recovery_in_only(tmp_path: Path) -> None:
    from magnetar.bookkeeper.bookie.storage.disk import DiskSpace
    from magnetar.bookkeeper.codes import FLAG_HIGH_PRIORITY

    disk = FaultDisk()
    disk.free = lambda path: DiskSpace(1 << 40, 1 << 30)  # type: ignore[method-assign]  # 99.9 % used
    settings = {"disk_free_plenty_bytes": 1 << 32, "disk_free_reserve_bytes": 1 << 28}
    async with open_bookie(tmp_path, disk, **settings) as bookie:
        assert await add(bookie, 1, 0) == ReturnCode.READ_ONLY
        assert await add(bookie, 1, 0, flags=FLAG_HIGH_PRIORITY) == ReturnCode.OK
    async with open_bookie(tmp_path, disk, disk_free_plenty_bytes=1 << 20) as bookie:
        assert await add(bookie, 1, 1) == ReturnCode.OK, "a big disk with plenty of room is not full at 99.9 %"


@dataclass
class ExpectedContent:
    """What the bookie has promised."""

    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    lacs: dict[int, bytes] = field(default_factory=dict)
    compacted_bytes: int = 0

    async def add(self, bookie: Bookie, ledger_id: int, entry_ids: range, payload: bytes) -> None:
        codes = await add_many(bookie, ledger_id, entry_ids, payload)
        for entry_id, code in zip(entry_ids, codes, strict=True):
            if code == ReturnCode.OK:
                self.entries[ledger_id, entry_id] = entry(ledger_id, entry_id, payload)

    async def fence(self, bookie: Bookie, ledger_id: int) -> None:
        if await fence(bookie, ledger_id) in (ReturnCode.OK, ReturnCode.NO_ENTRY):
            self.fenced.add(ledger_id)

    async def write_lac(self, bookie: Bookie, ledger_id: int, lac: int) -> None:
        body = pack_lac(ledger_id, lac, DIGEST)
        if await write_lac(bookie, ledger_id, body) == ReturnCode.OK:
            self.lacs[ledger_id] = body

    async def check(self, bookie: Bookie) -> None:
        for (ledger_id, entry_id), packed in self.entries.items():
            assert await read(bookie, ledger_id, entry_id) == (ReturnCode.OK, packed)
        for ledger_id in sorted(self.fenced):
            assert await add(bookie, ledger_id, 1000) == ReturnCode.FENCED
        for ledger_id, body in self.lacs.items():
            assert (await read_lac(bookie, ledger_id))[1] == body


Story = Callable[[Bookie, ExpectedContent], Awaitable[None]]


async def _checkpoints(bookie: Bookie, expected: ExpectedContent) -> None:
    await expected.add(bookie, 1, range(10), b"a" * 300)
    await expected.fence(bookie, 2)
    await expected.write_lac(bookie, 1, 3)
    await bookie.checkpoint()
    await expected.add(bookie, 1, range(10, 40), b"b" * 500)  # rolls the journal
    await expected.add(bookie, 3, range(3), b"c")
    await bookie.checkpoint()
    await expected.fence(bookie, 3)
    await bookie.checkpoint()  # nothing but a flag
    await expected.add(bookie, 1, range(40, 50), b"d" * 500)


async def _compaction(bookie: Bookie, expected: ExpectedContent) -> None:
    await expected.add(bookie, 1, range(8), b"x" * 400)
    for ledger_id in (2, 3):  # which the metadata does not list
        await add_many(bookie, ledger_id, range(8), b"x" * 400)
    await bookie.checkpoint()
    await bookie.collect_garbage()
    expected.compacted_bytes = bookie.statistics().compacted_bytes_total
    await expected.add(bookie, 1, range(8, 12), b"y" * 400)
    await bookie.checkpoint()


async def _given_away(bookie: Bookie, expected: ExpectedContent) -> None:
    """Ledger 2 has gone to other bookies; later a part of it comes back."""
    await expected.add(bookie, 1, range(4), b"x" * 400)
    await add_many(bookie, 2, range(4), b"x" * 400)
    await bookie.collect_garbage()
    await expected.add(bookie, 1, range(4, 6), b"y" * 400)
    await bookie.collect_garbage()
    if await add(bookie, 2, 0, b"z", flags=FLAG_RECOVERY_ADD) == ReturnCode.OK:
        expected.entries[2, 0] = entry(2, 0, b"z")
    await expected.add(bookie, 1, range(6, 8), b"y" * 400)


class Elsewhere:
    """Ledger 2 is stored elsewhere, until it is written again."""

    def __init__(self) -> None:
        self.given_back = False

    async def stored_elsewhere(self, ledger_id: int) -> bool:
        return ledger_id == 2 and not self.given_back

    @asynccontextmanager
    async def lock(self, ledger_id: int) -> AsyncIterator[bool]:
        yield True


@pytest.mark.parametrize(("story", "ledgers"), [(_checkpoints, [1, 2, 3]), (_compaction, [1]), (_given_away, [1, 2])])
async def test_death_at_every_step_loses_nothing_acknowledged(
    tmp_path: Path, story: Story, ledgers: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1)

    async def listed() -> list[int]:
        return ledgers

    async def run(path: Path, fuse: Fuse) -> ExpectedContent:
        expected = ExpectedContent()
        homes = Elsewhere() if story is _given_away else None
        bookie = open_bookie(path, FaultDisk(fuse), index_factory=fused_index(fuse), list_ledgers=listed, homes=homes)
        started = False
        try:
            async with bookie:
                started = True
                await story(bookie, expected)
                fuse.limit = fuse.limit or fuse.burnt  # the machine dies before the orderly stop at the latest
        except StorageError:
            assert fuse.burnt > (fuse.limit or 0), started
        return expected

    whole = Fuse()
    expected = await run(tmp_path / "whole", whole)
    assert (expected.compacted_bytes > 0) == (story is _compaction)
    steps = whole.burnt
    assert steps > 30
    for limit in range(1, steps):
        path = tmp_path / str(limit)
        expected = await run(path, Fuse(limit))
        for _ in range(2):
            bookie = open_bookie(path, list_ledgers=listed)
            async with bookie:
                await expected.check(bookie)
                await bookie.collect_garbage()
                await expected.check(bookie)


@pytest.mark.parametrize("flushed", [False, True])
async def test_bit_flips_in_entry_logs_are_io_errors_never_negatives(tmp_path: Path, flushed: bool) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add_many(bookie, 1, range(3), b"p" * 40)
    (log,) = (tmp_path / "ledgers" / "current").glob("*.log")
    clean = log.read_bytes()
    wrong: list[int] = []
    for offset in range(24, len(clean), 3 if flushed else 7):
        damaged = bytearray(clean)
        damaged[offset] ^= 1 << (offset % 8)
        log.write_bytes(bytes(damaged))
        async with open_bookie(tmp_path) as bookie:
            for entry_id in range(3):
                code, found = await read(bookie, 1, entry_id)
                if code == ReturnCode.OK:
                    assert found == entry(1, entry_id, b"p" * 40)
                else:
                    assert code == ReturnCode.IO_ERROR, (offset, entry_id)
                    wrong.append(offset)
        log.write_bytes(clean)
        if len(wrong) > 60:
            break
    assert len(wrong) > 20, "the flips did hit entries"


async def test_a_truncated_or_missing_entry_log_is_an_io_error(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add_many(bookie, 1, range(3), b"p" * 40)
    (log,) = (tmp_path / "ledgers" / "current").glob("*.log")
    log.write_bytes(log.read_bytes()[:60])
    async with open_bookie(tmp_path) as bookie:
        assert [(await read(bookie, 1, number))[0] for number in range(3)] == [ReturnCode.IO_ERROR] * 3
        assert (await read(bookie, 1, -1))[0] == ReturnCode.IO_ERROR
        assert (await read_batch(bookie, 1, 0))[0] == ReturnCode.IO_ERROR
        assert bookie.statistics().read_errors_total == 5
    log.unlink()
    async with open_bookie(tmp_path) as bookie:
        assert (await read(bookie, 1, 0))[0] == ReturnCode.IO_ERROR


async def test_a_damaged_checkpoint_mark_stops_the_start(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 0)
    mark = tmp_path / "ledgers" / "current" / "checkpoint"
    clean = mark.read_bytes()
    for offset in range(len(clean)):
        damaged = bytearray(clean)
        damaged[offset] ^= 0x40
        mark.write_bytes(bytes(damaged))
        with pytest.raises(CorruptionError):
            async with open_bookie(tmp_path):
                pass
    mark.write_bytes(clean)
    async with open_bookie(tmp_path) as bookie:
        assert (await read(bookie, 1, 0))[0] == ReturnCode.OK


async def test_a_slow_flush_does_not_hold_reads_or_adds(tmp_path: Path) -> None:
    """While the storage thread is busy the other threads go on."""
    import threading

    release = threading.Event()
    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 0)
        await bookie.checkpoint()
        blocked = asyncio.ensure_future(bookie._executors.storage.run(release.wait, 10))
        await add(bookie, 1, 1)
        flush = asyncio.ensure_future(bookie.checkpoint())
        await asyncio.sleep(0)
        assert await add(bookie, 1, 2) == ReturnCode.OK
        assert await read_batch(bookie, 1, 1) == (ReturnCode.OK, [entry(1, 1), entry(1, 2)])
        assert (await read(bookie, 1, 0))[0] == ReturnCode.OK
        assert not flush.done()
        release.set()
        await asyncio.gather(blocked, flush)
        await eventually(lambda: bookie.statistics().flushes_total == 2, "the flush ends")


@pytest.mark.parametrize("tenth", range(10))
async def test_one_bit_in_the_last_commit_costs_one_entry_at_most_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tenth: int
) -> None:
    data, killed = tmp_path / "data", tmp_path / "killed"
    async with open_bookie(data) as bookie:
        assert await add(bookie, 1, 0) == ReturnCode.OK
        (journal,) = (data / "journal" / "current").glob("*.journal")
        begin = len(journal.read_bytes().rstrip(b"\0"))
        assert set(await add_many(bookie, 1, range(1, 21), b"payload" * 10)) == {ReturnCode.OK}
        shutil.copytree(data, killed)  # what kill -9 would leave
    shutil.rmtree(data)
    shutil.copytree(killed, data)
    content = bytearray(journal.read_bytes())
    end = len(content.rstrip(b"\0"))
    assert end - begin > 20 * 70
    content[begin + (end - begin) * (2 * tenth + 1) // 20] ^= 1
    journal.write_bytes(content)
    for _ in range(2):  # what was kept is not only in memory
        async with open_bookie(data) as bookie:
            found = [(await read(bookie, 1, entry_id))[0] for entry_id in range(21)]
            shutil.rmtree(killed)
            shutil.copytree(data, killed)
        shutil.rmtree(data)
        shutil.copytree(killed, data)
        assert found[0] == ReturnCode.OK
        assert found.count(ReturnCode.OK) >= 20
        assert set(found) <= {ReturnCode.OK, ReturnCode.NO_ENTRY}
    (warning,) = [record for record in caplog.records if "last commit of the journal" in record.getMessage()]
    assert warning.levelno == logging.WARNING
