"""Backup and restore of a standalone server's data directory: the metadata tree and every entry that it names, as of one moment.

The moment: in one step the event loop begins a read transaction on the metadata file and notes the highest entry of each ledger.
Whatever was acknowledged before is in the transaction and below the notes; what comes later is not copied. Garbage collection waits
until the copy has ended. Entries are copied one by one, with their digests checked: the copy depends neither on the files of the bookie
nor on its index, and damage is found by whoever makes the copy.

A server that runs gives its backup to whoever may open the socket in its data directory (mode 0600): such a user could read the
files as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Final

from magnetar import __version__
from magnetar.base.backup_file import BackupEncoder, BackupReader
from magnetar.base.errors import CorruptionError, InvalidArgumentError, LedgerError, MagnetarError, StorageError
from magnetar.bookkeeper.autorecovery.probes import Health, LedgerKeys, judge
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.entry_format import peek_ids
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.metadata import paths
from magnetar.metadata.backup import (
    NODE_KIND,
    BackupSummary,
    Progress,
    TreeCheck,
    TreeNode,
    TreeRestore,
    TreeSnapshot,
    summary_of,
    unpack_node,
)
from magnetar.metadata.sqlite_file import FILE_NAME
from magnetar.processes.bookie_config import bookie_config
from magnetar.processes.configurations import StandaloneConfig

_logger = logging.getLogger(__name__)

DATA_BACKUP: Final = "data-directory"
"""`kind` of the header."""

BOOKIE_ID: Final = "standalone:3181"
"""The one bookie's name in ledger metadata: independent of ports and addresses, which may change from start to start."""

BOOKIE_DIR: Final = "bookie"
SOCKET_FILE: Final = "backup.sock"

LEDGER_KIND: Final = 3
"""Ledger id (8 bytes) and master key; its entries follow."""

ENTRY_KIND: Final = 4
"""A packed entry, which begins with its ledger's id and its own."""

MISSING_KIND: Final = 5
"""Ledger id, entry id: the bookie could not give a good copy."""

NODES_AT_ONCE: Final = 256
ENTRIES_AT_ONCE: Final = 64
ENTRIES_BYTES_AT_ONCE: Final = 1024 * 1024
ADDS_UNDER_WAY_MAX: Final = 256

SLOW_READER_S: Final = 60.0
"""A backup whose reader takes nothing for so long is broken off: garbage collection does not wait for a stopped process."""

_ID: Final = Struct(">q")
_IDS: Final = Struct(">qq")


@dataclass(frozen=True, slots=True)
class DataSummary:
    """`missing`: (ledger, entry) that the server itself could not read when the backup was made."""

    tree: BackupSummary
    ledgers: int
    entries: int
    missing: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Ledger:
    ledger_id: int
    keys: LedgerKeys
    last_entry_id: int | None
    """None: up to the last entry that is there."""
    is_cursor: bool


# ---- Backup


async def export(metadata_file: Path, bookie: Bookie) -> AsyncGenerator[bytes, None]:
    """The bytes of a backup. Raises CorruptionError when the tree is damaged, StorageError when the bookie does not answer."""
    async with bookie.collection_paused():
        snapshot, added = TreeSnapshot(metadata_file), bookie.last_added()  # nothing runs between the two
        try:
            await asyncio.to_thread(snapshot.check)
            encoder = BackupEncoder()
            yield encoder.begin(snapshot.header(DATA_BACKUP, __version__))
            ledgers: list[_Ledger] = []
            nodes = snapshot.nodes()
            while some := await asyncio.to_thread(_take, nodes):
                yield b"".join([encoder.add(NODE_KIND, node.pack()) for node in some])
                ledgers += [found for node in some if (found := _ledger_of(node, added)) is not None]
        finally:
            await asyncio.to_thread(snapshot.close)
        for ledger in sorted(ledgers, key=lambda each: (not each.is_cursor, each.ledger_id)):
            async for data in _export_ledger(encoder, bookie, ledger):
                yield data
        yield encoder.seal()


def _take(nodes: Iterator[TreeNode]) -> list[TreeNode]:
    return list(islice(nodes, NODES_AT_ONCE))


def _ledger_of(node: TreeNode, added: dict[int, int | None]) -> _Ledger | None:
    try:
        ledger_id = paths.ledger_id_of_path(node.path)
    except InvalidArgumentError:
        return None
    try:
        metadata = LedgerMetadata.from_bytes(node.value)
    except LedgerError as error:
        raise CorruptionError(f"the metadata of ledger {ledger_id} is damaged: {error}") from error
    closed = metadata.state is LedgerState.CLOSED
    last = metadata.last_entry_id if closed else added.get(ledger_id, -1)
    return _Ledger(
        ledger_id, LedgerKeys.of(ledger_id, metadata, b""), last, "pulsar/cursor" in metadata.custom_metadata
    )


