"""One process per data directory: a lock file that names its holder."""

from __future__ import annotations

import fcntl
import logging
import os
from types import TracebackType

from magnetar.base.errors import StartupError

FILE_NAME = "bookie.lock"
_HOLDER_BYTES = 32

_logger = logging.getLogger(__name__)


class DirectoryLock:
    """`with DirectoryLock(path):`. The kernel releases it when the process dies, however it dies."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._descriptor = -1

    def __enter__(self) -> DirectoryLock:
        path = os.path.join(self._directory, FILE_NAME)
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(
                f"data directory {self._directory} cannot be written: {error.strerror}; "
                "choose another one or correct its permissions"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StartupError(
                f"data directory {self._directory} is in use by process PID {holder}; stop it or choose another directory"
            ) from None
        try:
            os.pwrite(
                descriptor, f"{os.getpid()}\n".ljust(_HOLDER_BYTES).encode(), 0
            )  # in place: no room is needed on a full disk
        except OSError as error:
            _logger.warning("the lock file does not name this process: %s", error)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
