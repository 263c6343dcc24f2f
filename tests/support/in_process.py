"""A whole standalone server on a thread of the test's own process, over a disk that fails when told to."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from magnetar.base.errors import DiskFullError, DiskIOError
from magnetar.bookkeeper.bookie.storage.disk import Disk, DiskFile, DiskSpace, OsDisk
from magnetar.broker.service import Broker
from magnetar.processes.configurations import StandaloneConfig
from magnetar.standalone import Standalone

START_TIMEOUT_S = 20

T = TypeVar("T")


class InProcessServer:
    """`with InProcessServer(directory, disk) as server:` serves until left; `failure` is why it stopped by itself."""

    def __init__(self, data_dir: Path, disk: Disk | None = None, **settings: Any) -> None:
        self._config = StandaloneConfig(data_dir=data_dir, port=0, http_port=0, **settings)
        self._disk = disk
        self._ready = threading.Event()
        self._stopped = threading.Event()
        self._problem: BaseException | None = None
        self.service_url = self.http_url = ""
        self.failure: BaseException | None = None
        self.failed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def broker(self) -> Broker:
        """To be looked at; it runs on the server's thread."""
        return self._standalone.broker

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the server's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_TIMEOUT_S)

    @property
    def port(self) -> int:
        return int(self.service_url.rpartition(":")[2])

    def __enter__(self) -> InProcessServer:
        self._thread.start()
        assert self._ready.wait(START_TIMEOUT_S), "the server did not start"
        if self._problem is not None:
            raise self._problem
        return self

    def check_disk(self) -> None:
        """The bookie looks at its free space now, which it does by itself every ten seconds."""
        asyncio.run_coroutine_threadsafe(self._standalone.bookie.check_disk(), self._loop).result(START_TIMEOUT_S)

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_TIMEOUT_S)
        assert not self._thread.is_alive(), "the server did not stop"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._problem = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with Standalone(self._config, self._disk) as server:
            self._standalone = server
            self.service_url, self.http_url = server.service_url, server.web_service_url
            self._ready.set()
            stop = asyncio.create_task(self._stop.wait())
            failed = asyncio.create_task(server.failed.wait())
            await asyncio.wait((stop, failed), return_when=asyncio.FIRST_COMPLETED)
            self.failure = server.failure
            if self.failure is not None:
                self.failed.set()
            await stop
            failed.cancel()


class FaultyDisk:
    """The real disk, but for files whose path holds `part`: their fsyncs wait for `gate`, and fail or find no room when told to."""

    def __init__(self, part: str = "journal") -> None:
        self._real = OsDisk()
        self._part = part
        self.gate = threading.Event()
        self.gate.set()
        self.fail_fsync = False
        self.full = False
        self.fsyncs = 0

    def open_append(self, path: str) -> DiskFile:
        file = self._real.open_append(path)
        return _FaultyFile(self, file, path) if self._part in os.path.relpath(path) else file

    def open_read(self, path: str) -> DiskFile:
        return self._real.open_read(path)

    def make_dir(self, path: str) -> None:
        self._real.make_dir(path)

    def list(self, path: str) -> list[str]:
        return self._real.list(path)

    def rename(self, source: str, target: str) -> None:
        self._real.rename(source, target)

    def unlink(self, path: str) -> None:
        self._real.unlink(path)

    def fsync_dir(self, path: str) -> None:
        self._real.fsync_dir(path)

    def free(self, path: str) -> DiskSpace:
        space = self._real.free(path)
        return DiskSpace(space.total_bytes, 0) if self.full else space


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, file: DiskFile, path: str) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> int:
        if self._disk.full:
            raise DiskFullError(f"write to {self._path} failed: {os.strerror(errno.ENOSPC)}")
        return self._file.write_at(offset, buffers)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        return self._file.read_at(offset, size_bytes)

    def fsync(self) -> None:
        self._disk.gate.wait()
        if self._disk.fail_fsync:
            raise DiskIOError(f"fsync of {self._path} failed: {os.strerror(errno.EIO)}")
        self._file.fsync()
        self._disk.fsyncs += 1

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def size_bytes(self) -> int:
        return self._file.size_bytes()

    def close(self) -> None:
        self._file.close()
