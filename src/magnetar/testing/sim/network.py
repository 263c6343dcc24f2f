"""The network as one process sees it (`base.network.Network`). As strict as TCP: nothing is lost, doubled or reordered within a
connection. A cut holds segments back until it is healed; a machine without power answers nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from magnetar.base.errors import StartupError
from magnetar.testing.sim.connection import Connection
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.wires import RETRANSMIT_S, Wires

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
