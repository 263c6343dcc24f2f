"""A machine's disk, and how one process sees it (`bookkeeper.bookie.storage.disk.Disk`).

The medium outlives processes: files with their unsynced writes, directories with their unsynced names, and what a power cut leaves of
them. Faults are fields of it: slow, full, failing or lying fsyncs, failing reads and writes. A failed fsync leaves its pages clean but
unwritten, as Linux does; only the file object that saw it is poisoned.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Final

from magnetar.base.errors import DiskFullError, DiskIOError
from magnetar.bookkeeper.bookie.storage.disk import DiskSpace
from magnetar.testing.sim.executor import stop_for_good, wait
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.moments import Moments

SECTOR_BYTES: Final = 512
"""Written whole or not at all."""

Change = tuple[int, bytes]
"""(offset, bytes): a write; (size, b""): a truncation to that size."""


class Inode:
    """`content` is what a reader sees (the page cache), `synced` what the platter holds, `pending` the changes in between."""

    __slots__ = ("content", "pending", "synced")

    def __init__(self) -> None:
        self.content = bytearray()
        self.synced = bytearray()
        self.pending: list[Change] = []

    def write(self, offset: int, data: bytes) -> None:
        if data:
            _write(self.content, offset, data)
            self.pending.append((offset, data))

    def truncate(self, size_bytes: int) -> None:
        _truncate(self.content, size_bytes)
        self.pending.append((size_bytes, b""))

    def sync(self) -> None:
        for offset, data in self.pending:
            if data:
                _write(self.synced, offset, data)
            else:
                _truncate(self.synced, offset)
        self.pending.clear()

    def forget(self) -> None:
        """A failed fsync: the kernel calls the pages clean, though they never reached the platter."""
        self.pending.clear()

    def cut_power(self, rng: random.Random) -> None:
        """Each dirty sector keeps one of the states it had since the last sync; a truncation is a barrier in between."""
        if self.pending:
            epochs = list(_epochs(self.pending))
            reached = rng.randrange(len(epochs))
            for changes in epochs[:reached]:
                for offset, data in changes:
                    _write(self.synced, offset, data) if data else _truncate(self.synced, offset)
            _tear(self.synced, epochs[reached], rng)
            if reached == len(epochs) - 1 and len(self.synced) < len(self.content) and rng.random() < 0.5:
                _truncate(self.synced, len(self.content))  # the size got there, the data did not
        self.pending.clear()
        self.content = bytearray(self.synced)


class Directory:
    """`names` is what `list` shows; the last `len(pending)` changes to it would not survive a power cut."""

    __slots__ = ("names", "pending", "synced")

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.synced: dict[str, Inode] = {}
        self.pending: list[dict[str, Inode | None]] = []

    def rename(self, source: str, target: str) -> None:
        self._change({source: None, target: self.names[source]})

    def put(self, name: str, inode: Inode | None) -> None:
        self._change({name: inode})

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.synced, change)
        self.pending.clear()

    def cut_power(self, rng: random.Random, ordered: bool) -> None:
        """`ordered`: a prefix of the changes survives, as in a journaling file system; else any of them may."""
        if self.pending:
            kept = rng.randrange(len(self.pending) + 1)
            for number, change in enumerate(self.pending):
                if number < kept if ordered else rng.random() < 0.5:
                    _apply(self.synced, change)
            self.pending.clear()
        self.names = dict(self.synced)
        for inode in self.names.values():
            inode.cut_power(rng)

    def _change(self, change: dict[str, Inode | None]) -> None:
        _apply(self.names, change)
        self.pending.append(change)


def _apply(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _truncate(content: bytearray, size_bytes: int) -> None:
    if size_bytes < len(content):
        del content[size_bytes:]
    else:
        content.extend(bytes(size_bytes - len(content)))


def _epochs(pending: list[Change]) -> Iterator[list[Change]]:
    """Split at truncations, each of which begins a part."""
    part: list[Change] = []
    for change in pending:
        if not change[1] and part:
            yield part
            part = []
        part.append(change)
    yield part


def _tear(synced: bytearray, changes: list[Change], rng: random.Random) -> None:
    """Apply what a power cut leaves of changes that are not ordered among each other."""
    mode = rng.choice(("nothing", "everything", "sectors", "sectors", "prefix"))
    if mode == "nothing":
        return
    versions: dict[int, list[Change]] = {}
    order: list[int] = []
    for offset, data in changes:
        if not data:
            if mode != "everything" and rng.random() < 0.5:
                return
            _truncate(synced, offset)
            continue
        for sector in range(offset // SECTOR_BYTES, (offset + len(data) - 1) // SECTOR_BYTES + 1):
            begin = max(offset, sector * SECTOR_BYTES)
            end = min(offset + len(data), (sector + 1) * SECTOR_BYTES)
            if sector not in versions:
                versions[sector] = []
                order.append(sector)
            versions[sector].append((begin, data[begin - offset : end - offset]))
    reached = rng.randrange(len(order) + 1) if mode == "prefix" else len(order)
    for sector in order[:reached]:
        parts = versions[sector]
        kept = rng.randrange(len(parts) + 1) if mode == "sectors" else len(parts)
        for begin, data in parts[:kept]:
            _write(synced, begin, data)


_SLEEPS: Final = frozenset({"fsync", "fsync_dir", "read", "write"})


class Medium:
    """One machine's disk. Delays in seconds, each a mean of what is drawn."""

    def __init__(self, name: str, rng: random.Random, moments: Moments) -> None:
        self.name = name
        self.moments = moments
        self.rng = rng
        self.directories: dict[str, Directory] = {}
        self.fsync_s = 0.0005
        self.io_s = 0.00002
        self.slowness = 1.0
        self.capacity_bytes = 1 << 40
        self.ballast_bytes = 0
        """Taken up by somebody else's files."""
        self.fail_probability: dict[str, float] = {}
        """Probability by `read`, `write` and `fsync` that it fails with an I/O error."""
        self.fail_next: set[str] = set()
        """Operations of which the next one fails, once."""
        self.lies = False
        """fsync says yes and does nothing."""
        self.ordered_names = True
        self.interleave = 0.05
        """Probability that a write or read gives other threads of its process a turn; an fsync always does."""
        self.closed = False
        """The world has ended."""
        self.used_bytes = 0
        self.operations_total = 0
        self.lost_bytes_total = 0

    def cut_power(self) -> None:
        """Forget what was not synced, or a part of it."""
        self.lost_bytes_total += sum(
            len(data)
            for directory in self.directories.values()
            for inode in directory.names.values()
            for _, data in inode.pending
        )
        for directory in self.directories.values():
            directory.cut_power(self.rng, self.ordered_names)
        self.used_bytes = sum(
            len(inode.content) for directory in self.directories.values() for inode in directory.names.values()
        )

    def wipe(self) -> None:
        """Somebody replaced the disk."""
        self.directories.clear()
        self.used_bytes = 0

    def files(self) -> list[tuple[str, Inode]]:
        """(path, file), by path."""
        return [
            (f"{path}/{name}", inode)
            for path, directory in sorted(self.directories.items())
            for name, inode in sorted(directory.names.items())
        ]

    def rot(self, path_part: str) -> str | None:
        """Flip one bit of a synced file whose path contains `path_part`; where, or None when there is no such file."""
        found = [(path, inode) for path, inode in self.files() if path_part in path and len(inode.synced)]
        if not found:
            return None
        path, inode = self.rng.choice(found)
        offset = self.rng.randrange(len(inode.synced))
        bit = 1 << self.rng.randrange(8)
        inode.synced[offset] ^= bit
        if offset < len(inode.content):
            inode.content[offset] ^= bit
        return f"{path} byte {offset} bit {bit:#04x}"

    def durable_copy(self) -> Medium:
        """The disk as it would be found after the worst power cut at this moment: nothing but what was synced."""
        copy = Medium(self.name, random.Random(0), Moments())
        for path, directory in self.directories.items():
            target = copy.directories[path] = Directory()
            for name, inode in directory.synced.items():
                kept = Inode()
                kept.synced = bytearray(inode.synced)
                kept.content = bytearray(inode.synced)
                target.names[name] = target.synced[name] = kept
        return copy

    def directory(self, path: str) -> Directory:
        found = self.directories.get(path)
        if found is None:
            raise DiskIOError(f"{path}: no such directory")
        return found

    def before(self, process: Process, operation: str, path: str) -> None:
        """Time passes, and whatever was planned for this operation happens."""
        self.operations_total += 1
        self._tell(process, operation, path, finished=False)
        if operation in _SLEEPS:
            mean_s = self.fsync_s if operation.startswith("fsync") else self.io_s
            slow = operation == "fsync" or self.rng.random() < self.interleave
            if slow:
                wait(mean_s * self.slowness * (0.5 + self.rng.random()))
                if not process.alive:
                    stop_for_good()
        if operation in self.fail_next:
            self.fail_next.discard(operation)
            raise DiskIOError(f"{operation} of {path} failed: simulated I/O error")
        if (probability := self.fail_probability.get(operation, 0.0)) and self.rng.random() < probability:
            raise DiskIOError(f"{operation} of {path} failed: simulated I/O error")

    def after(self, process: Process, operation: str, path: str) -> None:
        self._tell(process, operation, path, finished=True)

    def grow(self, size_bytes: int) -> None:
        """Take room. Raises DiskFullError."""
        if size_bytes > 0 and self.used_bytes + self.ballast_bytes + size_bytes > self.capacity_bytes:
            raise DiskFullError(f"disk {self.name} is full: simulated")
        self.used_bytes += size_bytes

    def _tell(self, process: Process, operation: str, path: str, finished: bool) -> None:
        if self.closed:
            raise DiskIOError("the world has ended")
        if self.moments.listeners:
            when = "after" if finished else "before"
            self.moments.tell(process, f"disk {operation} {when} {path.rpartition('/')[2]}")
        if not process.alive:
            stop_for_good()
            raise DiskIOError("the process is dead")


