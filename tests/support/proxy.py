"""A TCP proxy that cuts connections after so many bytes in one direction, without a goodbye (RST), and may hold bytes back for a while."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from queue import Queue

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class CuttingProxy:
    """`cut_after(direction, n)`: the next connection ends once `n` bytes have passed; others go through until `cut_all`.

    `delay_s`: every byte arrives so much later, in either direction. `refuse(True)`: nobody gets through, nor in, until it is False.
    """

    def __init__(self, target_port: int, address: str = "127.0.0.2", delay_s: float = 0.0) -> None:
        """Listens on the target's port at another loopback address, which the server can advertise: clients find it by lookup."""
        self.delay_s = delay_s
        self._refusing = False
        self._target_port = target_port
        self._listener = socket.create_server((address, target_port))
        self._lock = threading.Lock()
        self._plan: tuple[str, int] | None = None
        self._live: list[tuple[socket.socket, socket.socket]] = []
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, direction: str, size_bytes: int) -> None:
        """`direction`: "up" to the server, "down" to the client. The connections there are now end at once."""
        with self._lock:
            self._plan = direction, size_bytes
        self.cut_all()

    @property
    def armed(self) -> bool:
        """No connection has taken up the plan yet."""
        return self._plan is not None

    def refuse(self, refusing: bool) -> None:
        self._refusing = refusing
        if refusing:
            self.cut_all()

    def cut_all(self) -> None:
        with self._lock:
            live, self._live = self._live, []
        for pair in live:
            self._cut(pair)

    def close(self) -> None:
        self._listener.close()
        self.cut_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:  # the server is not there now
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                plan, self._plan = self._plan, None
                self._live.append((client, server))
            limits = {"up": -1, "down": -1}
            if plan is not None:
                limits[plan[0]] = plan[1]
            cut = self._cutter((client, server))
            for source, sink, limit in ((client, server, limits["up"]), (server, client, limits["down"])):
                passed_on = _delayed(sink, self.delay_s) if self.delay_s else sink.sendall
                threading.Thread(target=_pump, args=(source, passed_on, limit, cut), daemon=True).start()

    def _cutter(self, pair: tuple[socket.socket, socket.socket]) -> Callable[[], None]:
        return lambda: self._cut(pair)

    def _cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self.cuts += 1
        reset(*pair)


def _delayed(sink: socket.socket, delay_s: float) -> Callable[[bytes], None]:
    """What takes the place of `sink.sendall`: the bytes leave later, in order."""
    waiting: Queue[tuple[float, bytes]] = Queue()

    def send() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                sink.sendall(data)
            except OSError:
                return
            if not data:
                return

    threading.Thread(target=send, daemon=True).start()
    return lambda data: waiting.put((time.monotonic() + delay_s, data))


def _pump(source: socket.socket, pass_on: Callable[[bytes], None], limit: int, cut: Callable[[], None]) -> None:
    passed = 0
    while True:
        try:
            data = source.recv(65536)
            if limit >= 0:
                data = data[: limit - passed]
            pass_on(data)
        except OSError:
            return
        passed += len(data)
        if not data or passed == limit:
            cut()
            return


def reset(*ends: socket.socket) -> None:
    """Close connections with a reset."""
    for end in ends:
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        end.close()
