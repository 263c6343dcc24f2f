"""The bookie as its clients see it: adds, reads, fences, explicit LACs, refusals."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from magnetar.base.errors import ConfigError, StartupError
from magnetar.base.executor import InlineExecutor
from magnetar.bookkeeper.bookie import add_path, garbage_collector
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.ledger_state import FENCED_KEYS_MAX
from magnetar.bookkeeper.bookie.storage.disk import OsDisk
from magnetar.bookkeeper.bookie.storage.journal import Journal
from magnetar.bookkeeper.bookie.storage.journal_format import pack_special
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
    read_lac,
    small_config,
    write_lac,
)


async def test_an_added_entry_is_read_from_memory_at_once_and_from_the_log_after_a_flush(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        assert await add(bookie, 1, 0) == ReturnCode.OK
        answers: list[tuple[int, bytes | None]] = []
        bookie.read_entry(1, 0, 0, b"", lambda code, found: answers.append((code, found)))
        assert answers == [(ReturnCode.OK, entry(1, 0))], "a read from memory answers before the call returns"
        await bookie.checkpoint()
        assert bookie.statistics().write_cache_bytes == 0
        assert await read(bookie, 1, 0) == (ReturnCode.OK, entry(1, 0))
        assert bookie.statistics().reads_from_disk_total == 1


async def test_what_is_missing_is_said_exactly(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 5)
        assert (await read(bookie, 1, 4))[0] == ReturnCode.NO_ENTRY
        assert (await read(bookie, 2, 0))[0] == ReturnCode.NO_LEDGER
        assert (await read(bookie, 1, -2))[0] == ReturnCode.BAD_REQUEST
        assert (await read_batch(bookie, 1, 6))[0] == ReturnCode.NO_ENTRY
        assert (await read_batch(bookie, 2, 0))[0] == ReturnCode.NO_LEDGER
        assert (await read_lac(bookie, 2))[0] == ReturnCode.NO_LEDGER


async def test_a_burst_of_one_tick_is_one_commit_and_answers_come_in_order(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 0)
        before = bookie.statistics()
        order: list[int] = []
        done = asyncio.get_running_loop().create_future()

        def answer(entry_id: int, code: int) -> None:
            order.append(entry_id)
            if entry_id == 100:
                done.set_result(code)

        for entry_id in range(1, 101):
            bookie.add_entry(1, entry_id, entry(1, entry_id), KEY, 0, lambda code, it=entry_id: answer(it, code))
        assert order == [], "no add is answered before it is durable"
        await done
        after = bookie.statistics()
        assert order == list(range(1, 101))
        assert after.journal_commits_total == before.journal_commits_total + 1
        assert after.journal_fsyncs_total == before.journal_fsyncs_total + 1


async def test_entries_in_any_order_with_gaps_and_repeats(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        for entry_id in (7, 3, 9, 3):
            assert await add(bookie, 1, entry_id, b"%d" % entry_id) == ReturnCode.OK
        await bookie.checkpoint()
        await add(bookie, 1, 3, b"again")
        await add(bookie, 1, 8, b"late")
        assert await read(bookie, 1, -1) == (ReturnCode.OK, entry(1, 9, b"9"))
        await bookie.checkpoint()
        assert (await read(bookie, 1, 3))[1] == entry(1, 3, b"again")
        assert await read(bookie, 1, -1) == (ReturnCode.OK, entry(1, 9, b"9"))
        assert await read_batch(bookie, 1, 7) == (
            ReturnCode.OK,
            [entry(1, 7, b"7"), entry(1, 8, b"late"), entry(1, 9, b"9")],
        )


async def test_batches_respect_count_and_bytes_and_give_at_least_one(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add_many(bookie, 1, range(20), b"x" * 100)
        for _ in range(2):
            assert len((await read_batch(bookie, 1, 0))[1]) == 20
            assert len((await read_batch(bookie, 1, 15))[1]) == 5
            assert len((await read_batch(bookie, 1, 0, count=3))[1]) == 3
            size = len(entry(1, 0, b"x" * 100))
            assert len((await read_batch(bookie, 1, 0, size=3 * size))[1]) == 3
            assert len((await read_batch(bookie, 1, 0, size=3 * size - 1))[1]) == 2
            assert len((await read_batch(bookie, 1, 0, size=0))[1]) == 1
            await bookie.checkpoint()


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_fenced_ledger_takes_recovery_adds_only(tmp_path: Path, flushed: bool) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 0)
        if flushed:
            await bookie.checkpoint()
        assert await read(bookie, 1, -1, FLAG_FENCE, KEY) == (ReturnCode.OK, entry(1, 0))
        assert await add(bookie, 1, 1) == ReturnCode.FENCED
        assert (await read(bookie, 1, 1))[0] == ReturnCode.NO_ENTRY
        assert await add(bookie, 1, 1, flags=FLAG_RECOVERY_ADD) == ReturnCode.OK
        assert await read(bookie, 1, -1) == (ReturnCode.OK, entry(1, 1))


async def test_an_add_before_the_fence_is_seen_by_the_fencing_read(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 0)
        added = asyncio.get_running_loop().create_future()
        bookie.add_entry(1, 1, entry(1, 1), KEY, 0, added.set_result)
        assert await read(bookie, 1, -1, FLAG_FENCE, KEY) == (ReturnCode.OK, entry(1, 1))
        assert added.done(), "the fence is answered after what came before it is durable"


async def test_fencing_an_unknown_ledger_needs_a_key_and_remembers_it(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        assert await fence(bookie, 4, b"") == ReturnCode.UNAUTHORIZED
        assert await fence(bookie, 4) == ReturnCode.NO_ENTRY
        assert await add(bookie, 4, 0) == ReturnCode.FENCED
        assert bookie.statistics().journal_commits_total == 1
        assert await add(bookie, 4, 0, flags=FLAG_RECOVERY_ADD) == ReturnCode.OK
        assert await fence(bookie, 4, master_key(b"other")) == ReturnCode.UNAUTHORIZED


@pytest.mark.parametrize("fenced_too", [False, True])
@pytest.mark.parametrize("restart", ["no", "from the journal", "from the index"])
async def test_a_fence_before_the_first_entry_holds_for_its_own_key_only(
    tmp_path: Path, fenced_too: bool, restart: str
) -> None:
    """A stranger's fence keeps nobody out, the owner's recovery keeps the owner's former writer out, also after restarts."""
    stranger = master_key(b"stranger")
    directory, copy = tmp_path / "bookie", tmp_path / "copy"
    async with open_bookie(directory) as first:
        assert await fence(first, 4, stranger) == ReturnCode.NO_ENTRY
        if fenced_too:
            assert await fence(first, 4) == ReturnCode.NO_ENTRY
        if restart == "from the journal":
            shutil.copytree(directory, copy)  # as kill -9 would leave it
        elif restart == "no":
            await _only_the_owner_is_heard(first, stranger, fenced_too)
    if restart == "from the journal":
        shutil.rmtree(directory)
        copy.rename(directory)
    if restart != "no":
        async with open_bookie(directory) as second:
            await _only_the_owner_is_heard(second, stranger, fenced_too)
    async with open_bookie(directory) as third:  # the key that the first entry fixed is what counts from now on
        assert await fence(third, 4, stranger) == ReturnCode.UNAUTHORIZED
        assert await add(third, 4, 1) == (ReturnCode.FENCED if fenced_too else ReturnCode.OK)


