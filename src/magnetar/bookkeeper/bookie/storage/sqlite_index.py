"""The index in SQLite, where rocksdict cannot be installed. About a quarter of RocksDB's speed."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

from magnetar.base.errors import CorruptionError, DiskFullError, DiskIOError, StartupError
from magnetar.bookkeeper.bookie.storage.entry_log_format import Location
from magnetar.bookkeeper.bookie.storage.index import IndexedRun

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    ledger_id INTEGER, entry_id INTEGER, log_id INTEGER, offset INTEGER, size INTEGER, PRIMARY KEY (ledger_id, entry_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ledgers (ledger_id INTEGER PRIMARY KEY, state BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log_ends (log_id INTEGER PRIMARY KEY, offset INTEGER) WITHOUT ROWID;
"""

_ROWS_PER_STATEMENT: Final = 4096


class SqliteIndex:
    """One database, one connection, one lock."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise StartupError(f"cannot open the index {path}: {error}") from error
        self._open_transaction = False

    def locations(self, ledger_id: int, first_entry_id: int, count: int) -> list[Location]:
        found: list[Location] = []
        with self._guarded():
            rows = self._db.execute(
                "SELECT entry_id, log_id, offset, size FROM entries WHERE ledger_id = ? AND entry_id >= ? ORDER BY entry_id LIMIT ?",
                (ledger_id, first_entry_id, min(count, 2**62)),
            )
            for entry_id, log_id, offset, size in rows:
                if entry_id != first_entry_id + len(found):
                    break
                found.append(Location(log_id, offset, size))
        return found

    def last_entry_id(self, ledger_id: int) -> int:
        with self._guarded():
            (found,) = self._db.execute(
                "SELECT MAX(entry_id) FROM entries WHERE ledger_id = ?", (ledger_id,)
            ).fetchone()
        return -1 if found is None else int(found)

    def entry_ids(self, ledger_id: int, first_entry_id: int, count: int) -> list[int]:
        with self._guarded():
            rows = self._db.execute(
                "SELECT entry_id FROM entries WHERE ledger_id = ? AND entry_id >= ? ORDER BY entry_id LIMIT ?",
                (ledger_id, first_entry_id, count),
            )
            return [entry_id for (entry_id,) in rows]

    def write(
        self,
        runs: Iterable[IndexedRun],
        states: Sequence[tuple[int, bytes]],
        log_ends: Sequence[tuple[int, int]] = (),
    ) -> None:
        rows = ((run.ledger_id, entry_id, *location) for run in runs for entry_id, location in run.placed())
        with self._guarded():
            self._begin()
            while chunk := list(islice(rows, _ROWS_PER_STATEMENT)):
                self._db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", chunk)
            self._db.executemany("INSERT OR REPLACE INTO ledgers VALUES (?, ?)", states)
            self._db.executemany("INSERT OR REPLACE INTO log_ends VALUES (?, ?)", log_ends)
            self._commit()

    def delete_ledger(self, ledger_id: int, tombstone: bytes | None) -> None:
        with self._guarded():
            self._begin()
            self._db.execute("DELETE FROM entries WHERE ledger_id = ?", (ledger_id,))
            if tombstone is None:
                self._db.execute("DELETE FROM ledgers WHERE ledger_id = ?", (ledger_id,))
            else:
                self._db.execute("INSERT OR REPLACE INTO ledgers VALUES (?, ?)", (ledger_id, tombstone))

    def states(self) -> list[tuple[int, bytes]]:
        with self._guarded():
            return list(self._db.execute("SELECT ledger_id, state FROM ledgers ORDER BY ledger_id"))

    def log_ends(self) -> dict[int, int]:
        with self._guarded():
            return dict(self._db.execute("SELECT log_id, offset FROM log_ends"))

    def forget_log(self, log_id: int) -> None:
        with self._guarded():
            self._begin()
            self._db.execute("DELETE FROM log_ends WHERE log_id = ?", (log_id,))

    def sync(self) -> None:
        with self._guarded():
            self._commit()

    def close(self) -> None:
        with self._guarded():
            self._commit()
            self._db.close()

    def _begin(self) -> None:
        if not self._open_transaction:
            self._db.execute("BEGIN IMMEDIATE")
            self._open_transaction = True

    def _commit(self) -> None:
        if self._open_transaction:
            self._db.execute("COMMIT")
            self._open_transaction = False

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._open_transaction = False
                if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    raise DiskFullError(f"index: {error}") from error
                if error.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    raise CorruptionError(f"index: {error}") from error
                raise DiskIOError(f"index: {error}") from error
