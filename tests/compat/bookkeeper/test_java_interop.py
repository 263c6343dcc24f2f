"""Apache BookKeeper's Java client against our bookies, and our client against Apache's bookies, over a real ZooKeeper.

    BOOKKEEPER_JARS=DIR pytest tests/compat/bookkeeper

DIR holds bookkeeper-server 4.17 with its dependencies; tests/compat/bookkeeper/fetch-jars fetches them (Maven, from Maven Central).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.executor import ThreadExecutor
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.cluster import initialize_cluster
from magnetar.bookkeeper.codes import BOOKIE_TIMEOUT, ReturnCode
from magnetar.bookkeeper.entry_format import Digest, DigestType, master_key, pack_lac
from magnetar.metadata.open import open_store
from magnetar.processes.ledger_client import open_ledger_client
from magnetar.testing.zookeeper import ZooKeeperProcess
from tests.compat.bookkeeper.java import JavaBookie, JavaClient, MagnetarBookie, checksum, payload

JARS = os.environ.get("BOOKKEEPER_JARS", "")
PASSWORD = b"secret"
DIGESTS = {"CRC32": DigestType.CRC32, "MAC": DigestType.HMAC, "CRC32C": DigestType.CRC32C, "DUMMY": DigestType.DUMMY}
QUORUMS = {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}
FENCED, NO_SUCH_LEDGER = "-101", "-25"

pytestmark = [
    pytest.mark.skipif(
        not JARS, reason="set BOOKKEEPER_JARS to a directory with bookkeeper-server and its dependencies"
    ),
    pytest.mark.long,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="module")
def zookeeper(directory: Path) -> Iterator[str]:
    with ZooKeeperProcess(directory / "zookeeper", tick_time_ms=2000) as server:
        yield server.address


@pytest.fixture(scope="module")
def ours(directory: Path, zookeeper: str) -> Iterator[list[MagnetarBookie]]:
    bookies = [MagnetarBookie(directory / f"ours-{number}", zookeeper) for number in range(3)]
    yield bookies
    for bookie in bookies:
        bookie.stop()


@pytest.fixture(scope="module", params=["v2", "v3"])
def java(
    request: pytest.FixtureRequest, directory: Path, zookeeper: str, ours: list[MagnetarBookie]
) -> Iterator[JavaClient]:
    client = JavaClient(Path(JARS), zookeeper, request.param, directory / f"client-{request.param}.log")
    yield client
    client.stop()


@contextlib.asynccontextmanager
async def our_client(zookeeper: str) -> AsyncIterator[tuple[BookKeeperClient, contextlib.AsyncExitStack]]:
    clock, executor = SystemClock(), ThreadExecutor("metadata")
    async with contextlib.AsyncExitStack() as stack:
        store = await open_store(f"zk:{zookeeper}", clock=clock, executor=executor)
        stack.push_async_callback(store.close)
        await initialize_cluster(store, random.Random())
        client, directory = await open_ledger_client(store, clock, random.Random(7), stack)
        async with asyncio.timeout(30):
            while len(directory.writable()) < 3:
                await asyncio.sleep(0.05)
        client.directory_for_tests = directory  # type: ignore[attr-defined]
        yield client, stack


# ---- Their client, our bookies


@pytest.mark.parametrize("digest", list(DIGESTS))
def test_their_client_writes_closes_and_reads(java: JavaClient, digest: str) -> None:
    (ledger,) = java.ask(f"write 3 2 2 {digest} 500 1024 close")
    assert java.ask(f"read {ledger} {digest}") == ["499", str(500 * 1024), str(checksum(500, 1024))]


@pytest.mark.parametrize("digest", list(DIGESTS))
def test_their_client_recovers_its_own_open_ledger(java: JavaClient, digest: str) -> None:
    (ledger,) = java.ask(f"write 3 3 2 {digest} 100 200 leave")
    assert java.ask(f"read {ledger} {digest}") == ["99", str(100 * 200), str(checksum(100, 200))]
    assert java.say(f"append {ledger} 10").split()[:2] == ["error", FENCED], "the writer is fenced"


def test_their_client_recovers_an_empty_ledger(java: JavaClient) -> None:
    (ledger,) = java.ask("write 3 2 2 CRC32C 0 1 leave")
    assert java.ask(f"read {ledger} CRC32C") == ["-1", "0", "0"]


def test_their_client_reads_in_batches(java: JavaClient, request: pytest.FixtureRequest) -> None:
    (ledger,) = java.ask("write 2 2 2 CRC32C 50 1000 close")
    if request.node.callspec.params["java"] == "v3":
        assert "Unsupported batch read" in java.say(f"batch {ledger} CRC32C 20 1000000"), (
            "their client has it in v2 only"
        )
        return
    (count,) = java.ask(f"batch {ledger} CRC32C 20 1000000")
    assert count == "20"
    (count,) = java.ask(f"batch {ledger} CRC32C 50 10000")
    assert 1 <= int(count) <= 50


def test_their_client_sees_large_entries(java: JavaClient) -> None:
    (ledger,) = java.ask("write 3 2 2 CRC32C 3 5000000 close")
    assert java.ask(f"read {ledger} CRC32C") == ["2", "15000000", str(checksum(3, 5_000_000))]


def test_what_only_version_three_has(
    java: JavaClient, ours: list[MagnetarBookie], request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["java"] == "v2":
        assert java.ask("write 3 3 2 CRC32C 1 10 close")
        return
    (ledger,) = java.ask("write 3 3 2 CRC32C 10 100 leave")
    lac = java.ask(f"tail {ledger} CRC32C 5 20000")
    assert (int(lac[0]) >= 8, lac[1]) == (True, "600"), "entry 5, at which the ledger is 600 bytes long"
    assert java.ask("force CRC32C 20 100")[1:] == ["-1", "19"], "LAC before and after the force"
    counts = [int(java.ask(f"entries {bookie.bookie_id} {ledger}")[0]) for bookie in ours]
    assert counts == [10, 10, 10]
    (striped,) = java.ask("write 3 2 2 CRC32C 30 100 close")
    assert sum(int(java.ask(f"entries {bookie.bookie_id} {striped}")[0]) for bookie in ours) == 60
    assert java.ask("info") == ["3"]
    for _ in range(200):  # the explicit LAC is sent every 20 ms when it has moved
        if java.ask(f"lac {ledger} CRC32C") == ["9"]:
            break
    assert java.ask(f"lac {ledger} CRC32C") == ["9"]
    assert java.ask(f"close {ledger}") == []


def test_their_client_deletes(java: JavaClient) -> None:
    (ledger,) = java.ask("write 3 2 2 CRC32C 3 10 close")
    java.ask(f"delete {ledger}")
    assert java.say(f"read {ledger} CRC32C").split()[:2] == ["error", NO_SUCH_LEDGER]


# ---- Both clients on one ledger, our bookies


@pytest.mark.parametrize("digest", list(DIGESTS))
async def test_our_client_takes_over_their_ledger(java: JavaClient, zookeeper: str, digest: str) -> None:
    (ledger,) = java.ask(f"write 3 2 2 {digest} 100 200 leave")
    async with our_client(zookeeper) as (client, _):
        reader = await client.open_ledger(int(ledger), recover=True, password=PASSWORD)
        assert (reader.last_add_confirmed, reader.length) == (99, 100 * 200)
        assert await read_all(reader, 100) == [payload(number, 200) for number in range(100)]
    assert java.say(f"append {ledger} 10").split()[:2] == ["error", FENCED]
    assert java.ask(f"read {ledger} {digest}") == ["99", str(100 * 200), str(checksum(100, 200))]


@pytest.mark.parametrize("digest", list(DIGESTS))
async def test_their_client_takes_over_our_ledger(java: JavaClient, zookeeper: str, digest: str) -> None:
    async with our_client(zookeeper) as (client, _):
        writer = await client.create_ledger(**QUORUMS, digest_type=DIGESTS[digest], password=PASSWORD)
        assert set(await asyncio.gather(*(append(writer, payload(it, 300)) for it in range(50)))) == {None}
        result = java.ask(f"read {writer.ledger_id} {digest}")
        assert result == ["49", str(50 * 300), str(checksum(50, 300))]
        assert await append(writer, b"late") is not None, "our writer is fenced"


def test_our_bookies_survive_kill_9_under_their_client(
    java: JavaClient, directory: Path, zookeeper: str, ours: list[MagnetarBookie]
) -> None:
    (ledger,) = java.ask("write 3 3 3 CRC32C 200 1024 close")
    for number, bookie in enumerate(ours):
        bookie.stop(9)
        ours[number] = MagnetarBookie(directory / f"ours-{number}", zookeeper, bookie.port)
    result = java.say(f"read {ledger} CRC32C")
    while result.startswith("error"):  # their client reconnects with a pause
        result = java.say(f"read {ledger} CRC32C")
    assert result.split()[1:] == ["199", str(200 * 1024), str(checksum(200, 1024))]


# ---- Our client, their bookies


STORAGES = {
    "sorted": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "db": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
}


@pytest.fixture(params=list(STORAGES))
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(ZooKeeper's address, storage) with three of their bookies."""
    with ZooKeeperProcess(tmp_path / "zookeeper", tick_time_ms=2000) as server:
        asyncio.run(format_cluster(server.address))
        bookies = [
            JavaBookie(tmp_path / str(number), Path(JARS), server.address, STORAGES[request.param])
            for number in range(3)
        ]
        try:
            for bookie in bookies:
                bookie.wait()
            yield server.address, request.param
        finally:
            for bookie in bookies:
                bookie.stop(9)