async def _only_the_owner_is_heard(bookie: Bookie, stranger: bytes, fenced: bool) -> None:
    assert await add(bookie, 4, 0, key=stranger) == ReturnCode.FENCED, "and this does not fix the key either"
    if fenced:
        assert await add(bookie, 4, 0) == ReturnCode.FENCED
        assert await add(bookie, 4, 0, flags=FLAG_RECOVERY_ADD) == ReturnCode.OK
        assert await add(bookie, 4, 1) == ReturnCode.FENCED
    else:
        assert await add(bookie, 4, 0) == ReturnCode.OK
    assert await add(bookie, 4, 1, key=stranger) == ReturnCode.UNAUTHORIZED
    assert await add(bookie, 4, 1, key=stranger, flags=FLAG_RECOVERY_ADD) == ReturnCode.UNAUTHORIZED


async def test_fences_of_unknown_ledgers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add_path, "BOOKIE_KEYLESS_LEDGERS_MAX", 3)
    monkeypatch.setattr(garbage_collector, "BOOKIE_FENCES_KEPT_MAX", 1)
    async with open_bookie(tmp_path, list_ledgers=_listed(2)) as bookie:
        for ledger_id in (1, 2, 3):
            assert await fence(bookie, ledger_id) == ReturnCode.NO_ENTRY
        assert await fence(bookie, 4) == ReturnCode.TOO_MANY_REQUESTS
        assert await add(bookie, 5, 0) == ReturnCode.OK, "adds are not concerned"
        assert await fence(bookie, 5) == ReturnCode.OK
        for number in range(1, FENCED_KEYS_MAX):
            assert await fence(bookie, 1, master_key(b"%d" % number)) == ReturnCode.NO_ENTRY
        assert await fence(bookie, 1, master_key(b"one more")) == ReturnCode.TOO_MANY_REQUESTS
        assert await add(bookie, 1, 0) == ReturnCode.FENCED, "fences are never dropped for new ones"
        await bookie.collect_garbage()
        assert bookie.statistics().tombstones == 1, "of ledger 5; fences of names that never were leave none"
        assert await fence(bookie, 4) == ReturnCode.NO_ENTRY
        assert await add(bookie, 2, 0) == ReturnCode.FENCED, "the metadata knows this one"
        assert await add(bookie, 3, 0) == ReturnCode.FENCED, "the newest of the others"
        assert await add(bookie, 1, 0) == ReturnCode.OK, "forgotten"


