"""The file of the embedded metadata: who may open it, its schema and its settings, its damage, and what SQLite's errors mean.

One process owns the file, by a lock on a file beside it; others may read at the same time (`connect_read_only`).

Before the owner opens it for writing, the whole file is read and held against its own checksums and against the commit mark
(`commit_mark`). A file that fails is left exactly as it is, with its log: closing it the ordinary way would carry what is readable of the
log into the file, and delete the rest.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from magnetar.base.errors import CorruptionError, DiskFullError, DiskIOError, MagnetarError, StartupError, StorageError
from magnetar.metadata.commit_mark import STORE_ID_BYTES, CommitMark, Mark, mark_path, read_mark
from magnetar.metadata.sqlite_tree import COLUMNS, Row, State, compute_digest, read_state

FILE_NAME: Final = "metadata.sqlite"
"""In the data directory of a standalone server and of a metadata server."""

LOCK_TIMEOUT_S = 2.0
"""How long opening waits for another process to let go of the file before it gives up with StartupError."""

LOCK_POLL_S: Final = 0.05

PAGE_CACHE_KIB: Final = 8 * 1024
"""SQLite's own page cache; beyond it pages come from the operating system's."""

EPOCH_SHIFT: Final = 32
"""Transaction numbers count in the lower bits, as ZooKeeper's; the upper ones say how often the store was salvaged."""

WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
"""A write-ahead log that a burst has made longer is cut back to this size at the next checkpoint."""

_WAL_PAGES_MAX: Final = 1000
_WAL_PAGES_MIN: Final = 32
_WAL_DISK_PART: Final = 64
_PAGE_BYTES: Final = 4096
"""The log is taken into the file when it has so many pages: one part in `_WAL_DISK_PART` of the disk, within the two bounds."""

APPLICATION_ID: Final = 0x4D474E54
"""Marks the file as ours (`MGNT`) in SQLite's header."""

SCHEMA_VERSION: Final = 3
"""In the header's user version. A file with a higher one was written by a newer release and is refused; 1 and 2 are brought up."""

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
_FROM_2: Final = """
ALTER TABLE nodes ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN store_id BLOB NOT NULL DEFAULT x'';
ALTER TABLE state ADD COLUMN digest INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;
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


class MetadataFile:
    """The file, opened by its owner. `mark` is to be told of every commit."""

    def __init__(self, connection: sqlite3.Connection, mark: CommitMark, lock: int) -> None:
        self.connection = connection
        self.mark = mark
        self._lock = lock

    def close(self) -> None:
        """Blocks."""
        self.connection.close()
        self.mark.close()
        release(self._lock)


def connect(path: Path) -> MetadataFile:
    """Open or create the file for this process alone. Blocks.

    Raises StartupError when another process has it or it is too new, CorruptionError when it is damaged, incomplete or not ours.
    """
    lock = -1
    connection: sqlite3.Connection | None = None
    if restoring_path(path).exists():
        raise StartupError(f"a restore of {path} was broken off; repeat it, or remove {restoring_path(path).name}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = lock_file(path)
        _check(path)
        os.close(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        )  # SQLite gives its mode to the log beside it
        connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        state = _prepare(path, connection)
        assert state is not None
        return MetadataFile(connection, CommitMark(path, Mark(state.store_id, state.zxid)), lock)
    except BaseException as error:
        if connection is not None:
            connection.close()
        release(lock)
        if isinstance(error, sqlite3.Error):
            raise _not_opened(error, path) from error
        if isinstance(error, OSError):
            raise StartupError(
                f"cannot open the metadata file {path}: {error}; check the directory's permissions"
            ) from error
        raise


def _not_opened(error: sqlite3.Error, path: Path) -> MagnetarError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StartupError(f"another process is using the metadata file {path}; stop it first")
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN:
        return StartupError(f"cannot open the metadata file {path}: {error}; check the directory's permissions")
    return translate(error, path)


class Salvage(NamedTuple):
    """What `salvage` has accepted."""

    copy: Path
    """The files as they were."""
    zxid: int
    """The last transaction that the file holds."""
    acknowledged: int
    """The last one that was acknowledged, as far as the mark says; 0 when it says nothing."""
    damaged: tuple[str, ...]
    """Paths of nodes that do not match their checksums. They stand as they are."""


def salvage(path: Path) -> Salvage:
    """Make what is readable of a damaged or incomplete file a whole store again, after copying all of its files. Blocks.

    It gets a new store id and transaction numbers of a new epoch, above all that clients of the old store have seen: they may come back.
    Raises StartupError when a process has the file, CorruptionError when SQLite cannot read it.
    """
    lock = lock_file(path)
    try:
        copy = _set_aside(path)
        try:
            mark = read_mark(path)
        except CorruptionError:
            mark = None
        connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        try:
            _check_pages(path, connection)
            _prepare(path, connection, check_state=False)
            _, damaged = compute_digest(connection)
            found = connection.execute("SELECT zxid FROM state").fetchone()[0]
            acknowledged = 0 if mark is None else mark.zxid
            connection.execute("BEGIN EXCLUSIVE")
            epoch = (max(found, acknowledged) >> EPOCH_SHIFT) + 1
            connection.execute("UPDATE state SET zxid = ?", (epoch << EPOCH_SHIFT,))
            state = _seal(connection, os.urandom(STORE_ID_BYTES))
            mark_path(path).unlink(missing_ok=True)
            CommitMark(path, Mark(state.store_id, 0)).close()  # below the commit that follows
            connection.execute("COMMIT")
        finally:
            connection.close()
        return Salvage(copy, found, acknowledged, tuple(row.path() for row in damaged))
    except (sqlite3.Error, UnicodeError) as error:
        raise _damaged(path, str(error)) from error
    finally:
        release(lock)


def _set_aside(path: Path) -> Path:
    """Copy the file, its log and its mark into a directory of their own."""
    copy = next(
        each for number in itertools.count(1) if not (each := path.parent / f"{path.name}-salvaged-{number}").exists()
    )
    copy.mkdir()
    for each in (path, Path(f"{path}-wal"), mark_path(path)):
        if each.exists():
            shutil.copy2(each, copy)
    return copy


def connect_read_only(path: Path) -> sqlite3.Connection:
    """See what is committed, also while another process writes. Raises StartupError or CorruptionError. Blocks."""
    if not path.exists():
        raise StartupError(f"there is no metadata file {path}; name the data directory of a server that has run")
    mark = read_mark(path)  # first: a commit of the owner meanwhile cannot make it look too new
    try:
        connection = _open_to_read(path)
        _check_header(path, connection)
        if _version(connection) != SCHEMA_VERSION:
            raise StartupError(f"{path} was written by an older release; start the server once to bring it up")
        _check_mark(path, read_state(connection), mark)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    return connection


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Never writes to the file, and leaves its log as it is."""
    mode = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"  # without a log nobody writes
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=LOCK_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def release(lock: int) -> None:
    if lock >= 0:
        os.close(lock)


