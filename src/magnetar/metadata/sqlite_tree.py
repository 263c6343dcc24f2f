"""The tree in SQLite, by plain calls on the thread that owns the connection: ZooKeeper's rules and numbers.

The caller begins and commits; a refused change has changed nothing, so others of the same transaction stand.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from magnetar.base.errors import NodeNotFoundError
from magnetar.metadata.errors import EphemeralParentError, NodeHasChildrenError
from magnetar.metadata.store import MUST_NOT_EXIST, SEQUENCE_DIGITS, Stat, check_version, split_path

_STAT: Final = (
    "czxid, mzxid, ctime_ms, mtime_ms, version, cversion, 0, owner, LENGTH(value), children, pzxid FROM nodes"
    " WHERE parent = ? AND name = ?"
)
GET: Final = "SELECT value, version, owner FROM nodes WHERE parent = ? AND name = ?"
_FIND: Final = "SELECT id, version, owner, next_sequence, children FROM nodes WHERE parent = ? AND name = ?"
_INSERT: Final = (
    "INSERT INTO nodes (parent, name, value, version, owner, next_sequence, czxid, mzxid, pzxid, ctime_ms, mtime_ms)"
    " VALUES (?, ?, ?, 0, ?, 0, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = "UPDATE nodes SET value = ?, version = version + 1, mzxid = ?, mtime_ms = ? WHERE id = ?"
_ADOPT: Final = (
    "UPDATE nodes SET next_sequence = next_sequence + 1, children = children + 1, cversion = cversion + 1, pzxid = ?"
    " WHERE id = ?"
)
_ORPHAN: Final = (
    "UPDATE nodes SET children = children - 1, cversion = cversion + 1, pzxid = ? WHERE parent = ? AND name = ?"
)
CHILDREN: Final = "SELECT name FROM nodes WHERE parent = ? ORDER BY name"
_PACKED: Final = (
    "SELECT COUNT(*), COALESCE(MAX(size), 0), COALESCE(CAST(group_concat(char(0, 0, 0, size) || name, '') AS BLOB), x'')"
    " FROM (SELECT name, LENGTH(CAST(name AS BLOB)) AS size FROM nodes WHERE parent = ? ORDER BY name)"
)
"""SQLite writes the lengths as characters: those below 128 are the bytes that they should be."""
_OWNED: Final = "SELECT parent, name FROM nodes WHERE owner = ? AND owner != 0 ORDER BY id"


class Change(IntEnum):
    """ZooKeeper's numbers of events."""

    CREATED = 1
    DELETED = 2
    WRITTEN = 3


class _Row(NamedTuple):
    id: int
    version: int
    owner: int
    next_sequence: int
    children: int