async def format_cluster(zookeeper: str) -> None:
    store = await open_store(f"zk:{zookeeper}", clock=SystemClock(), executor=ThreadExecutor("metadata"))
    await initialize_cluster(store, random.Random())
    await store.close()


async def test_our_client_on_their_bookies(theirs: tuple[str, str], tmp_path: Path) -> None:
    zookeeper, storage = theirs
    async with our_client(zookeeper) as (client, _):
        for digest, digest_type in DIGESTS.items():
            writer = await client.create_ledger(**QUORUMS, digest_type=digest_type, password=PASSWORD)
            assert set(await asyncio.gather(*(append(writer, payload(it, 300)) for it in range(200)))) == {None}, digest
            reader = await client.open_ledger(writer.ledger_id, recover=True, password=PASSWORD)
            assert (reader.last_add_confirmed, reader.length) == (199, 200 * 300)
            assert await read_all(reader, 200) == [payload(number, 300) for number in range(200)]
            assert await append(writer, b"late") is not None, "our writer is fenced"
        unstriped = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2, password=PASSWORD)
        assert set(await asyncio.gather(*(append(unstriped, payload(it, 300)) for it in range(200)))) == {None}
        assert await append(unstriped, payload(200, 300)) is None  # this one carries the LAC of the others
        await unstriped.close()
        reader = await client.open_ledger(unstriped.ledger_id, recover=False, password=PASSWORD)
        assert await read_all(reader, 201) == [payload(number, 300) for number in range(201)], "in batches"
        await version_three(client, storage, unstriped.ledger_id)
        java = JavaClient(Path(JARS), zookeeper, "v2", tmp_path / "client.log")
        assert java.ask(f"read {unstriped.ledger_id} CRC32C") == ["200", str(201 * 300), str(checksum(201, 300))]
        java.stop()


