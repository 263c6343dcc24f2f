"""`magnetar metadata backup|verify|restore`: online and as of one transaction, checked to the bit, never into another instance."""

from __future__ import annotations

import asyncio
import json
import os
import random
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.base.executor import ThreadExecutor
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.cluster import initialize_cluster
from magnetar.bookkeeper.entry_format import DigestType
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, Segment
from magnetar.cli.main import run
from magnetar.metadata import paths
from magnetar.metadata.backup import ID_MARGIN
from magnetar.metadata.commit_mark import read_mark
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.sqlite_file import EPOCH_SHIFT
from tests.contract.metadata.worlds import ServerWorld


def say(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    assert run(["metadata", *map(str, words), "--json"]) == 0, capsys.readouterr().err
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert run(["metadata", *map(str, words)]) == 1
    return capsys.readouterr().err


@asynccontextmanager
async def tree(directory: Path) -> AsyncIterator[SqliteMetadataStore]:
    executor = ThreadExecutor("metadata")
    store = await SqliteMetadataStore.open(directory / "metadata.sqlite", executor)
    try:
        yield store
    finally:
        await store.close()
        executor.close()


def ledger(token: int) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        segments=(Segment(0, ("bookie:3181",)),),
        digest_type=DigestType.CRC32C,
        password=b"",
        ctime_ms=1,
        custom_metadata={},
        c_token=token,
    )


async def make_cluster(directory: Path, seed: int = 1, ledgers: int = 3) -> list[int]:
    """A tree with an instance id and some ledgers; their ids."""
    async with tree(directory) as store:
        await initialize_cluster(store, random.Random(seed))
        manager = LedgerManager(store)
        return [(await manager.create(ledger(token)))[0] for token in range(1, ledgers + 1)]


async def test_a_backup_is_the_tree_as_of_one_transaction_while_clients_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = await ServerWorld(tmp_path / "data" / "metadata.sqlite").open()
    await world.store.put("/stays", b"x")
    await world.store.put("/goes", b"", ephemeral=True)
    over = asyncio.Event()
    number = 0

    async def write() -> None:
        nonlocal number
        while not over.is_set():
            number += 1
            await world.store.put("/first", b"%d" % number)
            await world.store.put("/second", b"%d" % number)

    writing = asyncio.create_task(write())
    seen = []
    try:
        for which in range(4):
            before = number
            async with asyncio.timeout(30):
                while number < before + 3:
                    await asyncio.sleep(0.01)
            file = tmp_path / f"backup{which}"
            command = ("backup", file, "--data-dir", tmp_path / "data")
            seen.append(await asyncio.to_thread(say, capsys, *command))
    finally:
        over.set()
        await writing
        root = world.root
        await world.close()
    zxids = [each["transactionId"] for each in seen]
    assert zxids == sorted(set(zxids)), "each backup is of a later transaction"
    for which in range(4):
        to = tmp_path / f"restored{which}"
        await asyncio.to_thread(say, capsys, "restore", tmp_path / f"backup{which}", "--data-dir", to)
        async with tree(to) as store:
            first, second = await store.get(f"{root}/first"), await store.get(f"{root}/second")
            assert first is not None
            assert second is not None
            assert int(first.value) - int(second.value) in (0, 1), "no half of what was written in order"
            assert not await store.exists(f"{root}/goes"), "an ephemeral node belongs to its session"
            assert await store.get(f"{root}/stays") is not None


