"""Bookies come into the lists, change lists, come back after a lost session, and are seen doing so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.base.errors import BadVersionError, InvalidArgumentError
from magnetar.base.executor import ThreadExecutor
from magnetar.bookkeeper import registration as registration_module
from magnetar.bookkeeper.bookie_watcher import BookieWatcher
from magnetar.bookkeeper.cluster import LAYOUT, MetadataCookies, initialize_cluster, instance_id
from magnetar.bookkeeper.errors import ClusterLayoutError, RegistrationError
from magnetar.bookkeeper.registration import BookieRegistration
from magnetar.bookkeeper.service_info import BookieServiceInfo, Endpoint, service_info
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.sqlite import SqliteMetadataStore

ID = "127.0.0.1:3181"
INFO = service_info("127.0.0.1", 3181)
WRITABLE, READ_ONLY = f"/ledgers/available/{ID}", f"/ledgers/available/readonly/{ID}"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def lists(store: MemoryMetadataStore) -> tuple[bool, bool]:
    return await store.exists(WRITABLE), await store.exists(READ_ONLY)


async def test_the_registration_has_bookkeepers_bytes() -> None:
    store = MemoryMetadataStore()
    async with BookieRegistration(store, ID, INFO):
        node = await store.get(WRITABLE)
        assert node is not None
        assert node.owner == store.session_id
        # field 6 {1: "bookie-rpc", 2: 3181, 3: "127.0.0.1", 4: "bookie-rpc"}
        assert node.value == b"\x32\x26\x0a\x0abookie-rpc\x10\xed\x18\x1a\x09127.0.0.1\x22\x0abookie-rpc"
        assert BookieServiceInfo.from_bytes(node.value, ID) == INFO
    assert await lists(store) == (False, False)


def test_service_info_round_trips_and_an_empty_one_means_the_id() -> None:
    info = BookieServiceInfo(
        (
            Endpoint("bookie-rpc", "h", 1, auth=("sasl",), extensions=("tls",)),
            Endpoint("httpserver", "h", 8080, "http"),
        ),
        {"rack": "r1"},
    )
    assert BookieServiceInfo.from_bytes(info.to_bytes(), "x") == info
    assert BookieServiceInfo.from_bytes(b"", ID) == INFO
    apache = BookieServiceInfo((Endpoint("httpserver", "h", 8080, "http"), Endpoint("bookie", "h", 3181, "bookie-rpc")))
    assert apache.rpc == apache.endpoints[1], "clients find the endpoint by its protocol"
    with pytest.raises(RegistrationError, match="not host:port"):
        BookieServiceInfo.from_bytes(b"", "bookie-one")
    with pytest.raises(RegistrationError, match="cannot be read"):
        BookieServiceInfo.from_bytes(b"\xff", ID)


@pytest.mark.parametrize("bookie_id", ["", "readonly", "a/b", "a b", "é:1"])
def test_ids_that_bookkeeper_refuses(bookie_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="bookie's id"):
        BookieRegistration(MemoryMetadataStore(), bookie_id, INFO)


async def test_a_bookie_that_changes_lists_is_never_in_neither() -> None:
    tree = MemoryTree()
    store, other = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    seen: list[tuple[bool, bool]] = []
    async with BookieRegistration(store, ID, INFO) as registration:
        other.watch(lambda _: seen.append((tree.find(WRITABLE) is not None, tree.find(READ_ONLY) is not None)))
        for read_only in (True, False, True):
            registration.set_read_only(read_only)
            await registration.wait_registered()
            assert await lists(store) == (not read_only, read_only)
        assert (False, False) not in seen
        assert len(seen) == 6


async def test_a_lost_session_is_followed_by_a_new_registration() -> None:
    store = MemoryMetadataStore()
    async with BookieRegistration(store, ID, INFO, read_only=True) as registration:
        first = store.session_id
        store.expire_session()
        assert await lists(store) == (False, False)
        await registration.wait_registered()
        node = await store.get(READ_ONLY)
        assert node is not None
        assert node.owner == store.session_id != first


async def test_a_bookie_registers_in_a_file(tmp_path: Path) -> None:
    executor = ThreadExecutor("metadata")
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    async with BookieWatcher(store) as bookies, BookieRegistration(store, ID, INFO) as registration:
        await until(lambda: list(bookies.writable) == [ID])
        registration.set_read_only(True)
        await registration.wait_registered()
        await until(lambda: list(bookies.read_only) == [ID] and not bookies.writable)
    await store.close()
    executor.close()


async def test_a_change_of_lists_while_cut_off_happens_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_module, "RETRY_INTERVAL_S", 0.01)
    store = MemoryMetadataStore()
    async with BookieRegistration(store, ID, INFO) as registration:
        store.disconnect()
        registration.set_read_only(True)
        for _ in range(5):
            await asyncio.sleep(0)
        store.reconnect()
        await registration.wait_registered()
        assert await lists(store) == (False, True)


async def test_a_restarted_bookie_waits_for_its_former_registrations() -> None:
    tree = MemoryTree()
    former, store = MemoryMetadataStore(tree, 10.0), MemoryMetadataStore(tree, 10.0)
    old = await BookieRegistration(former, ID, INFO).__aenter__()
    starting = asyncio.get_running_loop().create_task(BookieRegistration(store, ID, INFO).__aenter__())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not starting.done()
    former.abandon()
    former.expire_session()
    registration = await starting
    node = await store.get(WRITABLE)
    assert node is not None
    assert node.owner == store.session_id
    await registration.__aexit__(None, None, None)
    await old.__aexit__(None, None, None)


async def test_a_second_bookie_of_the_same_id_is_refused() -> None:
    tree = MemoryTree()
    first, second = MemoryMetadataStore(tree, 0.01), MemoryMetadataStore(tree, 0.01)
    refused: list[RegistrationError] = []
    async with BookieRegistration(first, ID, INFO, on_refused=refused.append):
        with pytest.raises(RegistrationError, match="another bookieId"):
            await BookieRegistration(second, ID, INFO).__aenter__()
        first.disconnect()
        first.expire_session()
        async with BookieRegistration(second, ID, INFO):
            first.reconnect()
            await until(lambda: bool(refused))


async def test_the_watcher_follows_the_lists() -> None:
    tree = MemoryTree()
    stores = [MemoryMetadataStore(tree) for _ in range(3)]
    calls: list[int] = []
    async with BookieWatcher(MemoryMetadataStore(tree), lambda: calls.append(1)) as bookies:
        assert bookies.known == {}
        async with (
            BookieRegistration(stores[0], "b:1", service_info("10.0.0.1", 1)) as first,
            BookieRegistration(stores[1], "b:2", service_info("10.0.0.2", 2), read_only=True),
        ):
            await until(lambda: list(bookies.known) == ["b:2", "b:1"])
            assert bookies.writable == {"b:1": service_info("10.0.0.1", 1)}
            assert bookies.read_only == {"b:2": service_info("10.0.0.2", 2)}
            first.set_read_only(True)
            await until(lambda: list(bookies.read_only) == ["b:1", "b:2"])
            assert bookies.writable == {}
            await stores[2].put("/ledgers/available/old:3181", b"")
            await stores[2].put("/ledgers/available/nowhere", b"")
            await until(lambda: bool(bookies.writable))
            assert bookies.writable == {"old:3181": service_info("old", 3181)}
        await until(lambda: list(bookies.known) == ["old:3181"])
        assert calls


async def test_the_watcher_keeps_what_it_knew_and_catches_up() -> None:
    tree = MemoryTree()
    store, mine = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    registration = await BookieRegistration(store, ID, INFO).__aenter__()
    async with BookieWatcher(mine) as bookies:
        mine.disconnect()
        await registration.__aexit__(None, None, None)
        await store.put("/ledgers/available/new:1", b"")
        await asyncio.sleep(0)
        assert list(bookies.writable) == [ID]
        mine.reconnect()
        await until(lambda: list(bookies.writable) == ["new:1"])


class Stop(Exception):
    pass


async def test_an_error_in_the_body_of_a_watcher_keeps_its_class() -> None:
    with pytest.raises(Stop):
        async with BookieWatcher(MemoryMetadataStore()):
            raise Stop


async def test_a_new_cluster_has_bookkeepers_nodes() -> None:
    store = MemoryMetadataStore()
    with pytest.raises(ClusterLayoutError, match="empty or not a cluster"):
        await instance_id(store)
    made = await initialize_cluster(store, random.Random(1))
    assert await initialize_cluster(store, random.Random(2)) == made == await instance_id(store)
    assert len(made) == 36
    layout = await store.get("/ledgers/LAYOUT")
    assert layout is not None
    assert layout.value == LAYOUT == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    assert await store.children("/ledgers/available") == ["readonly"]


async def test_a_foreign_layout_is_refused() -> None:
    store = MemoryMetadataStore()
    await store.put("/ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1")
    with pytest.raises(ClusterLayoutError, match="hierarchical"):
        await initialize_cluster(store, random.Random(1))


async def test_cookies_are_written_once() -> None:
    store = MemoryMetadataStore()
    cookies = MetadataCookies(store)
    assert await cookies.read(ID) is None
    await cookies.write(ID, b"5\n...")
    await cookies.write(ID, b"5\n...")
    with pytest.raises(BadVersionError):
        await cookies.write(ID, b"5\nanother")
    assert await cookies.read(ID) == b"5\n..."
    assert await cookies.bookie_ids() == [ID]
    await cookies.delete(ID)
    await cookies.delete(ID)
    assert await cookies.read(ID) is None
