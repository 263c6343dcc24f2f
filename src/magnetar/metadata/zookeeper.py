"""The metadata store in a ZooKeeper (or in whatever speaks its protocol), through kazoo: extra `[zookeeper]`.

Reads are repeated after a lost connection; a write whose answer was lost is not: nobody can say whether it was done.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo import exceptions as kz
from kazoo.protocol.serialization import Create, Delete, Exists, GetData, SetData, Sync
from kazoo.protocol.states import KazooState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from magnetar.base.clock import Clock
from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.base.network import AsyncioNetwork
from magnetar.metadata.digest_md5 import Credentials, MetadataAuthenticationError
from magnetar.metadata.errors import (
    MetadataClosedError,
    MetadataConnectionError,
    MetadataReplacedError,
    NodeHasChildrenError,
    SessionExpiredError,
)
from magnetar.metadata.foreign_session import end_session, outlast_session, session_key
from magnetar.metadata.kazoo_bridge import (
    AddWatch,
    CreateAll,
    KazooBridge,
    ListChildren,
    RemoveWatches,
    batches,
    check_size,
    names_in,
    translate,
)
from magnetar.metadata.lease import GIVE_UP_SHARE, Lease
from magnetar.metadata.listeners import Listeners
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    RESYNC,
    Listener,
    Node,
    SessionEvent,
    SessionListener,
    Stat,
    check_path,
    check_put,
    split_path,
)

logger = logging.getLogger(__name__)

REQUESTS_MAX: Final = 200
"""Requests under way; further ones wait. kazoo's wake-up pipe takes some 270 before it blocks the sender."""

FIRST_ANSWER_S: Final = 10.0
"""So long a new store waits for its first connection, also with a shorter session: what starts is slower than what runs."""

RESYNC_INTERVAL_S: Final = 5.0
"""Servers before ZooKeeper 3.6 cannot watch a tree: listeners hear RESYNC this often instead."""

_EPHEMERAL: Final = 1
_SEQUENTIAL: Final = 2
_CONNECTION_ERRORS: Final = (kz.ConnectionLoss, kz.ConnectionClosedError, kz.OperationTimeoutError)


