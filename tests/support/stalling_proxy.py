"""A TCP proxy that can stop passing anything on, without a word to either side: a partition, as a broken switch makes it."""

from __future__ import annotations

import socket
import threading
from typing import Literal

Direction = Literal["up", "down", "both"]
"""`up`: what clients say does not arrive; `down`: the server hears everything and its answers do not arrive."""


class StallingProxy:
    """`stall()`: connections stay open and nothing passes; `heal()`: what was there is cut, new ones go through.

    Of one direction only: the other one goes on, also for connections that are made meanwhile. `target`: the server's port, or address.
    `address`, `port`: where it listens, by default at a free port of 127.0.0.1.
    """

    def __init__(self, target: int | tuple[str, int], address: str = "127.0.0.1", port: int = 0) -> None:
        self._target = ("127.0.0.1", target) if isinstance(target, int) else target
        self._listener = socket.create_server((address, port))
        self.port: int = self._listener.getsockname()[1]
        self._up, self._down = threading.Event(), threading.Event()
        self._up.set()
        self._down.set()
        self._live: list[socket.socket] = []
        self._over = False
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self, direction: Direction = "both") -> None:
        if direction != "down":
            self._up.clear()
        if direction != "up":
            self._down.clear()

    def heal(self) -> None:
        """A partition that lasts longer than TCP's patience leaves no connection behind: neither does this."""
        self.cut()
        self.resume()

    def resume(self) -> None:
        """A short one: TCP repeats what did not arrive, and connections go on."""
        self._up.set()
        self._down.set()

    def cut(self) -> None:
        """Every connection there is ends now, for both sides."""
        live, self._live = self._live, []
        for end in live:
            _shut(end)

    def close(self) -> None:
        self._over = True
        _shut(self._listener)
        self.heal()

    def _accept(self) -> None:
        while not self._over:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        self._live.append(client)
        self._up.wait()
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # fails when it was cut meanwhile
            server = socket.create_connection(self._target)
        except OSError:
            _shut(client)
            return
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._live.append(server)
        for source, sink, flows in ((client, server, self._up), (server, client, self._down)):
            threading.Thread(target=self._pump, args=(source, sink, flows), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, flows: threading.Event) -> None:
        while True:
            try:
                data = source.recv(65536)
                flows.wait()
                sink.sendall(data)
            except OSError:
                data = b""
            if not data:
                _shut(source)
                _shut(sink)
                return


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()
