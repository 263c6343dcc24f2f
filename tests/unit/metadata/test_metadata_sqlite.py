"""What only the SQLite store has: a file, a lock, damage, shared commits, indexed queries."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.base.errors import CorruptionError, InvalidArgumentError, StartupError, StorageError
from magnetar.base.executor import ThreadExecutor
from magnetar.metadata import sqlite_file, sqlite_tree
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.store import Node


@pytest.fixture
async def executor() -> AsyncIterator[ThreadExecutor]:
    made = ThreadExecutor("metadata")
    yield made
    made.close()


async def test_a_second_opener_is_told_to_wait_its_turn(
    tmp_path: Path, executor: ThreadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_S", 0.05)
    first = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    with pytest.raises(StartupError, match="another process"):
        await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    await first.close()
    second = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    await second.close()


@pytest.mark.parametrize("content", [b"this is not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
async def test_a_damaged_file_is_called_damaged(tmp_path: Path, executor: ThreadExecutor, content: bytes) -> None:
    (tmp_path / "m.db").write_bytes(content)
    with pytest.raises(StorageError, match="damaged"):
        await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    assert (tmp_path / "m.db").read_bytes() == content


async def test_damage_inside_is_an_error_and_never_a_missing_node(tmp_path: Path, executor: ThreadExecutor) -> None:
    file = tmp_path / "m.db"
    store = await SqliteMetadataStore.open(file, executor)
    await asyncio.gather(*(store.put(f"/nodes/{n:05d}", b"v" * 200) for n in range(2_000)))
    await store.close()
    content = bytearray(file.read_bytes())
    content[10 * 4096 :] = b"\xa5" * (len(content) - 10 * 4096)
    file.write_bytes(content)
    with pytest.raises(CorruptionError, match="restore it from a copy"):
        await SqliteMetadataStore.open(file, executor)
    assert file.read_bytes() == content
    store = await SqliteMetadataStore.open_read_only(file, executor)  # which looks at nothing but what is asked for
    paths = [f"/nodes/{n:05d}" for n in range(2_000)]
    answers = await asyncio.gather(*(store.get(path) for path in paths), return_exceptions=True)
    assert any(isinstance(answer, CorruptionError) for answer in answers)
    assert all(isinstance(answer, CorruptionError) or answer == Node(b"v" * 200, 0) for answer in answers)
    with pytest.raises(CorruptionError):
        await store.children("/nodes")
    await store.close()


async def test_another_applications_database_is_refused(tmp_path: Path, executor: ThreadExecutor) -> None:
    with sqlite3.connect(tmp_path / "m.db") as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(CorruptionError, match="another application"):
        await SqliteMetadataStore.open(tmp_path / "m.db", executor)


async def test_a_newer_schema_is_refused(tmp_path: Path, executor: ThreadExecutor) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    await store.close()
    with sqlite3.connect(tmp_path / "m.db") as direct:
        direct.execute("PRAGMA user_version = 99")
    direct.close()
    with pytest.raises(StartupError, match="upgrade"):
        await SqliteMetadataStore.open(tmp_path / "m.db", executor)


async def test_waiting_writes_share_a_transaction(tmp_path: Path, executor: ThreadExecutor) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    begun: list[str] = []
    store._tree.connection.set_trace_callback(lambda text: begun.append(text) if text.startswith("BEGIN") else None)
    await asyncio.gather(*(store.put(f"/a/{n}", b"") for n in range(500)))
    assert len(begun) < 250
    store._tree.connection.set_trace_callback(None)
    await store.close()


async def test_a_cancelled_writer_still_tells_the_watchers(tmp_path: Path, executor: ThreadExecutor) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    heard: list[str] = []
    store.watch(heard.append)
    writer = asyncio.get_running_loop().create_task(store.put("/a", b"x"))
    await asyncio.sleep(0)
    writer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writer
    assert await store.get("/a") in (Node(b"x", 0), None)
    await asyncio.sleep(0)
    assert heard == (["/a"] if await store.exists("/a") else [])
    await store.close()


async def test_after_a_failed_commit_nothing_more_is_written(
    tmp_path: Path, executor: ThreadExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    await store.put("/before", b"")

    def fail(batch: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(store, "_commit", fail)
        with pytest.raises(StorageError, match="disk I/O error"):
            await store.put("/a", b"")
    with pytest.raises(Exception, match="stopped after"):
        await store.put("/b", b"")
    assert await store.exists("/before")
    await store.close()


@pytest.mark.parametrize("statement", [sqlite_tree.CHILDREN])
async def test_listings_read_the_index_alone(tmp_path: Path, executor: ThreadExecutor, statement: str) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    plan = store._tree.connection.execute("EXPLAIN QUERY PLAN " + statement, ("/a",)).fetchall()
    assert "USING COVERING INDEX nodes_by_path" in plan[0][3]
    assert not any("TEMP B-TREE" in row[3] for row in plan)
    await store.close()


_CRASHER = """
import asyncio, os, sys
from magnetar.base.executor import ThreadExecutor
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.sqlite import SqliteMetadataStore
async def main():
    store = await SqliteMetadataStore.open(sys.argv[1], ThreadExecutor("metadata"))
    await asyncio.gather(*(store.put(f"/topics/{n:03d}", b"v") for n in range(100)))
    await store.put("/brokers/me", b"", ephemeral=True)
    os._exit(9)
