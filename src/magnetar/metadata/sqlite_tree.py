"""The tree in SQLite, by plain calls on the thread that owns the connection: ZooKeeper's rules and numbers.

The caller begins and commits; a refused change has changed nothing, so others of the same transaction stand.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from magnetar.base.checksum import crc32c, crc32c_extend
from magnetar.base.errors import CorruptionError, DiskIOError, NodeNotFoundError
from magnetar.metadata.errors import EphemeralParentError, NodeHasChildrenError
from magnetar.metadata.store import MUST_NOT_EXIST, SEQUENCE_DIGITS, Stat, check_version, split_path

COLUMNS: Final = (
    "id, crc, parent, name, value, version, owner, next_sequence, children, cversion, czxid, mzxid, pzxid, ctime_ms,"
    " mtime_ms"
)
_FIND: Final = f"SELECT {COLUMNS} FROM nodes WHERE parent = ? AND name = ?"
_INSERT: Final = (
    "INSERT INTO nodes (crc, parent, name, value, version, owner, next_sequence, children, cversion, czxid, mzxid, pzxid,"
    " ctime_ms, mtime_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = (
    "UPDATE nodes SET crc = ?, value = ?, version = ?, next_sequence = ?, children = ?, cversion = ?, mzxid = ?, pzxid = ?,"
    " mtime_ms = ? WHERE id = ?"
)
CHILDREN: Final = "SELECT name FROM nodes WHERE parent = ? ORDER BY name"
_PACKED: Final = (
    "SELECT COUNT(*), COALESCE(MAX(size), 0), COALESCE(CAST(group_concat(char(0, 0, 0, size) || name, '') AS BLOB), x'')"
    " FROM (SELECT name, LENGTH(CAST(name AS BLOB)) AS size FROM nodes WHERE parent = ? ORDER BY name)"
)
"""SQLite writes the lengths as characters: those below 128 are the bytes that they should be."""
_OWNED: Final = "SELECT parent, name FROM nodes WHERE owner = ? AND owner != 0 ORDER BY id"
_SESSION: Final = "SELECT id, password, timeout_ms FROM sessions"

_DIGEST_BITS: Final = 2**63 - 1


class Change(IntEnum):
    """ZooKeeper's numbers of events."""

    CREATED = 1
    DELETED = 2
    WRITTEN = 3


class Row(NamedTuple):
    """A node as it is stored. `crc`: CRC32C of all columns after it."""

    id: int
    crc: int
    parent: str
    name: str
    value: bytes
    version: int
    owner: int
    next_sequence: int
    children: int
    cversion: int
    czxid: int
    mzxid: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int

    def checksum(self) -> int:
        """What `crc` has to be. SQLite protects pages in its log but not in its file, and no value anywhere."""
        head = "\0".join(map(str, (*self[2:4], *self[5:]))).encode()
        return crc32c_extend(crc32c(head), self.value)

    def path(self) -> str:
        return _join(self.parent, self.name)


class State(NamedTuple):
    """The one row about the whole tree."""

    zxid: int
    """The last transaction's number; every change is one."""
    store_id: bytes
    """Random, made with the store: copies of it share the number, other stores do not."""
    digest: int
    """Sum of the checksums of all nodes and sessions: none is missing, none is of another time."""

    def checksum(self) -> int:
        return crc32c(f"{self.zxid}\0{self.digest}\0".encode() + self.store_id)


def read_state(connection: sqlite3.Connection) -> State:
    """Raises CorruptionError."""
    row = connection.execute("SELECT zxid, store_id, digest, crc FROM state").fetchone()
    state = None if row is None else State(*row[:3])
    if state is None or state.checksum() != row[3]:
        raise CorruptionError(
            "the metadata file is damaged: the number of its last transaction does not match its checksum; restore it from a copy"
        )
    return state


def compute_digest(connection: sqlite3.Connection) -> tuple[int, list[Row]]:
    """(digest of the nodes and sessions that there are, damaged nodes). Reads everything."""
    digest = sum(_session_checksum(*row) for row in connection.execute(_SESSION))
    damaged = []
    for columns in connection.execute(f"SELECT {COLUMNS} FROM nodes"):
        row = Row(*columns)
        if row.checksum() != row.crc:
            damaged.append(row)
        digest += row.crc
    return digest & _DIGEST_BITS, damaged


def _session_checksum(session_id: int, password: bytes, timeout_ms: int) -> int:
    return crc32c(f"{session_id}\0{timeout_ms}\0".encode() + password)


