"""The bookie as its process composes it, over its own protocols: metadata server, wire, HTTP."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import requests

from magnetar.base.clock import SystemClock
from magnetar.base.errors import StartupError
from magnetar.bookkeeper.bookie.storage.disk import DiskSpace, OsDisk
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.cluster import initialize_cluster
from magnetar.bookkeeper.codes import FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.errors import ClusterLayoutError, CookieError, NotEnoughBookiesError, RegistrationError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore
from magnetar.processes.autorecovery import AutorecoveryProcess
from magnetar.processes.bookie import BookieProcess
from magnetar.processes.configurations import AutorecoveryConfig, BookieProcessConfig, MetadataServerConfig
from magnetar.processes.ledger_client import open_ledger_client
from magnetar.processes.metadata_access import open_metadata
from magnetar.processes.metadata_server import MetadataServerProcess
from tests.unit.bookkeeper.bookie_helpers import KEY, entry

SESSION_MS = 2000


class SizedDisk(OsDisk):
    """A disk of one TiB, as full as told."""

    used_ratio = 0.1

    def free(self, path: str) -> DiskSpace:
        return DiskSpace(1 << 40, int((1 - self.used_ratio) * (1 << 40)))


class World:
    """A metadata server, and whatever is started on it; `store` is a session of the test's own."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self._path = path
        self._stack = stack

    async def open(self) -> World:
        config = MetadataServerConfig(data_dir=self._path / "metadata", port=0)
        server = await self._stack.enter_async_context(MetadataServerProcess(config))
        (self.url,) = server.urls
        self.store: MetadataStore = await open_metadata(self.url, 10, SystemClock(), self._stack)
        return self

    def bookie(self, name: str = "b1", disk: OsDisk | None = None, **settings: Any) -> BookieProcess:
        values: dict[str, Any] = {
            "data_dir": self._path / name,
            "port": 0,
            "http_port": 0,
            "metadata_service_uri": self.url,
            "zk_timeout_ms": SESSION_MS,
            "gc_wait_time_ms": 3_600_000,
            "disk_check_interval_ms": 20,
            "disk_free_plenty_mb": 1 << 40,
        }
        return BookieProcess(BookieProcessConfig(**(values | settings)), disk)

    async def client(self) -> BookKeeperClient:
        client, _ = await open_ledger_client(self.store, SystemClock(), random.Random(7), self._stack)
        return client


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield await World(tmp_path, stack).open()


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


