"""A bookie under test: its calls as coroutines, small sizes, and disks that die or fill up at a chosen moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from magnetar.base.errors import DiskFullError, DiskIOError
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.storage.disk import Disk, DiskFile, DiskSpace, OsDisk
from magnetar.bookkeeper.bookie.storage.index import Index, IndexedRun
from magnetar.bookkeeper.bookie.storage.index_factory import open_index
from magnetar.bookkeeper.codes import FLAG_FENCE
from magnetar.bookkeeper.entry_format import Digest, DigestType, master_key, pack_entry

KEY = master_key(b"")
DIGEST = Digest(DigestType.CRC32C)


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int | None = None) -> bytes:
    return pack_entry(ledger_id, entry_id, entry_id - 1 if lac is None else lac, 0, payload, DIGEST)


def small_config(path: Path, **changes: Any) -> BookieConfig:
    """Files small enough for tests to see them roll; nothing happens by time."""
    values: dict[str, Any] = {
        "data_dir": path,
        "journal_file_bytes": 16 * 1024,
        "journal_preallocate_bytes": 4096,
        "write_cache_bytes": 64 * 1024,
        "read_cache_bytes": 16 * 1024,
        "entry_log_bytes": 64 * 1024,
        "flush_interval_s": 3600.0,
        "gc_interval_s": 3600.0,
        "disk_check_interval_s": 3600.0,
        "disk_free_plenty_bytes": 0,
        "disk_free_reserve_bytes": 0,
        "index": "sqlite",
    }
    return BookieConfig(**(values | changes))


def open_bookie(path: Path, disk: Disk | None = None, **options: Any) -> Bookie:
    """Settings of the bookie itself are taken by name; everything else goes into the configuration."""
    own = (
        "list_ledgers",
        "ledger_exists",
        "homes",
        "on_fatal",
        "on_read_only_change",
        "index_factory",
        "cookie_store",
        "clock",
    )
    given = {name: options.pop(name) for name in own if name in options}
    return Bookie(small_config(path, **options), disk=disk, rng=random.Random(7), **given)


async def add(
    bookie: Bookie,
    ledger_id: int,
    entry_id: int,
    payload: bytes = b"payload",
    *,
    key: bytes = KEY,
    flags: int = 0,
    lac: int | None = None,
) -> int:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    bookie.add_entry(ledger_id, entry_id, entry(ledger_id, entry_id, payload, lac), key, flags, answer.set_result)
    return await asyncio.wait_for(answer, 20)


async def add_many(bookie: Bookie, ledger_id: int, entry_ids: Iterable[int], payload: bytes = b"payload") -> list[int]:
    """Codes, in order. All are under way at once."""
    futures = []
    for entry_id in entry_ids:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        bookie.add_entry(ledger_id, entry_id, entry(ledger_id, entry_id, payload), KEY, 0, answer.set_result)
        futures.append(answer)
    return await asyncio.wait_for(asyncio.gather(*futures), 20)


async def read(
    bookie: Bookie, ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b""
) -> tuple[int, bytes | None]:
    answer: asyncio.Future[tuple[int, bytes | None]] = asyncio.get_running_loop().create_future()
    bookie.read_entry(ledger_id, entry_id, flags, key, lambda code, found: answer.set_result((code, found)))
    return await asyncio.wait_for(answer, 20)


async def fence(bookie: Bookie, ledger_id: int, key: bytes = KEY) -> int:
    return (await read(bookie, ledger_id, -1, FLAG_FENCE, key))[0]


async def read_batch(
    bookie: Bookie, ledger_id: int, first: int, count: int = 0, size: int = 1 << 20
) -> tuple[int, list[bytes]]:
    answer: asyncio.Future[tuple[int, list[bytes]]] = asyncio.get_running_loop().create_future()
    bookie.read_batch(ledger_id, first, count, size, lambda code, found: answer.set_result((code, found)))
    return await asyncio.wait_for(answer, 20)


async def write_lac(bookie: Bookie, ledger_id: int, body: bytes, key: bytes = KEY) -> int:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    bookie.write_lac(ledger_id, body, key, answer.set_result)
    return await asyncio.wait_for(answer, 20)


async def read_lac(bookie: Bookie, ledger_id: int) -> tuple[int, bytes | None, bytes | None]:
    answer: asyncio.Future[tuple[int, bytes | None, bytes | None]] = asyncio.get_running_loop().create_future()
    bookie.read_lac(ledger_id, lambda code, body, last: answer.set_result((code, body, last)))
    return await asyncio.wait_for(answer, 20)


async def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.002)


class Fuse:
    """Counts the changes made to disk and index. From change number `limit` on, every call fails: the machine is dead."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.burnt = 0

    def burn(self) -> None:
        self.burnt += 1
        self.check()

    def check(self) -> None:
        if self.limit is not None and self.burnt > self.limit:
            raise DiskIOError("the fuse has blown")