class SqliteTree:
    """`changes` collects (what, path) of every change, in order; the caller takes them after the commit.

    A node that does not match its checksum, and a list of children that does not match its parent's count, is a CorruptionError.
    """

    def __init__(
        self, connection: sqlite3.Connection, now_ms: Callable[[], int], mark: Callable[[int], None] | None = None
    ) -> None:
        """`mark` writes down the transaction number of every commit (`CommitMark.write`); None: nothing will be committed."""
        self.connection = connection
        self.changes: list[tuple[Change, str]] = []
        self._now_ms = now_ms
        self._mark = mark
        self._committed = read_state(connection)
        self.zxid, self.store_id, self._digest = self._committed

    # ---- Transactions

    def begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Durable when it returns. Raises DiskIOError when it may be and could not be noted down."""
        state = State(self.zxid, self.store_id, self._digest & _DIGEST_BITS)
        self.connection.execute(
            "UPDATE state SET zxid = ?, digest = ?, crc = ?", (state.zxid, state.digest, state.checksum())
        )
        self.connection.execute("COMMIT")
        self._committed = state
        if self._mark is not None:
            try:
                self._mark(state.zxid)
            except OSError as error:
                raise DiskIOError(f"writing the commit mark of the metadata file failed: {error}") from error

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self.zxid, _, self._digest = self._committed
        self.changes.clear()

    def begin_part(self) -> tuple[int, int, int]:
        """A part of the transaction that can be undone by itself; `undo_part` takes what this answers."""
        self.connection.execute("SAVEPOINT part")
        return self.zxid, self._digest, len(self.changes)

    def undo_part(self, begun: tuple[int, int, int]) -> None:
        self.connection.execute("ROLLBACK TO part")
        self.zxid, self._digest, changes = begun
        del self.changes[changes:]

    def end_part(self) -> None:
        self.connection.execute("RELEASE part")

    # ---- Reading

    def get(self, path: str) -> tuple[bytes, Stat] | None:
        row = self.find(path)
        return None if row is None else (row.value, _stat_of(row))

    def stat(self, path: str) -> Stat | None:
        row = self.find(path)
        return None if row is None else _stat_of(row)

    def children(self, path: str) -> list[str]:
        names = [row[0] for row in self.connection.execute(CHILDREN, (path,))]
        self._check_count(path, len(names))
        return names

    def packed_children(self, path: str) -> tuple[int, bytes]:
        """How many there are, and their sorted names, each behind its length in four bytes: the interpreter is free meanwhile."""
        count, longest, packed = self.connection.execute(_PACKED, (path,)).fetchone()
        self._check_count(path, count)
        if longest >= 128:
            names = [name.encode() for name in self.children(path)]
            packed = b"".join([len(name).to_bytes(4, "big") + name for name in names])
        return count, packed

    def owned_by(self, session_id: int) -> list[str]:
        """Paths of a session's ephemeral nodes, oldest first."""
        return [_join(*row) for row in self.connection.execute(_OWNED, (session_id,))]

    def persistent_rows(self) -> Iterator[Row]:
        """All nodes that are not ephemeral, parents before children. Raises CorruptionError at the first damaged one."""
        # A parent always has the lower row id: it is there before its children, and ids rise.
        for columns in self.connection.execute(f"SELECT {COLUMNS} FROM nodes WHERE owner = 0 ORDER BY id"):
            yield _checked(Row(*columns))

    # ---- Writing

    def put(
        self, path: str, value: bytes, expected_version: int | None, owner: int, sequential: bool
    ) -> tuple[str, int]:
        """As `MetadataStore.put`; parents are created."""
        row = None if sequential else self.find(path)
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
        parent = self.find(parent_path)
        if parent is None:
            if not make_parents:
                raise NodeNotFoundError(f"{parent_path} does not exist, so {path} cannot be created")
            self._check_ancestors(parent_path)
            self.create(parent_path, b"", 0, False, make_parents=True)
            parent = self.find(parent_path)
            assert parent is not None
        if sequential:
            suffix = f"{parent.next_sequence:0{SEQUENCE_DIGITS}d}"
            name, path = name + suffix, path + suffix
        row = None if is_new else self.find(path)
        check_version(path, None if row is None else row.version, MUST_NOT_EXIST)
        if parent.owner:
            raise EphemeralParentError(f"{parent_path} is ephemeral and cannot have the child {name}")
        self.zxid += 1
        zxid, now = self.zxid, self._now_ms()
        made = Row(0, 0, parent_path, name, value, 0, owner, 0, 0, 0, zxid, zxid, zxid, now, now)
        self._insert(made)
        self.update(
            parent,
            parent._replace(
                next_sequence=parent.next_sequence + 1,
                children=parent.children + 1,
                cversion=parent.cversion + 1,
                pzxid=zxid,
            ),
        )
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
        self._digest -= row.crc
        parent = self.find(split_path(path)[0])
        if parent is None:
            raise CorruptionError(f"the metadata node {path} has no parent; restore the store from a copy")
        self.update(
            parent, parent._replace(children=parent.children - 1, cversion=parent.cversion + 1, pzxid=self.zxid)
        )
        self.changes.append((Change.DELETED, path))

    def check(self, path: str, expected_version: int | None) -> Row:
        """Raises NodeNotFoundError, BadVersionError."""
        row = self.find(path)
        if row is None:
            raise NodeNotFoundError(f"{path} does not exist")
        check_version(path, row.version, expected_version)
        return row

    def place(self, row: Row) -> None:
        """Make `row` the node at its path, with all of its numbers but `id` and `crc`; its parent is not told. For a restore."""
        before = self.find(row.path())
        if before is not None:
            self.connection.execute("DELETE FROM nodes WHERE id = ?", (before.id,))
            self._digest -= before.crc
        self._insert(row)

    # ---- Sessions of a metadata server

    def sessions(self) -> list[tuple[int, bytes, int]]:
        """(id, password, time-out in ms) of each."""
        return list(self.connection.execute(_SESSION + " ORDER BY id"))

    def add_session(self, session_id: int, password: bytes, timeout_ms: int) -> None:
        self.zxid += 1
        self.connection.execute("INSERT INTO sessions VALUES (?, ?, ?)", (session_id, password, timeout_ms))
        self._digest += _session_checksum(session_id, password, timeout_ms)

    def end_session(self, session_id: int) -> None:
        """Forget it and delete its ephemeral nodes."""
        for path in self.owned_by(session_id):
            self.delete(path, None)
        self.zxid += 1
        for row in self.connection.execute(_SESSION + " WHERE id = ?", (session_id,)).fetchall():
            self._digest -= _session_checksum(*row)
        self.connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def end_sessions_but(self, kept: list[int]) -> None:
        """End every session that owns a node or is remembered, except `kept`."""
        owners = self.connection.execute(
            "SELECT DISTINCT owner FROM nodes WHERE owner != 0 UNION SELECT id FROM sessions"
        )
        for (session_id,) in owners.fetchall():
            if session_id not in kept:
                self.end_session(session_id)

    def find(self, path: str) -> Row | None:
        """Raises CorruptionError."""
        columns = self.connection.execute(_FIND, split_path(path)).fetchone()
        if columns is None:
            return None
        return _checked(Row(*columns))

    def _insert(self, row: Row) -> None:
        crc = row.checksum()
        self.connection.execute(_INSERT, (crc, *row[2:]))
        self._digest += crc

    def _check_count(self, path: str, count: int) -> None:
        row = self.find(path)
        expected = 0 if row is None else row.children
        if count != expected:
            raise CorruptionError(
                f"the metadata node {path} has {expected} children and {count} are found; restore the store from a copy"
            )

    def _write(self, path: str, value: bytes, row: Row) -> None:
        self.zxid += 1
        self.update(row, row._replace(value=value, version=row.version + 1, mzxid=self.zxid, mtime_ms=self._now_ms()))
        self.changes.append((Change.WRITTEN, path))

    def update(self, before: Row, after: Row) -> None:
        """Put `after` in the place of `before`, whose path, owner and creation it shares."""
        crc = after.checksum()
        self.connection.execute(
            _UPDATE,
            (
                crc,
                after.value,
                after.version,
                after.next_sequence,
                after.children,
                after.cversion,
                after.mzxid,
                after.pzxid,
                after.mtime_ms,
                after.id,
            ),
        )
        self._digest += crc - before.crc

    def _check_ancestors(self, path: str) -> None:
        """Before the first parent is made: the nearest ancestor that exists may have children."""
        while (row := self.find(path)) is None:
            path = split_path(path)[0]
        if row.owner:
            raise EphemeralParentError(f"{path} is ephemeral and cannot have children")


def _checked(row: Row) -> Row:
    if row.checksum() != row.crc:
        raise CorruptionError(
            f"the metadata node {row.path()} does not match its checksum; restore the store from a copy"
        )
    return row


def _join(parent: str, name: str) -> str:
    return f"{parent}{name}" if parent == "/" else f"{parent}/{name}"


def _stat_of(row: Row) -> Stat:
    return Stat(
        czxid=row.czxid,
        mzxid=row.mzxid,
        ctime_ms=row.ctime_ms,
        mtime_ms=row.mtime_ms,
        version=row.version,
        cversion=row.cversion,
        owner=row.owner,
        data_length=len(row.value),
        children=row.children,
        pzxid=row.pzxid,
    )
