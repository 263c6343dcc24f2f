"""Chooses the index of a directory."""

from __future__ import annotations

import importlib.util
import os
from typing import Final

from magnetar.base.errors import ConfigError, StartupError
from magnetar.bookkeeper.bookie.storage.index import Index

ROCKSDB_DIR: Final = "index.rocksdb"
SQLITE_FILE: Final = "index.sqlite"


def open_index(directory: str, backend: str) -> Index:
    """Open the directory's index, or create one: `auto` prefers RocksDB, but never a second index beside an existing one."""
    existing = {
        name
        for name, path in (("rocksdb", ROCKSDB_DIR), ("sqlite", SQLITE_FILE))
        if os.path.exists(os.path.join(directory, path))
    }
    if backend == "auto":
        backend = next(iter(existing)) if len(existing) == 1 else ("rocksdb" if _rocksdict_is_here() else "sqlite")
    if existing and backend not in existing:
        raise ConfigError(f"{directory} has a {' and '.join(sorted(existing))} index, not {backend}; set index = auto")
    if backend == "sqlite":
        from magnetar.bookkeeper.bookie.storage.sqlite_index import SqliteIndex

        return SqliteIndex(os.path.join(directory, SQLITE_FILE))
    if not _rocksdict_is_here():
        raise StartupError(f"{directory} has a RocksDB index; install rocksdict to open it")
    from magnetar.bookkeeper.bookie.storage.rocksdb_index import RocksdbIndex

    return RocksdbIndex(os.path.join(directory, ROCKSDB_DIR))


def _rocksdict_is_here() -> bool:
    return importlib.util.find_spec("rocksdict") is not None