async def version_three(client: BookKeeperClient, storage: str, ledger_id: int) -> None:
    """What our channel says in version 3, to a bookie of theirs that holds the ledger."""
    metadata = await client.read_metadata(ledger_id)
    channel = client.directory_for_tests.channel(metadata.last_segment.ensemble[0])  # type: ignore[attr-defined]
    assert await ask(channel.last_confirmed, ledger_id) == (ReturnCode.OK, 199)
    body = pack_lac(ledger_id, 200, Digest(DigestType.CRC32C, PASSWORD))
    assert await ask(channel.write_lac, ledger_id, body, master_key(PASSWORD)) == ReturnCode.OK
    assert (await ask(channel.read_lac, ledger_id))[:2] == (ReturnCode.OK, body)
    assert (await ask(channel.wait_lac, ledger_id, 197, 1.0))[:2] in ((0, 199), (0, 200))
    assert await ask(channel.force_ledger, ledger_id) == ReturnCode.OK
    code, total, free = await ask(channel.bookie_info)
    assert (code, 0 < free <= total) == (ReturnCode.OK, True)
    code, entries = await ask(channel.list_entries, ledger_id)
    if storage == "db":
        assert code == BOOKIE_TIMEOUT, "DbLedgerStorage never answers"
    else:
        assert (code, entries.entries_count, entries.last_entry_id) == (ReturnCode.OK, 201, 200)


# ---- Helpers


async def ask(call, *args):  # type: ignore[no-untyped-def]
    answer = asyncio.get_running_loop().create_future()
    call(*args, lambda *values: answer.set_result(values[0] if len(values) == 1 else values))
    return await asyncio.wait_for(answer, 30)


async def append(writer, data):  # type: ignore[no-untyped-def]
    return await ask(writer.append, data)


async def read_all(reader, entries):  # type: ignore[no-untyped-def]
    found: list[bytes] = []
    while len(found) < entries:
        error, some = await ask(reader.read, len(found), entries - 1, 1 << 20)
        assert error is None, error
        found += some
    return found
