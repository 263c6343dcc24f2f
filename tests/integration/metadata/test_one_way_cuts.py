"""Networks that pass one direction only: whoever is not heard gives its session up before it is given away, and others get what it had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from magnetar.base.clock import SystemClock
from magnetar.metadata.store import Node, SessionEvent
from magnetar.metadata.zookeeper import ZooKeeperMetadataStore
from magnetar.testing.zookeeper import ZooKeeperProcess
from tests.contract.metadata.worlds import ServerWorld, World, ZooKeeperWorld
from tests.support.stalling_proxy import StallingProxy

SESSION_S = 4.0
"""A sixth of it lies between the end that its owner sees and that which the server sees: a busy machine must not take as long."""
NODE = "/bundles/one"


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper") / "server") as process:
        yield process


@pytest.fixture(params=["server", "zookeeper"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made: ZooKeeperWorld
    if request.param == "server":
        made = await ServerWorld(tmp_path / "server.db").open()
    else:
        made = await ZooKeeperWorld(request.getfixturevalue("zookeeper").address).open()
    yield made
    await made.close()


@contextmanager
def proxied(world: World) -> Iterator[StallingProxy]:
    assert isinstance(world, ZooKeeperWorld)
    proxy = StallingProxy(int(world.address.rpartition(":")[2]))
    try:
        yield proxy
    finally:
        proxy.close()


@asynccontextmanager
async def behind(proxy: StallingProxy, root: str) -> AsyncIterator[tuple[ZooKeeperMetadataStore, list[SessionEvent]]]:
    """A store on the far side, with an ephemeral node, and what happens to its session."""
    store = await ZooKeeperMetadataStore.open(
        f"127.0.0.1:{proxy.port}", clock=SystemClock(), root=root, session_timeout_s=SESSION_S
    )
    events: list[SessionEvent] = []
    store.on_session(events.append)
    store.watch(lambda path: None, "/news")
    await store.put(NODE, b"mine", ephemeral=True)
    try:
        yield store, events
    finally:
        await store.close()


class Watched:
    """When a node went, as the side sees it that the server hears."""

    def __init__(self, world: World, path: str) -> None:
        self.gone = asyncio.Event()
        world.store.watch(lambda changed: self.gone.set() if changed == path else None, path)


async def test_a_session_that_is_not_heard_ends_although_news_keep_coming(world: World) -> None:
    """The server's notifications reach it every few ms; nothing it says reaches the server."""
    assert isinstance(world, ZooKeeperWorld)
    with proxied(world) as proxy:
        async with behind(proxy, world.root) as (store, events):
            watched = Watched(world, NODE)
            session_s = store.session_timeout_s

            async def news() -> None:
                for number in range(10_000):
                    await world.store.put("/news", str(number).encode())
                    await asyncio.sleep(0.01)

            telling = asyncio.get_running_loop().create_task(news())
            try:
                await asyncio.sleep(0.5)
                proxy.stall("up")
                loop = asyncio.get_running_loop()
                cut_s = loop.time()
                await until(lambda: SessionEvent.SESSION_LOST in events or watched.gone.is_set())
                assert SessionEvent.SESSION_LOST in events, (
                    "the node is somebody else's to take, and its owner relies on it"
                )
                assert loop.time() - cut_s < session_s
                await asyncio.wait_for(watched.gone.wait(), 2 * session_s)
            finally:
                telling.cancel()
            proxy.heal()
            await until(lambda: SessionEvent.SESSION_REESTABLISHED in events)
            await store.put(NODE, b"again", ephemeral=True)
            assert await world.store.get(NODE) == Node(b"again", 0)


async def test_a_session_that_hears_nothing_ends_for_everybody_while_it_goes_on(world: World) -> None:
    """Everything it says is heard: it must not keep its nodes by trying to come back."""
    assert isinstance(world, ZooKeeperWorld)
    with proxied(world) as proxy:
        async with behind(proxy, world.root) as (store, events):
            watched = Watched(world, NODE)
            session_s = store.session_timeout_s
            proxy.stall("down")
            loop = asyncio.get_running_loop()
            cut_s = loop.time()
            await until(lambda: SessionEvent.SESSION_LOST in events or watched.gone.is_set())
            assert SessionEvent.SESSION_LOST in events, (
                "the node is somebody else's to take, and its owner relies on it"
            )
            await asyncio.wait_for(watched.gone.wait(), 2 * session_s)
            print(f"its nodes were gone {loop.time() - cut_s:.2f} s after the cut, session of {session_s:g} s")
            assert loop.time() - cut_s < 1.5 * session_s
            proxy.heal()
            await until(lambda: SessionEvent.SESSION_REESTABLISHED in events)
            await store.put(NODE, b"again", ephemeral=True)
            assert await world.store.get(NODE) == Node(b"again", 0)


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_cut_that_comes_and_goes_costs_no_session(world: World, direction: str) -> None:
    """Short cuts of one direction, each shorter than a third of the session: TCP repeats what was held up."""
    assert isinstance(world, ZooKeeperWorld)
    with proxied(world) as proxy:
        async with behind(proxy, world.root) as (store, events):
            before = store.session_id
            for _ in range(5):
                proxy.stall("up" if direction == "up" else "down")
                await asyncio.sleep(store.session_timeout_s / 8)
                proxy.resume()
                await asyncio.sleep(store.session_timeout_s / 16)
            assert events == []
            assert store.session_id == before
            node = await world.store.get(NODE)
            assert node is not None
            assert node.owner == before


async def test_a_store_that_waits_for_its_sessions_end_can_be_closed(world: World) -> None:
    assert isinstance(world, ZooKeeperWorld)
    with proxied(world) as proxy:
        async with behind(proxy, world.root) as (store, events):
            proxy.stall()
            await until(lambda: SessionEvent.SESSION_LOST in events)
            await asyncio.wait_for(store.close(), 5)
