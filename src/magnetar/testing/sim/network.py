"""The network as one process sees it (`base.network.Network`), and its simulated TCP connections: two ends, each with a transport.

As strict as TCP: nothing is lost, doubled or reordered within a connection. A cut holds segments back until it is healed; a machine
without power answers nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from magnetar.base.errors import StartupError
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.wires import RETRANSMIT_S, Wires

HIGH_WATER_BYTES: Final = 64 * 1024
"""asyncio's default for a socket's write buffer."""

_FIN: Final = b""
_RST: Final = None


class _Pipe:
    """One direction. Items on the way: bytes, FIN, RST."""

    __slots__ = (
        "_arrived_s",
        "_queue",
        "_scheduled",
        "_sent_total",
        "_writes",
        "queued_bytes",
        "source",
        "target",
        "wires",
    )

    def __init__(self, wires: Wires, source: SimTransport, target: SimTransport) -> None:
        self.wires = wires
        self.source = source
        self.target = target
        self.queued_bytes = 0
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._arrived_s = 0.0
        self._scheduled = 0
        self._sent_total = 0
        self._writes: deque[tuple[int, float]] = deque()

    def sent_s(self, position: int) -> float:
        """When the byte in front of `position`, counted from the beginning of the connection, was written. Positions only grow."""
        writes = self._writes
        while writes[0][0] < position:
            writes.popleft()
        return writes[0][1]

    def send(self, item: bytes | None) -> None:
        wires = self.wires
        if item is _RST:
            self._queue.clear()
            self.queued_bytes = 0
        arrival_s = max(self._arrived_s, wires.loop.now_s + wires.delay(self.source.machine, self.target.machine))
        self._arrived_s = arrival_s
        self._queue.append((arrival_s, item))
        if item:
            self.queued_bytes += len(item)
            self._sent_total += len(item)
            self._writes.append((self._sent_total, wires.loop.now_s))
        if len(self._queue) == 1:
            self._schedule(arrival_s)

    def nudge(self) -> None:
        """Try again soon."""
        if self._queue:
            wires = self.wires
            self._arrived_s = max(
                self._arrived_s, wires.loop.now_s + wires.delay(self.source.machine, self.target.machine)
            )
            self._schedule(max(self._queue[0][0], wires.loop.now_s + wires.delay_s))

    def hurry(self) -> None:
        """What is under way arrives now, at the latest."""
        if self._queue:
            wires = self.wires
            now_s = wires.loop.now_s + wires.delay(self.source.machine, self.target.machine)
            self._queue = deque((min(arrival_s, now_s), item) for arrival_s, item in self._queue)
            self._arrived_s = self._queue[-1][0]
            self._schedule(self._queue[0][0])

    def _schedule(self, when_s: float) -> None:
        loop = self.wires.loop
        self._scheduled += 1
        process = self.target.process if self.target.process.alive else loop.outside
        loop.call_at(when_s, self._deliver, self._scheduled, context=process.context)

    def _deliver(self, number: int) -> None:
        wires, target, queue = self.wires, self.target, self._queue
        if number != self._scheduled or not queue or wires.is_cut(self.source.machine, target.machine):
            return  # outdated; or held back until a nudge
        if target.machine not in wires.powered:
            return
        if target.gone:
            self._answer_with_reset()
            return
        if not target.reading and queue[0][1]:
            return
        parts: list[bytes] = []
        now_s = wires.loop.now_s
        while queue and queue[0][0] <= now_s and (item := queue[0][1]):
            parts.append(item)
            queue.popleft()
        if parts:
            self._hand_over(b"".join(parts))
        elif queue and queue[0][0] <= now_s:
            _, item = queue.popleft()
            target.ended(reset=item is _RST)
        if queue:
            self._schedule(max(queue[0][0], now_s))

    def _hand_over(self, data: bytes) -> None:
        wires = self.wires
        wires.deliveries_total += 1
        if len(data) > 1 and wires.rng.random() < wires.split_probability:
            cut = wires.rng.randrange(1, len(data))
            self._queue.appendleft((wires.loop.now_s + wires.jitter_s, data[cut:]))
            data = data[:cut]
        self.queued_bytes -= len(data)
        trace = wires.loop.trace
        trace.mix = (trace.mix * 31 + len(data)) & 0xFFFFFFFFFFFF
        self.source.drained()
        self.target.received(data)

    def _answer_with_reset(self) -> None:
        """Answers a segment for a socket that is closed, or whose machine has restarted since."""
        self._queue.clear()
        self.queued_bytes = 0
        if not self.source.gone and not self.source.closed:
            self.source.pipe_in.send(_RST)


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    pipe_out: _Pipe
    pipe_in: _Pipe

    def __init__(self, wires: Wires, process: Process, machine: str, names: dict[str, object]) -> None:
        super().__init__(names)
        self._wires = wires
        self.process = process
        self.machine = machine
        self._boot = wires.boots.get(machine, 0)
        self._protocol: asyncio.BaseProtocol | None = None
        self.reading = True
        self.closed = False
        """No more callbacks but the last one."""
        self._killed = False
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._eof_sent = False
        self.on_closed: Callable[[], None] = _nothing

    @property
    def gone(self) -> bool:
        """There is no socket any more: the process died, or its machine has booted since."""
        return self._killed or self._wires.boots.get(self.machine, 0) != self._boot

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """The application takes this end."""
        self._protocol = protocol
        protocol.connection_made(self)

    # ---- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.closed or self._eof_sent or not data:
            return
        self.pipe_out.send(bytes(data))
        if not self._writing_paused and self.get_write_buffer_size() > self._high and self._protocol is not None:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self.closed:
            if not self._eof_sent:
                self.pipe_out.send(_FIN)
            self._lose(None)

    def abort(self) -> None:
        if not self.closed:
            self.pipe_out.send(_RST)
            self._lose(None)

    def is_closing(self) -> bool:
        return self.closed

    def write_eof(self) -> None:
        if not self._eof_sent and not self.closed:
            self._eof_sent = True
            self.pipe_out.send(_FIN)

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        if not self.reading:
            self.reading = True
            self.pipe_in.nudge()

    def is_reading(self) -> bool:
        return self.reading and not self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        self._high = high
        self._low = high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return max(0, self.pipe_out.queued_bytes - self._wires.window_bytes)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    # ---- What comes from the wire

    def received(self, data: bytes) -> None:
        if not self.closed and isinstance(self._protocol, asyncio.Protocol):
            self._protocol.data_received(data)

    def ended(self, reset: bool) -> None:
        """FIN or RST."""
        if self.closed:
            return
        if reset:
            self._lose(ConnectionResetError("connection reset by peer"))
        elif not (isinstance(self._protocol, asyncio.Protocol) and self._protocol.eof_received()):
            self.close()

    def drained(self) -> None:
        """The other end took something."""
        if self._writing_paused and not self.closed and self.get_write_buffer_size() <= self._low:
            self._writing_paused = False
            if self._protocol is not None:
                self._wires.loop.call_soon(self._protocol.resume_writing, context=self.process.context)

    def reset_from_outside(self) -> None:
        if not self.closed and not self.gone:
            self._wires.loop.call_as(self.process, 0.0, self.ended, True)

    def kill(self, silently: bool) -> None:
        """The process is gone: the kernel says goodbye, or resets when something was left unread."""
        if self._killed:
            return
        self._killed = True
        if silently:
            self.closed = True
        elif not self.closed:
            self.closed = True
            unread = self.pipe_in.queued_bytes > 0
            self.pipe_out.send(_RST if unread or self._wires.rng.random() < 0.3 else _FIN)
        self.pipe_in.nudge()

    def _lose(self, error: Exception | None) -> None:
        self.closed = True
        self.on_closed()
        if self._protocol is not None:
            self._wires.loop.call_soon(self._protocol.connection_lost, error, context=self.process.context)


def _nothing() -> None:
    pass


class Connection:
    """A line between a client and a server process."""

    def __init__(
        self, wires: Wires, client: tuple[Process, str], server: tuple[Process, str], port: int, number: int
    ) -> None:
        self._wires = wires
        self._number = number
        client_name, server_name = (client[1], 50_000 + number), (server[1], port)
        self.client = SimTransport(wires, *client, {"sockname": client_name, "peername": server_name})
        self.server = SimTransport(wires, *server, {"sockname": server_name, "peername": client_name})
        self.client.pipe_out = self.server.pipe_in = _Pipe(wires, self.client, self.server)
        self.server.pipe_out = self.client.pipe_in = _Pipe(wires, self.server, self.client)
        self.client.on_closed = self.server.on_closed = self._forget_when_closed

    def accept(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Runs in the server's process."""
        if not self.server.closed:
            self.server.attach(factory())

    def machines(self) -> tuple[str, str]:
        return self.client.machine, self.server.machine

    def reset(self) -> None:
        self.client.reset_from_outside()
        self.server.reset_from_outside()

    def nudge(self) -> None:
        self.client.pipe_out.nudge()
        self.server.pipe_out.nudge()

    def hurry(self) -> None:
        self.client.pipe_out.hurry()
        self.server.pipe_out.hurry()

    def killed(self, process: Process, silently: bool) -> None:
        for end in (self.client, self.server):
            if end.process is process:
                end.kill(silently)
        self._forget_when_closed()

    def _forget_when_closed(self) -> None:
        if self.client.closed and self.server.closed:
            self._wires.lines.pop(self._number, None)


