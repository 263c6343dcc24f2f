"""A TCP proxy that can stop passing anything on, without a word to either side: a partition, as a broken switch makes it."""

from __future__ import annotations

import socket
import threading


class StallingProxy:
    """`stall()`: connections stay open and nothing passes, new ones neither; `heal()`: what was there is cut, new ones go through."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._live: list[socket.socket] = []
        self._over = False
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        self._flows.clear()

    def heal(self) -> None:
        """A partition that lasts longer than TCP's patience leaves no connection behind: neither does this."""
        live, self._live = self._live, []
        for end in live:
            _shut(end)
        self._flows.set()

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
        self._flows.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target_port))
        except OSError:
            _shut(client)
            return
        self._live.append(server)
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        while True:
            try:
                data = source.recv(65536)
                self._flows.wait()
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
