"""`magnetar ledger` and `magnetar bookies` in processes of their own, against real bookies and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from magnetar.base.clock import SystemClock
from magnetar.bookkeeper.autorecovery.auditor_election import auditor_election
from magnetar.bookkeeper.autorecovery.fragments import bookies_of
from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicationManager
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.cli.main import run as run_command
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.zookeeper import ZooKeeperMetadataStore
from magnetar.testing.server import ServerProcess
from magnetar.testing.zookeeper import ZooKeeperProcess
from tests.integration.bookkeeper.bookie_cluster import BookieCluster
from tests.unit.bookkeeper.bookie_helpers import entry
from tests.unit.bookkeeper.ledger_helpers import append_all

MAGNETAR = Path(sys.executable).parent / "magnetar"
TIMEOUT_S = 60
PAYLOADS = [b"entry %d" % number for number in range(60)]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper") / "server") as process:
        yield process


class Harness:
    """Four bookies behind TCP, and the command with their cluster in the environment."""

    def __init__(self, cluster: BookieCluster, url: str) -> None:
        self.cluster = cluster
        self.url = url

    async def run(self, *args: str, code: int = 0) -> str:
        """stdout of a command that must end with `code`; with stderr when it must fail."""
        found, text = await asyncio.to_thread(run_here, *args, MAGNETAR_METADATA_URL=self.url)
        assert found == code, text
        return text

    async def json(self, *args: str, code: int = 0) -> Any:
        return json.loads((await self.run(*args, "--json", code=code)).splitlines()[0])

    async def write(self, *, close: bool = True, **quorums: int) -> LedgerWriter:
        sizes = {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2} | quorums
        writer = await self.cluster.client.create_ledger(
            **sizes, custom_metadata={"application": b"pulsar", "pulsar/managed-ledger": b"public/default/persistent/t"}
        )
        await append_all(writer, PAYLOADS)
        if close:
            await writer.close()
        return writer

    async def named(self, bookie: str) -> list[int]:
        manager = self.cluster.manager
        return [one for one in await manager.list_ids() if bookie in bookies_of((await manager.read(one))[0])]


def run_here(*args: str, **env: str) -> tuple[int, str]:
    """Exit code and stdout (with stderr when it fails) of a command on this thread: a process of its own takes a second."""
    with CliRunner().isolation(env=env) as (out, err, _):
        code = run_command(args)
        return code, (out.getvalue() + (err.getvalue() if code else b"")).decode()


async def run(*args: str, code: int = 0, **env: str) -> str:
    process = await asyncio.create_subprocess_exec(
        MAGNETAR, *args, env=os.environ | env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(TIMEOUT_S):
        out, err = (text.decode(errors="replace") for text in await process.communicate())
    assert process.returncode == code, out + err
    return out + err if code else out


@pytest.fixture
async def harness(zookeeper: ZooKeeperProcess, tmp_path: Path) -> AsyncIterator[Harness]:
    root = f"/{tmp_path.name}"

    async def connect() -> MetadataStore:
        return await ZooKeeperMetadataStore.open(zookeeper.address, clock=SystemClock(), root=root)

    async with BookieCluster(tmp_path, 4, tcp=True, open_session=connect) as cluster:
        yield Harness(cluster, f"zk:{zookeeper.address}{root}")


async def test_ledgers_are_listed_shown_and_read(harness: Harness) -> None:
    closed = await harness.write()
    open_ = await harness.write(close=False)
    first, second = await harness.json("ledger", "list")
    assert first == {
        "ledgerId": closed.ledger_id,
        "state": "CLOSED",
        "entries": 60,
        "length": sum(map(len, PAYLOADS)),
        "ensemble": 3,
        "writeQuorum": 2,
        "ackQuorum": 2,
        "segments": 1,
        "owner": "public/default/persistent/t",
    }
    assert (second["ledgerId"], second["state"], second["entries"]) == (open_.ledger_id, "OPEN", None)
    shown = await harness.json("ledger", "show", str(closed.ledger_id))
    assert shown["segments"] == [{"firstEntryId": 0, "ensemble": list(closed.metadata.last_segment.ensemble)}]
    assert (shown["state"], shown["lastEntryId"], shown["digestType"]) == ("CLOSED", 59, "CRC32C")
    text = await harness.run("ledger", "show", str(closed.ledger_id), "--table")
    assert "0\t" + " ".join(closed.metadata.last_segment.ensemble) in text
    lines = (await harness.run("ledger", "read", str(closed.ledger_id), "--first", "57", "--table")).splitlines()
    assert lines == ["57\t8\tentry 57", "58\t8\tentry 58", "59\t8\tentry 59"]
    raw = await harness.run("ledger", "read", str(closed.ledger_id), "--first", "1", "--last", "2", "--raw")
    assert raw == "entry 1entry 2"
    # of what is being written the last entry is known to its writer alone; it goes on writing
    await append_all(open_, [b"last"])
    out = await run("ledger", "read", str(open_.ledger_id), MAGNETAR_METADATA_URL=harness.url)
    assert len(out.splitlines()) == 60
    await append_all(open_, [b"more"])
    assert "ledger 4711 does not exist" in await harness.run("ledger", "show", "4711", code=1)


async def test_verify_names_every_copy_that_is_not_there(harness: Harness) -> None:
    writer = await harness.write()
    sound = await harness.json("ledger", "verify", str(writer.ledger_id))
    assert sound == [
        {"ledgerId": writer.ledger_id, "entries": 60, "copies": 120, "good": 120, "unreadable": [], "bookies": {}}
    ]
    lost, damaged, _ = writer.metadata.last_segment.ensemble
    other = await harness.write(close=False)
    # entry 1 lies on the indexes 1 and 2: the copy on 1 is overwritten with something its digest does not fit
    done = asyncio.get_running_loop().create_future()
    harness.cluster.running[damaged].bookie.add_entry(
        writer.ledger_id, 1, entry(writer.ledger_id, 1)[:-1] + b"!", writer._source.master_key, 2, done.set_result
    )
    assert await done == 0
    await harness.cluster.crash(lost)
    broken = (await harness.json("ledger", "verify", "--all", code=1))[0]
    assert broken["bookies"][damaged] == {"damaged": [1]}
    assert broken["bookies"][lost] == {"gone": [number for number in range(60) if number % 3 != 1]}
    assert (broken["good"], broken["unreadable"]) == (120 - 40 - 1, [])
    text = await harness.run("ledger", "verify", str(writer.ledger_id), "--table", code=1)
    assert f"{writer.ledger_id}\t{damaged}\tdamaged\t1\t1" in text
    assert "1 ledgers, 79 of 120 copies good" in text
    assert (await harness.cluster.metadata(other.ledger_id)).state is LedgerState.OPEN


async def free_bytes(harness: Harness, bookie: str) -> int:
    """What the bookie itself saw at its last look at the disk."""
    answered = asyncio.get_running_loop().create_future()
    harness.cluster.running[bookie].bookie.bookie_info(lambda *answer: answered.set_result(answer))
    code, _, free = await answered
    assert code == 0
    return int(free)


async def test_bookies_are_listed_with_their_places(harness: Harness) -> None:
    await harness.cluster.crash("bookie3:3181")
    await harness.run("bookies", "racks", "set", "bookie0:3181", "/eu/r1", "--hostname", "host0")
    await harness.run("bookies", "racks", "set", "bookie1:3181", "r2", "--group", "blue")
    rows = {row["bookie"]: row for row in await harness.json("bookies", "list")}
    assert [rows[f"bookie{number}:3181"]["state"] for number in range(4)] == ["writable"] * 3 + ["lost"]
    assert (rows["bookie0:3181"]["rack"], rows["bookie1:3181"]["rack"]) == ("/eu/r1", "/r2")
    assert rows["bookie0:3181"]["address"] == f"127.0.0.1:{harness.cluster.running['bookie0:3181'].port}"
    assert await harness.json("bookies", "racks", "get", "bookie0:3181") == {
        "group": "default",
        "rack": "/eu/r1",
        "hostname": "host0",
    }
    assert rows["bookie0:3181"]["freeBytes"] == await free_bytes(harness, "bookie0:3181") > 0
    assert rows["bookie3:3181"]["freeBytes"] is None
    node = await harness.cluster.store.get(paths.BOOKIE_RACKS_PATH)
    assert node is not None
    assert json.loads(node.value) == {
        "default": {"bookie0:3181": {"rack": "/eu/r1", "hostname": "host0"}},
        "blue": {"bookie1:3181": {"rack": "r2", "hostname": "bookie1:3181"}},
    }
    await harness.run("bookies", "racks", "delete", "bookie1:3181")
    assert [row["bookie"] for row in await harness.json("bookies", "racks", "list")] == ["bookie0:3181"]
    assert "racks set" in await harness.run("bookies", "racks", "get", "bookie1:3181", code=1)


async def test_the_switches_of_auto_recovery(harness: Harness) -> None:
    marks = UnderreplicationManager(harness.cluster.store, SystemClock(), "test")
    await harness.run("bookies", "recovery", "disable")
    await harness.run("bookies", "recovery", "delay", "90")
    await marks.mark(7, ["bookie0:3181"])
    await marks.lock(7)
    assert await harness.json("bookies", "recovery", "status") == {
        "enabled": False,
        "auditor": None,
        "lostBookieRecoveryDelay": 90,
        "underreplicatedLedgers": 1,
        "ledgersBeingCopied": 1,
    }
    async with auditor_election(harness.cluster.store, "bookie1:3181") as election:
        await election.wait_elected()
        assert (await harness.json("bookies", "recovery", "status"))["auditor"] == "bookie1:3181"
    await harness.cluster.store.put(paths.AUDITOR_VOTE_PREFIX, b"nonsense", ephemeral=True, sequential=True)
    assert "vote" in await harness.run("bookies", "recovery", "status", code=1)
    (row,) = await harness.json("bookies", "recovery", "list")
    assert (row["ledgerId"], row["bookies"], row["worker"]) == (7, "bookie0:3181", "test")
    await harness.run("bookies", "recovery", "enable")
    assert await marks.enabled()


async def test_decommission_waits_for_the_workers_and_deletes_the_cookie(harness: Harness) -> None:
    for _ in range(6):
        await harness.write()
    assert "--force" in await harness.run("bookies", "decommission", "bookie0:3181", code=1)
    before = await harness.named("bookie0:3181")
    await harness.cluster.crash("bookie0:3181")
    # nobody copies: it says so, and what it has marked stays marked
    told = await harness.run("bookies", "decommission", "bookie0:3181", "--timeout", "0.2", code=1)
    assert f"{len(before)} ledgers still name bookie0:3181" in told
    assert await harness.cluster.store.exists(paths.cookie_path("bookie0:3181"))
    async with await harness.cluster.recovery("worker", auditor_enabled=False):
        done = await harness.json("bookies", "decommission", "bookie0:3181")
    assert done["decommissioned"] == "bookie0:3181"
    assert done["ledgers"] <= len(before)  # the worker may have begun before it was counted
    assert await harness.named("bookie0:3181") == []
    assert not await harness.cluster.store.exists(paths.cookie_path("bookie0:3181"))
    await harness.run("ledger", "verify", "--all")


async def test_recover_copies_by_itself_and_force_frees_a_bookie_that_serves(harness: Harness) -> None:
    closed = [await harness.write() for _ in range(4)]
    left_open = await harness.write(close=False, ensemble_size=3, write_quorum=3)
    await harness.cluster.crash("bookie1:3181")
    named = len(await harness.named("bookie1:3181"))
    assert await harness.json("bookies", "recover", "bookie1:3181") == {"recovered": "bookie1:3181", "ledgers": named}
    assert await harness.named("bookie1:3181") == []
    assert await harness.cluster.store.exists(paths.cookie_path("bookie1:3181"))
    await harness.run("ledger", "verify", "--all")
    await harness.cluster.start("bookie1:3181")
    await harness.json("bookies", "decommission", "bookie2:3181", "--force")
    assert await harness.named("bookie2:3181") == []
    assert not await harness.cluster.store.exists(paths.cookie_path("bookie2:3181"))
    await harness.run("ledger", "verify", "--all")
    metadata = await harness.cluster.metadata(left_open.ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry_id == 59
    assert len(closed) + 1 == len(await harness.cluster.manager.list_ids())
    assert await harness.cluster.store.children(paths.UNDERREPLICATION_LOCKS_PATH) == []


async def test_a_running_standalone_server_is_looked_into_and_a_stopped_one_read(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    where = ["--data-dir", str(data_dir)]
    server = ServerProcess(data_dir).start()
    try:
        await run("produce", "t", "-m", "hello", "--url", server.service_url)
        code, text = await asyncio.to_thread(run_here, "ledger", "list", *where)
        assert (code, "public/default/persistent/t" in text) == (0, True), text
        code, text = await asyncio.to_thread(run_here, "ledger", "verify", "--all", *where)
        assert (code, "stop it first" in text) == (1, True), text
    finally:
        server.stop()
    code, text = await asyncio.to_thread(run_here, "ledger", "list", "--json", *where)
    (row,) = [row for row in json.loads(text) if row["owner"] == "public/default/persistent/t"]
    code, text = await asyncio.to_thread(run_here, "ledger", "read", str(row["ledgerId"]), "--table", *where)
    assert (code, "hello" in text) == (0, True)
    code, text = await asyncio.to_thread(run_here, "ledger", "verify", "--all", *where)
    assert code == 0, text


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["ledger", "verify", "1"], "give the store itself: --metadata URL"),
        (["ledger", "list", "--admin-url", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["ledger", "list", "--metadata", "memory:", "--dir", "x"], "which cluster?"),
        (["ledger", "list", "--dir", "nowhere"], "magnetar cluster up --dir"),
        (["ledger", "list", "--data-dir", "nowhere"], "not a data directory of a standalone server"),
        (["ledger", "list", "--metadata", "ftp:x"], "not understood"),
        (["ledger", "verify", "--metadata", "memory:"], "--all"),
        (["bookies", "racks", "set", "b", "/a/b/c", "--metadata", "memory:"], "/REGION/RACK"),
    ],
)
async def test_what_is_wrong_is_said_in_one_line(args: list[str], told: str) -> None:
    code, text = await asyncio.to_thread(run_here, *args)
    assert code in (1, 2)
    assert told in text
