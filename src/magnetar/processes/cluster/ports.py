"""Free ports of this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from magnetar.processes.cluster.plan import HOST


def free_ports(count: int) -> list[int]:
    """Distinct ones that nobody listens on now. Somebody may take one before its process starts, which then says so."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
