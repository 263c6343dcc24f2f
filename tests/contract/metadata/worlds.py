"""The places in which the contract is tried: what holds the tree, and how sessions on it begin and end."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient

from magnetar.base.admission import Share
from magnetar.base.clock import SystemClock
from magnetar.base.executor import Executor, ThreadExecutor
from magnetar.base.network import AsyncioNetwork
from magnetar.metadata.digest_md5 import Credentials
from magnetar.metadata.foreign_session import end_session
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.server.server import MetadataServer
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.zookeeper import ZooKeeperMetadataStore

_roots = itertools.count()


class World:
    """One tree, empty at first. `store` is the session under test."""

    store: MetadataStore

    async def renew(self) -> MetadataStore:
        """End the session of `store` and begin the next one."""
        raise NotImplementedError

    async def other(self) -> MetadataStore:
        """A second session on the same tree."""
        raise NotImplementedError

    async def expire(self, store: MetadataStore) -> None:
        """Let the session of `store` end behind its back. It finds out by itself."""
        raise NotImplementedError

    async def close(self) -> None:
        await self.store.close()


class MemoryWorld(World):
    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store = MemoryMetadataStore(self.tree)

    async def renew(self) -> MetadataStore:
        await self.store.close()
        self.store = await self.other()
        return self.store

    async def other(self) -> MetadataStore:
        return MemoryMetadataStore(self.tree)

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryMetadataStore)
        store.expire_session()


class SqliteWorld(World):
    """One process is one session: there is no `other`, and it never expires."""

    def __init__(self, store: SqliteMetadataStore, reopen: Callable[[], object], executor: Executor) -> None:
        self.store = store
        self._reopen = reopen
        self._executor = executor

    @classmethod
    async def open(cls, file: Path, executor: Executor) -> SqliteWorld:
        def reopen() -> object:
            return SqliteMetadataStore.open(file, executor)

        return cls(await SqliteMetadataStore.open(file, executor), reopen, executor)

    async def renew(self) -> MetadataStore:
        await self.store.close()
        self.store = await self._reopen()  # type: ignore[misc]  # a coroutine
        return self.store

    async def close(self) -> None:
        await self.store.close()
        self._executor.close()


class ZooKeeperWorld(World):
    """A directory of its own in a server that many tests share."""

    def __init__(
        self, address: str, session_timeout_s: float = 10.0, *, credentials: Credentials | None = None
    ) -> None:
        self.address = address
        self.credentials = credentials
        self.root = f"/world{next(_roots)}"
        self.session_timeout_s = session_timeout_s
        self._others: list[MetadataStore] = []

    async def open(self) -> ZooKeeperWorld:
        self.store = await self._open()
        return self

    async def renew(self) -> MetadataStore:
        await self.store.close()
        self.store = await self._open()
        return self.store

    async def other(self) -> MetadataStore:
        self._others.append(await self._open())
        return self._others[-1]

    async def expire(self, store: MetadataStore) -> None:
        """A second connection takes the session over and closes it."""
        assert isinstance(store, ZooKeeperMetadataStore)
        if self.credentials is not None:
            assert await end_session(AsyncioNetwork(), self.address, store.session_key, 10.0, self.credentials)
            return
        client = store._kazoo._client
        await asyncio.to_thread(self._take_over, (client._session_id, client._session_passwd))

    def _take_over(self, identity: tuple[int, bytes]) -> None:
        thief = KazooClient(self.address, client_id=identity, timeout=self.session_timeout_s)
        thief.start()
        thief.stop()
        thief.close()

    async def close(self) -> None:
        for store in [*self._others, self.store]:
            await store.close()

    async def _open(self) -> ZooKeeperMetadataStore:
        return await ZooKeeperMetadataStore.open(
            self.address,
            clock=SystemClock(),
            root=self.root,
            session_timeout_s=self.session_timeout_s,
            credentials=self.credentials,
        )


class ServerWorld(ZooKeeperWorld):
    """Our own server in this process, and kazoo in front of it. `start` and `stop` leave the file alone."""

    def __init__(
        self,
        file: Path,
        session_timeout_s: float = 10.0,
        *,
        tree_watches: bool = True,
        credentials: Credentials | None = None,
        share: Share | None = None,
    ) -> None:
        super().__init__("", session_timeout_s, credentials=credentials)
        self._share = share
        self._file = file
        self._tree_watches = tree_watches
        self._port = 0
        self._executor = ThreadExecutor("metadata-server")

    async def open(self) -> ServerWorld:
        await self.start()
        await super().open()
        return self

    async def start(self) -> None:
        listener = AsyncioNetwork().bind("127.0.0.1", self._port, self._share)
        self._port = listener.port
        self.address = f"127.0.0.1:{listener.port}"
        self.server = MetadataServer(
            self._file,
            executor=self._executor,
            clock=SystemClock(),
            rng=random.Random(7),
            tree_watches=self._tree_watches,
            credentials=self.credentials,
        )
        await self.server.__aenter__()
        await self.server.serve(listener)

    async def stop(self) -> None:
        await self.server.__aexit__(None, None, None)

    async def close(self) -> None:
        await super().close()
        await self.stop()
        self._executor.close()