class FaultDisk:
    """The real disk with a fuse, a failing fsync, and a size."""

    def __init__(self, fuse: Fuse | None = None) -> None:
        self.real = OsDisk()
        self.fuse = fuse or Fuse()
        self.fail_fsync_of: str | None = None
        self.full = False

    def open_append(self, path: str) -> DiskFile:
        self.fuse.check()
        return _FaultFile(self, path, self.real.open_append(path))

    def open_read(self, path: str) -> DiskFile:
        self.fuse.check()
        return _FaultFile(self, path, self.real.open_read(path))

    def make_dir(self, path: str) -> None:
        self.real.make_dir(path)

    def list(self, path: str) -> list[str]:
        self.fuse.check()
        return self.real.list(path)

    def rename(self, source: str, target: str) -> None:
        self.fuse.burn()
        self.real.rename(source, target)

    def unlink(self, path: str) -> None:
        self.fuse.burn()
        self.real.unlink(path)

    def fsync_dir(self, path: str) -> None:
        self.fuse.burn()
        self.real.fsync_dir(path)

    def free(self, path: str) -> DiskSpace:
        return DiskSpace(1 << 40, 0 if self.full else 1 << 39)


class _FaultFile:
    def __init__(self, disk: FaultDisk, path: str, real: DiskFile) -> None:
        self._disk = disk
        self._path = path
        self._real = real

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> int:
        if self._disk.full:
            raise DiskFullError(f"no room for {self._path}")
        fuse = self._disk.fuse
        try:
            fuse.burn()
        except DiskIOError:
            if fuse.limit is not None and fuse.burnt == fuse.limit + 1:  # the write that was under way is torn
                data = b"".join(buffers)
                self._real.write_at(offset, (data[: len(data) // 2],))
            raise
        return self._real.write_at(offset, buffers)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        self._disk.fuse.check()
        return self._real.read_at(offset, size_bytes)

    def fsync(self) -> None:
        if self._disk.fail_fsync_of is not None and self._disk.fail_fsync_of in self._path:
            raise DiskIOError(f"fsync of {self._path} failed: injected")
        self._disk.fuse.burn()
        self._real.fsync()

    def truncate(self, size_bytes: int) -> None:
        self._disk.fuse.burn()
        self._real.truncate(size_bytes)

    def size_bytes(self) -> int:
        return self._real.size_bytes()

    def close(self) -> None:
        self._real.close()


class FusedIndex:
    """The real index with the same fuse."""

    def __init__(self, index: Index, fuse: Fuse) -> None:
        self._index = index
        self._fuse = fuse

    def locations(self, ledger_id: int, first_entry_id: int, count: int) -> Any:
        return self._index.locations(ledger_id, first_entry_id, count)

    def last_entry_id(self, ledger_id: int) -> int:
        return self._index.last_entry_id(ledger_id)

    def entry_ids(self, ledger_id: int, first_entry_id: int, count: int) -> list[int]:
        return self._index.entry_ids(ledger_id, first_entry_id, count)

    def write(
        self,
        runs: Iterable[IndexedRun],
        states: Sequence[tuple[int, bytes]],
        log_ends: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._fuse.burn()
        self._index.write(runs, states, log_ends)

    def delete_ledger(self, ledger_id: int, tombstone: bytes | None) -> None:
        self._fuse.burn()
        self._index.delete_ledger(ledger_id, tombstone)

    def states(self) -> list[tuple[int, bytes]]:
        return self._index.states()

    def log_ends(self) -> dict[int, int]:
        return self._index.log_ends()

    def forget_log(self, log_id: int) -> None:
        self._fuse.burn()
        self._index.forget_log(log_id)

    def sync(self) -> None:
        self._fuse.burn()
        self._index.sync()

    def close(self) -> None:
        self._index.close()


def fused_index(fuse: Fuse) -> Callable[[str, str], Index]:
    return lambda directory, backend: FusedIndex(open_index(directory, backend), fuse)
