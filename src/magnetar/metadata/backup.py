"""Backup and restore of the metadata tree in an SQLite file (a standalone server's, or a metadata server's).

A backup is one read transaction: the tree as of one transaction number, while a server goes on writing. Ephemeral nodes and sessions stay
out: they belong to processes, which make them again.

A restored tree is older than the bookies beside it. So three numbers jump, and nothing is handed out twice: ledger ids and producer
names by `ID_MARGIN`, transaction numbers to ZooKeeper's next epoch. The ledger ids that may have been handed out since the backup are
noted in the tree (`paths.RESTORED_PATH`); bookies do not collect ledgers among them until somebody says so.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from magnetar.base.backup_file import BackupEncoder, BackupReader, NewFile, fsync_directory
from magnetar.base.errors import CorruptionError, DiskIOError, InvalidArgumentError
from magnetar.metadata import paths
from magnetar.metadata.commit_mark import mark_path
from magnetar.metadata.sqlite_file import (
    EPOCH_SHIFT,
    MetadataFile,
    check_tree,
    connect,
    connect_read_only,
    lock_file,
    release,
    restoring_path,
    translate,
)
from magnetar.metadata.sqlite_tree import Row, SqliteTree
from magnetar.metadata.store import split_path

NODE_KIND: Final = 2

METADATA_BACKUP: Final = "metadata"
"""`kind` of a header whose file holds the tree alone."""

ID_MARGIN: Final = 1_000_000
"""Ledger ids and producer names that a restore leaves out: more than a cluster hands out between two backups."""

_SEQUENTIAL: Final = (paths.PRODUCER_NAME_PREFIX.rstrip("/"), paths.LEDGER_ID_PREFIX.rpartition("/")[0])

_NODE: Final = Struct(">I8q")

Progress = Callable[[int, int | None], None]
"""`progress(done, total)`."""


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """What a backup holds. `instance_id`: of the cluster, "" of a tree without one; `time_ms`: when it was taken."""

    kind: str
    instance_id: str
    zxid: int
    time_ms: int
    nodes: int
    size_bytes: int
    sha256: str

    @property
    def time(self) -> str:
        return datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")


class Earlier(NamedTuple):
    """What is known of the tree in whose place a restored one comes: its next ledger id, its last transaction; 0 without one."""

    next_id: int
    zxid: int


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node as it was. Times in ms since the epoch; the numbers are ZooKeeper's."""

    path: str
    value: bytes
    version: int
    next_sequence: int
    cversion: int
    czxid: int
    mzxid: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int

    def pack(self) -> bytes:
        path = self.path.encode()
        numbers = (
            self.version,
            self.next_sequence,
            self.cversion,
            self.czxid,
            self.mzxid,
            self.pzxid,
            self.ctime_ms,
            self.mtime_ms,
        )
        return _NODE.pack(len(path), *numbers) + path + self.value


def unpack_node(body: bytes) -> TreeNode:
    """Raises CorruptionError."""
    try:
        path_bytes, *numbers = _NODE.unpack_from(body)
        path = body[_NODE.size : _NODE.size + path_bytes].decode()
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptionError(f"a node of the backup has a wrong form: {error}") from error
    return TreeNode(path, body[_NODE.size + path_bytes :], *numbers)


# ---- Backup


