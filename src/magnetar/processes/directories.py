"""Data directories: who may look into them, and the room that is kept in them for a full disk."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path
from typing import Final

from magnetar.base.errors import StartupError
from magnetar.base.executor import Executor

DIRECTORY_MODE: Final = 0o700

RESERVE_FILE: Final = "reserve"
RESERVE_BYTES_MAX: Final = 16 * 1024 * 1024
RESERVE_DISK_PART: Final = 16
"""The reserve file is one part in so many of the disk, but at most `RESERVE_BYTES_MAX`."""

RESERVE_CHECK_S: Final = 1.0
"""How often a running server looks whether the reserve has to be given up, or can be made again."""

_logger = logging.getLogger(__name__)


def prepare_directory(path: Path, option: str = "--data-dir") -> None:
    """Create the data directory for this user alone, or take other users' rights from it. Raises StartupError when it cannot be used.

    An existing directory of somebody else stays as it is: only its owner may change it.
    """
    try:
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"cannot create the data directory {path}: {error.strerror}; choose another {option}"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StartupError(
            f"the data directory {path} is not writable; change its permissions or choose another {option}"
        )
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        try:
            path.chmod(mode & DIRECTORY_MODE)
        except OSError as error:
            _logger.warning(
                "other users may look into %s (mode %o), and it cannot be closed: %s", path, mode, error.strerror
            )
        else:
            _logger.warning("other users could look into %s (mode %o); its mode is %o now", path, mode, mode & 0o700)


class SpaceReserve:
    """A file that takes room while there is some, and gives it up when the disk is full: for metadata, the index and the next start.

    `release` before files of the directory are opened, then `run` as a task. Failures are logged: without the reserve everything
    works until the disk is full.
    """

    def __init__(self, directory: Path, executor: Executor) -> None:
        self._path = directory / RESERVE_FILE
        self._executor = executor

    async def run(self) -> None:
        """Look at the disk now and then, until cancelled."""
        while True:
            await self._executor.run(self._keep)
            await asyncio.sleep(RESERVE_CHECK_S)

    def release(self) -> None:
        """Give the room up if the disk is full. Blocks."""
        try:
            space = shutil.disk_usage(self._path.parent)
            if space.free < self._size_bytes(space.total) // 2 and self._path.exists():
                self._path.unlink()
                _logger.warning("the disk is full: the reserve file is given up for metadata and deletions; make room")
        except OSError as error:
            _logger.warning("the reserve file was not given up: %s", error.strerror)

    def _keep(self) -> None:
        self.release()
        try:
            space = shutil.disk_usage(self._path.parent)
            size_bytes = self._size_bytes(space.total)
            if space.free < 4 * size_bytes or (self._path.exists() and self._path.stat().st_size >= size_bytes):
                return
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            _logger.warning("the reserve file was not made: %s", error.strerror)

    @staticmethod
    def _size_bytes(disk_bytes: int) -> int:
        return min(disk_bytes // RESERVE_DISK_PART, RESERVE_BYTES_MAX)