async def _export_ledger(encoder: BackupEncoder, bookie: Bookie, ledger: _Ledger) -> AsyncIterator[bytes]:
    ledger_id, last, entry_id = ledger.ledger_id, ledger.last_entry_id, 0
    yield encoder.add(LEDGER_KIND, _ID.pack(ledger_id) + ledger.keys.master_key)
    while last is None or entry_id <= last:
        count = ENTRIES_AT_ONCE if last is None else min(ENTRIES_AT_ONCE, last + 1 - entry_id)
        code, packed = await _read_some(bookie, ledger_id, entry_id, count)
        if code == ReturnCode.TOO_MANY_REQUESTS:
            await asyncio.sleep(0.05)
            continue
        if last is None and code in EXPLICIT_NEGATIVES:
            return
        if bookie.failed is not None:
            raise StorageError(f"the bookie failed: {bookie.failed}")
        parts = []
        for data in packed or [b""]:  # nothing is not a good copy either
            good = judge(ledger.keys, entry_id, ReturnCode.OK, data) is Health.GOOD
            kind, body = (ENTRY_KIND, data) if good else (MISSING_KIND, _IDS.pack(ledger_id, entry_id))
            parts.append(encoder.add(kind, body))
            entry_id += 1
        yield b"".join(parts)


async def _read_some(bookie: Bookie, ledger_id: int, first: int, count: int) -> tuple[int, list[bytes]]:
    answer: asyncio.Future[tuple[int, list[bytes]]] = asyncio.get_running_loop().create_future()

    def done(code: int, packed: list[bytes]) -> None:
        if not answer.done():
            answer.set_result((code, packed))

    bookie.read_batch(ledger_id, first, count, ENTRIES_BYTES_AT_ONCE, done)
    return await answer


# ---- Of a server that runs


class BackupSocket:
    """`async with BackupSocket(data_dir, bookie):` gives a backup to everybody who connects, one after the other."""

    def __init__(self, data_dir: Path, bookie: Bookie) -> None:
        self._path = data_dir / SOCKET_FILE
        self._metadata_file = data_dir / FILE_NAME
        self._bookie = bookie
        self._one = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None

    async def __aenter__(self) -> BackupSocket:
        """Where such a socket cannot be made (a file system without sockets, a system without /proc) the server starts without one."""
        try:
            self._server = await asyncio.start_unix_server(self._serve, sock=self._bind())
        except OSError as error:
            _logger.warning("no backup while the server runs, only when it is stopped: %s: %s", self._path.name, error)
        return self

    def _bind(self) -> socket.socket:
        with suppress(FileNotFoundError):
            self._path.unlink()  # of a server that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            with _short_name(self._path) as name:
                listener.bind(name)
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
        return listener

    async def __aexit__(self, *error: object) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(FileNotFoundError):
            self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Closed at once when whoever asked is gone: garbage collection waits for it.
            async with self._one, aclosing(export(self._metadata_file, self._bookie)) as pieces:
                async for data in pieces:
                    writer.write(data)
                    async with asyncio.timeout(SLOW_READER_S):
                        await writer.drain()
        except MagnetarError as error:
            _logger.error("backup: %s", error)
        except TimeoutError:
            _logger.warning("backup: broken off, whoever asked for it has read nothing for %g s", SLOW_READER_S)
        except OSError as error:
            _logger.warning("backup: whoever asked for it has gone: %s", error)
        finally:
            self._tasks.discard(task)
            writer.close()


async def fetch(data_dir: Path) -> AsyncGenerator[bytes, None]:
    """The bytes of a backup of the server that runs on the directory. Raises StorageError when there is none to be asked."""
    path = data_dir / SOCKET_FILE
    try:
        with _short_name(path) as name:
            reader, writer = await asyncio.open_unix_connection(name)
    except OSError as error:
        raise StorageError(
            f"a process uses {data_dir} and gives no backup ({error.strerror}); stop it, then say this again"
        ) from error
    try:
        while data := await reader.read(1 << 20):
            yield data
    finally:
        writer.close()


