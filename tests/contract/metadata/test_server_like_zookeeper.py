"""Our metadata server against a real ZooKeeper: the same requests, the same answers, down to the numbers in Stat."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, ZookeeperError
from kazoo.protocol.states import WatchedEvent

from magnetar.testing.zookeeper import ZooKeeperProcess
from tests.contract.metadata.worlds import ServerWorld


class Pair:
    """A client of each, below a directory of its own."""

    def __init__(self, theirs: str, ours: str, root: str) -> None:
        self.clients = [KazooClient(theirs), KazooClient(ours)]
        self.root = root
        for client in self.clients:
            client.start()
            client.create(root)

    def close(self) -> None:
        for client in self.clients:
            client.stop()
            client.close()

    def both(self, method: str, path: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        theirs, ours = (self._outcome(client, method, path, *args, **kwargs) for client in self.clients)
        return theirs, ours

    def _outcome(self, client: KazooClient, method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return comparable(getattr(client, method)(self.root + path, *args, **kwargs), client)
        except ZookeeperError as error:
            return type(error).__name__


def comparable(answer: Any, client: KazooClient) -> Any:
    """Without transaction numbers and times, which differ; owners become whether it is the client's own session."""
    if hasattr(answer, "czxid"):
        changed = answer.mzxid > answer.czxid, answer.pzxid > answer.czxid, answer.pzxid > answer.mzxid
        own = answer.ephemeralOwner == client.client_id[0] if answer.ephemeralOwner else None
        return answer.version, answer.cversion, answer.aversion, own, answer.dataLength, answer.numChildren, changed
    if isinstance(answer, list):
        return sorted(answer)
    if isinstance(answer, tuple):
        return tuple(comparable(part, client) for part in answer)
    return answer


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServerWorld]:
    made = await ServerWorld(tmp_path / "server.db").open()
    yield made
    await made.close()


def drive(pair: Pair, seed: int, steps: int) -> list[str]:
    """Random requests to both; a line for each difference."""
    rng = random.Random(seed)
    paths = ["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep", "/missing/child"]
    differences = []
    for step in range(steps):
        path = rng.choice(paths)
        version = rng.choice([-1, -1, 0, 1, 2])
        method, args, kwargs = rng.choice(
            [
                (
                    "create",
                    (b"v" * rng.randrange(4),),
                    {"ephemeral": rng.random() < 0.3, "include_data": rng.random() < 0.5},
                ),
                ("create", (b"s",), {"sequence": True, "ephemeral": rng.random() < 0.3}),
                ("set", (b"w" * rng.randrange(9), version), {}),
                ("delete", (version,), {}),
                ("get", (), {}),
                ("exists", (), {}),
                ("get_children", (), {"include_data": rng.random() < 0.5}),
                ("get_acls", (), {}),
                ("sync", (), {}),
            ]
        )
        theirs, ours = pair.both(method, path, *args, **kwargs)
        if theirs != ours:
            differences.append(f"{step}: {method}{(path, *args)} {kwargs}: theirs {theirs}, ours {ours}")
    return differences


@pytest.mark.parametrize("seed", range(4))
async def test_random_requests_are_answered_alike(zookeeper: ZooKeeperProcess, world: ServerWorld, seed: int) -> None:
    pair = await asyncio.to_thread(Pair, zookeeper.address, world.address, f"/like{seed}")
    assert await asyncio.to_thread(drive, pair, seed, 400) == []
    await asyncio.to_thread(pair.close)


async def test_transactions_are_all_or_nothing(zookeeper: ZooKeeperProcess, world: ServerWorld) -> None:
    def run(client: KazooClient) -> list[Any]:
        good = client.transaction()
        good.create("/multi", b"")
        good.create("/multi/a", b"1")
        good.set_data("/multi/a", b"22", 0)
        good.check("/multi/a", 1)
        bad = client.transaction()
        bad.create("/multi/b", b"")
        bad.delete("/multi/a")
        bad.check("/multi/a", 0)
        bad.set_data("/multi/missing", b"")
        results = [good.commit(), bad.commit()]
        after = client.get_children("/multi"), client.get("/multi/a"), client.exists("/multi")
        return [
            [
                [
                    type(part).__name__ if isinstance(part, KazooException) else comparable(part, client)
                    for part in result
                ]
                for result in results
            ],
            comparable(after, client)[0],
            after[1][1].version,
            after[2].cversion,
        ]

    answers = []
    for address in (zookeeper.address, world.address):
        client = KazooClient(address)
        await asyncio.to_thread(client.start)
        answers.append(await asyncio.to_thread(run, client))
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
    theirs, ours = answers
    assert ours[1:] == theirs[1:] == [["a"], 1, 1]
    assert ours[0][1] == theirs[0][1]
    assert len(ours[0][0]) == len(theirs[0][0]) == 4


async def test_one_shot_watches_fire_alike(zookeeper: ZooKeeperProcess, world: ServerWorld) -> None:
    def run(client: KazooClient) -> list[tuple[str, str]]:
        heard: list[tuple[str, str]] = []

        def hear(event: WatchedEvent) -> None:
            heard.append((event.type, event.path))

        client.create("/w")
        client.exists("/w/late", watch=hear)
        client.get_children("/w", watch=hear)
        client.create("/w/late", b"")
        client.set("/w/late", b"not watched any more")
        client.get("/w/late", watch=hear)
        client.get_children("/w/late", watch=hear)
        client.set("/w/late", b"x")
        client.exists("/w/late", watch=hear)
        client.get_children("/w", watch=hear)
        client.delete("/w/late")
        client.create("/w/more")
        client.sync("/w")
        client.handler.callback_queue.join()
        return heard

    answers = []
    for address in (zookeeper.address, world.address):
        client = KazooClient(address)
        await asyncio.to_thread(client.start)
        answers.append(await asyncio.to_thread(run, client))
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
    theirs, ours = answers
    assert sorted(ours) == sorted(theirs)
    assert len(ours) >= 6
