"""A metadata server without Java: one process, one SQLite file, ZooKeeper's wire protocol for kazoo and Java clients alike.

One loop takes all requests that wait, has them carried out in one transaction, then tells watchers and answers, in order. So a
hundred clients share an fsync, and what a client is told fits the order in which things happened.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from magnetar import __version__
from magnetar.base.clock import Clock
from magnetar.base.errors import StorageError
from magnetar.base.executor import Executor
from magnetar.base.network import Listener
from magnetar.base.tasks import FATAL, TaskScope
from magnetar.metadata.digest_md5 import Credentials
from magnetar.metadata.errors import StaleStoreError
from magnetar.metadata.server.connection import ClientConnection
from magnetar.metadata.server.jute import Code, reply
from magnetar.metadata.server.operations import Outcome, Work, apply_batch
from magnetar.metadata.server.requests import Connect, Request
from magnetar.metadata.server.sessions import Session, Sessions
from magnetar.metadata.server.watches import Kind, Watches
from magnetar.metadata.sqlite_file import MetadataFile, connect, translate
from magnetar.metadata.sqlite_tree import SqliteTree

logger = logging.getLogger(__name__)

OPERATIONS_PER_TRANSACTION_MAX: Final = 1_000
"""Carried out together, those of multi-requests counted singly, and at least one request; the rest waits for the next transaction."""

SESSION_TIMEOUT_MIN_S: Final = 1.0
SESSION_TIMEOUT_MAX_S: Final = 60.0
"""A client that asks for less or more gets these."""

SESSIONS_MAX: Final = 10_000
"""A client that asks for one more is not answered and its connection is closed; it tries again."""

PASSWORD_BYTES: Final = 16
"""Of a session, as in ZooKeeper."""

EXPIRY_INTERVAL_S: Final = 0.25
"""Between looks for sessions that are over."""

VERSION: Final = "3.9.0"
"""The ZooKeeper whose protocol this is; clients look at it before they use newer requests."""


class _Item(NamedTuple):
    work: Work
    done: Callable[[Outcome], None]
    operations: int = 1


class _Greeted(NamedTuple):
    """`returns`: the session was there before. `timeout_ms`: what the client asked for."""

    session: Session
    returns: bool
    timeout_ms: int


class MetadataServer:
    """`async with MetadataServer(file, executor=..., clock=..., rng=...) as server: await server.serve(listener)`.

    `executor` has one worker. A failing disk ends the server: the error cancels whoever entered it.
    """

    def __init__(
        self,
        file: Path,
        *,
        executor: Executor,
        clock: Clock,
        rng: random.Random,
        session_timeout_min_s: float = SESSION_TIMEOUT_MIN_S,
        session_timeout_max_s: float = SESSION_TIMEOUT_MAX_S,
        tree_watches: bool = True,
        credentials: Credentials | None = None,
    ) -> None:
        """`tree_watches=False`: no requests of ZooKeeper 3.6, to try clients against. `credentials`: what every client has to know."""
        self._file = file
        self._executor = executor
        self._clock = clock
        self._rng = rng
        self._tree_watches = tree_watches
        self._sessions = Sessions(session_timeout_min_s, session_timeout_max_s)
        self._watches = Watches()
        self._credentials = credentials
        self._connections: dict[int, ClientConnection] = {}
        self._greeted: dict[int, _Greeted] = {}
        """By connection: what happens once its client has proven who it is."""
        self._connection_count = 0
        self._waiting: list[_Item] = []
        self._wake = asyncio.Event()
        self._zxid = 0
        self._listeners: list[Listener] = []
        self._scope = TaskScope("metadata server")

    async def __aenter__(self) -> MetadataServer:
        """Raises StartupError, CorruptionError."""
        self._tree, self._store = await self._executor.run(self._open)
        self._zxid = self._tree.zxid
        now_s = self._clock.monotonic_s()
        for session_id, password, timeout_ms in self._known:
            self._sessions.add(Session(session_id, password, timeout_ms / 1000, now_s))
        await self._scope.__aenter__()
        self._scope.spawn(self._pump(), "pump", FATAL)
        self._scope.supervise(self._expire, "expire")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._listeners:
            await listener.close()
        for connection in list(self._connections.values()):
            connection.abort()
        try:
            await self._scope.__aexit__(kind, error, trace)
        finally:
            await self._executor.run(self._store.close)

    async def serve(self, listener: Listener) -> None:
        """Accept clients on a bound address, whose share bounds them, until the server ends, which closes it."""
        self._listeners.append(listener)
        await listener.serve(self._accept)

    def _accept(self) -> ClientConnection:
        self._connection_count += 1
        return ClientConnection(
            self, self._connection_count, tree_watches=self._tree_watches, credentials=self._credentials
        )

    def made(self, connection: ClientConnection) -> None:
        self._connections[connection.number] = connection

    def _open(self) -> tuple[SqliteTree, MetadataFile]:
        """Sessions of a server that was here before go on; what belongs to none of them goes."""
        store = connect(self._file)
        try:
            tree = SqliteTree(store.connection, self._clock.now_ms, store.mark.write)
            self._known = tree.sessions()
            tree.begin()
            tree.end_sessions_but([session_id for session_id, _, _ in self._known])
            tree.changes.clear()
            tree.commit()
        except sqlite3.Error as error:
            store.close()
            raise translate(error, self._file) from error
        except StorageError:
            store.close()
            raise
        return tree, store

    # ---- The one order of things

    def _put(self, work: Work, done: Callable[[Outcome], None], operations: int = 1) -> None:
        self._waiting.append(_Item(work, done, operations))
        self._wake.set()

    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            batch = self._next_batch()
            if not self._waiting:
                self._wake.clear()
            try:
                outcomes = await self._executor.run(apply_batch, self._tree, [item.work for item in batch])
            except sqlite3.Error as error:
                raise translate(error, self._file) from error
            for item, outcome in zip(batch, outcomes, strict=True):
                self._deliver(item, outcome)

    def _next_batch(self) -> list[_Item]:
        count = operations = 0
        for item in self._waiting:
            operations += item.operations
            if count and operations > OPERATIONS_PER_TRANSACTION_MAX:
                break
            count += 1
        batch = self._waiting[:count]
        del self._waiting[:count]
        return batch

    def _deliver(self, item: _Item, outcome: Outcome) -> None:
        self._zxid = outcome.zxid
        for change, path in outcome.changes:
            for watcher, event, at in self._watches.fire(change, path):
                connection = self._connections.get(watcher)
                if connection is not None:
                    connection.notify(event, at)
        item.done(outcome)

    # ---- What connections ask for

    def submit(self, work: Work, connection: ClientConnection, request: Request) -> None:
        def done(outcome: Outcome) -> None:
            if connection.number in self._connections:
                for kind, path in outcome.watches:
                    self._watches.add(kind, path, connection.number)
            connection.answer(request, outcome)

        self._put(work, done, max(1, len(request.parts)))

    def end_watches(self, connection: ClientConnection, path: str, kinds: tuple[Kind, ...], *, remove: bool) -> bool:
        """Whether there were any."""
        found = [kind for kind in kinds if self._watches.has(kind, path, connection.number)]
        if remove:
            for kind in found:
                self._watches.remove(kind, path, connection.number)
        return bool(found)

    def heard(self, session_id: int) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            session.heard_s = self._clock.monotonic_s()

    def open_session(self, connection: ClientConnection, wanted: Connect) -> None:
        if wanted.last_zxid > self._zxid:
            connection.abort()
            self._client_is_ahead(wanted)
        elif wanted.session_id == 0 and len(self._sessions) >= SESSIONS_MAX:
            logger.warning("a client is turned away: there are %d sessions already", SESSIONS_MAX)
            connection.abort()
        elif wanted.session_id == 0:
            self._new_session(connection, wanted)
        else:
            self._take_up(connection, wanted)

    def _client_is_ahead(self, wanted: Connect) -> None:
        """A session of this store proves that the store has lost commits: it stops. What a stranger claims proves nothing.

        Copies of a store share its id, so the password proves it also when the session's own commit is among those lost.
        """
        if not hmac.compare_digest(wanted.password, self._password(wanted.session_id)):
            logger.warning(
                "a client turned away: it has seen transaction 0x%x of another store, this one is at 0x%x. If this store is "
                "new and the client's is lost, restore that one from a copy",
                wanted.last_zxid,
                self._zxid,
            )
            return
        self._scope.spawn(self._stop(wanted.last_zxid), "stop", FATAL)

    async def _stop(self, seen_zxid: int) -> None:
        raise StaleStoreError(
            f"the metadata store {self._file} has lost commits and stops: a client has seen transaction {seen_zxid:#x} of it, "
            f"and it is at {self._zxid:#x}. An older copy was put in its place, or its disk has lost writes. Restore the newest "
            f"copy of the directory, or go on without what is missing: magnetar metadata salvage {self._file.parent}"
        )

    def _password(self, session_id: int) -> bytes:
        """Of a session of this store, and of no other store."""
        return hmac.digest(self._tree.store_id, session_id.to_bytes(8, "big", signed=True), "sha256")[:PASSWORD_BYTES]

    def _new_session(self, connection: ClientConnection, wanted: Connect) -> None:
        session_id = self._rng.getrandbits(62) | 1 << 32  # never the number of a process that has the file for itself
        timeout_s = self._sessions.timeout_s(wanted.timeout_ms)
        session = Session(session_id, self._password(session_id), timeout_s, self._clock.monotonic_s())
        if not connection.authenticated:
            self._greet_stranger(connection, session, wanted)
            return

        def done(_: Outcome) -> None:
            session.heard_s = self._clock.monotonic_s()
            self._sessions.add(session)
            if connection.number in self._connections:
                session.connection = connection.number
                connection.settle()
                connection.greet(round(timeout_s * 1000), session_id, session.password)

        self._put(lambda tree, _: tree.add_session(session_id, session.password, round(timeout_s * 1000)), done)

    def _take_up(self, connection: ClientConnection, wanted: Connect) -> None:
        session = self._sessions.take_up(wanted.session_id, wanted.password)
        if session is None:
            connection.turn_away()
            return
        if not connection.authenticated:
            self._greet_stranger(connection, session, wanted)
            return
        self._go_on(session, connection, wanted.timeout_ms)
        connection.greet(round(session.timeout_s * 1000), session.id, session.password)

    def _go_on(self, session: Session, connection: ClientConnection, timeout_ms: int) -> None:
        before = self._connections.get(session.connection) if session.connection is not None else None
        if before is not None and before is not connection:
            before.abort()
        session.connection = connection.number
        session.heard_s = self._clock.monotonic_s()
        session.timeout_s = self._sessions.timeout_s(timeout_ms)
        connection.settle()

    def _greet_stranger(self, connection: ClientConnection, session: Session, wanted: Connect) -> None:
        """ZooKeeper's clients prove who they are inside a session. It is made, or taken up, when they have."""
        self._greeted[connection.number] = _Greeted(session, wanted.session_id != 0, wanted.timeout_ms)
        connection.greet(round(self._sessions.timeout_s(wanted.timeout_ms) * 1000), session.id, session.password)

    def authenticated(self, connection: ClientConnection) -> None:
        session, returns, timeout_ms = self._greeted.pop(connection.number)
        if returns and self._sessions.get(session.id) is not session:
            connection.abort()  # it ended meanwhile: the client comes again and is told
        elif not returns and len(self._sessions) >= SESSIONS_MAX:
            logger.warning("a client is turned away: there are %d sessions already", SESSIONS_MAX)
            connection.abort()
        elif returns:
            self._go_on(session, connection, timeout_ms)
        else:
            self._sessions.add(session)
            self._go_on(session, connection, timeout_ms)
            granted_ms = round(session.timeout_s * 1000)
            self._put(lambda tree, _: tree.add_session(session.id, session.password, granted_ms), lambda _: None)

    def close_session(self, connection: ClientConnection, request: Request) -> None:
        session_id = connection.session_id
        self._sessions.remove(session_id)
        self._put(
            lambda tree, _: tree.end_session(session_id),
            lambda outcome: connection.finish(reply(request.xid, outcome.zxid, Code.OK)),
        )

    def disconnected(self, connection: ClientConnection) -> None:
        """The session waits for its client to come back."""
        self._connections.pop(connection.number, None)
        self._greeted.pop(connection.number, None)
        self._watches.forget(connection.number)
        session = self._sessions.get(connection.session_id)
        if session is not None and session.connection == connection.number:
            session.connection = None

    def word(self, connection: ClientConnection, word: str) -> None:
        """ZooKeeper's four-letter words."""
        if word == "ruok":
            connection.finish(b"imok")
        elif word == "isro":
            connection.finish(b"rw")
        else:
            self._put(_count_nodes, lambda outcome: connection.finish(self._statistics(int(outcome.body)).encode()))

    def _statistics(self, nodes: int) -> str:
        return (
            f"Zookeeper version: {VERSION}-magnetar-{__version__}\n"
            f"Connections: {len(self._connections)}\nSessions: {len(self._sessions)}\nWatches: {len(self._watches)}\n"
            f"Outstanding: {len(self._waiting)}\nZxid: 0x{self._zxid:x}\nMode: standalone\nNode count: {nodes}\n"
        )

    # ---- The end of sessions

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            for session in self._sessions.expired(self._clock.monotonic_s(), EXPIRY_INTERVAL_S):
                logger.info("session 0x%x has not been heard for %.1f s: expired", session.id, session.timeout_s)
                connection = self._connections.get(session.connection) if session.connection is not None else None
                if connection is not None:
                    connection.abort()
                self._end(session.id)

    def _end(self, session_id: int) -> None:
        self._put(lambda tree, _: tree.end_session(session_id), lambda _: None)


def _count_nodes(tree: SqliteTree, outcome: Outcome) -> None:
    outcome.body = str(tree.connection.execute("SELECT COUNT(*) FROM nodes").fetchone()[0]).encode()