class ZooKeeperMetadataStore:
    """`await ZooKeeperMetadataStore.open("host:2181,host:2181", ...)`. Everything lies below `root`.

    With `credentials` each connection begins with SASL DIGEST-MD5, and what is created belongs to them: a ZooKeeper lets nobody else at
    it, by its access lists.
    """

    def __init__(
        self, hosts: str, root: str, session_timeout_s: float, clock: Clock, credentials: Credentials | None = None
    ) -> None:
        check_path(root)
        self._hosts = hosts
        self._credentials = credentials
        self._acl = OPEN_ACL_UNSAFE if credentials is None else CREATOR_ALL_ACL
        self._refusal = ""
        self._root = "" if root == "/" else root
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._listeners = Listeners()
        self._slots = asyncio.Semaphore(REQUESTS_MAX)
        self._up = asyncio.Event()
        self._session_id = 0
        self._lost = False
        self._closed = False
        self._can_watch = True
        self._lease = Lease(self, clock)
        self._replacing: asyncio.Future[None] | None = None
        self._connections = 0
        self._required: tuple[str, bytes, Callable[[MetadataReplacedError], None]] | None = None
        self._replaced: MetadataReplacedError | None = None
        self._wanted_timeout_s = session_timeout_s
        self._kazoo = self._bridge()

    @classmethod
    async def open(
        cls,
        hosts: str,
        *,
        clock: Clock,
        root: str = "/",
        session_timeout_s: float = 30.0,
        first_answer_s: float = FIRST_ANSWER_S,
        credentials: Credentials | None = None,
    ) -> ZooKeeperMetadataStore:
        """Raises MetadataConnectionError when no server of `hosts` answers within the longer of the session's time and `first_answer_s`,
        MetadataAuthenticationError when server and client do not know the same secret."""
        store = cls(hosts, root, session_timeout_s, clock, credentials)
        try:
            store._kazoo.start()
            await store._wait_up(store._loop.time() + max(session_timeout_s, first_answer_s))
            if root != "/":
                await store._make_parents(root + "/")
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_s(self) -> float:
        """What the server granted."""
        return self._kazoo.session_timeout_s

    @property
    def session_key(self) -> str:
        return session_key(self._session_id, self._kazoo.session_password)

    async def end_session(self, key: str) -> bool:
        return await end_session(AsyncioNetwork(), self._hosts, key, self.session_timeout_s, self._credentials)

    async def get(self, path: str) -> Node | None:
        check_path(path)
        try:
            value, stat = await self._ask(GetData(self._full(path), None), path, again=True)
        except NodeNotFoundError:
            return None
        return Node(value or b"", stat.version, stat.ephemeralOwner)

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> tuple[str, int]:
        check_put(path, expected_version, sequential)
        check_size(path, value)
        if expected_version is not None and expected_version >= 0:
            return path, await self._set(path, value, expected_version)
        flags = (_EPHEMERAL if ephemeral else 0) | (_SEQUENTIAL if sequential else 0)
        if flags or expected_version == MUST_NOT_EXIST:
            return await self._create_or_set(path, value, flags, may_set=expected_version is None)
        try:
            return path, await self._set(path, value, -1)
        except BadVersionError:  # it does not exist
            return await self._create_or_set(path, value, flags, may_set=True)

    async def create_missing(self, paths: Sequence[str], value: bytes = b"") -> int:
        for path in paths:
            check_put(path, MUST_NOT_EXIST, sequential=False)
        check_size(paths[0] if paths else "", value)
        together = batches(dict.fromkeys(paths), value)
        return sum([await self._create_together(batch, value) for batch in together])

    async def _create_together(self, paths: list[str], value: bytes) -> int:
        """All in one transaction; one by one when a node exists already or a parent is missing: then it has changed nothing."""
        codes = await self._ask(CreateAll([self._full(path) for path in paths], value, self._acl), paths[0])
        if not any(codes):
            return len(paths)
        outcomes = await asyncio.gather(
            *(self.put(path, value, MUST_NOT_EXIST) for path in paths), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, BadVersionError):
                raise outcome
        return sum(not isinstance(outcome, BaseException) for outcome in outcomes)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        check_path(path)
        if path == "/":
            self._check_open()
            raise NodeHasChildrenError("the root of the metadata tree cannot be deleted")
        version = -1 if expected_version is None else expected_version
        if version == MUST_NOT_EXIST and expected_version is not None:
            raise BadVersionError(f"{path} cannot be deleted under the condition that it does not exist")
        await self._ask(Delete(self._full(path), version), path)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        try:
            return await names_in(await self._ask(ListChildren(self._full(path)), path, again=True))
        except NodeNotFoundError:
            return []

    async def children_count(self, path: str) -> int:
        check_path(path)
        stat = await self._ask(Exists(self._full(path), None), path, again=True)
        return 0 if stat is None else int(stat.numChildren)

    async def exists(self, path: str) -> bool:
        check_path(path)
        return await self._ask(Exists(self._full(path), None), path, again=True) is not None

    async def stat(self, path: str) -> Stat | None:
        check_path(path)
        stat = await self._ask(Exists(self._full(path), None), path, again=True)
        return None if stat is None else Stat(*stat)

    def watch(self, listener: Listener, prefix: str = "/") -> Callable[[], None]:
        known = prefix in self._listeners.prefixes()
        stop = self._listeners.watch(listener, prefix)
        if not known and self._up.is_set():
            self._add_watch(prefix)

        def end() -> None:
            before = self._listeners.prefixes()
            stop()
            if prefix in before and prefix not in self._listeners.prefixes() and self._up.is_set() and self._can_watch:
                self._kazoo.request(RemoveWatches(self._full(prefix))).add_done_callback(_ignore)

        return end

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        return self._listeners.on_session(listener)

    def require(self, path: str, value: bytes, on_replaced: Callable[[MetadataReplacedError], None]) -> None:
        """See `ReplaceableStore.require`."""
        check_path(path)
        self._required = (path, value, on_replaced)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._listeners.clear()
        self._lease.end()
        self._up.set()  # who waits for a connection finds the store closed
        if self._replacing is not None:
            await self._replacing
        await self._loop.run_in_executor(None, self._kazoo.close)

    # ---- Requests

    def _full(self, path: str) -> str:
        return self._root + path if path != "/" else self._root or "/"

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataClosedError("the metadata store is closed")
        if self._replaced is not None:
            raise self._replaced
        if self._refusal:
            raise MetadataAuthenticationError(f"{self._hosts}: {self._refusal}")

    async def _wait_up(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._up.wait()
        except TimeoutError:
            how = "" if self._credentials is None else " or metadataSecret"
            raise MetadataConnectionError(
                f"no ZooKeeper server answers at {self._hosts}; start it, or correct the metadata URL{how}"
            ) from None
        self._check_open()

    async def _ask(self, request: object, path: str, *, again: bool = False) -> Any:
        """The answer; waits for a connection as long as a session lasts. `again`: may be sent twice, after a lost connection."""
        self._check_open()
        session = self._session_id
        deadline = self._loop.time() + self.session_timeout_s
        async with self._slots:
            while True:
                await self._wait_up(deadline)
                if not again and session != self._session_id:
                    raise SessionExpiredError(f"{path}: the metadata session ended before the request was sent")
                try:
                    async with asyncio.timeout_at(deadline):
                        return await self._kazoo.request(request)
                except _CONNECTION_ERRORS as error:
                    self._check_open()
                    if not again:
                        raise MetadataConnectionError(f"{path}: the connection to ZooKeeper broke") from error
                except TimeoutError:
                    raise MetadataConnectionError(f"{path}: ZooKeeper did not answer in time") from None
                except kz.KazooException as error:
                    raise translate(path, error) from error

    async def _set(self, path: str, value: bytes, version: int) -> int:
        try:
            stat = await self._ask(SetData(self._full(path), bytes(value), version), path)
        except NodeNotFoundError:
            raise BadVersionError(f"{path} does not exist, version {version} was expected") from None
        return int(stat.version)

    async def _create_or_set(self, path: str, value: bytes, flags: int, *, may_set: bool) -> tuple[str, int]:
        request = Create(self._full(path), bytes(value), self._acl, flags)
        while True:
            try:
                created = await self._ask(request, path)
                return created[len(self._root) :], 0
            except NodeNotFoundError:
                await self._make_parents(self._full(path))
            except BadVersionError:
                if not may_set or flags & _SEQUENTIAL:
                    raise
                try:
                    return path, await self._set(path, value, -1)
                except BadVersionError:
                    continue  # deleted in between

    async def _make_parents(self, full_path: str) -> None:
        parent, _ = split_path(full_path)
        while parent != "/":
            try:
                await self._ask(Create(parent, b"", self._acl, 0), parent)
                return
            except BadVersionError:
                return
            except NodeNotFoundError:
                await self._make_parents(parent)

    # ---- Watches

    def _add_watch(self, prefix: str) -> None:
        if self._can_watch:
            self._kazoo.request(AddWatch(self._full(prefix))).add_done_callback(self._watch_added)

    def _watch_added(self, done: asyncio.Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, kz.UnimplementedError) and self._can_watch:
            logger.warning(
                "this ZooKeeper cannot watch a tree (3.6 can): changes are looked for every %d s", RESYNC_INTERVAL_S
            )
            self._can_watch = False
            self._look_again()

    def _look_again(self) -> None:
        if not self._closed:
            if self._up.is_set():
                self._listeners.changed(RESYNC)
            self._loop.call_later(RESYNC_INTERVAL_S, self._look_again)

    def _event(self, path: str) -> None:
        if self._closed or not path.startswith(self._root):
            return
        inside = path[len(self._root) :]
        if inside.startswith("/") and inside != "/":
            self._listeners.changed(inside)

    # ---- The session

    def _bridge(self) -> KazooBridge:
        return KazooBridge(
            self._hosts, self._wanted_timeout_s, self._clock, self._state_changed, self._event, self._credentials
        )

    def _state_changed(self, bridge: KazooBridge, state: str) -> None:
        if self._closed or self._replaced is not None or bridge is not self._kazoo:
            return
        self._lease.end()
        self._connections += 1
        if state == KazooState.CONNECTED:
            if self._required is None:
                self._connected()
            else:
                self._look_whose(bridge, self._connections)
        else:
            self._up.clear()
            if bridge.refusal:
                logger.error("the metadata store is not used any more: %s: %s", self._hosts, bridge.refusal)
                self._refusal = bridge.refusal
                self._up.set()  # who waits for a connection is told
            if state != KazooState.SUSPENDED:
                self._session_lost()
            else:
                self._listeners.session(SessionEvent.CONNECTION_LOST)
        if self._session_id and not self._lost:
            self._lease.begin()

    def _look_whose(self, bridge: KazooBridge, connection: int) -> None:
        """Go on once this connection leads to the store that is required. The connection's end ends the look as well."""
        assert self._required is not None
        path, value, on_replaced = self._required

        def current() -> bool:
            return connection == self._connections and not self._closed and self._replaced is None

        def read(_: asyncio.Future[Any]) -> None:
            if current():
                bridge.request(GetData(self._full(path), None)).add_done_callback(judge)

        def judge(done: asyncio.Future[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            if not current() or done.cancelled():
                return
            if error is not None and not isinstance(error, kz.NoNodeError):
                logger.warning(
                    "%s of the metadata store cannot be read: %s; it is not used", path, error or type(error)
                )
                return
            found = None if error is not None else done.result()[0]
            if found == value:
                self._connected()
                self._lease.begin()
                return
            what = "has none: it is empty" if found is None else f"has {found.decode(errors='replace')!r}"
            self._replaced = MetadataReplacedError(
                f"the metadata store at {self._hosts} is not the one that this process has used: {path} was "
                f"{value.decode(errors='replace')!r}, and this store {what}. Bring the former store back (restore it from a "
                "copy, or correct the metadata URL), then start this process again"
            )
            on_replaced(self._replaced)
            self._session_lost()
            self._up.set()  # who waits for a connection is told

        bridge.request(Sync(self._full(path))).add_done_callback(read)  # a server of an ensemble may lag behind

    def _connected(self) -> None:
        session, before = self._kazoo.session_id, self._session_id
        self._session_id = session
        self._up.set()
        for prefix in self._listeners.prefixes():
            self._add_watch(prefix)
        if not before:
            return
        if session == before:
            self._listeners.session(SessionEvent.RECONNECTED)
        else:
            self._session_lost()
            self._lost = False
            self._listeners.session(SessionEvent.SESSION_REESTABLISHED)
        self._listeners.changed(RESYNC)

    @property
    def proven_until_s(self) -> float:
        return -math.inf if self._lost else self._kazoo.proven_s + self.session_timeout_s * GIVE_UP_SHARE

    @property
    def proven_s(self) -> float:
        return self._kazoo.proven_s

    @property
    def is_connected(self) -> bool:
        return self._up.is_set()

    def lease_over(self) -> None:
        """Everybody is told that the session is gone. Now it has to be: ending it takes its nodes away; then another one begins."""
        self._up.clear()
        old, self._kazoo = self._kazoo, self._bridge()
        key = session_key(self._session_id, old.session_password)
        self._session_lost()
        self._replacing = self._loop.run_in_executor(None, self._replace, old, self._kazoo, key)

    def _replace(self, old: KazooBridge, new: KazooBridge, key: str) -> None:
        """On a thread of its own. The old connection must not take the session up again, which would keep it alive."""
        threading.Thread(target=old.abandon, daemon=True).start()
        asyncio.run(outlast_session(AsyncioNetwork(), self._hosts, key, lambda: self._closed, self._credentials))
        if not self._closed:
            new.start()

    def _session_lost(self) -> None:
        if not self._lost and self._session_id:
            self._lost = True
            self._listeners.session(SessionEvent.SESSION_LOST)


def _ignore(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