async def test_an_explicit_lac_does_not_fix_a_key(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        assert await write_lac(bookie, 1, pack_lac(1, 3, DIGEST), master_key(b"stranger")) == ReturnCode.NO_LEDGER
        assert bookie.ledger_ids() == []
        assert await add(bookie, 1, 0) == ReturnCode.OK


def _listed(*ledger_ids: int) -> Callable[[], Awaitable[list[int]]]:
    async def listed() -> list[int]:
        return list(ledger_ids)

    return listed


async def test_a_fence_is_durable_before_any_answer(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        answers: list[int] = []
        bookie.read_entry(4, -1, FLAG_FENCE, KEY, lambda code, found: answers.append(code))
        bookie.read_entry(4, -1, FLAG_FENCE, KEY, lambda code, found: answers.append(code))
        assert answers == []
        await eventually(lambda: len(answers) == 2, "both fences answered")
        assert bookie.statistics().journal_sequence >= 1


async def test_another_key_is_unauthorized(tmp_path: Path) -> None:
    other = master_key(b"other")
    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 0)
        assert await add(bookie, 1, 1, key=other) == ReturnCode.UNAUTHORIZED
        assert await fence(bookie, 1, other) == ReturnCode.UNAUTHORIZED
        assert await write_lac(bookie, 1, pack_lac(1, 0, DIGEST), other) == ReturnCode.UNAUTHORIZED
        assert await add(bookie, 1, 1) == ReturnCode.OK
        assert await add(bookie, 2, 0, key=b"") == ReturnCode.UNAUTHORIZED


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "packed"),
    [
        (1, 0, b"too short"),
        (1, 0, b""),
        (1, 1, entry(1, 0)),
        (2, 0, entry(1, 0)),
        (1, -5, entry(1, -5)),
        (-1, 0, entry(-1, 0)),
        (9, 0, b"\0" * 23),
        (9, 1, entry(9, 0)),
    ],
)
async def test_entries_that_are_none_are_refused(tmp_path: Path, ledger_id: int, entry_id: int, packed: bytes) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 7)
        codes: list[int] = []
        bookie.add_entry(ledger_id, entry_id, packed, KEY, 0, codes.append)
        assert codes == [ReturnCode.BAD_REQUEST]
        assert await add(bookie, 1, 8) == ReturnCode.OK
        assert bookie.ledger_ids() == [1]