async def test_every_flipped_bit_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await make_cluster(tmp_path / "data")
    file = tmp_path / "backup"
    say(capsys, "backup", file, "--data-dir", tmp_path / "data")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    good = file.read_bytes()
    assert say(capsys, "verify", file)["size"] == len(good)
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        assert run(["metadata", "verify", str(file)]) == 1, f"a bit at byte {position} of {len(good)}"
    for end in (0, 7, len(good) // 2, len(good) - 1):
        file.write_bytes(good[:end])
        assert "damaged" in refused(capsys, "verify", file)
    file.write_bytes(good + b"\0")
    assert "follow its seal" in refused(capsys, "verify", file)
    for tenth in range(10):
        damaged = bytearray(good)
        damaged[len(good) * tenth // 10] ^= 4
        file.write_bytes(damaged)
        refused(capsys, "restore", file, "--data-dir", tmp_path / "new")
        assert not (tmp_path / "new" / "metadata.sqlite").exists(), "nothing of a damaged backup is taken over"
    file.write_bytes(good)
    say(capsys, "restore", file, "--data-dir", tmp_path / "new")


async def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await make_cluster(tmp_path / "data")
    file = tmp_path / "backup"
    file.write_bytes(b"precious")
    assert "--force" in refused(capsys, "backup", file, "--data-dir", tmp_path / "data")
    assert file.read_bytes() == b"precious"
    say(capsys, "backup", file, "--force", "--data-dir", tmp_path / "data")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["backup", "data"], "nothing unfinished is left"


async def test_a_restore_jumps_over_every_id_that_may_have_been_handed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file = tmp_path / "data", tmp_path / "backup"
    before = await make_cluster(data)
    taken = say(capsys, "backup", file, "--data-dir", data)
    async with tree(data) as store:
        manager = LedgerManager(store)
        later = [(await manager.create(ledger(token)))[0] for token in range(10, 13)]
        await store.put(paths.PRODUCER_NAME_PREFIX + "start-", b"", sequential=True)
    restored = say(capsys, "restore", file, "--replace", "--data-dir", data)
    async with tree(data) as store:
        manager = LedgerManager(store)
        assert sorted(await manager.list_ids()) == before
        fresh, _ = await manager.create(ledger(20))
        assert fresh == restored["nextLedgerId"]
        assert fresh >= max(later) + ID_MARGIN
        assert [await manager.must_keep(each) for each in (*before, *later, fresh)] == [True] * 7
        assert not await manager.must_keep(fresh + 1)
        name, _ = await store.put(paths.PRODUCER_NAME_PREFIX + "start-", b"", sequential=True)
        assert paths.sequence_of(name) >= ID_MARGIN
        found = await store.stat(paths.ledger_path(fresh))
        assert found is not None
        assert found.czxid > 1 << EPOCH_SHIFT > int(str(taken["transactionId"]))
    # what was there is kept, and shows what the tree has lost
    aside = str(restored["setAside"])
    assert await asyncio.to_thread(run, ["ledger", "list", "--metadata", f"sqlite:{aside}", "--json"]) == 0
    assert [row["ledgerId"] for row in json.loads(capsys.readouterr().out)] == [*before, *later]
    kept: object = await asyncio.to_thread(say, capsys, "restored", "--data-dir", data)
    assert kept == [{"firstLedgerId": later[0], "lastLedgerId": fresh - 1}]
    await asyncio.to_thread(say, capsys, "restored", "--release", "--data-dir", data)
    async with tree(data) as store:
        assert not await LedgerManager(store).must_keep(later[0]), "given up, so bookies may collect it"


async def test_a_backup_goes_into_its_own_instance_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "backup"
    await make_cluster(tmp_path / "one", seed=1)
    await make_cluster(tmp_path / "two", seed=2)
    async with tree(tmp_path / "bare") as store:
        await store.put("/something", b"")
    say(capsys, "backup", file, "--data-dir", tmp_path / "one")
    for other in ("two", "bare"):
        before = (tmp_path / other / "metadata.sqlite").read_bytes()
        for words in ((), ("--replace",)):
            assert "another cluster" in refused(capsys, "restore", file, *words, "--data-dir", tmp_path / other)
        assert (tmp_path / other / "metadata.sqlite").read_bytes() == before
    assert "--replace" in refused(capsys, "restore", file, "--data-dir", tmp_path / "one")
    async with tree(tmp_path / "one"):
        assert "stop it first" in await asyncio.to_thread(
            refused, capsys, "restore", file, "--replace", "--data-dir", tmp_path / "one"
        )
    async with tree(tmp_path / "empty"):
        pass  # a store that nobody has written to
    say(capsys, "restore", file, "--data-dir", tmp_path / "empty")
    async with tree(tmp_path / "empty") as store:
        assert len(await LedgerManager(store).list_ids()) == 3


async def test_a_damaged_tree_is_not_backed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, file = tmp_path / "data", tmp_path / "backup"
    await make_cluster(data, ledgers=200)
    found = bytearray((data / "metadata.sqlite").read_bytes())
    found[len(found) // 2 : len(found) // 2 + 64] = bytes(64)
    found[4096 + 3 : 4096 + 5] = b"\xff\xff"
    (data / "metadata.sqlite").write_bytes(found)
    assert "damaged" in refused(capsys, "backup", file, "--data-dir", data)
    assert os.listdir(tmp_path) == ["data"]


async def test_one_damaged_node_is_not_backed_up_and_can_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite sees nothing wrong with it: only the node's own checksum does."""
    data, file, other = tmp_path / "data", tmp_path / "backup", tmp_path / "other"
    await make_cluster(data)
    async with tree(data) as store:
        await store.put("/counted", b"precious")
    say(capsys, "backup", file, "--data-dir", data)
    mark = read_mark(data / "metadata.sqlite")
    found = (data / "metadata.sqlite").read_bytes()
    assert found.count(b"precious") == 1
    (data / "metadata.sqlite").write_bytes(found.replace(b"precious", b"precioux"))
    said = refused(capsys, "backup", other, "--data-dir", data)
    assert "1 nodes do not match their checksums, the first is '/counted'" in said
    assert not other.exists()
    kept = Path(str(say(capsys, "restore", file, "--replace", "--data-dir", data)["setAside"]))
    async with tree(data) as store:
        node = await store.get("/counted")
        assert node is not None
        assert node.value == b"precious"
    restored = read_mark(data / "metadata.sqlite")
    assert mark is not None
    assert restored is not None
    assert restored.store_id != mark.store_id, "it is another store than the one that was backed up"
    assert restored.zxid > 1 << EPOCH_SHIFT > mark.zxid
    assert read_mark(kept) == mark, "what was set aside has its own mark"


async def test_a_tree_that_lost_commits_is_not_backed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, file = tmp_path / "data", tmp_path / "backup"
    await make_cluster(data)
    older = (data / "metadata.sqlite").read_bytes()
    async with tree(data) as store:
        await store.put("/later", b"")
    (data / "metadata.sqlite").write_bytes(older)
    assert "has lost commits" in refused(capsys, "backup", file, "--data-dir", data)
    assert not file.exists()


async def test_an_interrupted_restore_is_not_started_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, file = tmp_path / "data", tmp_path / "backup"
    await make_cluster(data)
    say(capsys, "backup", file, "--data-dir", data)
    (data / "metadata.sqlite.restoring").write_bytes(b"half")
    with pytest.raises(Exception, match=r"restore .* was broken off"):
        async with tree(data):
            pass
    say(capsys, "restore", file, "--replace", "--data-dir", data)
    async with tree(data) as store:
        assert len(await LedgerManager(store).list_ids()) == 3


def test_a_zookeeper_has_its_own_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = refused(capsys, "backup", tmp_path / "backup", "--metadata", "zk:127.0.0.1:1")
    assert "--data-dir" in text
    assert "ZooKeeper" in text