_FREE_PORTS_FROM: Final = 40_000


class SimListener:
    """See `base.network.Listener`."""

    def __init__(self, wires: Wires, process: Process, machine: str, port: int) -> None:
        self._wires = wires
        self.process = process
        self.machine = machine
        self.port = port
        self.factory: Callable[[], asyncio.Protocol] | None = None

    async def serve(self, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None) -> None:
        assert tls is None, "TLS is not simulated"
        self.factory = factory

    async def close(self) -> None:
        if self._wires.ports.get((self.machine, self.port)) is self:
            del self._wires.ports[self.machine, self.port]


class SimNetwork:
    """One process on one machine; the machine's name is its address."""

    def __init__(self, wires: Wires, process: Process, machine: str) -> None:
        self._wires = wires
        self._process = process
        self.machine = machine

    def bind(self, host: str, port: int) -> SimListener:
        ports = self._wires.ports
        if host not in (self.machine, "0.0.0.0"):
            raise StartupError(f"address {host} does not belong to this machine")
        if port == 0:
            port = _FREE_PORTS_FROM
            while (self.machine, port) in ports:
                port += 1
        if (self.machine, port) in ports:
            raise StartupError(f"port {port} on {host} is taken by another process")
        listener = SimListener(self._wires, self._process, self.machine, port)
        ports[self.machine, port] = listener
        return listener

    async def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
    ) -> asyncio.Protocol:
        assert tls is None, "TLS is not simulated"
        async with asyncio.timeout(timeout_s):
            return await self._connect(host, port, factory)

    async def _connect(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        wires, here = self._wires, self.machine
        while True:
            await asyncio.sleep(wires.delay(here, host))
            if host in wires.powered and not wires.is_cut(here, host) and not wires.is_cut(host, here):
                break
            await asyncio.sleep(RETRANSMIT_S)  # SYN again
        listener = wires.ports.get((host, port))
        if not isinstance(listener, SimListener) or listener.factory is None:
            await asyncio.sleep(wires.delay(host, here))
            raise ConnectionRefusedError(f"connection to {host}:{port} refused")
        wires.connections_total += 1
        number = wires.connections_total
        connection = Connection(wires, (self._process, here), (listener.process, host), port, number)
        wires.lines[number] = connection
        wires.loop.call_as(listener.process, 0.0, connection.accept, listener.factory)
        try:
            await asyncio.sleep(wires.delay(host, here))
        except asyncio.CancelledError:
            connection.client.abort()
            raise
        if connection.client.closed:
            raise ConnectionResetError(f"connection to {host}:{port} was reset")
        protocol = factory()
        connection.client.attach(protocol)
        return protocol
