"""Processes of this machine: which one exactly, and the moment at which it ends.

Linux only (pidfd, 5.3). Where something cannot be known for certain the answer is that nothing is known, never that a process is gone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process and no other, ever: its number may be given away again, its number and its start together are not."""

    machine: str
    """Since its last start (`boot_id`)."""
    spaces: str
    """In which a pid and a time of start mean something: namespaces of pids and of time."""
    pid: int
    started: int
    """Clock ticks after the machine's start."""

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> ProcessIdentity | None:
        """None for what is not an identity: anybody may have written it."""
        try:
            return cls(str(record["machine"]), str(record["spaces"]), int(record["pid"]), int(record["started"]))
        except (KeyError, TypeError, ValueError):
            return None


class ProcessWatch(Protocol):
    """How a process learns of the end of another one."""

    def own(self) -> ProcessIdentity | None:
        """None where processes cannot be told apart for certain."""
        ...

    def watch(self, identity: ProcessIdentity, ended: Callable[[], None]) -> Callable[[], None] | None:
        """Call `ended` once it is certain that the process is gone, from the event loop. Answers the function that ends the watch, None
        when that process cannot be seen from here: it is on another machine, or in another container."""
        ...


class LinuxProcessWatch:
    """The kernel tells."""

    def __init__(self) -> None:
        self._own = _own_identity()

    def own(self) -> ProcessIdentity | None:
        return self._own

    def watch(self, identity: ProcessIdentity, ended: Callable[[], None]) -> Callable[[], None] | None:
        own = self._own
        if own is None or (identity.machine, identity.spaces) != (own.machine, own.spaces) or identity.pid <= 0:
            return None
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return loop.call_soon(ended).cancel
        except OSError:
            return None
        started = _started(identity.pid)
        if started != identity.started:
            os.close(descriptor)
            return None if started is None else loop.call_soon(ended).cancel

        def stop() -> None:
            nonlocal descriptor
            if descriptor >= 0:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                descriptor = -1

        def readable() -> None:
            stop()
            ended()

        loop.add_reader(descriptor, readable)
        return stop


def _own_identity() -> ProcessIdentity | None:
    try:
        if not hasattr(os, "pidfd_open") or (_PROC / "self").readlink().name != str(os.getpid()):
            return None  # /proc shows another namespace's processes
        machine = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        spaces = " ".join(str((_PROC / "self/ns" / kind).readlink()) for kind in ("pid", "time"))
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return None
    started = _started(os.getpid())
    return None if started is None else ProcessIdentity(machine, spaces, os.getpid(), started)


def _started(pid: int) -> int | None:
    """None when it is not shown: there is no such process any more, or it is hidden."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])