class SqliteTree:
    """`changes` collects (what, path) of every change, in order; the caller takes them after the commit."""

    def __init__(self, connection: sqlite3.Connection, now_ms: Callable[[], int]) -> None:
        self.connection = connection
        self.changes: list[tuple[Change, str]] = []
        self._now_ms = now_ms
        self.zxid: int = connection.execute("SELECT zxid FROM state").fetchone()[0]
        """The last transaction's number; every change is one."""
        self._committed_zxid = self.zxid

    # ---- Transactions

    def begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Durable when it returns."""
        self.connection.execute("UPDATE state SET zxid = ?", (self.zxid,))
        self.connection.execute("COMMIT")
        self._committed_zxid = self.zxid

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self.zxid = self._committed_zxid
        self.changes.clear()

    # ---- Reading

    def get(self, path: str) -> tuple[bytes, Stat] | None:
        row = self.connection.execute("SELECT value, " + _STAT, split_path(path)).fetchone()
        return None if row is None else (row[0], Stat(*row[1:]))

    def stat(self, path: str) -> Stat | None:
        row = self.connection.execute("SELECT " + _STAT, split_path(path)).fetchone()
        return None if row is None else Stat(*row)

    def children(self, path: str) -> list[str]:
        return [row[0] for row in self.connection.execute(CHILDREN, (path,))]

    def packed_children(self, path: str) -> tuple[int, bytes]:
        """How many there are, and their sorted names, each behind its length in four bytes: the interpreter is free meanwhile."""
        count, longest, packed = self.connection.execute(_PACKED, (path,)).fetchone()
        if longest >= 128:
            names = [name.encode() for name in self.children(path)]
            packed = b"".join([len(name).to_bytes(4, "big") + name for name in names])
        return count, packed

    def owned_by(self, session_id: int) -> list[str]:
        """Paths of a session's ephemeral nodes, oldest first."""
        return [_join(*row) for row in self.connection.execute(_OWNED, (session_id,))]

    # ---- Writing

    def put(
        self, path: str, value: bytes, expected_version: int | None, owner: int, sequential: bool
    ) -> tuple[str, int]:
        """As `MetadataStore.put`; parents are created."""
        row = None if sequential else self._find(path)
        check_version(path, None if row is None else row.version, expected_version)
        if row is None:
            return self.create(path, value, owner, sequential, make_parents=True, is_new=not sequential), 0
        self._write(path, value, row)
        return path, row.version + 1

    def create(
        self,
        path: str,
        value: bytes,
        owner: int,
        sequential: bool,
        *,
        make_parents: bool = False,
        is_new: bool = False,
    ) -> str:
        """The path that was created. Raises NodeNotFoundError (no parent), NodeExistsError, EphemeralParentError.

        `is_new`: the caller has seen that the path does not exist.
        """
        parent_path, name = split_path(path)
        parent = self._find(parent_path)
        if parent is None:
            if not make_parents:
                raise NodeNotFoundError(f"{parent_path} does not exist, so {path} cannot be created")
            self._check_ancestors(parent_path)
            self.create(parent_path, b"", 0, False, make_parents=True)
            parent = self._find(parent_path)
            assert parent is not None
        if sequential:
            suffix = f"{parent.next_sequence:0{SEQUENCE_DIGITS}d}"
            name, path = name + suffix, path + suffix
        row = None if is_new else self._find(path)
        check_version(path, None if row is None else row.version, MUST_NOT_EXIST)
        if parent.owner:
            raise EphemeralParentError(f"{parent_path} is ephemeral and cannot have the child {name}")
        self.zxid += 1
        zxid, now = self.zxid, self._now_ms()
        self.connection.execute(_INSERT, (parent_path, name, value, owner, zxid, zxid, zxid, now, now))
        self.connection.execute(_ADOPT, (zxid, parent.id))
        self.changes.append((Change.CREATED, path))
        return path

    def set(self, path: str, value: bytes, expected_version: int | None) -> None:
        """Raises NodeNotFoundError, BadVersionError."""
        row = self.check(path, expected_version)
        self._write(path, value, row)

    def delete(self, path: str, expected_version: int | None) -> None:
        """Raises NodeNotFoundError, BadVersionError, NodeHasChildrenError."""
        row = self.check(path, expected_version)
        if row.children or path == "/":
            raise NodeHasChildrenError(f"{path} has children; delete them first")
        self.zxid += 1
        self.connection.execute("DELETE FROM nodes WHERE id = ?", (row.id,))
        self.connection.execute(_ORPHAN, (self.zxid, *split_path(split_path(path)[0])))
        self.changes.append((Change.DELETED, path))

    def check(self, path: str, expected_version: int | None) -> _Row:
        """Raises NodeNotFoundError, BadVersionError."""
        row = self._find(path)
        if row is None:
            raise NodeNotFoundError(f"{path} does not exist")
        check_version(path, row.version, expected_version)
        return row

    # ---- Sessions of a metadata server

    def sessions(self) -> list[tuple[int, bytes, int]]:
        """(id, password, time-out in ms) of each."""
        return list(self.connection.execute("SELECT id, password, timeout_ms FROM sessions ORDER BY id"))

    def add_session(self, session_id: int, password: bytes, timeout_ms: int) -> None:
        self.zxid += 1
        self.connection.execute("INSERT INTO sessions VALUES (?, ?, ?)", (session_id, password, timeout_ms))

    def end_session(self, session_id: int) -> None:
        """Forget it and delete its ephemeral nodes."""
        for path in self.owned_by(session_id):
            self.delete(path, None)
        self.zxid += 1
        self.connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def end_sessions_but(self, kept: list[int]) -> None:
        """End every session that owns a node or is remembered, except `kept`."""
        owners = self.connection.execute(
            "SELECT DISTINCT owner FROM nodes WHERE owner != 0 UNION SELECT id FROM sessions"
        )
        for (session_id,) in owners.fetchall():
            if session_id not in kept:
                self.end_session(session_id)

    def _find(self, path: str) -> _Row | None:
        row = self.connection.execute(_FIND, split_path(path)).fetchone()
        return None if row is None else _Row(*row)

    def _write(self, path: str, value: bytes, row: _Row) -> None:
        self.zxid += 1
        self.connection.execute(_UPDATE, (value, self.zxid, self._now_ms(), row.id))
        self.changes.append((Change.WRITTEN, path))

    def _check_ancestors(self, path: str) -> None:
        """Before the first parent is made: the nearest ancestor that exists may have children."""
        while (row := self._find(path)) is None:
            path = split_path(path)[0]
        if row.owner:
            raise EphemeralParentError(f"{path} is ephemeral and cannot have children")


def _join(parent: str, name: str) -> str:
    return f"{parent}{name}" if parent == "/" else f"{parent}/{name}"