class SimDisk:
    """The medium as one process sees it."""

    def __init__(self, medium: Medium, process: Process) -> None:
        self.medium = medium
        self._process = process

    def open_append(self, path: str) -> SimFile:
        folder, name = os.path.split(path)
        directory = self.medium.directory(folder)
        inode = directory.names.get(name)
        if inode is None:
            inode = Inode()
            directory.put(name, inode)
        return SimFile(self.medium, self._process, path, inode)

    def open_read(self, path: str) -> SimFile:
        folder, name = os.path.split(path)
        inode = self.medium.directory(folder).names.get(name)
        if inode is None:
            raise FileNotFoundError(path)
        return SimFile(self.medium, self._process, path, inode)

    def make_dir(self, path: str) -> None:
        while path and path != "/":
            self.medium.directories.setdefault(path, Directory())
            path = os.path.dirname(path)

    def list(self, path: str) -> list[str]:
        return sorted(self.medium.directory(path).names)

    def rename(self, source: str, target: str) -> None:
        folder, name = os.path.split(source)
        target_folder, target_name = os.path.split(target)
        if folder != target_folder:
            raise DiskIOError(f"{source} and {target} lie in different directories, which is not simulated")
        directory = self.medium.directory(folder)
        if name not in directory.names:
            raise DiskIOError(f"cannot rename {source} to {target}: no such file")
        self.medium.before(self._process, "rename", target)
        replaced = directory.names.get(target_name)
        if replaced is not None:
            self.medium.used_bytes -= len(replaced.content)
        directory.rename(name, target_name)
        self.medium.after(self._process, "rename", target)

    def unlink(self, path: str) -> None:
        folder, name = os.path.split(path)
        directory = self.medium.directory(folder)
        inode = directory.names.get(name)
        if inode is None:
            return
        self.medium.before(self._process, "unlink", path)
        self.medium.used_bytes -= len(inode.content)
        directory.put(name, None)
        self.medium.after(self._process, "unlink", path)

    def fsync_dir(self, path: str) -> None:
        self.medium.before(self._process, "fsync_dir", path)
        if not self.medium.lies:
            self.medium.directory(path).sync()
        self.medium.after(self._process, "fsync_dir", path)

    def free(self, path: str) -> DiskSpace:
        medium = self.medium
        used = medium.used_bytes + medium.ballast_bytes
        return DiskSpace(medium.capacity_bytes, max(0, medium.capacity_bytes - used))


