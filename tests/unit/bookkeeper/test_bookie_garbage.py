"""Garbage collection and compaction: space comes back, nothing alive goes, nothing goes on doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.base.errors import MetadataError
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.storage.disk import DiskSpace, OsDisk
from magnetar.bookkeeper.codes import FLAG_FENCE, FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.entry_format import master_key, pack_lac
from tests.unit.bookkeeper.bookie_helpers import (
    DIGEST,
    KEY,
    add,
    add_many,
    entry,
    eventually,
    fence,
    open_bookie,
    read,
    read_batch,
    write_lac,
)


class Metadata:
    """Which ledgers exist, as the garbage collector asks for it."""

    def __init__(self, *ledgers: int) -> None:
        self.ledgers = set(ledgers)
        self.before_listing: Callable[[], None] | None = None
        self.error: Exception | None = None

    async def list(self) -> list[int]:
        if self.before_listing is not None:
            self.before_listing()
        if self.error is not None:
            raise self.error
        await asyncio.sleep(0)
        return sorted(self.ledgers)


class ManualClock:
    """Time moves when told."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic_s(self) -> float:
        return self.seconds


def used(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "ledgers" / "current").glob("*.log"))


async def everything(bookie: Bookie, ledger_id: int, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        code, entries = await read_batch(bookie, ledger_id, len(found))
        assert code == ReturnCode.OK
        found += entries
    return found


async def test_the_space_of_a_deleted_ledger_comes_back(tmp_path: Path) -> None:
    metadata = Metadata(1, 2)
    async with open_bookie(tmp_path, list_ledgers=metadata.list, write_cache_bytes=1 << 20) as bookie:
        await add_many(bookie, 1, range(100), b"1" * 1000)
        await add_many(bookie, 2, range(10), b"2" * 1000)
        await bookie.checkpoint()
        assert used(tmp_path) > 100_000
        metadata.ledgers.discard(1)
        await bookie.collect_garbage()
        statistics = bookie.statistics()
        assert used(tmp_path) < 20_000
        assert (statistics.ledgers, statistics.tombstones, statistics.ledgers_deleted_total) == (1, 1, 1)
        assert statistics.compacted_bytes_total > 10_000
        assert (await read(bookie, 1, 0))[0] == ReturnCode.NO_LEDGER
        assert await everything(bookie, 2, 10) == [entry(2, number, b"2" * 1000) for number in range(10)]
    async with open_bookie(tmp_path, list_ledgers=metadata.list) as bookie:
        assert bookie.ledger_ids() == [2]
        assert await everything(bookie, 2, 10) == [entry(2, number, b"2" * 1000) for number in range(10)]


async def test_entries_that_are_only_in_memory_go_too(tmp_path: Path) -> None:
    metadata = Metadata()
    async with open_bookie(tmp_path, list_ledgers=metadata.list) as bookie:
        await add_many(bookie, 1, range(10))
        await bookie.collect_garbage()
        assert (await read(bookie, 1, 0))[0] == ReturnCode.NO_LEDGER
    async with open_bookie(tmp_path) as bookie:
        assert bookie.ledger_ids() == []


async def test_late_writes_do_not_bring_a_ledger_back(tmp_path: Path) -> None:
    metadata = Metadata()
    async with open_bookie(tmp_path, list_ledgers=metadata.list) as bookie:
        await add(bookie, 1, 0)
        await bookie.collect_garbage()
        for _ in range(2):
            assert await add(bookie, 1, 1) == ReturnCode.FENCED
            assert await add(bookie, 1, 1, flags=FLAG_RECOVERY_ADD) == ReturnCode.FENCED
            assert await write_lac(bookie, 1, pack_lac(1, 0, DIGEST)) == ReturnCode.FENCED
            assert await fence(bookie, 1) == ReturnCode.NO_LEDGER
            assert bookie.ledger_ids() == []
            await bookie.checkpoint()
    async with open_bookie(tmp_path) as bookie:
        assert await add(bookie, 1, 1) == ReturnCode.FENCED


async def test_a_deleted_ledger_without_entries_stays_fenced(tmp_path: Path) -> None:
    """A writer that stood still while its ledger was recovered, found empty and deleted must not write into it: nobody would read that."""
    clock, metadata = ManualClock(), Metadata()
    stranger = master_key(b"stranger")
    async with open_bookie(tmp_path, clock=clock, list_ledgers=metadata.list, tombstone_retention_s=100.0) as bookie:
        for ledger_id in (1, 2):
            assert await fence(bookie, ledger_id) == ReturnCode.NO_ENTRY
        for _ in range(3):
            clock.seconds += 30
            await bookie.collect_garbage()
        assert await add(bookie, 1, 0) == ReturnCode.FENCED
        assert await add(bookie, 1, 0, key=stranger) == ReturnCode.OK, "the fence was not under this key"
    async with open_bookie(tmp_path, clock=clock, list_ledgers=metadata.list, tombstone_retention_s=100.0) as bookie:
        await bookie.collect_garbage()
        assert await add(bookie, 2, 0) == ReturnCode.FENCED
        clock.seconds += 101
        await bookie.collect_garbage()
        assert await add(bookie, 2, 0) == ReturnCode.OK, "its time is over"


async def test_tombstones_go_after_their_time(tmp_path: Path) -> None:
    clock, metadata = ManualClock(), Metadata()
    async with open_bookie(tmp_path, clock=clock, list_ledgers=metadata.list, tombstone_retention_s=100.0) as bookie:
        await add(bookie, 1, 0)
        await bookie.collect_garbage()
        clock.seconds += 99
        await bookie.collect_garbage()
        assert bookie.statistics().tombstones == 1
        clock.seconds += 2
        await bookie.collect_garbage()
        assert bookie.statistics().tombstones == 0
    async with open_bookie(tmp_path) as bookie:
        assert bookie.statistics().tombstones == 0


async def test_a_ledger_created_during_the_listing_stays(tmp_path: Path) -> None:
    metadata = Metadata()
    async with open_bookie(tmp_path, list_ledgers=metadata.list) as bookie:
        await add(bookie, 1, 0)
        metadata.before_listing = lambda: bookie.add_entry(2, 0, entry(2, 0), KEY, 0, lambda code: None)
        await bookie.collect_garbage()
        assert bookie.ledger_ids() == [2]
        assert (await read(bookie, 2, 0))[0] == ReturnCode.OK


async def test_a_failed_listing_deletes_nothing(tmp_path: Path) -> None:
    metadata = Metadata()
    metadata.error = MetadataError("the metadata store cannot be reached")
    async with open_bookie(tmp_path, list_ledgers=metadata.list) as bookie:
        await add(bookie, 1, 0)
        await bookie.collect_garbage()
        assert bookie.ledger_ids() == [1]
        assert bookie.statistics().garbage_collections_failed_total == 1


async def test_a_second_look_saves_a_ledger_that_the_listing_forgot(tmp_path: Path) -> None:
    metadata = Metadata()
    asked: list[int] = []

    async def exists(ledger_id: int) -> bool:
        asked.append(ledger_id)
        return ledger_id == 1

    async with open_bookie(tmp_path, list_ledgers=metadata.list, ledger_exists=exists) as bookie:
        await add(bookie, 1, 0)
        await add(bookie, 2, 0)
        await bookie.collect_garbage()
        assert (bookie.ledger_ids(), asked) == ([1], [1, 2])


async def test_collection_runs_by_itself(tmp_path: Path) -> None:
    metadata = Metadata()
    async with open_bookie(tmp_path, list_ledgers=metadata.list, gc_interval_s=0.01) as bookie:
        await add(bookie, 1, 0)
        await eventually(lambda: not bookie.ledger_ids(), "the ledger is collected")


async def test_minor_and_major_compaction_have_their_own_time_and_ratio(tmp_path: Path) -> None:
    clock, metadata = ManualClock(), Metadata(1, 2)
    settings = {"minor_compaction_interval_s": 10.0, "major_compaction_interval_s": 100.0}
    async with open_bookie(tmp_path, clock=clock, list_ledgers=metadata.list, **settings) as bookie:
        await add_many(bookie, 1, range(5), b"1" * 1000)
        await add_many(bookie, 2, range(5), b"2" * 1000)
        await bookie.checkpoint()
        metadata.ledgers.discard(2)
        for seconds, compacted in ((1, False), (11, False), (101, True)):
            clock.seconds = 1_000_000.0 + seconds
            await bookie._garbage.collect()
            assert (bookie.statistics().compacted_bytes_total > 0) == compacted, (
                "half alive: only the major one takes it"
            )
        assert await everything(bookie, 1, 5) == [entry(1, number, b"1" * 1000) for number in range(5)]


async def test_compaction_does_not_resurrect_what_was_written_again(tmp_path: Path) -> None:
    metadata = Metadata(1, 2)
    async with open_bookie(tmp_path, list_ledgers=metadata.list, entry_log_bytes=20_000) as bookie:
        await add_many(bookie, 1, range(5), b"old" * 100)
        await add_many(bookie, 2, range(20), b"2" * 1000)
        await bookie.checkpoint()
        await add_many(bookie, 1, range(3), b"new" * 100)
        await bookie.checkpoint()
        assert bookie.statistics().entry_logs == 2
        metadata.ledgers.discard(2)
        await bookie.collect_garbage()
        assert bookie.statistics().compacted_bytes_total > 0
        expected = [entry(1, number, (b"new" if number < 3 else b"old") * 100) for number in range(5)]
        assert await everything(bookie, 1, 5) == expected
    async with open_bookie(tmp_path) as bookie:
        assert await everything(bookie, 1, 5) == expected


async def test_reads_during_collection_are_right_or_say_that_the_ledger_is_gone(tmp_path: Path) -> None:
    metadata = Metadata(1, 2)
    async with open_bookie(
        tmp_path, list_ledgers=metadata.list, compaction_step_bytes=2048, read_cache_bytes=1
    ) as bookie:
        for start in range(0, 200, 20):
            await add_many(bookie, 1, range(start, start + 20), b"1" * 300)
            await add_many(bookie, 2, range(start, start + 20), b"2" * 700)
        await bookie.checkpoint()
        metadata.ledgers.discard(2)
        collection = asyncio.ensure_future(bookie.collect_garbage())
        reads = 0
        while not collection.done():
            for entry_id in (reads % 200, (reads * 37) % 200):
                assert await read(bookie, 1, entry_id) == (ReturnCode.OK, entry(1, entry_id, b"1" * 300))
                assert (await read(bookie, 2, entry_id))[0] in (ReturnCode.OK, ReturnCode.NO_LEDGER)
            await add(bookie, 1, 200 + reads)
            reads += 1
        await collection
        assert bookie.statistics().compacted_bytes_total > 0
        assert bookie.statistics().read_errors_total == 0
        assert await everything(bookie, 1, 200 + reads)


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_damaged_log_is_kept_and_reported(
    tmp_path: Path, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add_many(bookie, 1, range(5), b"1" * 1000)
        await add_many(bookie, 2, range(20), b"2" * 1000)
    (log,) = (tmp_path / "ledgers" / "current").glob("*.log")
    content = bytearray(log.read_bytes())
    content[3000] ^= 1  # within ledger 1
    if not sealed:
        content[-1] ^= 1  # the trailer as well: the map has to be found by scanning
    log.write_bytes(bytes(content))
    metadata = Metadata(1)
    async with open_bookie(tmp_path, list_ledgers=metadata.list) as bookie:
        for _ in range(2):
            await bookie.collect_garbage()
            assert log.exists()
            assert bookie.statistics().damaged_entry_logs == 1
            codes = [(await read(bookie, 1, number))[0] for number in range(5)]
            assert codes.count(ReturnCode.IO_ERROR) == 1
            assert codes.count(ReturnCode.OK) == 4
    assert "is kept" in caplog.text


async def test_an_unsealed_log_of_a_dead_process_is_scanned_and_collected(tmp_path: Path) -> None:
    from tests.unit.bookkeeper.bookie_helpers import FaultDisk

    disk, metadata = FaultDisk(), Metadata(1)
    async with open_bookie(tmp_path, disk) as bookie:
        await add_many(bookie, 1, range(5), b"1" * 1000)
        await add_many(bookie, 2, range(20), b"2" * 1000)
        await bookie.checkpoint()
        disk.fuse.limit = disk.fuse.burnt
    (log,) = (tmp_path / "ledgers" / "current").glob("*.log")
    with log.open("ab") as file:
        file.write(b"\xff" * 500)  # a flush that the index never heard of
    async with open_bookie(tmp_path, list_ledgers=metadata.list) as bookie:
        await bookie.collect_garbage()
        assert not log.exists()
        assert bookie.statistics().damaged_entry_logs == 0
        assert await everything(bookie, 1, 5) == [entry(1, number, b"1" * 1000) for number in range(5)]


async def test_a_fencing_read_of_a_deleted_ledger_says_so(tmp_path: Path) -> None:
    metadata = Metadata()
    async with open_bookie(tmp_path, list_ledgers=metadata.list) as bookie:
        await add(bookie, 1, 0)
        await bookie.collect_garbage()
        assert await read(bookie, 1, -1, FLAG_FENCE, KEY) == (ReturnCode.NO_LEDGER, None)


class SmallDisk(OsDisk):
    """As full as told."""

    used_ratio = 0.0

    def free(self, path: str) -> DiskSpace:
        return DiskSpace(1 << 40, int((1 - self.used_ratio) * (1 << 40)))


async def test_compaction_waits_for_room_and_dead_files_go_all_the_same(tmp_path: Path) -> None:
    disk, clock, metadata = SmallDisk(), ManualClock(), Metadata(1, 2, 3)
    settings = {"minor_compaction_interval_s": 10.0, "major_compaction_interval_s": 10.0, "minor_compaction_ratio": 0.3}
    settings |= {"disk_free_plenty_bytes": 1 << 41, "entry_log_bytes": 5_000, "disk_usage_low_ratio": 0.92}
    bookie = open_bookie(tmp_path, disk, clock=clock, list_ledgers=metadata.list, **settings)
    async with bookie:
        for ledgers in ((3, 3, 3, 3, 3), (1, 2, 2, 2, 2), (1, 1, 1, 2, 2)):  # an entry log for each
            for number, ledger_id in enumerate(ledgers):
                await add(bookie, ledger_id, len(bookie.ledger_ids()) * 10 + number, b"x" * 1000)
            await bookie.checkpoint()
        metadata.ledgers = {1}

        async def compacted_at(used_ratio: float) -> tuple[int, int]:
            disk.used_ratio = used_ratio
            await bookie.check_disk()
            clock.seconds += 11.0
            await bookie._garbage.collect()
            statistics = bookie.statistics()
            return statistics.compacted_bytes_total, statistics.entry_logs_deleted_total

        assert await compacted_at(0.96) == (0, 1), "full: nothing is copied, the dead log goes"
        assert bookie.read_only
        assert await compacted_at(0.93) == (0, 1), "not below the low water mark yet"
        assert bookie.read_only
        copied, deleted = await compacted_at(0.91)
        assert not bookie.read_only
        assert (1000 < copied < 2000, deleted) == (True, 2), (
            "nearly full: the minor one only, which copies a fifth of a log"
        )
        copied, deleted = await compacted_at(0.5)
        assert (copied > 4000, deleted) == (True, 3)
        assert bookie.ledger_ids() == [1]


class Homes:
    """Ledgers that the metadata gives to other bookies; `locked` by somebody else."""

    def __init__(self, *elsewhere: int) -> None:
        self.elsewhere = set(elsewhere)
        self.locked: set[int] = set()
        self.in_lock: Callable[[int], None] | None = None

    async def stored_elsewhere(self, ledger_id: int) -> bool:
        return ledger_id in self.elsewhere

    @asynccontextmanager
    async def lock(self, ledger_id: int) -> AsyncIterator[bool]:
        if self.in_lock is not None:
            self.in_lock(ledger_id)
        yield ledger_id not in self.locked


async def test_a_copy_that_others_hold_instead_goes_and_may_come_back(tmp_path: Path) -> None:
    clock, homes = ManualClock(), Homes(2, 3)
    homes.locked = {3}
    settings = {"gc_overreplicated_interval_s": 100.0, "journal_file_bytes": 4096}
    async with open_bookie(tmp_path, clock=clock, homes=homes, **settings) as bookie:
        for ledger_id in (1, 2, 3):
            await add_many(bookie, ledger_id, range(3), b"x" * 1000)
        await bookie._garbage.collect()
        assert bookie.ledger_ids() == [1, 2, 3], "not due yet"
        clock.seconds += 101.0
        await bookie._garbage.collect()
        assert bookie.ledger_ids() == [1, 3], "3 is being replicated: a copy may be on its way here"
        assert bookie.statistics().overreplicated_deleted_total == 1
        await bookie._garbage.collect()
        assert bookie.statistics().tombstones == 0
        assert (await read(bookie, 2, 0))[0] == ReturnCode.NO_LEDGER
        assert await add(bookie, 2, 1, flags=FLAG_RECOVERY_ADD) == ReturnCode.OK, "it is given back to this bookie"
    async with open_bookie(tmp_path) as bookie:
        assert bookie.ledger_ids() == [1, 2, 3]
        assert [(await read(bookie, 2, number))[0] for number in range(2)] == [ReturnCode.NO_ENTRY, ReturnCode.OK]


async def test_what_the_metadata_says_inside_the_lock_counts(tmp_path: Path) -> None:
    homes = Homes(2)
    homes.in_lock = homes.elsewhere.discard
    async with open_bookie(tmp_path, homes=homes) as bookie:
        await add(bookie, 2, 0)
        await bookie.collect_garbage()
        assert (bookie.ledger_ids(), homes.elsewhere) == ([2], set())
        assert (await read(bookie, 2, 0))[0] == ReturnCode.OK
