"""Free ports of this machine, for processes that keep theirs over restarts."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
LOWEST: Final = 10_000
"""Below it well-known services live."""
FEWEST: Final = 2_000
"""With fewer ports than that to choose from the system chooses."""
EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")

_given: set[int] = set()
_reservations: int | None = None


def free_ports(count: int) -> list[int]:
    """Distinct ones that nobody listens on, and that no other process which still runs was given here.

    They lie below those that the system gives to whoever asks for any, so that nobody has taken one while its server is down. Where
    there is no such room the system chooses; then somebody may take a port before its process starts, which says so.
    """
    above = _lowest_ephemeral()
    return [_from_system() if above < LOWEST + FEWEST else _below(above) for _ in range(count)]


def _below(above: int) -> int:
    while True:
        port = random.randrange(LOWEST, above)
        if port not in _given and _reserve(port) and _is_free(port):
            _given.add(port)
            return port


def _reserve(port: int) -> bool:
    """A lock on one byte of a file, which ends with this process. The file stays open: closing it anywhere would give up all locks."""
    global _reservations
    with suppress(OSError):  # no such file and no locks: then it is not reserved
        if _reservations is None:
            path = Path(tempfile.gettempdir()) / f"magnetar-ports-{os.getuid()}"
            _reservations = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(_reservations, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except (BlockingIOError, PermissionError):
            return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _from_system() -> int:
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def _lowest_ephemeral() -> int:
    """0 where the system does not say."""
    with suppress(OSError, ValueError):
        return int(EPHEMERAL.read_text().split()[0])
    return 0