async def test_explicit_lac_is_kept_and_never_goes_back(tmp_path: Path) -> None:
    body = pack_lac(1, 3, DIGEST)
    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 0)
        assert await write_lac(bookie, 1, body) == ReturnCode.OK
        assert await write_lac(bookie, 1, pack_lac(1, 2, DIGEST)) == ReturnCode.OK
        assert await read_lac(bookie, 1) == (ReturnCode.OK, body, entry(1, 0))
        assert await write_lac(bookie, 1, b"short") == ReturnCode.BAD_REQUEST
    async with open_bookie(tmp_path) as bookie:
        assert await read_lac(bookie, 1) == (ReturnCode.OK, body, entry(1, 0))


async def test_adds_wait_while_both_halves_are_full_and_go_on_after_the_flush(tmp_path: Path) -> None:
    async with open_bookie(tmp_path, write_cache_bytes=4096) as bookie:
        codes = await add_many(bookie, 1, range(500), b"x" * 200)
        assert codes == [ReturnCode.OK] * 500
        assert bookie.statistics().flushes_total > 5
        entry_id = 0
        while entry_id < 500:
            code, found = await read_batch(bookie, 1, entry_id)
            assert code == ReturnCode.OK
            assert found == [entry(1, number, b"x" * 200) for number in range(entry_id, entry_id + len(found))]
            entry_id += len(found)


async def test_a_fence_also_stops_adds_that_wait_for_room(tmp_path: Path) -> None:
    async with open_bookie(tmp_path, write_cache_bytes=4096) as bookie:
        await add(bookie, 1, 0)
        codes: dict[int, int] = {}
        for entry_id in range(1, 100):
            bookie.add_entry(
                1, entry_id, entry(1, entry_id, b"x" * 500), KEY, 0, lambda code, it=entry_id: codes.update({it: code})
            )
        waiting = bookie.statistics().adds_waiting
        assert waiting > 10
        _code, last = await read(bookie, 1, -1, FLAG_FENCE, KEY)
        await eventually(lambda: len(codes) == 99, "all adds answered")
        accepted = [entry_id for entry_id, code in codes.items() if code == ReturnCode.OK]
        assert last == entry(1, accepted[-1], b"x" * 500), "nothing is accepted behind what the fencing read has seen"
        assert [codes[number] for number in range(1, 100)] == (
            [ReturnCode.OK] * len(accepted) + [ReturnCode.FENCED] * (99 - len(accepted))
        )


async def test_too_much_waiting_is_refused(tmp_path: Path) -> None:
    async with open_bookie(tmp_path, journal_pending_bytes=10_000) as bookie:
        await add(bookie, 1, 0)
        codes = await add_many(bookie, 1, range(1, 101), b"x" * 500)
        assert set(codes) == {ReturnCode.OK, ReturnCode.TOO_MANY_REQUESTS}
        assert bookie.statistics().adds_refused_total == codes.count(ReturnCode.TOO_MANY_REQUESTS)
        assert await add(bookie, 1, 101) == ReturnCode.OK


