"""The embedded metadata store: one SQLite file (WAL, synchronous=FULL) owned by one process.

All SQL runs on the executor's one worker. Writes queue up on the event loop; whichever write's turn comes first on the worker
takes all that wait and commits them together, so a thousand writers share one fsync. A process is one session: ephemeral nodes
that an earlier process left behind are deleted when the file is opened.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from magnetar.base.errors import (
    CorruptionError,
    DiskFullError,
    DiskIOError,
    MagnetarError,
    MetadataError,
    NodeNotFoundError,
    StartupError,
    StorageError,
)
from magnetar.base.executor import Executor
from magnetar.metadata.errors import EphemeralParentError, MetadataClosedError, NodeHasChildrenError
from magnetar.metadata.listeners import Listeners
from magnetar.metadata.store import (
    SEQUENCE_DIGITS,
    Listener,
    Node,
    SessionListener,
    check_path,
    check_put,
    check_version,
    split_path,
)

T = TypeVar("T")

WRITES_PER_TRANSACTION_MAX = 2_000
"""Writes committed together; the rest waits for the next transaction, so that none holds the worker for long."""

SESSION_ID: Final = 1
"""Of the one process that has the file; also what marks an ephemeral node."""

LOCK_TIMEOUT_S = 2.0
"""How long `open` waits for another process to let go of the file before it gives up with StartupError."""

PAGE_CACHE_KIB = 8 * 1024
"""SQLite's own page cache; beyond it pages come from the operating system's."""

WAL_BYTES_KEPT = 64 * 1024 * 1024
"""A write-ahead log that a burst has made longer is cut back to this size at the next checkpoint."""

APPLICATION_ID = 0x4D474E54
"""Marks the file as ours (`MGNT`) in SQLite's header."""

SCHEMA_VERSION = 1
"""In the header's user version. A file with a higher one was written by a newer release and is refused."""

_SCHEMA = """
CREATE TABLE nodes (
    id INTEGER PRIMARY KEY,
    parent TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX nodes_by_path ON nodes (parent, name);
CREATE INDEX nodes_ephemeral ON nodes (id) WHERE ephemeral = 1;
INSERT INTO nodes (parent, name, value, version, ephemeral, next_sequence) VALUES ('', '', x'', 0, 0, 0);
"""
_GET = "SELECT value, version, ephemeral FROM nodes WHERE parent = ? AND name = ?"
_FIND = "SELECT id, version, ephemeral, next_sequence FROM nodes WHERE parent = ? AND name = ?"
_INSERT = "INSERT INTO nodes (parent, name, value, version, ephemeral, next_sequence) VALUES (?, ?, ?, 0, ?, 0)"
_UPDATE = "UPDATE nodes SET value = ?, version = version + 1 WHERE id = ?"
_CHILDREN = "SELECT name FROM nodes WHERE parent = ? ORDER BY name"
_CHILDREN_COUNT = "SELECT COUNT(*) FROM nodes WHERE parent = ?"
_ANY_CHILD = "SELECT 1 FROM nodes WHERE parent = ? LIMIT 1"


class _Write:
    """One queued put or delete and its outcome."""

    __slots__ = (
        "committed",
        "delete",
        "ephemeral",
        "error",
        "expected_version",
        "path",
        "sequential",
        "value",
        "version",
    )

    def __init__(self, path: str, value: bytes, expected_version: int | None) -> None:
        self.path = path
        self.value = value
        self.expected_version = expected_version
        self.delete = False
        self.ephemeral = False
        self.sequential = False
        self.version = 0
        self.committed = False
        self.error: MagnetarError | None = None


