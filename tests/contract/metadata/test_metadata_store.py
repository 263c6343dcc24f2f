"""What every metadata store promises, run against each of them."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.base.errors import BadVersionError, InvalidArgumentError, NodeNotFoundError
from magnetar.metadata.errors import EphemeralParentError, MetadataClosedError, NodeHasChildrenError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Node, SessionEvent
from tests.contract.metadata.worlds import World


async def test_a_created_node_has_version_zero_and_each_write_adds_one(store: MetadataStore) -> None:
    assert await store.put("/a/b", b"one") == ("/a/b", 0)
    assert await store.put("/a/b", b"two") == ("/a/b", 1)
    assert await store.get("/a/b") == Node(b"two", 1)


async def test_parents_are_created_with_empty_values(store: MetadataStore) -> None:
    await store.put("/a/b/c", b"x")
    assert await store.get("/a") == Node(b"", 0)
    assert await store.get("/a/b") == Node(b"", 0)
    assert await store.children("/") == ["a"]


async def test_a_missing_path_is_none_and_has_no_children(store: MetadataStore) -> None:
    assert await store.get("/nothing") is None
    assert not await store.exists("/nothing")
    assert await store.children("/nothing") == []
    assert await store.children_count("/nothing") == 0
    assert await store.exists("/")


async def test_compare_and_set(store: MetadataStore) -> None:
    await store.put("/a", b"0", MUST_NOT_EXIST)
    with pytest.raises(BadVersionError):
        await store.put("/a", b"again", MUST_NOT_EXIST)
    assert await store.put("/a", b"1", 0) == ("/a", 1)
    with pytest.raises(BadVersionError):
        await store.put("/a", b"late", 0)
    with pytest.raises(BadVersionError):
        await store.put("/missing", b"", 0)
    assert await store.get("/a") == Node(b"1", 1)
    assert not await store.exists("/missing")


async def test_a_refused_write_creates_no_parents(store: MetadataStore) -> None:
    with pytest.raises(BadVersionError):
        await store.put("/x/y/z", b"", 3)
    assert not await store.exists("/x")


async def test_many_are_created_together_and_what_is_there_stays(store: MetadataStore) -> None:
    names = [f"n-{number:04}-é" for number in range(600)] + ["long-" + "x" * 300]
    heard: list[str] = []
    store.watch(heard.append, "/many")
    assert await store.create_missing([]) == 0
    assert await store.create_missing([f"/many/deep/{name}" for name in names], b"v") == len(names)
    assert [path for path in heard if path != "/many" and path != "/many/deep"] == [f"/many/deep/{n}" for n in names]
    assert await store.children("/many/deep") == sorted(names)
    assert await store.get("/many/deep/n-0599-é") == Node(b"v", 0)
    assert await store.create_missing(["/many/deep/n-0000-é", "/many/deep/one", "/many/deep/one", "/other/two"]) == 2
    assert await store.get("/many/deep/n-0000-é") == Node(b"v", 0)
    assert await store.get("/other/two") == Node(b"", 0)
    await store.put("/e", b"", ephemeral=True)
    with pytest.raises(EphemeralParentError):
        await store.create_missing(["/fine", "/e/child"])
    with pytest.raises(InvalidArgumentError):
        await store.create_missing(["/many/../x"])


async def test_a_list_of_many_is_sorted_and_others_are_answered_meanwhile(store: MetadataStore) -> None:
    names = [f"{number * 7919 % 12000}-name" for number in range(12000)]
    await store.create_missing([f"/long/{name}" for name in names])
    assert await store.children("/long") == sorted(names)
    assert await store.children_count("/long") == len(names)
    found, missing = await asyncio.gather(store.children("/long"), store.get("/missing"))
    assert len(found) == len(names)
    assert missing is None


async def test_delete(store: MetadataStore) -> None:
    await store.put("/a/b", b"")
    with pytest.raises(NodeHasChildrenError):
        await store.delete("/a")
    with pytest.raises(BadVersionError):
        await store.delete("/a/b", 1)
    await store.delete("/a/b", 0)
    await store.delete("/a")
    with pytest.raises(NodeNotFoundError):
        await store.delete("/a")
    with pytest.raises(NodeHasChildrenError):
        await store.delete("/")


async def test_a_node_created_again_starts_at_version_zero(store: MetadataStore) -> None:
    await store.put("/a", b"")
    await store.put("/a", b"")
    await store.delete("/a")
    assert await store.put("/a", b"") == ("/a", 0)


async def test_children_are_sorted_names_of_one_level(store: MetadataStore) -> None:
    names = ["b", "a", "é", "B", "a%2Fb", "z\uff5e", "zz"]
    for name in names:
        await store.put(f"/parent/{name}", b"")
    await store.put("/parent/a/deeper", b"")
    await store.put("/parent2", b"")
    assert await store.children("/parent") == sorted(names)
    assert await store.children_count("/parent") == len(names)


async def test_sequential_nodes_rise_per_parent_in_ten_digits(store: MetadataStore) -> None:
    assert await store.put("/ids/ID-", b"", sequential=True) == ("/ids/ID-0000000000", 0)
    assert await store.put("/ids/ID-", b"", sequential=True) == ("/ids/ID-0000000001", 0)
    assert await store.put("/others/ID-", b"", sequential=True) == ("/others/ID-0000000000", 0)
    await store.delete("/ids/ID-0000000001")
    assert (await store.put("/ids/ID-", b"", sequential=True))[0] == "/ids/ID-0000000002"


async def test_sequence_numbers_survive_the_session(world: World) -> None:
    await world.store.put("/ids/ID-", b"", ephemeral=True, sequential=True)
    store = await world.renew()
    assert await store.children("/ids") == []
    assert (await store.put("/ids/ID-", b"", ephemeral=True, sequential=True))[0] == "/ids/ID-0000000001"


async def test_ephemeral_nodes_end_with_the_session_and_others_stay(world: World) -> None:
    await world.store.put("/brokers/one", b"e", ephemeral=True)
    await world.store.put("/topics/one", b"p")
    assert await world.store.get("/brokers/one") == Node(b"e", 0)
    store = await world.renew()
    assert await store.get("/brokers/one") is None
    assert await store.exists("/brokers")
    assert await store.get("/topics/one") == Node(b"p", 0)


async def test_an_ephemeral_node_has_no_children(store: MetadataStore) -> None:
    await store.put("/e", b"", ephemeral=True)
    with pytest.raises(EphemeralParentError):
        await store.put("/e/child", b"")


async def test_watchers_hear_every_change_in_order_before_the_call_returns(store: MetadataStore) -> None:
    heard: list[str] = []
    await store.put("/a", b"")
    stop = store.watch(heard.append)
    await store.put("/a/b", b"")
    assert heard == ["/a/b"]
    await store.put("/a/b", b"again")
    await store.delete("/a/b")
    path, _ = await store.put("/a/s-", b"", sequential=True)
    with pytest.raises(BadVersionError):
        await store.put("/a", b"", MUST_NOT_EXIST)
    await asyncio.sleep(0)
    assert heard == ["/a/b", "/a/b", "/a/b", path]
    stop()
    stop()
    await store.put("/a/c", b"")
    assert heard[-1] == path


async def test_concurrent_compare_and_set_has_one_winner(store: MetadataStore) -> None:
    await store.put("/counter", b"")
    outcomes = await asyncio.gather(
        *(store.put("/counter", str(n).encode(), 0) for n in range(20)), return_exceptions=True
    )
    winners = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    assert len(winners) == 1
    assert all(isinstance(o, BadVersionError) for n, o in enumerate(outcomes) if n not in winners)
    assert await store.get("/counter") == Node(str(winners[0]).encode(), 1)


async def test_many_concurrent_writes_all_land(store: MetadataStore) -> None:
    await asyncio.gather(*(store.put(f"/many/{n:04d}", str(n).encode()) for n in range(1_000)))
    assert await store.children("/many") == [f"{n:04d}" for n in range(1_000)]
    assert await store.get("/many/0999") == Node(b"999", 0)


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a/../b", "/.", "/a\0b", "/\ud800"])
async def test_malformed_paths_are_refused(store: MetadataStore, path: str) -> None:
    with pytest.raises(InvalidArgumentError):
        await store.put(path, b"")
    with pytest.raises(InvalidArgumentError):
        await store.get(path)


async def test_impossible_puts_are_refused(store: MetadataStore) -> None:
    with pytest.raises(InvalidArgumentError):
        await store.put("/", b"")
    with pytest.raises(InvalidArgumentError):
        await store.put("/a", b"", -2)
    with pytest.raises(InvalidArgumentError):
        await store.put("/a", b"", 0, sequential=True)


async def test_a_closed_store_refuses_everything(store: MetadataStore) -> None:
    await store.close()
    await store.close()
    with pytest.raises(MetadataClosedError):
        await store.get("/a")
    with pytest.raises(MetadataClosedError):
        await store.put("/a", b"")
    with pytest.raises(MetadataClosedError):
        await store.delete("/a")


async def test_a_watch_of_a_prefix_hears_what_is_below_it(store: MetadataStore) -> None:
    heard: list[str] = []
    stop = store.watch(heard.append, "/a/b")
    for path in ("/a", "/a/b", "/a/bc", "/a/b/c", "/d"):
        await store.put(path, b"")
    assert heard == ["/a/b", "/a/b/c"]
    stop()
    with pytest.raises(InvalidArgumentError):
        store.watch(heard.append, "a")


async def test_an_ephemeral_node_names_the_session_that_owns_it(store: MetadataStore) -> None:
    await store.put("/e", b"", ephemeral=True)
    await store.put("/p", b"")
    ephemeral, persistent = await store.get("/e"), await store.get("/p")
    assert ephemeral is not None
    assert persistent is not None
    assert ephemeral.owner == store.session_id != 0
    assert persistent.owner == 0


async def test_nobody_is_told_of_a_session_that_goes_on(store: MetadataStore) -> None:
    told: list[SessionEvent] = []
    stop = store.on_session(told.append)
    await store.put("/a", b"")
    assert told == []
    stop()
    stop()