async def test_everything_survives_a_clean_restart(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie:
        await add_many(bookie, 1, range(50))
        await fence(bookie, 2)
    for _ in range(2):
        async with open_bookie(tmp_path) as bookie:
            assert bookie.ledger_ids() == [1, 2]
            assert await read_batch(bookie, 1, 0) == (ReturnCode.OK, [entry(1, number) for number in range(50)])
            assert await add(bookie, 2, 0) == ReturnCode.FENCED


async def test_journal_files_below_the_mark_go_and_one_is_reused(tmp_path: Path) -> None:
    async with open_bookie(tmp_path, write_cache_bytes=1 << 20) as bookie:
        for start in range(0, 200, 10):
            await add_many(bookie, 1, range(start, start + 10), b"x" * 500)
        journal = tmp_path / "journal" / "current"
        assert len(list(journal.glob("*.journal"))) > 3
        await bookie.checkpoint()
        assert len(list(journal.glob("*.journal"))) == 1
        spares = len(list(journal.glob("*.spare")))
        assert spares == 2
        for start in range(200, 260, 10):
            await add_many(bookie, 1, range(start, start + 10), b"x" * 500)
        assert len(list(journal.glob("*.spare"))) < spares, "a trimmed file becomes the next one"
    async with open_bookie(tmp_path) as bookie:
        assert await read(bookie, 1, -1) == (ReturnCode.OK, entry(1, 259, b"x" * 500))


async def test_no_fsync_only_by_name_and_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_bookie(tmp_path, unsafe_no_fsync=True) as bookie:
        await add_many(bookie, 1, range(10))
        assert bookie.statistics().journal_fsyncs_total == 0
    assert "UNSAFE" in caplog.text


async def test_a_second_process_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    async with open_bookie(tmp_path):
        with pytest.raises(StartupError, match=r"is in use by process PID \d+"):
            async with open_bookie(tmp_path):
                pass
    async with open_bookie(tmp_path) as bookie:
        assert bookie.ledger_ids() == []


async def test_a_journal_directory_of_another_bookie_is_in_use(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with open_bookie(tmp_path / "1", journal_dir=shared):
        with pytest.raises(StartupError, match=r"shared is in use by process PID \d+"):
            async with open_bookie(tmp_path / "2", journal_dir=shared):
                pass


async def test_a_callback_that_raises_does_not_cost_the_others_their_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*answer: object) -> None:
        raise RuntimeError("a caller's mistake")

    async with open_bookie(tmp_path) as bookie:
        await add(bookie, 1, 0)
        await bookie.checkpoint()
        bookie.add_entry(1, 1, entry(1, 1), KEY, 0, broken)
        assert await add(bookie, 1, 2) == ReturnCode.OK
        bookie.read_entry(1, 0, 0, b"", broken)
        bookie.read_entry(1, 0, 0, b"", broken)
        assert (await read(bookie, 1, 0))[0] == ReturnCode.OK
    assert "callback of an add failed" in caplog.text
    assert "callback of a read failed" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"journal_file_bytes": 0},
        {"index": "leveldb"},
        {"minor_compaction_ratio": 0.9},
        {"disk_usage_max_ratio": 0.0},
        {"journal_batch_bytes": 1 << 30},
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        small_config(tmp_path, **wrong)


async def test_a_bookie_is_a_channel(tmp_path: Path) -> None:
    from magnetar.bookkeeper.ports import BookieChannel

    def takes(channel: BookieChannel) -> None:
        assert callable(channel.add_entry)

    takes(Bookie(small_config(tmp_path)))


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_answers_of_a_large_commit_leave_turns_to_others(tmp_path: Path, cancelled: bool) -> None:
    """In order, some in each turn of the loop; when the journal is stopped meanwhile, every add still has its answer."""
    config = BookieConfig(data_dir=tmp_path)
    disk = OsDisk()
    disk.make_dir(config.journal_path)
    journal = Journal(config, disk, InlineExecutor(), random.Random(1), 0, _raise, _raise)
    turn, answers = 0, list[tuple[int, int]]()

    def answered(number: int, code: int) -> None:
        answers.append((turn, number))

    for number in range(3000):
        journal.append(pack_special(number, 1, b"x"), partial(answered, number))
    running = asyncio.create_task(journal.run())
    while len(answers) < 3000:
        await asyncio.sleep(0)
        turn += 1
        if cancelled and answers:
            running.cancel()
    assert [number for _, number in answers] == list(range(3000))
    largest = max(Counter(turn for turn, _ in answers).values())
    assert (largest > 2700) if cancelled else (largest <= 256)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await journal.close()


def _raise(error: Exception) -> None:
    raise error