class SimFile:
    """See `bookkeeper.bookie.storage.disk.DiskFile`."""

    __slots__ = ("_inode", "_medium", "_path", "_poisoned", "_process")

    def __init__(self, medium: Medium, process: Process, path: str, inode: Inode) -> None:
        self._medium = medium
        self._process = process
        self._path = path
        self._inode = inode
        self._poisoned = False

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> int:
        self._check()
        self._medium.before(self._process, "write", self._path)
        data = b"".join(buffers)
        self._medium.grow(offset + len(data) - len(self._inode.content))
        self._inode.write(offset, data)
        self._medium.after(self._process, "write", self._path)
        return len(data)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        self._check()
        self._medium.before(self._process, "read", self._path)
        return bytes(self._inode.content[offset : offset + size_bytes])

    def fsync(self) -> None:
        self._check()
        try:
            self._medium.before(self._process, "fsync", self._path)
        except DiskIOError:
            self._inode.forget()
            self._poisoned = True
            raise
        if not self._medium.lies:
            self._inode.sync()
        self._medium.after(self._process, "fsync", self._path)

    def truncate(self, size_bytes: int) -> None:
        self._check()
        self._medium.before(self._process, "truncate", self._path)
        growth = size_bytes - len(self._inode.content)
        self._medium.grow(max(growth, 0))
        self._medium.used_bytes += min(growth, 0)
        self._inode.truncate(size_bytes)
        self._medium.after(self._process, "truncate", self._path)

    def size_bytes(self) -> int:
        return len(self._inode.content)

    def close(self) -> None:
        """The handle keeps nothing open."""

    def _check(self) -> None:
        if self._poisoned:
            raise DiskIOError(f"{self._path} is not used any more since its fsync failed")
