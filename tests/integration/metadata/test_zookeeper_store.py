"""A real ZooKeeper that is killed, restarted and paused under the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.bookie_watcher import BookieWatcher
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, Segment
from magnetar.bookkeeper.registration import BookieRegistration
from magnetar.bookkeeper.service_info import service_info
from magnetar.metadata.errors import MetadataConnectionError
from magnetar.metadata.kazoo_bridge import VALUE_BYTES_MAX
from magnetar.metadata.store import RESYNC, Node, SessionEvent
from magnetar.metadata.zookeeper import ZooKeeperMetadataStore
from magnetar.testing.zookeeper import ZooKeeperProcess
from tests.support.stalling_proxy import StallingProxy


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper") / "server") as process:
        yield process


@pytest.fixture
async def store(zookeeper: ZooKeeperProcess, request: pytest.FixtureRequest) -> AsyncIterator[ZooKeeperMetadataStore]:
    opened = await connect(zookeeper, f"/{request.node.name}")
    yield opened
    await opened.close()


async def connect(
    zookeeper: ZooKeeperProcess, root: str = "/", session_timeout_s: float = 10.0
) -> ZooKeeperMetadataStore:
    return await ZooKeeperMetadataStore.open(
        zookeeper.address, clock=SystemClock(), root=root, session_timeout_s=session_timeout_s
    )


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_kill_and_restart_keep_the_session_and_miss_no_change(
    zookeeper: ZooKeeperProcess, store: ZooKeeperMetadataStore
) -> None:
    events: list[SessionEvent] = []
    heard: list[str] = []
    store.on_session(events.append)
    store.watch(heard.append)
    await store.put("/a", b"acknowledged")
    await store.put("/e", b"", ephemeral=True)
    session = store.session_id
    await asyncio.to_thread(zookeeper.kill)
    await until(lambda: SessionEvent.CONNECTION_LOST in events)
    reading = asyncio.get_running_loop().create_task(store.get("/a"))
    await asyncio.to_thread(zookeeper.start)
    assert await reading == Node(b"acknowledged", 0)
    await until(lambda: RESYNC in heard)
    assert events == [SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED]
    assert store.session_id == session
    node = await store.get("/e")
    assert node is not None
    assert node.owner == session
    other = await connect(zookeeper, store._root)
    await other.put("/b", b"")
    await until(lambda: "/b" in heard)
    await other.close()


async def test_a_silent_server_costs_the_session_before_it_can_give_it_away(zookeeper: ZooKeeperProcess) -> None:
    store = await connect(zookeeper, "/silent", session_timeout_s=2.0)
    events: list[SessionEvent] = []
    store.on_session(events.append)
    await store.put("/e", b"", ephemeral=True)
    session = store.session_id
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    zookeeper.pause()
    try:
        await until(lambda: SessionEvent.SESSION_LOST in events)
        assert loop.time() - begun_s < store.session_timeout_s
        with pytest.raises(MetadataConnectionError):
            await store.put("/e2", b"", ephemeral=True)
    finally:
        zookeeper.resume()
    await until(lambda: SessionEvent.SESSION_REESTABLISHED in events)
    assert events == [SessionEvent.CONNECTION_LOST, SessionEvent.SESSION_LOST, SessionEvent.SESSION_REESTABLISHED]
    assert store.session_id != session
    assert await store.get("/e") is None
    await store.close()


async def test_a_bookie_is_listed_again_after_its_session(
    zookeeper: ZooKeeperProcess, store: ZooKeeperMetadataStore
) -> None:
    other = await connect(zookeeper, store._root)
    info = service_info("127.0.0.1", 3181)
    async with BookieWatcher(other) as bookies, BookieRegistration(store, "127.0.0.1:3181", info) as registration:
        await until(lambda: bookies.writable == {"127.0.0.1:3181": info})
        events: list[SessionEvent] = []
        store.on_session(events.append)
        store.lease_over()  # as if it had been cut off for too long, and came back in time after all
        await until(lambda: SessionEvent.SESSION_REESTABLISHED in events)
        await registration.wait_registered()
        node = await store.get("/ledgers/available/127.0.0.1:3181")
        assert node is not None
        assert node.owner == store.session_id
        await until(lambda: bookies.writable == {"127.0.0.1:3181": info})
    await other.close()


async def test_ledgers_get_their_ids_and_places(store: ZooKeeperMetadataStore) -> None:
    manager = LedgerManager(store)
    metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),))
    made = await asyncio.gather(*(manager.create(metadata) for _ in range(20)))
    assert sorted(made) == [(number, 0) for number in range(20)]
    assert await store.children("/ledgers/idgen") == []
    assert await store.children("/ledgers/00/0000") == [f"L{number:04d}" for number in range(20)]
    assert await manager.list_ids() == list(range(20))
    assert await manager.write(3, metadata.in_recovery(), 0) == 1
    await manager.delete(3)
    assert not await manager.exists(3)


async def test_long_ids_follow_the_short_ones(store: ZooKeeperMetadataStore) -> None:
    manager = LedgerManager(store)
    manager._high_bits = 1  # two thousand million creations later
    metadata = LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),))
    assert (await manager.create(metadata))[0] == 1 << 32
    assert await store.exists("/ledgers/000/0000/0042/9496/L7296")
    assert await manager.list_ids() == [1 << 32]


async def test_a_value_that_zookeeper_would_choke_on_is_refused(store: ZooKeeperMetadataStore) -> None:
    with pytest.raises(InvalidArgumentError, match="ZooKeeper takes"):
        await store.put("/big", b"x" * (VALUE_BYTES_MAX + 1))
    await store.put("/big", b"x" * VALUE_BYTES_MAX)
    node = await store.get("/big")
    assert node is not None
    assert len(node.value) == VALUE_BYTES_MAX


async def test_nobody_at_the_address(tmp_path: Path) -> None:
    with pytest.raises(MetadataConnectionError, match="correct the metadata URL"):
        await ZooKeeperMetadataStore.open("127.0.0.1:1", clock=SystemClock(), session_timeout_s=0.3, first_answer_s=0.3)


async def test_the_first_connection_may_take_longer_than_a_short_session(zookeeper: ZooKeeperProcess) -> None:
    """As it does on a machine where a whole cluster starts."""
    proxy = StallingProxy(int(zookeeper.address.rpartition(":")[2]))
    proxy.stall()
    opening = asyncio.ensure_future(
        ZooKeeperMetadataStore.open(f"127.0.0.1:{proxy.port}", clock=SystemClock(), session_timeout_s=1.0)
    )
    await asyncio.sleep(1.5)
    assert not opening.done()
    proxy.heal()
    await (await opening).close()
    proxy.close()