class SqliteMetadataStore:
    """Open with `await SqliteMetadataStore.open(path, executor)`; the executor must have exactly one worker."""

    def __init__(self, path: Path, executor: Executor, connection: sqlite3.Connection) -> None:
        self._path = path
        self._executor = executor
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Write] = deque()
        self._changed: deque[str] = deque()
        self._listeners = Listeners()
        self._closed = False
        self._broken: StorageError | None = None

    @classmethod
    async def open(cls, path: Path | str, executor: Executor) -> SqliteMetadataStore:
        """Create or open the file. Raises StartupError when another process has it, CorruptionError when it is damaged."""
        path = Path(path)
        connection = await executor.run(_connect, path)
        return cls(path, executor, connection)

    @property
    def session_id(self) -> int:
        """The process is the session: what it left behind is gone before the file is open again."""
        return SESSION_ID

    @property
    def session_timeout_s(self) -> float:
        return 0.0

    async def get(self, path: str) -> Node | None:
        check_path(path)
        row = await self._read(self._fetch_one, _GET, split_path(path))
        return None if row is None else Node(*row)

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
        write = _Write(path, bytes(value), expected_version)
        write.ephemeral = ephemeral
        write.sequential = sequential
        await self._write(write)
        return write.path, write.version

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        check_path(path)
        write = _Write(path, b"", expected_version)
        write.delete = True
        await self._write(write)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._read(self._fetch_names, path)

    async def children_count(self, path: str) -> int:
        check_path(path)
        row = await self._read(self._fetch_one, _CHILDREN_COUNT, (path,))
        assert row is not None, "an aggregate always has a row"
        return int(row[0])

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    def watch(self, listener: Listener, prefix: str = "/") -> Callable[[], None]:
        return self._listeners.watch(listener, prefix)

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Never told anything: the session lives as long as the process has the file open."""
        return self._listeners.on_session(listener)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._executor.run(self._connection.close)
        self._notify()
        self._listeners.clear()

    # ---- On the event loop

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataClosedError("the metadata store is closed")

    async def _read(self, function: Callable[..., T], *args: object) -> T:
        self._check_open()
        try:
            return await self._executor.run(function, *args)
        except sqlite3.Error as error:
            raise _translate(error, self._path) from error

    async def _write(self, write: _Write) -> None:
        self._check_open()
        self._queue.append(write)
        await self._executor.run(self._commit_waiting, write)
        self._notify()
        if write.error is not None:
            raise write.error
        assert write.committed, "a write must not return before it is on disk"

    def _notify(self) -> None:
        changed = self._changed
        while changed:
            self._listeners.changed(changed.popleft())

    # ---- On the worker

    def _fetch_one(self, statement: str, values: tuple[str, ...]) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._connection.execute(statement, values).fetchone()
        return row

    def _fetch_names(self, path: str) -> list[str]:
        return [row[0] for row in self._connection.execute(_CHILDREN, (path,))]

    def _commit_waiting(self, own: _Write) -> None:
        """Commit `own` and what waits behind it, unless an earlier turn has done so already."""
        if own.committed or own.error is not None:
            return
        queue = self._queue
        batch = [queue.popleft() for _ in range(min(len(queue), WRITES_PER_TRANSACTION_MAX))]
        try:
            if self._broken is not None:
                raise MetadataClosedError(f"the metadata store stopped after: {self._broken}")
            self._commit(batch)
        except (sqlite3.Error, MetadataClosedError) as error:
            for write in batch:
                write.error = self._failure(error)
            return
        done = [write for write in batch if write.error is None]
        for write in done:
            write.committed = True
        if done:
            self._changed.extend([write.path for write in done])
            # The writer tells the listeners when it resumes; this covers a writer that was cancelled meanwhile.
            self._loop.call_soon_threadsafe(self._notify)

    def _commit(self, batch: list[_Write]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            for write in batch:
                try:
                    # Checks come before the first change, so a refused write leaves nothing to undo.
                    self._apply(write)
                except MetadataError as error:
                    write.error = error
            connection.execute("COMMIT")
        except Exception:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _failure(self, error: sqlite3.Error | MetadataClosedError) -> MagnetarError:
        if isinstance(error, MetadataClosedError):
            return MetadataClosedError(str(error))
        failure = _translate(error, self._path)
        if isinstance(failure, DiskIOError | CorruptionError):
            # After a failed fsync nobody knows what is on disk: refuse to build on it until the file is opened again.
            self._broken = failure
        return failure

    def _apply(self, write: _Write) -> None:
        parent, name = split_path(write.path)
        row = None if write.sequential else self._connection.execute(_FIND, (parent, name)).fetchone()
        if write.delete:
            self._delete(write, row)
            return
        check_version(write.path, None if row is None else row[1], write.expected_version)
        if row is None:
            self._create(write, parent, name)
        else:
            self._connection.execute(_UPDATE, (write.value, row[0]))
            write.version = row[1] + 1

    def _delete(self, write: _Write, row: tuple[int, int, int, int] | None) -> None:
        if row is None:
            raise NodeNotFoundError(f"{write.path} does not exist")
        check_version(write.path, row[1], write.expected_version)
        if write.path == "/" or self._connection.execute(_ANY_CHILD, (write.path,)).fetchone() is not None:
            raise NodeHasChildrenError(f"{write.path} has children; delete them first")
        self._connection.execute("DELETE FROM nodes WHERE id = ?", (row[0],))

    def _create(self, write: _Write, parent: str, name: str) -> None:
        row = self._parent(parent, name)
        if write.sequential:
            suffix = f"{row[3]:0{SEQUENCE_DIGITS}d}"
            self._connection.execute("UPDATE nodes SET next_sequence = next_sequence + 1 WHERE id = ?", (row[0],))
            name += suffix
            write.path += suffix
        self._connection.execute(_INSERT, (parent, name, write.value, int(write.ephemeral)))

    def _parent(self, path: str, child: str) -> tuple[int, int, int, int]:
        """The parent's row, created together with its own missing parents."""
        key = split_path(path)
        row: tuple[int, int, int, int] | None = self._connection.execute(_FIND, key).fetchone()
        if row is None:
            self._parent(*key)
            cursor = self._connection.execute(_INSERT, (*key, b"", 0))
            assert cursor.lastrowid is not None
            return cursor.lastrowid, 0, 0, 0
        if row[2]:
            raise EphemeralParentError(f"{path} is ephemeral and cannot have the child {child}")
        return row


