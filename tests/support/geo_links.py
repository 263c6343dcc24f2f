"""Slow links between whole clusters, that can be cut one direction at a time.

A cluster advertises a loopback address of its own, where a proxy listens. Who connects there is told by the process that holds the
other end: another cluster's connection is delayed, and ended while that link is down; a test's own client passes at once.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.geo import Region, mesh
from tests.support.proxy import reset

_CHUNK_BYTES = 65536


class Links:
    """`down`: pairs (from, to) of names over which nothing goes now. `delay_s`: one way."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.regions: list[Region] = []
        self._down: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._live: list[tuple[tuple[str, str], socket.socket, socket.socket]] = []
        self._listeners: list[socket.socket] = []

    def front(self, region: Region, address: str) -> None:
        """Listen where `region` says that it is."""
        listener = socket.create_server((address, region.server.port))
        self._listeners.append(listener)
        self.regions.append(region)
        threading.Thread(target=self._accept, args=(listener, region), daemon=True).start()

    def cut(self, source: str, target: str) -> None:
        """Until `mend`; both ways with `isolate`."""
        with self._lock:
            self._down.add((source, target))
            gone = [each for each in self._live if each[0] == (source, target)]
            self._live = [each for each in self._live if each[0] != (source, target)]
        for _, *pair in gone:
            reset(*pair)

    def blink(self, source: str, target: str) -> None:
        """Cut the connections there are; new ones go through."""
        self.cut(source, target)
        self.mend(source, target)

    def mend(self, source: str, target: str) -> None:
        with self._lock:
            self._down.discard((source, target))

    def isolate(self, name: str) -> None:
        for other in self.regions:
            if other.name != name:
                self.cut(name, other.name)
                self.cut(other.name, name)

    def mend_all(self) -> None:
        with self._lock:
            self._down.clear()

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for _, *pair in self._live:
            reset(*pair)

    def _accept(self, listener: socket.socket, target: Region) -> None:
        while True:
            try:
                client, peer = listener.accept()
            except OSError:
                return
            source = _owner(peer[1], {region.name: region.server.pid for region in self.regions if region.running})
            link = (source, target.name)
            with self._lock:
                refused = link in self._down
            if refused:
                reset(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", target.server.port))
            except OSError:
                reset(client)
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._live.append((link, client, server))
            delay_s = self.delay_s if source else 0.0
            for inlet, outlet in ((client, server), (server, client)):
                _pump(inlet, outlet, delay_s)


def _owner(port: int, pids: Mapping[str, int]) -> str:
    """Whose socket has this local port; empty for nobody among `pids`."""
    wanted = f":{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(wanted):
            inode = f"socket:[{fields[9]}]"
            for name, pid in pids.items():
                if _holds(pid, inode):
                    return name
    return ""


def _holds(pid: int, inode: str) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/{pid}/fd/{descriptor}") == inode:
                return True
        except OSError:
            continue
    return False


def _pump(inlet: socket.socket, outlet: socket.socket, delay_s: float) -> None:
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def take() -> None:
        data = b"-"
        while data:
            try:
                data = inlet.recv(_CHUNK_BYTES)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + delay_s, data))

    def give() -> None:
        while True:
            due_s, data = waiting.get()
            if not data:
                reset(inlet, outlet)
                return
            time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                outlet.sendall(data)
            except OSError:
                reset(inlet, outlet)
                return

    threading.Thread(target=take, daemon=True).start()
    threading.Thread(target=give, daemon=True).start()


@contextmanager
def far_regions(
    directory: Path, *names: str, delay_s: float = 0.05, settings: Mapping[str, object] | None = None
) -> Iterator[tuple[Links, list[Region]]]:
    """Clusters that replicate `NAMESPACE` among all of them over links that take `delay_s` one way."""
    links = Links(delay_s)
    all_of_them: list[Region] = []
    try:
        for number, name in enumerate(names):
            address = f"127.0.0.{10 + number}"
            all_of_them.append(Region(name, directory, {"advertisedAddress": address, **(settings or {})}))
        for region in all_of_them:
            region.server.spawn()
        for number, region in enumerate(all_of_them):
            region.server.wait_ready()
            links.front(region, f"127.0.0.{10 + number}")
        mesh(all_of_them)
        yield links, all_of_them
    finally:
        for region in all_of_them:
            region.close()
        links.close()
