"""The embedded metadata store: one SQLite file (WAL, synchronous=FULL) owned by one process.

All SQL runs on the executor's one worker. Writes queue up on the event loop; whichever write's turn comes first on the worker
takes all that wait and commits them together, so a thousand writers share one fsync. A process is one session: ephemeral nodes
that an earlier process left behind are deleted when the file is opened.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from magnetar.base.clock import Clock, SystemClock
from magnetar.base.errors import (
    CorruptionError,
    DiskIOError,
    InvalidArgumentError,
    MagnetarError,
    MetadataError,
    StorageError,
)
from magnetar.base.executor import Executor
from magnetar.metadata.errors import MetadataClosedError, NodeExistsError
from magnetar.metadata.listeners import Listeners
from magnetar.metadata.sqlite_file import MetadataFile, connect, connect_read_only, translate
from magnetar.metadata.sqlite_tree import SqliteTree
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    Listener,
    Node,
    SessionListener,
    Stat,
    check_path,
    check_put,
)

T = TypeVar("T")

WRITES_PER_TRANSACTION_MAX = 2_000
"""Writes committed together; the rest waits for the next transaction, so that none holds the worker for long."""

SESSION_ID: Final = 1
"""Of the one process that has the file."""


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

    def __init__(self, path: Path, executor: Executor, tree: SqliteTree, file: MetadataFile | None) -> None:
        """`file`: None in a store that only reads."""
        self._path = path
        self._executor = executor
        self._tree = tree
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Write] = deque()
        self._changed: deque[str] = deque()
        self._listeners = Listeners()
        self._closed = False
        self._broken: StorageError | None = None

    @classmethod
    async def open(cls, path: Path | str, executor: Executor, clock: Clock | None = None) -> SqliteMetadataStore:
        """Create or open the file. Raises StartupError when another process has it, CorruptionError when it is damaged."""
        path = Path(path)
        tree, file = await executor.run(_open_tree, path, clock if clock is not None else SystemClock())
        return cls(path, executor, tree, file)

    @classmethod
    async def open_read_only(cls, path: Path | str, executor: Executor) -> SqliteMetadataStore:
        """Read what is committed, also while a server has the file. Raises StartupError, CorruptionError."""
        path = Path(path)
        connection = await executor.run(connect_read_only, path)
        return cls(path, executor, SqliteTree(connection, SystemClock().now_ms), None)

    @property
    def session_id(self) -> int:
        """The process is the session: what it left behind is gone before the file is open again."""
        return SESSION_ID

    @property
    def proven_until_s(self) -> float:
        return math.inf

    @property
    def session_timeout_s(self) -> float:
        return 0.0

    async def get(self, path: str) -> Node | None:
        check_path(path)
        found = await self._read(self._tree.get, path)
        return None if found is None else Node(found[0], found[1].version, found[1].owner)

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

    async def create_missing(self, paths: Sequence[str], value: bytes = b"") -> int:
        for path in paths:
            check_put(path, MUST_NOT_EXIST, sequential=False)
        writes = [_Write(path, bytes(value), MUST_NOT_EXIST) for path in dict.fromkeys(paths)]
        if not writes:
            return 0
        await self._commit_with(writes)
        for write in writes:
            if write.error is not None and not isinstance(write.error, NodeExistsError):
                raise write.error
        return sum(write.committed for write in writes)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        check_path(path)
        write = _Write(path, b"", expected_version)
        write.delete = True
        await self._write(write)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._read(self._tree.children, path)

    async def children_count(self, path: str) -> int:
        stat = await self.stat(path)
        return 0 if stat is None else stat.children

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    async def stat(self, path: str) -> Stat | None:
        check_path(path)
        return await self._read(self._tree.stat, path)

    def watch(self, listener: Listener, prefix: str = "/") -> Callable[[], None]:
        return self._listeners.watch(listener, prefix)

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Never told anything: the session lives as long as the process has the file open."""
        return self._listeners.on_session(listener)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._executor.run(self._tree.connection.close if self._file is None else self._file.close)
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
            raise translate(error, self._path) from error

    async def _commit_with(self, writes: list[_Write]) -> None:
        """Each has its outcome afterwards."""
        self._check_open()
        if self._file is None:
            raise InvalidArgumentError(f"the metadata file {self._path} was opened for reading")
        self._queue.extend(writes)
        await self._executor.run(self._commit_waiting, writes[-1])
        self._notify()

    async def _write(self, write: _Write) -> None:
        await self._commit_with([write])
        error, write.error = write.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or its traceback holds this frame, which holds it
        assert write.committed, "a write must not return before it is on disk"

    def _notify(self) -> None:
        changed = self._changed
        while changed:
            self._listeners.changed(changed.popleft())

    # ---- On the worker

    def _commit_waiting(self, own: _Write) -> None:
        """Commit `own`, what waits before it and some of what waits behind it, unless an earlier turn has done so already."""
        while not own.committed and own.error is None:
            self._commit_some()

    def _commit_some(self) -> None:
        queue = self._queue
        batch = [queue.popleft() for _ in range(min(len(queue), WRITES_PER_TRANSACTION_MAX))]
        try:
            if self._broken is not None:
                raise MetadataClosedError(f"the metadata store stopped after: {self._broken}")
            self._commit(batch)
        except (sqlite3.Error, StorageError, MetadataClosedError) as error:
            for write in batch:
                write.error = self._failure(error)
            return
        done = [write for write in batch if write.error is None]
        for write in done:
            write.committed = True
        if done:
            changes, self._tree.changes = self._tree.changes, []
            told = {write.path for write in done}  # not the parents that were created on the way
            self._changed.extend([path for _, path in changes if path in told])
            # The writer tells the listeners when it resumes; this covers a writer that was cancelled meanwhile.
            self._loop.call_soon_threadsafe(self._notify)

    def _commit(self, batch: list[_Write]) -> None:
        tree = self._tree
        tree.begin()
        try:
            for write in batch:
                try:
                    # Checks come before the first change, so a refused write leaves nothing to undo.
                    self._apply(write)
                except MetadataError as error:
                    write.error = error
            tree.commit()
        except Exception:
            tree.rollback()
            raise

    def _failure(self, error: sqlite3.Error | StorageError | MetadataClosedError) -> MagnetarError:
        if isinstance(error, MetadataClosedError):
            return MetadataClosedError(str(error))
        failure = error if isinstance(error, StorageError) else translate(error, self._path)
        if isinstance(failure, DiskIOError | CorruptionError):
            # After a failed fsync nobody knows what is on disk: refuse to build on it until the file is opened again.
            self._broken = failure
        return failure

    def _apply(self, write: _Write) -> None:
        if write.delete:
            self._tree.delete(write.path, write.expected_version)
            return
        owner = SESSION_ID if write.ephemeral else 0
        write.path, write.version = self._tree.put(
            write.path, write.value, write.expected_version, owner, write.sequential
        )


def _open_tree(path: Path, clock: Clock) -> tuple[SqliteTree, MetadataFile]:
    """What earlier sessions left is gone: this process is the only one. Blocks."""
    file = connect(path)
    try:
        tree = SqliteTree(file.connection, clock.now_ms, file.mark.write)
        tree.begin()
        tree.end_sessions_but([])
        tree.changes.clear()
        tree.commit()
    except sqlite3.Error as error:
        file.close()
        raise translate(error, path) from error
    except StorageError:
        file.close()
        raise
    return tree, file
