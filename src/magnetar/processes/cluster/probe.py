"""Which processes of a cluster are there: the operating system is asked, so nothing on disk can be out of date.

Each process carries its cluster's directory and its own name in the environment, which `/proc` shows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

MARK: Final = "MAGNETAR_CLUSTER_PROCESS"
_PROC: Final = Path("/proc")


class FoundProcess(NamedTuple):
    """`paused`: stopped by SIGSTOP."""

    pid: int
    paused: bool


def mark_of(directory: Path, name: str) -> str:
    """The value of `MARK` for a process."""
    return f"{directory.resolve()}:{name}"


def find_processes(directory: Path) -> dict[str, FoundProcess]:
    """By name. A process that has ended but was not waited for does not count."""
    wanted = f"\0{MARK}={directory.resolve()}:".encode()
    found: dict[str, FoundProcess] = {}
    for entry in os.scandir(_PROC):
        if not entry.name.isdigit():
            continue
        process = Path(entry.path)
        try:
            environment = b"\0" + (process / "environ").read_bytes()
            if wanted not in environment:
                continue
            state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:  # it is another user's, or it has ended meanwhile
            continue
        if state not in b"ZX":
            name = environment.partition(wanted)[2].partition(b"\0")[0].decode(errors="replace")
            found[name] = FoundProcess(int(entry.name), state in b"Tt")
    return found