class TreeSnapshot:
    """The committed tree of an SQLite file at the moment at which this is made; `check` it, and `close` it. Blocks, the rest for long.

    Raises StartupError (no such file), CorruptionError (also for a file that ends before its commit mark).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect_read_only(path)
        self.count = 0
        try:
            self._connection.execute("BEGIN")
            self._tree = SqliteTree(self._connection, lambda: 0)
            self.zxid: int = self._tree.zxid
            found = self._tree.get(paths.INSTANCE_ID_PATH)
        except sqlite3.Error as error:
            self.close()
            raise translate(error, path) from error
        except BaseException:
            self.close()
            raise
        self.instance_id = "" if found is None else found[0].decode(errors="replace")

    def check(self) -> None:
        """Count the nodes, and hold all of the tree against its checksums. Raises CorruptionError: a damaged tree is not backed up."""
        check_tree(self._path, self._connection)
        row = self._connection.execute("SELECT COUNT(*) FROM nodes WHERE owner = 0").fetchone()
        self.count = row[0]

    def header(self, kind: str, version: str) -> dict[str, Any]:
        """What a backup file begins with; `version` of the program."""
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        return {
            "kind": kind,
            "instanceId": self.instance_id,
            "zxid": self.zxid,
            "timeMs": now_ms,
            "nodes": self.count,
            "magnetar": version,
        }

    def nodes(self) -> Iterator[TreeNode]:
        """All that are not ephemeral, parents before children. Raises CorruptionError at a damaged one."""
        try:
            for row in self._tree.persistent_rows():
                yield TreeNode(
                    row.path(),
                    row.value,
                    row.version,
                    row.next_sequence,
                    row.cversion,
                    row.czxid,
                    row.mzxid,
                    row.pzxid,
                    row.ctime_ms,
                    row.mtime_ms,
                )
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    def next_sequence(self, path: str) -> int:
        """The number that the next sequential child gets; 0 for a path that does not exist."""
        row = self._tree.find(path)
        return 0 if row is None else row.next_sequence

    def close(self) -> None:
        self._connection.close()


def back_up(source: Path, target: Path, version: str, *, force: bool = False, progress: Progress) -> BackupSummary:
    """Write the tree of the SQLite file `source` to `target`; a server may have it open. Blocks.

    Raises what `TreeSnapshot` and `NewFile` raise.
    """
    snapshot = TreeSnapshot(source)
    try:
        snapshot.check()
        with NewFile(target, force=force) as out:
            encoder = BackupEncoder()
            out.write(encoder.begin(snapshot.header(METADATA_BACKUP, version)))
            for done, node in enumerate(snapshot.nodes(), 1):
                out.write(encoder.add(NODE_KIND, node.pack()))
                progress(done, snapshot.count)
            out.write(encoder.seal())
    finally:
        snapshot.close()
    return verify(target, progress=lambda done, total: None)


# ---- Verify


def verify(path: Path, *, progress: Progress) -> BackupSummary:
    """Read every byte. Raises CorruptionError unless all of it is as it was written and the tree is whole."""
    with BackupReader(path, progress) as backup:
        check = TreeCheck()
        for kind, body in backup.records():
            if kind == NODE_KIND:
                check.add(unpack_node(body))
        return summary_of(backup, check)


class TreeCheck:
    """Whether the nodes of a backup make a tree: each once, parents first."""

    def __init__(self) -> None:
        self.children: dict[str, int] = {}
        """Path -> number of its children, of every node."""

    def add(self, node: TreeNode) -> None:
        """Raises CorruptionError."""
        parent, _ = split_path(node.path)
        if node.path in self.children or (node.path != "/" and parent not in self.children):
            raise CorruptionError(f"the backup is not a tree: {node.path} is there twice, or comes before its parent")
        self.children[node.path] = 0
        if node.path != "/":
            self.children[parent] += 1


def summary_of(backup: BackupReader, check: TreeCheck) -> BackupSummary:
    """After all records were read. Raises CorruptionError when the header promises something else."""
    header = backup.header
    try:
        summary = BackupSummary(
            str(header["kind"]),
            str(header["instanceId"]),
            int(header["zxid"]),
            int(header["timeMs"]),
            len(check.children),
            backup.size_bytes,
            backup.sha256,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"the backup {backup.path} has a header of another form: {error}") from error
    if header.get("nodes") != summary.nodes:
        raise CorruptionError(f"the backup {backup.path} has {summary.nodes} nodes; {header.get('nodes')} were written")
    return summary


# ---- Restore


class TreeRestore:
    """A restored tree in the making beside `target`, an SQLite file: `add` its nodes, then `finish`; `abandon` in any other case.

    It is a new store: a store id of its own, a commit mark of its own. The target's lock is held meanwhile. Raises StartupError when a
    server uses the target.
    """

    def __init__(self, target: Path, now_ms: int) -> None:
        self._target = target
        self._now_ms = now_ms
        self._check = TreeCheck()
        self._file: MetadataFile | None = None
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = lock_file(target)
        self._making = restoring_path(target)
        try:
            self._remove_making()
            self._file = connect(self._making)
            self._tree = SqliteTree(self._file.connection, lambda: now_ms, self._file.mark.write)
            self._tree.begin()
        except BaseException:
            self.give_up()
            raise

    @property
    def check(self) -> TreeCheck:
        return self._check

    def add(self, node: TreeNode) -> None:
        """Raises CorruptionError."""
        self._check.add(node)
        parent, name = split_path(node.path)
        self._tree.place(
            Row(
                id=0,
                crc=0,
                parent=parent,
                name=name,
                value=node.value,
                version=node.version,
                owner=0,
                next_sequence=node.next_sequence,
                children=0,  # until `finish` has seen them all
                cversion=node.cversion,
                czxid=node.czxid,
                mzxid=node.mzxid,
                pzxid=node.pzxid,
                ctime_ms=node.ctime_ms,
                mtime_ms=node.mtime_ms,
            )
        )

    def finish(
        self, summary: BackupSummary, earlier: Earlier | None = None, values: Mapping[str, bytes] | None = None
    ) -> tuple[int, Path | None]:
        """Raise the counters and put the tree in its place; after an error `abandon` it.

        `earlier`: what is known of the tree in whose place this one comes. `values`: of nodes that are other than in the backup, by path.
        Answers the next ledger id and where the tree that was there before lies now. Raises StorageError.
        """
        assert self._file is not None
        tree, connection, earlier = self._tree, self._file.connection, earlier or Earlier(0, 0)
        try:
            for path, count in self._check.children.items():
                if count:
                    row = tree.check(path, None)
                    tree.update(row, row._replace(children=count))
            tree.zxid = ((max(summary.zxid, earlier.zxid) >> EPOCH_SHIFT) + 1) << EPOCH_SHIFT
            first, after = self._raise_counters(earlier.next_id)
            self._note_gap(summary, first, after)
            for path, value in (values or {}).items():
                tree.put(path, value, None, 0, False)
            tree.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise translate(error, self._making) from error
        self._close_making()
        kept = self._target.with_name(f"{self._target.name}.before-restore-{self._now_ms}")
        had_tree = self._target.exists()
        try:
            self._put_in_place(kept)
        except OSError as error:
            raise DiskIOError(f"cannot put the restored tree in its place: {error.strerror}; restore again") from error
        self.abandon()
        return after, kept if had_tree else None

    def _put_in_place(self, kept: Path) -> None:
        """Nobody opens the target in between: it is refused while the restored tree has the name it was made under."""
        try:
            _move(self._target, kept)
        except OSError:
            _move(kept, self._target)
            raise
        try:
            _move(self._making, self._target)
            fsync_directory(self._target.parent)
        except OSError:
            _move(self._target, self._making)
            _move(kept, self._target)
            raise

    def give_up(self) -> None:
        """As `abandon`, but what was made stays, so that no server takes the directory for a whole one."""
        self._close_making()
        self._unlock()

    def abandon(self) -> None:
        """Let go of what was made; the target stays as it is."""
        self._close_making()
        self._remove_making()
        self._unlock()

    def _close_making(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _unlock(self) -> None:
        release(self._lock)
        self._lock = -1

    def _raise_counters(self, ids_from: int) -> tuple[int, int]:
        """(the first ledger id that may have been handed out since the backup, the first one that is handed out next).

        In the counters themselves: `LedgerManager.raise_ids` takes every id from a store that is served, and a margin is a million.
        """
        tree = self._tree
        ids = _SEQUENTIAL[1]
        found = tree.find(ids)
        first = after = 0 if found is None else found.next_sequence
        high = [f"{paths.LONG_LEDGER_ID_PARENT}/{name}" for name in tree.children(paths.LONG_LEDGER_ID_PARENT)]
        for parent in (*_SEQUENTIAL, *high):
            if tree.find(parent) is None:
                tree.put(parent, b"", None, 0, False)
            row = tree.check(parent, None)
            floor = ids_from if parent == ids else 0
            raised = min(max(row.next_sequence, floor) + ID_MARGIN, paths.SHORT_LEDGER_ID_LIMIT)
            tree.update(row, row._replace(next_sequence=raised))
            after = raised if parent == ids else after
        return first, after

    def _note_gap(self, summary: BackupSummary, first: int, after: int) -> None:
        """Earlier restores' notes stay."""
        found = self._tree.get(paths.RESTORED_PATH)
        notes = [] if found is None else json.loads(found[0])
        note = {
            "firstLedgerId": first,
            "lastLedgerId": after - 1,
            "backupMs": summary.time_ms,
            "restoredMs": self._now_ms,
        }
        self._tree.put(paths.RESTORED_PATH, json.dumps([*notes, note]).encode(), None, 0, False)

    def _remove_making(self) -> None:
        for path in (*_files_of(self._making), Path(f"{self._making}-lock")):
            with suppress(FileNotFoundError):
                path.unlink()


