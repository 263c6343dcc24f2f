"""One command at a time changes a cluster."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from magnetar.processes.cluster.errors import ClusterError

FILE_NAME: Final = "cluster.lock"

WAIT_S: Final = 30.0
"""How long a command waits for another one before it gives up."""

_POLL_S: Final = 0.05


class ClusterLock:
    """`with ClusterLock(directory):`. The kernel releases it when the command dies, however it dies."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = -1

    def __enter__(self) -> ClusterLock:
        try:
            descriptor = os.open(self._directory / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise ClusterError(
                f"there is no cluster in {self._directory}; start one with: magnetar cluster up --dir {self._directory}"
            ) from None
        except OSError as error:
            raise ClusterError(
                f"{self._directory} cannot be written: {error.strerror}; choose another --dir"
            ) from error
        give_up_at = time.monotonic() + WAIT_S
        while not _taken(descriptor):
            if time.monotonic() > give_up_at:
                os.close(descriptor)
                raise ClusterError(f"another magnetar cluster command is at work in {self._directory}; wait for it")
            time.sleep(_POLL_S)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