async def http(url: str, path: str, method: str = "GET") -> tuple[int, str]:
    def call() -> tuple[int, str]:
        try:
            with urlopen(Request(url + path, method=method), timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(call)


def bookie_id_of(bookie: BookieProcess) -> str:
    return bookie.urls[0].removeprefix("bookie://")


async def test_pages_in_browsers_get_nothing_from_it(world: World) -> None:
    """Its HTTP port asks nobody who they are: neither pages of other sites nor pages whose name was led here are answered."""
    async with world.bookie() as bookie:

        def asked(method: str, path: str, **headers: str) -> int:
            return requests.request(method, bookie.urls[1] + path, headers=headers, timeout=60).status_code

        host = bookie.urls[1].partition("://")[2]
        assert await asyncio.to_thread(asked, "GET", "/metrics", Host="evil.example") == 421
        assert (
            await asyncio.to_thread(asked, "PUT", "/api/v1/bookie/gc", Host=host, Origin="http://evil.example") == 403
        )
        assert await asyncio.to_thread(asked, "PUT", "/api/v1/bookie/gc", Host=host) == 200


async def test_it_serves_registers_and_leaves(world: World) -> None:
    async with world.bookie() as bookie:
        path = paths.available_bookie_path(bookie_id_of(bookie))
        assert await world.store.exists(path)
        client = await world.client()
        writer = await client.create_ledger()
        stored = asyncio.Event()
        writer.append(b"stored", lambda error: None if error else stored.set())
        await asyncio.wait_for(stored.wait(), 60)
        url = bookie.urls[1]
        assert await http(url, "/healthz") == (200, "ok\n")
        assert await http(url, "/readyz") == (200, "ok\n")
        assert await http(url, "/heartbeat") == (200, "OK\n")
        assert "so there is no console" in (await http(url, "/"))[1]
        broker = json.dumps({"webServiceUrl": "http://b1:8080"}).encode()
        await world.store.put(paths.broker_path("b1:8080"), broker)
        page = (await http(url, "/"))[1]
        assert '<a href="http://b1:8080/console/">Console of b1:8080</a>' in page
        assert "writable" in page
        assert await http(url, "/api/v1/bookie/is_ready") == (200, "OK\n")
        state = json.loads((await http(url, "/api/v1/bookie/state"))[1])
        assert state == {
            "running": True,
            "readOnly": False,
            "shuttingDown": False,
            "availableForHighPriorityWrites": True,
        }
        info = json.loads((await http(url, "/api/v1/bookie/info"))[1])
        assert 0 < info["freeSpace"] < info["totalSpace"]
        metrics = (await http(url, "/metrics"))[1]
        assert f'bookie_SERVER_STATUS{{bookie="{bookie_id_of(bookie)}"}} 1\n' in metrics
        assert f'bookkeeper_server_ADD_ENTRY_count{{bookie="{bookie_id_of(bookie)}",success="true"}} 1\n' in metrics
        assert "process_cpu_seconds_total" in metrics
        await writer.close()
    assert not await world.store.exists(path)


async def test_a_full_disk_moves_it_to_the_other_list_and_back(world: World) -> None:
    disk = SizedDisk()
    async with world.bookie(disk=disk) as bookie:
        bookie_id = bookie_id_of(bookie)
        client = await world.client()
        ledger_id = (
            await client.create_ledger()
        ).ledger_id  # a full bookie soon deletes what the metadata does not know

        async def listed() -> tuple[bool, bool]:
            read_only = await world.store.exists(paths.read_only_bookie_path(bookie_id))
            return await world.store.exists(paths.available_bookie_path(bookie_id)), read_only

        async def add(entry_id: int, flags: int) -> int:
            answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            packed = entry(ledger_id, entry_id)
            bookie.bookie.add_entry(ledger_id, entry_id, packed, KEY, flags, answer.set_result)
            return await asyncio.wait_for(answer, 60)

        disk.used_ratio = 0.96
        await until(lambda: _is(listed, (False, True)), "it is listed as read-only")
        assert (await http(bookie.urls[1], "/healthz"))[0] == 200
        assert (await http(bookie.urls[1], "/api/v1/bookie/is_ready"))[0] == 503
        assert await http(bookie.urls[1], "/readyz") == (503, "the bookie is read-only\n")
        assert json.loads((await http(bookie.urls[1], "/api/v1/bookie/state"))[1])["availableForHighPriorityWrites"]
        assert await add(0, 0) == ReturnCode.READ_ONLY
        assert await add(0, FLAG_HIGH_PRIORITY | FLAG_RECOVERY_ADD) == ReturnCode.OK, "there is room for recovery"
        with pytest.raises(NotEnoughBookiesError):
            await _fresh_ledger(world)
        disk.used_ratio = 0.5
        await until(lambda: _is(listed, (True, False)), "it is listed as writable")
        assert await add(1, 0) == ReturnCode.OK


async def test_a_bookie_that_starts_on_a_full_disk_is_read_only_from_the_start(world: World) -> None:
    disk = SizedDisk()
    disk.used_ratio = 0.99
    async with world.bookie(disk=disk) as bookie:
        assert await world.store.exists(paths.read_only_bookie_path(bookie_id_of(bookie)))
        assert not await world.store.exists(paths.available_bookie_path(bookie_id_of(bookie)))


async def test_garbage_is_what_the_metadata_does_not_have_or_gives_to_others(world: World) -> None:
    async with world.bookie() as bookie:
        client = await world.client()
        writers = [await client.create_ledger() for _ in range(3)]
        for writer in writers:
            stored = asyncio.Event()
            writer.append(b"x", lambda error, stored=stored: stored.set())
            await asyncio.wait_for(stored.wait(), 60)
            await writer.close()
        kept, deleted, elsewhere = (writer.ledger_id for writer in writers)
        await client.delete_ledger(deleted)
        manager = LedgerManager(world.store)
        metadata, version = await manager.read(elsewhere)
        assert metadata.state is LedgerState.CLOSED
        await manager.write(elsewhere, _moved(metadata), version)
        assert (await http(bookie.urls[1], "/api/v1/bookie/gc", "PUT"))[0] == 200
        await until(lambda: _is(_async(bookie.bookie.ledger_ids), [kept]), "garbage is collected")
        locks = partial(world.store.children, paths.UNDERREPLICATION_LOCKS_PATH)
        await until(lambda: _is(locks, []), "the replication lock is given back")


async def test_a_metadata_store_that_was_emptied_or_exchanged_deletes_nothing(world: World) -> None:
    async with world.bookie() as bookie:
        client = await world.client()
        writer = await client.create_ledger()
        stored = asyncio.Event()
        writer.append(b"x", lambda error: stored.set())
        await asyncio.wait_for(stored.wait(), 60)
        await writer.close()
        await client.delete_ledger(writer.ledger_id)  # as far as the store can tell
        node = await world.store.get(paths.INSTANCE_ID_PATH)
        assert node is not None
        await world.store.delete(paths.INSTANCE_ID_PATH)
        await bookie.bookie.collect_garbage()
        await world.store.put(paths.INSTANCE_ID_PATH, b"another")
        await bookie.bookie.collect_garbage()
        assert bookie.bookie.ledger_ids() == [writer.ledger_id]
        assert bookie.bookie.statistics().garbage_collections_failed_total == 2
        await world.store.put(paths.INSTANCE_ID_PATH, node.value)
        await bookie.bookie.collect_garbage()
        assert bookie.bookie.ledger_ids() == []


async def test_its_name_is_taken(world: World, tmp_path: Path) -> None:
    async with world.bookie("b1", bookie_id="one") as bookie:
        with pytest.raises(CookieError, match="its directories are empty"):
            await _start(world.bookie("b2", bookie_id="one"))
        with pytest.raises(StartupError, match="in use by process"):
            await _start(world.bookie("b1", bookie_id="one"))
        assert bookie.failure is None
    registration = paths.available_bookie_path("one")
    await world.store.put(registration, b"", ephemeral=True)
    with pytest.raises(RegistrationError, match="is registered already, by a session that goes on"):
        await _start(world.bookie("b1", bookie_id="one"))
    await world.store.delete(registration)
    await _start(world.bookie("b1", bookie_id="one"))


async def test_another_cluster_is_refused(world: World, tmp_path: Path) -> None:
    await _start(world.bookie("b1", bookie_id="one"))
    (tmp_path / "other").mkdir()
    async with AsyncExitStack() as stack:
        other = await World(tmp_path / "other", stack).open()
        stray = BookieProcessConfig(
            data_dir=tmp_path / "b1", port=0, http_port=-1, bookie_id="one", metadata_service_uri=other.url
        )
        with pytest.raises(ClusterLayoutError, match="it is empty or not a cluster's"):
            await _start(BookieProcess(stray))
        assert await other.store.children("/ledgers") == []  # a bookie with data founds no cluster
        await initialize_cluster(other.store, random.Random(1))
        with pytest.raises(CookieError, match="belongs to another bookie"):
            await _start(BookieProcess(stray))


async def test_settings_that_cannot_be(world: World) -> None:
    with pytest.raises(StartupError, match="cannot create the data directory"):
        await _start(world.bookie("b1/x", data_dir=Path("/proc/none")))


async def _start(bookie: BookieProcess) -> None:
    async with bookie:
        pass


async def _is(read: Callable[[], Any], expected: object) -> bool:
    return bool(await read() == expected)


def _async(read: Callable[[], Any]) -> Callable[[], Any]:
    async def answer() -> Any:
        return read()

    return answer


def _moved(metadata: LedgerMetadata) -> LedgerMetadata:
    from dataclasses import replace

    return replace(metadata, segments=(Segment(0, ("somewhere:1",)),))


async def _fresh_ledger(world: World) -> None:
    async with AsyncExitStack() as stack:
        client, _ = await open_ledger_client(world.store, SystemClock(), random.Random(7), stack)
        await client.create_ledger()


async def test_auto_recovery_inside_a_bookie_and_in_a_process(world: World) -> None:
    async with world.bookie(auto_recovery_daemon_enabled=True) as bookie:
        await until(lambda: _says(bookie.urls[1], "autorecovery_auditor_elected 1\n"), "its auditor is elected")
    config = AutorecoveryConfig(http_port=0, metadata_service_uri=world.url, zk_timeout_ms=SESSION_MS)
    async with AutorecoveryProcess(config) as recovery:
        (url,) = recovery.urls
        assert await http(url, "/healthz") == (200, "ok\n")
        assert await http(url, "/readyz") == (200, "ok\n")
        await until(lambda: _says(url, "autorecovery_auditor_elected 1\n"), "it is elected after the other has gone")


async def _says(url: str, line: str) -> bool:
    return line in (await http(url, "/metrics"))[1]