def restore(
    backup_path: Path, target: Path, *, now_ms: int, replace: bool = False, progress: Progress
) -> tuple[BackupSummary, int, Path | None]:
    """Make `target` the SQLite file of the tree in the backup; answers (summary, next ledger id, where the earlier file lies now).

    The target may be missing or empty. One with a tree of the same instance id is set aside when `replace` is set. Blocks. Raises
    InvalidArgumentError when the target holds anything else, StartupError while a server uses it, CorruptionError for a damaged backup:
    the target is as before then.
    """
    verified = verify(backup_path, progress=progress)
    if verified.kind != METADATA_BACKUP:
        raise InvalidArgumentError(f"{backup_path} holds a {verified.kind}; say: magnetar restore {backup_path} DIR")
    making = TreeRestore(target, now_ms)
    try:
        earlier = check_target(target, verified.instance_id, replace)
        with BackupReader(backup_path, progress) as backup:
            for kind, body in backup.records():
                if kind == NODE_KIND:
                    making.add(unpack_node(body))
            summary = summary_of(backup, making.check)
        next_id, kept = making.finish(summary, earlier)
    except BaseException:
        making.abandon()
        raise
    return summary, next_id, kept


def check_target(target: Path, instance_id: str, replace: bool) -> Earlier:
    """Whether a tree of `instance_id` may be put there; answers what is known of the tree that is there."""
    if not target.exists() or target.stat().st_size == 0:
        return Earlier(0, 0)
    try:
        there = TreeSnapshot(target)
        try:
            # The first ones say enough: whether the others are damaged does not matter to who replaces them.
            is_empty = all(node.path == "/" for node in islice(there.nodes(), 2))
            earlier = Earlier(there.next_sequence(_SEQUENTIAL[1]), there.zxid)
        finally:
            there.close()
    except CorruptionError as error:
        if not replace:
            raise
        raise InvalidArgumentError(
            f"{target} is damaged, so nobody can say which cluster it belongs to: {error}. Move it, its -wal and its -mark away "
            "(keep all three), then restore again"
        ) from error
    if is_empty:
        return earlier
    if not there.instance_id or there.instance_id != instance_id:
        raise InvalidArgumentError(
            f"{target} holds the tree of another cluster (instance {there.instance_id or 'without an id'}; the backup is of "
            f"{instance_id or 'one without an id'}): a restore would give its ledgers to topics that they do not belong to. "
            "Restore into an empty directory"
        )
    if not replace:
        raise InvalidArgumentError(
            f"{target} holds a tree of this cluster already; pass --replace to set it aside and go back to the backup"
        )
    return earlier


def _files_of(file: Path) -> tuple[Path, ...]:
    """All that belong together, the file itself last."""
    return Path(f"{file}-wal"), Path(f"{file}-shm"), mark_path(file), file


def _move(source: Path, target: Path) -> None:
    """An SQLite file with its write-ahead log and its commit mark; what does not exist is left out. Raises OSError."""
    for before, after in zip(_files_of(source), _files_of(target), strict=True):
        with suppress(FileNotFoundError):
            before.rename(after)
