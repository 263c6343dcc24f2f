"""The bookie's disk as a value passed in. Calls block, so they are only made inside functions run by a `base.executor.Executor`.

The event loop never calls a disk; a simulated disk needs no threads. Errors are typed: `DiskFullError` (room may be made),
`DiskIOError` (a read or write failed), and a file whose fsync failed is poisoned: the kernel may have dropped the dirty pages and
would call a second fsync a success, so every later use of that file raises.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn, Protocol

from magnetar.base.errors import DiskFullError, DiskIOError

_FREED_BYTES: Final = 8 * 1024 * 1024
_FREED_PAUSE_S: Final = 0.0005
"""Of a large file that is removed: 256 MiB take some 30 steps."""


class DiskSpace(NamedTuple):
    """Of the file system that holds a path, in bytes."""

    total_bytes: int
    free_bytes: int


class DiskFile(Protocol):
    """One open file."""

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> int:
        """Write all buffers one after the other from `offset` on; returns the bytes written (always all)."""
        ...

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Up to `size_bytes`; fewer only at the end of the file."""
        ...

    def fsync(self) -> None:
        """Data and size are durable. A failure poisons the file."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def size_bytes(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Files below some directories."""

    def open_append(self, path: str) -> DiskFile:
        """Open for reading and writing, created when missing (durable only after fsync and `fsync_dir`)."""
        ...

    def open_read(self, path: str) -> DiskFile:
        """Open an existing file. Raises FileNotFoundError."""
        ...

    def make_dir(self, path: str) -> None:
        """Create the directory and missing parents, durably."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in the directory, sorted."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replace `target` atomically; durable after `fsync_dir`."""
        ...

    def unlink(self, path: str) -> None:
        """Remove the file; one that is missing already is fine. Who still has it open may find it shorter, or empty."""
        ...

    def fsync_dir(self, path: str) -> None: ...

    def free(self, path: str) -> DiskSpace: ...


def write_file(disk: Disk, path: str, content: bytes) -> None:
    """Replace a small file so that a crash leaves the old content or the new one: write, fsync, rename, fsync of the directory."""
    temporary = path + ".tmp"
    file = disk.open_append(temporary)
    try:
        file.truncate(0)
        file.write_at(0, (content,))
        file.fsync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.fsync_dir(os.path.dirname(path))


def read_file(disk: Disk, path: str, size_bytes_max: int) -> bytes | None:
    """The file's first `size_bytes_max` bytes, or None when there is no such file."""
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, size_bytes_max)
    finally:
        file.close()


class OsDisk:
    """The operating system's files."""

    def open_append(self, path: str) -> DiskFile:
        return _open(path, os.O_RDWR | os.O_CREAT)

    def open_read(self, path: str) -> DiskFile:
        return _open(path, os.O_RDONLY)

    def make_dir(self, path: str) -> None:
        missing = []
        parent = os.path.abspath(path)
        while not os.path.isdir(parent):
            missing.append(parent)
            parent = os.path.dirname(parent)
        for directory in reversed(missing):
            try:
                os.mkdir(directory, 0o700)
            except FileExistsError:
                pass
            except OSError as error:
                _raise(error, f"cannot create directory {directory}")
            self.fsync_dir(os.path.dirname(directory))

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            _raise(error, f"cannot list {path}")

    def rename(self, source: str, target: str) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            _raise(error, f"cannot rename {source} to {target}")

    def unlink(self, path: str) -> None:
        try:
            descriptor = _open_to_free(path)
            try:
                os.unlink(path)
                if descriptor is not None:
                    _shorten(descriptor)
            finally:
                if descriptor is not None:
                    os.close(descriptor)
        except FileNotFoundError:
            pass
        except OSError as error:
            _raise(error, f"cannot remove {path}")

    def fsync_dir(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            _raise(error, f"fsync of directory {path} failed")

    def free(self, path: str) -> DiskSpace:
        try:
            usage = shutil.disk_usage(path)
        except OSError as error:
            _raise(error, f"cannot ask for the free space of {path}")
        return DiskSpace(usage.total, usage.free)


class _OsFile:
    """Owns a descriptor through FileIO, so that dropping the last reference closes it: a reader on another thread that still
    holds this object can never read from a descriptor that meanwhile belongs to another file."""

    __slots__ = ("_descriptor", "_file", "_path", "_poisoned")

    def __init__(self, path: str, file: io.FileIO) -> None:
        self._path = path
        self._file = file
        self._descriptor = file.fileno()
        self._poisoned = False

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> int:
        self._check()
        total = sum(map(len, buffers))
        try:
            written = os.pwritev(self._descriptor, buffers, offset)
            while written < total:  # a signal, or the last free block
                rest = b"".join(buffers)[written:]
                step = os.pwrite(self._descriptor, rest, offset + written)
                if step == 0:
                    raise OSError(errno.ENOSPC, "no byte was written")
                written += step
        except OSError as error:
            _raise(error, f"write of {total} bytes at {offset} of {self._path} failed")
        return total

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        self._check()
        try:
            data = os.pread(self._descriptor, size_bytes, offset)
            if 0 < len(data) < size_bytes:
                chunks = [data]
                done = len(data)
                while done < size_bytes and (chunk := os.pread(self._descriptor, size_bytes - done, offset + done)):
                    chunks.append(chunk)
                    done += len(chunk)
                data = b"".join(chunks)
        except OSError as error:
            _raise(error, f"read of {size_bytes} bytes at {offset} of {self._path} failed")
        return data

    def fsync(self) -> None:
        self._check()
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._poisoned = True
            raise DiskIOError(f"fsync of {self._path} failed: {error.strerror}") from error

    def truncate(self, size_bytes: int) -> None:
        self._check()
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            _raise(error, f"cannot truncate {self._path} to {size_bytes} bytes")

    def size_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        self._file.close()

    def _check(self) -> None:
        if self._poisoned:
            raise DiskIOError(f"{self._path} is not used any more since its fsync failed")


def _open_to_free(path: str) -> int | None:
    """None where it cannot be opened, for want of descriptors, say: it can be removed all the same."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None


def _shorten(descriptor: int) -> None:
    """Give the blocks of a removed file back some at a time: all at once hold up the file system's own log, and with it every fsync."""
    about = os.fstat(descriptor)
    if about.st_nlink:  # it has another name, or the path was a link to it
        return
    with suppress(OSError):  # it is gone already; what is left goes when it is closed
        for size_bytes in range(about.st_size - _FREED_BYTES, 0, -_FREED_BYTES):
            os.ftruncate(descriptor, size_bytes)
            time.sleep(_FREED_PAUSE_S)


def _open(path: str, flags: int) -> DiskFile:
    try:
        file = io.FileIO(os.open(path, flags | os.O_CLOEXEC, 0o600), "r+" if flags & os.O_RDWR else "r")
    except FileNotFoundError:
        raise
    except OSError as error:
        _raise(error, f"cannot open {path}")
    return _OsFile(path, file)


def _raise(error: OSError, what: str) -> NoReturn:
    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskIOError
    raise kind(f"{what}: {error.strerror or error}") from error