def translate(error: sqlite3.Error, path: Path) -> StorageError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptionError(f"the metadata file {path} is damaged: {error}; restore it from a copy")
    if code == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return DiskFullError(f"no room to write the metadata file {path}")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return DiskIOError(f"reading or writing the metadata file {path} failed: {error}")
    return StorageError(f"the metadata file {path}: {error}")


def restoring_path(path: Path) -> Path:
    """Where a restored file is made before it takes its place; while it is there, nobody opens `path`."""
    return path.with_name(f"{path.name}.restoring")


def lock_file(path: Path) -> int:
    """Take the file for this process; the descriptor to `release`. Raises StartupError when another process has it."""
    descriptor = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


def _check(path: Path) -> None:
    """Read all of the file. Raises CorruptionError for what is damaged or missing, and has changed nothing then."""
    mark = read_mark(path) if mark_path(path).exists() else None
    has_content = path.exists() and path.stat().st_size > 0
    if not has_content and Path(f"{path}-wal").exists() and Path(f"{path}-wal").stat().st_size > 0:
        raise CorruptionError(f"the metadata file {path} is missing and its log is there; restore it from a copy")
    if not has_content:
        if mark is not None and mark.zxid > 0:
            raise CorruptionError(
                f"the metadata file {path} is missing or empty, and its commit mark says that it had {mark.zxid} transactions; "
                "restore it from a copy, or begin anew with an empty data directory"
            )
        return
    connection = _open_to_read(path)
    connection.text_factory = _any_text
    try:
        _check_content(path, connection, mark)
    except (sqlite3.DatabaseError, UnicodeError) as error:  # SQLite also puts what is damaged into its own messages
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN):
            raise
        raise _damaged(path, str(error)) from error
    finally:
        connection.close()


def _damaged(path: Path, what: str) -> CorruptionError:
    return CorruptionError(f"the metadata file {path} is damaged: {what}; restore it from a copy")


def _check_content(path: Path, connection: sqlite3.Connection, mark: Mark | None) -> None:
    version = _version(connection)
    if version == 0:  # an empty one, or not ours: `_prepare` looks
        if mark is not None and mark.zxid > 0:
            raise _lost_commits(path, 0, mark)
        return
    _check_header(path, connection)
    if version < SCHEMA_VERSION:
        return
    _check_pages(path, connection)
    state = read_state(connection)
    _check_mark(path, state, mark)
    _check_digest(path, connection, state)