def _connect(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise StartupError(
            f"cannot open the metadata file {path}: {error}; check the directory's permissions"
        ) from error
    try:
        _prepare(path, connection)
    except sqlite3.Error as error:
        connection.close()
        if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StartupError(f"another process is using the metadata file {path}; stop it first") from error
        raise _translate(error, path) from error
    except MagnetarError:
        connection.close()
        raise
    return connection


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageError(f"the file system of {path} does not support SQLite's write-ahead log (mode {mode})")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE_KIB}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    connection.execute("BEGIN EXCLUSIVE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StartupError(
            f"{path} has schema version {version}, this release knows {SCHEMA_VERSION}; upgrade magnetar"
        )
    if version == 0:
        _create_schema(path, connection)
    elif connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise CorruptionError(f"{path} is an SQLite file of another application, not a metadata store")
    connection.execute("DELETE FROM nodes WHERE ephemeral = 1")
    connection.execute("COMMIT")


def _create_schema(path: Path, connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
        raise CorruptionError(f"{path} is an SQLite file of another application, not a metadata store")
    for statement in _SCHEMA.split(";"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _translate(error: sqlite3.Error, path: Path) -> StorageError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptionError(f"the metadata file {path} is damaged: {error}; restore it from a copy")
    if code == sqlite3.SQLITE_FULL:
        return DiskFullError(f"no room to write the metadata file {path}")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return DiskIOError(f"reading or writing the metadata file {path} failed: {error}")
    return StorageError(f"the metadata file {path}: {error}")
