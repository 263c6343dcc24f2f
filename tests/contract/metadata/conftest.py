"""One ZooKeeper for all tests of the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magnetar.base.executor import InlineExecutor, ThreadExecutor
from magnetar.metadata.digest_md5 import credentials
from magnetar.metadata.store import MetadataStore
from magnetar.testing.zookeeper import ZooKeeperProcess
from tests.contract.metadata.worlds import MemoryWorld, ServerWorld, SqliteWorld, World, ZooKeeperWorld

CREDENTIALS = credentials("magnetar", b"what-all-of-the-cluster-know")
SHARED = ["memory", "zookeeper", "zookeeper-secret", "server", "server-secret"]
"""Stores that several sessions can share; those with a secret serve nobody who does not know it."""


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper") / "server") as process:
        yield process


@pytest.fixture(scope="session")
def asking_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper") / "server", credentials=CREDENTIALS) as process:
        yield process


async def make_world(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if kind == "memory":
        return MemoryWorld()
    if kind == "zookeeper":
        return await ZooKeeperWorld(request.getfixturevalue("zookeeper").address).open()
    if kind == "zookeeper-secret":
        address = request.getfixturevalue("asking_zookeeper").address
        return await ZooKeeperWorld(address, credentials=CREDENTIALS).open()
    if kind.startswith("server"):
        known = CREDENTIALS if kind == "server-secret" else None
        return await ServerWorld(tmp_path / "server.db", credentials=known).open()
    executor = ThreadExecutor("metadata") if kind == "sqlite" else InlineExecutor()
    return await SqliteWorld.open(tmp_path / "metadata.db", executor)


@pytest.fixture(params=["sqlite", "sqlite-inline", *SHARED])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = await make_world(request.param, request, tmp_path)
    yield made
    await made.close()


@pytest.fixture
def store(world: World) -> MetadataStore:
    return world.store


@pytest.fixture(params=SHARED)
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = await make_world(request.param, request, tmp_path)
    yield made
    await made.close()