def check_tree(path: Path, connection: sqlite3.Connection) -> None:
    """Read all of what the connection's transaction sees, and hold it against its checksums. Raises CorruptionError. Blocks."""
    connection.text_factory = _any_text
    try:
        _check_pages(path, connection)
        _check_digest(path, connection, read_state(connection))
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except UnicodeError as error:
        raise _damaged(path, str(error)) from error


def _any_text(data: bytes) -> str:
    """What is damaged is to be named."""
    return data.decode(errors="replace")


def _check_pages(path: Path, connection: sqlite3.Connection) -> None:
    problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise _damaged(path, " ".join(problem.split()))


def _check_digest(path: Path, connection: sqlite3.Connection, state: State) -> None:
    digest, damaged = compute_digest(connection)
    if damaged:
        raise _damaged(path, f"{len(damaged)} nodes do not match their checksums, the first is {damaged[0].path()!r}")
    if digest != state.digest:
        raise _damaged(path, "nodes or sessions are missing")


def _check_mark(path: Path, state: State, mark: Mark | None) -> None:
    """Raises CorruptionError unless the file has every commit that was acknowledged."""
    if mark is None:
        if state.zxid > 0:
            raise CorruptionError(
                f"the commit mark {mark_path(path)} is missing, so nobody can tell whether {path} is complete; "
                f"restore both from a copy, or go on without what is missing: magnetar metadata salvage {path.parent}"
            )
    elif mark.store_id != state.store_id:
        raise CorruptionError(f"{mark_path(path)} belongs to another store than {path}; restore both from one copy")
    elif state.zxid < mark.zxid:
        raise _lost_commits(path, state.zxid, mark)


def _lost_commits(path: Path, zxid: int, mark: Mark) -> CorruptionError:
    return CorruptionError(
        f"the metadata file {path} has lost commits: it ends at transaction {zxid:#x}, and {mark.zxid:#x} was acknowledged. "
        "Its write-ahead log is damaged or missing, or an older copy was put in its place. Nothing was changed. Restore the "
        f"newest copy of the directory, or go on without what is missing: magnetar metadata salvage {path.parent}"
    )


def _prepare(path: Path, connection: sqlite3.Connection, *, check_state: bool = True) -> State | None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageError(f"the file system of {path} does not support SQLite's write-ahead log (mode {mode})")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE_KIB}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_wal_pages(path)}")
    connection.execute("BEGIN EXCLUSIVE")
    version = _version(connection)
    if version == 0:
        if connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
            raise CorruptionError(f"{path} is an SQLite file of another application, not a metadata store")
        _run(connection, _SCHEMA + _SESSIONS)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    else:
        _check_header(path, connection)
        if version == 1:
            _run(connection, _FROM_1 + _SESSIONS)
    if version < SCHEMA_VERSION:
        _run(connection, _FROM_2)
        _seal(connection, os.urandom(STORE_ID_BYTES))
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    state = read_state(connection) if check_state or version < SCHEMA_VERSION else None
    if version in (1, 2) and state is not None:
        # Before the commit: from then on a file without its mark is refused.
        CommitMark(path, Mark(state.store_id, state.zxid)).close()
    connection.execute("COMMIT")
    return state


def _seal(connection: sqlite3.Connection, store_id: bytes) -> State:
    """Give every node and the tree the checksums of what they are now."""
    rows = [Row(*columns) for columns in connection.execute(f"SELECT {COLUMNS} FROM nodes")]
    connection.executemany("UPDATE nodes SET crc = ? WHERE id = ?", [(row.checksum(), row.id) for row in rows])
    digest, _ = compute_digest(connection)
    zxid = connection.execute("SELECT zxid FROM state").fetchone()[0]
    state = State(zxid, store_id, digest)
    connection.execute("UPDATE state SET store_id = ?, digest = ?, crc = ?", (store_id, digest, state.checksum()))
    return state


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _wal_pages(path: Path) -> int:
    """SQLite's own 1,000 pages, fewer on a small disk: the log and then the file grow by as much before room is used again."""
    return max(
        _WAL_PAGES_MIN, min(_WAL_PAGES_MAX, shutil.disk_usage(path.parent).total // _WAL_DISK_PART // _PAGE_BYTES)
    )


def _check_header(path: Path, connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise CorruptionError(f"{path} is an SQLite file of another application, not a metadata store")
    version = _version(connection)
    if version > SCHEMA_VERSION:
        raise StartupError(
            f"{path} has schema version {version}, this release knows {SCHEMA_VERSION}; upgrade magnetar"
        )


def _run(connection: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)
