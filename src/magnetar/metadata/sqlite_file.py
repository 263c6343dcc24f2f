"""The file of the embedded metadata: who may open it, its schema and its settings, and what SQLite's errors mean.

One process owns the file, by a lock on a file beside it; others may read at the same time (`connect_read_only`).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from magnetar.base.errors import CorruptionError, DiskFullError, DiskIOError, MagnetarError, StartupError, StorageError

LOCK_TIMEOUT_S = 2.0
"""How long opening waits for another process to let go of the file before it gives up with StartupError."""

LOCK_POLL_S: Final = 0.05

PAGE_CACHE_KIB: Final = 8 * 1024
"""SQLite's own page cache; beyond it pages come from the operating system's."""

WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
"""A write-ahead log that a burst has made longer is cut back to this size at the next checkpoint."""

APPLICATION_ID: Final = 0x4D474E54
"""Marks the file as ours (`MGNT`) in SQLite's header."""

SCHEMA_VERSION: Final = 2
"""In the header's user version. A file with a higher one was written by a newer release and is refused; 1 is brought up."""

_SCHEMA: Final = """
CREATE TABLE nodes (
    id INTEGER PRIMARY KEY,
    parent TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL,
    children INTEGER NOT NULL DEFAULT 0,
    cversion INTEGER NOT NULL DEFAULT 0,
    czxid INTEGER NOT NULL DEFAULT 0,
    mzxid INTEGER NOT NULL DEFAULT 0,
    pzxid INTEGER NOT NULL DEFAULT 0,
    ctime_ms INTEGER NOT NULL DEFAULT 0,
    mtime_ms INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX nodes_by_path ON nodes (parent, name);
CREATE INDEX nodes_by_owner ON nodes (owner) WHERE owner != 0;
INSERT INTO nodes (parent, name, value, version, owner, next_sequence) VALUES ('', '', x'', 0, 0, 0);
"""
_SESSIONS: Final = """
CREATE TABLE sessions (id INTEGER PRIMARY KEY, password BLOB NOT NULL, timeout_ms INTEGER NOT NULL) STRICT;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), zxid INTEGER NOT NULL) STRICT;
INSERT INTO state (one, zxid) VALUES (1, 0);
"""
_FROM_1: Final = """
DROP INDEX nodes_ephemeral;
ALTER TABLE nodes RENAME COLUMN ephemeral TO owner;
ALTER TABLE nodes ADD COLUMN children INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN cversion INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN czxid INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN mzxid INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN pzxid INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN ctime_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN mtime_ms INTEGER NOT NULL DEFAULT 0;
CREATE INDEX nodes_by_owner ON nodes (owner) WHERE owner != 0;
CREATE TEMP TABLE counts AS SELECT parent AS path, COUNT(*) AS n FROM nodes WHERE parent != '' GROUP BY parent;
CREATE UNIQUE INDEX temp.counts_by_path ON counts (path);
UPDATE nodes SET children = COALESCE((SELECT n FROM counts WHERE path = CASE nodes.parent
    WHEN '' THEN '/' WHEN '/' THEN '/' || nodes.name ELSE nodes.parent || '/' || nodes.name END), 0);
UPDATE nodes SET next_sequence = MAX(next_sequence, children), cversion = children;
DROP TABLE counts;
"""


def connect(path: Path) -> tuple[sqlite3.Connection, int]:
    """Open or create the file for this process alone; (connection, descriptor of the lock: close it last). Blocks.

    Raises StartupError when another process has it or it is too new, CorruptionError when it is damaged or not ours.
    """
    lock = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
        connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        release(lock)
        raise StartupError(
            f"cannot open the metadata file {path}: {error}; check the directory's permissions"
        ) from error
    try:
        _prepare(path, connection)
    except sqlite3.Error as error:
        connection.close()
        release(lock)
        if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StartupError(f"another process is using the metadata file {path}; stop it first") from error
        raise translate(error, path) from error
    except MagnetarError:
        connection.close()
        release(lock)
        raise
    return connection, lock


def connect_read_only(path: Path) -> sqlite3.Connection:
    """See what is committed, also while another process writes. Raises StartupError or CorruptionError. Blocks."""
    if not path.exists():
        raise StartupError(f"there is no metadata file {path}; name the data directory of a server that has run")
    mode = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"  # without a log nobody writes
    try:
        connection = sqlite3.connect(
            f"file:{path.absolute()}?mode={mode}", uri=True, timeout=LOCK_TIMEOUT_S, check_same_thread=False
        )
        connection.isolation_level = None
        _check_header(path, connection)
        if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
            raise StartupError(f"{path} was written by an older release; start the server once to bring it up")
    except sqlite3.Error as error:
        raise translate(error, path) from error
    return connection


def release(lock: int) -> None:
    if lock >= 0:
        os.close(lock)


def translate(error: sqlite3.Error, path: Path) -> StorageError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptionError(f"the metadata file {path} is damaged: {error}; restore it from a copy")
    if code == sqlite3.SQLITE_FULL:
        return DiskFullError(f"no room to write the metadata file {path}")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return DiskIOError(f"reading or writing the metadata file {path} failed: {error}")
    return StorageError(f"the metadata file {path}: {error}")


def _lock(path: Path) -> int:
    descriptor = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    give_up_at = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if time.monotonic() >= give_up_at:
                os.close(descriptor)
                raise StartupError(f"another process is using the metadata file {path}; stop it first") from None
            time.sleep(LOCK_POLL_S)


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageError(f"the file system of {path} does not support SQLite's write-ahead log (mode {mode})")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE_KIB}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    connection.execute("BEGIN EXCLUSIVE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        if connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
            raise CorruptionError(f"{path} is an SQLite file of another application, not a metadata store")
        _run(connection, _SCHEMA + _SESSIONS)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    else:
        _check_header(path, connection)
        if version == 1:
            _run(connection, _FROM_1 + _SESSIONS)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _check_header(path: Path, connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise CorruptionError(f"{path} is an SQLite file of another application, not a metadata store")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StartupError(
            f"{path} has schema version {version}, this release knows {SCHEMA_VERSION}; upgrade magnetar"
        )


def _run(connection: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)
