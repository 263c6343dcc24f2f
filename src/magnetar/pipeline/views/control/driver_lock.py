"""One driver of a pipeline at a time on a machine: a lock that the system takes back from a process that died.

It spares the user two drivers that fence each other off by turns; what keeps the state right is the manifest's term alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from magnetar.base.clock import Clock
from magnetar.pipeline.errors import PipelineRunningError
from magnetar.pipeline.views.control.requests import read_document

FILE: Final = "driver.lock"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that runs a pipeline. `start_ticks` tells it from another one that was given its number later; 0: not known."""

    pid: int
    host: str
    since_ms: int
    start_ticks: int = 0

    def is_alive(self) -> bool:
        """Of another machine's process nothing is known, so it counts as alive."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return self.start_ticks == 0 or start_ticks(self.pid) == self.start_ticks


def holder(directory: Path) -> Holder | None:
    """Who runs the pipeline of this directory; None when nobody does, a process that died included. Takes no lock."""
    document = read_document(directory / FILE)
    try:
        found = Holder(**document) if document else None
    except TypeError:
        return None
    return found if found is not None and found.is_alive() else None


class DriverLock:
    """Held between `with`; PipelineRunningError when another process holds it."""

    def __init__(self, directory: Path, name: str, clock: Clock) -> None:
        self._directory = directory
        self._name = name
        self._clock = clock
        self._file = -1

    def __enter__(self) -> DriverLock:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._directory / FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            other = holder(self._directory)
            who = f"process {other.pid}" if other else "another process"
            raise PipelineRunningError(
                f"pipeline {self._name} is run by {who} already; stop it with: magnetar pipeline stop {self._name}"
            ) from None
        return self

    def announce(self) -> None:
        """Say who holds it: from now on other processes send requests."""
        pid = os.getpid()
        me = Holder(pid, socket.gethostname(), self._clock.now_ms(), start_ticks(pid))
        data = json.dumps(asdict(me)).encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)


def start_ticks(pid: int) -> int:
    """When a process began, in the system's ticks since its own start; 0 where /proc does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])
