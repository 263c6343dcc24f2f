"""What several sessions on one tree see of each other, and what a session is told of its own fate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from magnetar.base.errors import BadVersionError
from magnetar.metadata.store import MUST_NOT_EXIST, RESYNC, Node, SessionEnder, SessionEvent
from tests.contract.metadata.worlds import World


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_one_sessions_writes_are_the_others_reads(shared: World) -> None:
    other = await shared.other()
    await shared.store.put("/a/b", b"one")
    assert await other.get("/a/b") == Node(b"one", 0)
    await other.put("/a/b", b"two", 0)
    with pytest.raises(BadVersionError):
        await shared.store.put("/a/b", b"late", 0)
    assert await shared.store.get("/a/b") == Node(b"two", 1)


async def test_a_watch_hears_the_others(shared: World) -> None:
    other = await shared.other()
    await other.put("/a", b"")
    heard: list[str] = []
    stop = shared.store.watch(heard.append, "/a")
    assert await shared.store.exists("/a")
    await other.put("/a/b", b"")
    await other.put("/ab", b"")
    await other.put("/a/b", b"again")
    await other.delete("/a/b")
    await until(lambda: len(heard) >= 3)
    assert heard == ["/a/b", "/a/b", "/a/b"]
    stop()
    await other.put("/a/c", b"")
    assert await shared.store.exists("/a/c")
    assert len(heard) == 3


async def test_watching_the_same_prefix_twice_and_ending_one(shared: World) -> None:
    other = await shared.other()
    first: list[str] = []
    second: list[str] = []
    end_first = shared.store.watch(first.append, "/p")
    shared.store.watch(second.append, "/p")
    await shared.store.put("/p", b"")
    end_first()
    await other.put("/p", b"1")
    await until(lambda: second == ["/p", "/p"])
    assert first == ["/p"]
    shared.store.watch(first.append, "/p")
    await shared.store.put("/p", b"2")
    assert first == ["/p", "/p"]


async def test_ephemeral_nodes_are_seen_by_all_and_owned_by_one(shared: World) -> None:
    other = await shared.other()
    await shared.store.put("/bookies/one", b"", MUST_NOT_EXIST, ephemeral=True)
    with pytest.raises(BadVersionError):
        await other.put("/bookies/one", b"", MUST_NOT_EXIST, ephemeral=True)
    node = await other.get("/bookies/one")
    assert node is not None
    assert node.owner == shared.store.session_id != other.session_id
    heard: list[str] = []
    other.watch(heard.append, "/bookies")
    assert await other.exists("/bookies/one")
    await shared.renew()
    await until(lambda: heard == ["/bookies/one"])
    assert not await other.exists("/bookies/one")


async def test_an_expired_session_is_told_and_begins_again(shared: World) -> None:
    other = await shared.other()
    events: list[SessionEvent] = []
    heard: list[str] = []
    shared.store.on_session(events.append)
    shared.store.watch(heard.append)
    await shared.store.put("/mine", b"", ephemeral=True)
    before = shared.store.session_id
    await shared.expire(shared.store)
    await until(lambda: SessionEvent.SESSION_REESTABLISHED in events)
    assert [event for event in events if event is not SessionEvent.CONNECTION_LOST] == [
        SessionEvent.SESSION_LOST,
        SessionEvent.SESSION_REESTABLISHED,
    ]
    assert heard[-1] == RESYNC
    assert shared.store.session_id not in (before, 0)
    assert not await other.exists("/mine")
    await shared.store.put("/mine", b"", MUST_NOT_EXIST, ephemeral=True)
    node = await other.get("/mine")
    assert node is not None
    assert node.owner == shared.store.session_id
    await other.put("/theirs", b"")
    await until(lambda: heard[-1] == "/theirs")


async def test_a_dead_processs_session_is_ended_by_another_one(shared: World) -> None:
    """At once and as a whole; doing it again, and to a session that nobody has, does nothing."""
    if not isinstance(shared.store, SessionEnder):
        pytest.skip("its sessions end with their processes")
    other = await shared.other()
    assert isinstance(other, SessionEnder)
    key = shared.store.session_key
    assert key != other.session_key
    await shared.store.put("/a/mine", b"", ephemeral=True)
    await shared.store.put("/b/mine", b"", ephemeral=True)
    await other.put("/a/others", b"", ephemeral=True)
    lost = asyncio.Event()
    shared.store.on_session(lambda event: lost.set() if event is SessionEvent.SESSION_LOST else None)
    assert await other.end_session(key)
    assert await other.children("/a") == ["others"]
    assert await other.children("/b") == []
    await asyncio.wait_for(lost.wait(), 60)
    assert await other.end_session(key)
    assert await other.children("/a") == ["others"]
    with pytest.raises(ValueError, match="invalid literal"):
        await other.end_session("no key")


async def test_sequential_nodes_of_all_sessions_share_one_counter(shared: World) -> None:
    stores = [shared.store, await shared.other(), await shared.other()]
    await shared.store.put("/votes", b"")
    made = await asyncio.gather(
        *(store.put("/votes/V_", b"", ephemeral=True, sequential=True) for store in stores for _ in range(5))
    )
    assert sorted(path for path, _ in made) == [f"/votes/V_{n:010d}" for n in range(15)]