class _short_name:
    """A socket's path by its directory's descriptor: the system allows some hundred bytes only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> str:
        self._descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._descriptor}/{self._path.name}"

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


# ---- Verify and restore


class _Counts:
    """What a backup's records say about ledgers, while they are read."""

    def __init__(self) -> None:
        self.tree = TreeCheck()
        self.ledgers: dict[int, bytes] = {}
        self.entries = 0
        self.missing: list[tuple[int, int]] = []

    def add(self, kind: int, body: bytes) -> None:
        """Raises CorruptionError."""
        if kind == NODE_KIND:
            self.tree.add(unpack_node(body))
        elif kind == LEDGER_KIND:
            self.ledgers[_ID.unpack_from(body)[0]] = body[_ID.size :]
        elif kind == ENTRY_KIND:
            if peek_ids(body)[0] not in self.ledgers:
                raise CorruptionError("the backup has an entry of a ledger that it does not name")
            self.entries += 1
        elif kind == MISSING_KIND:
            self.missing.append(_IDS.unpack(body))

    def summary(self, backup: BackupReader) -> DataSummary:
        return DataSummary(summary_of(backup, self.tree), len(self.ledgers), self.entries, tuple(self.missing))


def verify_data(path: Path, *, progress: Progress) -> DataSummary:
    """Read every byte of a backup of either kind. Raises CorruptionError. Blocks."""
    with BackupReader(path, progress) as backup:
        counts = _Counts()
        for kind, body in backup.records():
            counts.add(kind, body)
        return counts.summary(backup)


async def restore_data(path: Path, data_dir: Path, *, now_ms: int, progress: Progress) -> DataSummary:
    """Make `data_dir`, which must be missing or empty, what the backup holds.

    Raises InvalidArgumentError, CorruptionError, StorageError; the directory cannot be started from then, and can be removed.
    """
    _check_empty(data_dir)
    verified = await asyncio.to_thread(verify_data, path, progress=progress)
    if verified.tree.kind != DATA_BACKUP:
        raise InvalidArgumentError(
            f"{path} holds metadata alone; say: magnetar metadata restore {path} --data-dir {data_dir}"
        )
    # From here on, and until it has finished, no server starts on the directory.
    tree = TreeRestore(data_dir / FILE_NAME, now_ms)
    try:
        counts = _Counts()
        config = StandaloneConfig(data_dir=data_dir)
        cookies = _FirstCookie()
        async with Bookie(bookie_config(config, data_dir / BOOKIE_DIR, BOOKIE_ID), cookie_store=cookies) as bookie:
            adds = _Adds(bookie)
            with BackupReader(path, progress) as backup:
                for kind, body in backup.records():
                    counts.add(kind, body)
                    if kind == NODE_KIND:
                        tree.add(unpack_node(body))
                    elif kind == ENTRY_KIND:
                        await adds.add(body, counts.ledgers[peek_ids(body)[0]])
                summary = counts.summary(backup)
            await adds.finish()
        tree.finish(summary.tree, values={paths.cookie_path(BOOKIE_ID): cookies.cookie})
    except BaseException:
        tree.give_up()
        raise
    return summary


def _check_empty(data_dir: Path) -> None:
    if data_dir.exists() and any(data_dir.iterdir()):
        raise InvalidArgumentError(
            f"{data_dir} is not empty; restore into a new directory, then start the server on it"
        )


class _FirstCookie:
    """The cookie of directories that are made: they are not those of the server that was backed up, and get a cookie of their own."""

    adopts_unmarked = False

    def __init__(self) -> None:
        self.cookie = b""

    async def read(self, bookie_id: str) -> bytes | None:
        return None

    async def write(self, bookie_id: str, cookie: bytes, replaced: bytes | None = None) -> None:
        self.cookie = cookie


class _Adds:
    """Adds entries to a bookie, some hundred at a time. The first failure is raised."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self._under_way = asyncio.Semaphore(ADDS_UNDER_WAY_MAX)
        self._failure: LedgerError | None = None

    async def add(self, packed: bytes, key: bytes) -> None:
        await self._under_way.acquire()
        ledger_id, entry_id = peek_ids(packed)[:2]

        def done(code: int) -> None:
            self._under_way.release()
            if code != ReturnCode.OK and self._failure is None:
                self._failure = answer_error(code, ledger_id, entry_id)

        self._bookie.add_entry(ledger_id, entry_id, packed, key, FLAG_RECOVERY_ADD, done)
        self._check()

    async def finish(self) -> None:
        for _ in range(ADDS_UNDER_WAY_MAX):
            await self._under_way.acquire()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageError(f"the restored bookie did not take an entry: {self._failure}")