asyncio.run(main())
"""


async def test_what_was_answered_survives_a_killed_process(tmp_path: Path, executor: ThreadExecutor) -> None:
    done = subprocess.run([sys.executable, "-c", _CRASHER, str(tmp_path / "m.db")], check=False, timeout=30)
    assert done.returncode == 9
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    assert await store.children_count("/topics") == 100
    assert await store.children("/brokers") == []
    await store.close()


_SCHEMA_1 = """
CREATE TABLE nodes (id INTEGER PRIMARY KEY, parent TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    version INTEGER NOT NULL, ephemeral INTEGER NOT NULL, next_sequence INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX nodes_by_path ON nodes (parent, name);
CREATE INDEX nodes_ephemeral ON nodes (id) WHERE ephemeral = 1;
INSERT INTO nodes (parent, name, value, version, ephemeral, next_sequence) VALUES
    ('', '', x'', 0, 0, 0), ('/', 'a', x'', 0, 0, 7), ('/a', 'b', x'01', 3, 0, 0), ('/a', 'c', x'', 0, 1, 0),
    ('/a/b', 'd', x'', 0, 0, 0);
PRAGMA application_id = 0x4D474E54;
PRAGMA user_version = 1;
"""


async def test_a_file_of_the_first_release_is_brought_up(tmp_path: Path, executor: ThreadExecutor) -> None:
    with sqlite3.connect(tmp_path / "m.db") as old:
        old.executescript(_SCHEMA_1)
    old.close()
    with pytest.raises(StartupError, match="start the server once"):
        await SqliteMetadataStore.open_read_only(tmp_path / "m.db", executor)
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    assert await store.get("/a/b") == Node(b"\x01", 3)
    assert await store.children("/a") == ["b"]
    assert [await store.children_count(path) for path in ("/", "/a", "/a/b", "/a/b/d")] == [1, 1, 1, 0]
    assert (await store.put("/a/s-", b"", sequential=True))[0] == "/a/s-0000000007"
    await store.delete("/a/b/d")
    await store.delete("/a/b")
    await store.close()


async def test_others_may_read_while_one_writes(tmp_path: Path, executor: ThreadExecutor) -> None:
    file = tmp_path / "m.db"
    with pytest.raises(StartupError, match="there is no metadata file"):
        await SqliteMetadataStore.open_read_only(file, executor)
    store = await SqliteMetadataStore.open(file, executor)
    await store.put("/a", b"1")
    reader = await SqliteMetadataStore.open_read_only(file, executor)
    assert await reader.get("/a") == Node(b"1", 0)
    await store.put("/a", b"2")
    assert await reader.get("/a") == Node(b"2", 1)
    with pytest.raises(InvalidArgumentError, match="for reading"):
        await reader.put("/a", b"3")
    await reader.close()
    await store.put("/a", b"3")
    await store.close()
    reader = await SqliteMetadataStore.open_read_only(file, executor)
    assert await reader.get("/a") == Node(b"3", 2)
    await reader.close()


async def test_stat_knows_what_zookeepers_does(tmp_path: Path, executor: ThreadExecutor) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor, FixedClock(1_000))
    await store.put("/a", b"one")
    await store.put("/a/b", b"", ephemeral=True)
    await store.put("/a", b"longer")
    await store.delete("/a/b")
    stat = await store.stat("/a")
    assert stat is not None
    assert (stat.version, stat.cversion, stat.data_length, stat.children, stat.owner) == (1, 2, 6, 0, 0)
    assert stat.czxid < stat.mzxid < stat.pzxid
    assert stat.ctime_ms == stat.mtime_ms == 1_000
    assert await store.stat("/b") is None
    await store.close()


class FixedClock:
    def __init__(self, ms: int) -> None:
        self._ms = ms

    def now_ms(self) -> int:
        return self._ms

    def monotonic_s(self) -> float:
        return self._ms / 1000


# ---- Damage


def _content(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    nodes = "SELECT parent, name, value, version, owner, next_sequence, children, czxid, mzxid, pzxid FROM nodes ORDER BY 1, 2"
    return [
        *connection.execute(nodes),
        *connection.execute("SELECT * FROM sessions"),
        *connection.execute("SELECT * FROM state"),
    ]


async def _filled(file: Path, executor: ThreadExecutor) -> list[tuple[object, ...]]:
    store = await SqliteMetadataStore.open(file, executor)
    await asyncio.gather(*(store.put(f"/ledgers/{n:03d}", bytes([n % 256]) * 60) for n in range(150)))
    for _ in range(5):
        await store.put("/ledgers/idgen/ID-", b"", sequential=True)
    await store.delete("/ledgers/007")
    content = await executor.run(_content, store._tree.connection)
    await store.close()
    return content


async def test_a_flipped_bit_anywhere_in_the_file_is_refused_or_changes_nothing(
    tmp_path: Path, executor: ThreadExecutor
) -> None:
    file, copy = tmp_path / "m.db", tmp_path / "copy" / "m.db"
    before = await _filled(file, executor)
    data, mark = file.read_bytes(), sqlite_file.mark_path(file).read_bytes()
    copy.parent.mkdir()
    refused = 0
    for offset in range(0, len(data), 61):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << offset % 8
        for left in copy.parent.iterdir():
            left.unlink()
        copy.write_bytes(flipped)
        sqlite_file.mark_path(copy).write_bytes(mark)
        try:
            opened = sqlite_file.connect(copy)
        except (StorageError, StartupError):
            refused += 1
            continue
        assert _content(opened.connection) == before, f"bit {offset % 8} of byte {offset}"
        opened.close()
    assert refused > len(data) // 61 // 3  # the others are in unused parts of pages


async def test_a_bit_that_flips_while_the_file_is_open_is_an_error_when_it_is_read(
    tmp_path: Path, executor: ThreadExecutor
) -> None:
    file = tmp_path / "m.db"
    await _filled(file, executor)
    data = file.read_bytes()
    file.write_bytes(data.replace(bytes([50]) * 60, bytes([50]) * 59 + bytes([51]), 1))
    store = await SqliteMetadataStore.open_read_only(file, executor)
    with pytest.raises(CorruptionError, match="/ledgers/050"):
        await store.get("/ledgers/050")
    assert await store.get("/ledgers/051") == Node(bytes([51]) * 60, 0)
    await store.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_file_of_an_older_release_gets_its_checksums(
    tmp_path: Path, executor: ThreadExecutor, version: int
) -> None:
    file = tmp_path / "m.db"
    with sqlite3.connect(file) as old:
        old.executescript(sqlite_file._SCHEMA + sqlite_file._SESSIONS)
        old.execute(
            "INSERT INTO nodes (parent, name, value, version, owner, next_sequence) VALUES ('/', 'a', x'61', 3, 0, 0)"
        )
        old.execute("UPDATE nodes SET children = 1, next_sequence = 1 WHERE name = ''")
        old.execute("UPDATE state SET zxid = 77")
        if version == 1:
            old.executescript("DROP INDEX nodes_by_owner; DROP TABLE sessions; DROP TABLE state;")
            old.execute("ALTER TABLE nodes RENAME COLUMN owner TO ephemeral")
            for column in ("children", "cversion", "czxid", "mzxid", "pzxid", "ctime_ms", "mtime_ms"):
                old.execute(f"ALTER TABLE nodes DROP COLUMN {column}")
            old.execute("CREATE INDEX nodes_ephemeral ON nodes (ephemeral)")
        old.execute(f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}")
        old.execute(f"PRAGMA user_version = {version}")
    old.close()
    for _ in range(2):
        store = await SqliteMetadataStore.open(file, executor)
        assert await store.get("/a") == Node(b"a", 3)
        assert await store.children("/") == ["a"]
        await store.close()
    sqlite_file.mark_path(file).unlink()
    if version == 2:
        with pytest.raises(CorruptionError, match="commit mark"):
            await SqliteMetadataStore.open(file, executor)


async def test_an_error_is_freed_without_a_collection_of_garbage(tmp_path: Path, executor: ThreadExecutor) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db", executor)
    await store.put("/a", b"")
    seen: list[weakref.ref[BaseException]] = []
    gc.collect()
    gc.disable()
    try:
        for refused in (lambda: store.put("/a", b"", expected_version=7), lambda: store.delete("/b")):
            try:
                await refused()
            except MetadataError as error:
                seen.append(weakref.ref(error))
        await store.get("/a")
        assert [error() for error in seen] == [None, None]
    finally:
        gc.enable()
        await store.close()
