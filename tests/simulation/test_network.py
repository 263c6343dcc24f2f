"""The network is as strict as TCP, and its faults are those of networks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.testing.sim.network import SimNetwork
from magnetar.testing.sim.world import World, until


class Peer(asyncio.Protocol):
    """Remembers everything; a server's echoes when told to."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo
        self.data = bytearray()
        self.pieces = 0
        self.lost: list[Exception | None] = []
        self.paused: list[bool] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces += 1
        self.data += data
        if self.echo:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused.append(True)

    def resume_writing(self) -> None:
        self.paused.append(False)


class Pair:
    """A server machine and a client machine."""

    def __init__(self, world: World, echo: bool = False) -> None:
        self.world = world
        self.here, self.there = world.machine("client"), world.machine("server")
        self.client, self.server = world.start(self.here, "client"), world.start(self.there, "server")
        self.accepted: list[Peer] = []
        self.echo = echo

    async def listen(self) -> None:
        listener = SimNetwork(self.world.wires, self.server, "server").bind("server", 3181)
        await listener.serve(self._accept)

    def _accept(self) -> Peer:
        self.accepted.append(Peer(self.echo))
        return self.accepted[-1]

    async def connect(self, timeout_s: float = 5.0) -> Peer:
        peer = await SimNetwork(self.world.wires, self.client, "client").connect(
            "server", 3181, Peer, timeout_s=timeout_s
        )
        assert isinstance(peer, Peer)
        return peer


def on_pair(test: Callable[[Pair], Coroutine[Any, Any, None]], seed: int = 1, echo: bool = False) -> None:
    with World(seed) as world:
        pair = Pair(world, echo)

        async def main() -> None:
            await world.loop.spawn(pair.server, pair.listen())
            await world.loop.spawn(pair.client, test(pair))

        world.run(main(), 600)
        assert world.loop.crashes == []


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_once_and_in_order_in_any_pieces(seed: int) -> None:
    async def test(pair: Pair) -> None:
        pair.world.wires.split_probability = 0.7
        pair.world.wires.spike_probability = 0.3
        peer = await pair.connect()
        sent = b""
        for number in range(300):
            part = b"%06d " % number
            sent += part
            peer.transport.write(part)
            await asyncio.sleep(0)
        await until(lambda: len(peer.data) == len(sent))
        assert bytes(peer.data) == sent == bytes(pair.accepted[0].data)
        assert pair.accepted[0].pieces > 1
        peer.transport.close()
        await until(lambda: pair.accepted[0].lost)
        assert peer.lost == pair.accepted[0].lost == [None]
        assert not pair.world.wires.lines

    on_pair(test, seed, echo=True)


def test_a_reader_that_pauses_stops_the_writer() -> None:
    async def test(pair: Pair) -> None:
        peer = await pair.connect()
        await until(lambda: pair.accepted)
        pair.accepted[0].transport.pause_reading()
        for _ in range(40):
            peer.transport.write(bytes(8192))
        assert peer.paused == [True]
        await asyncio.sleep(5)
        assert not pair.accepted[0].data
        pair.accepted[0].transport.resume_reading()
        await until(lambda: len(pair.accepted[0].data) == 40 * 8192)
        assert peer.paused == [True, False]

    on_pair(test)


def test_a_cut_holds_back_and_loses_nothing() -> None:
    async def test(pair: Pair) -> None:
        peer = await pair.connect()
        pair.world.wires.cut("server", "client")  # one way: the request arrives, the answer does not
        peer.transport.write(b"hello")
        await asyncio.sleep(30)
        assert pair.accepted[0].data == b"hello"
        assert not peer.data
        with pytest.raises(TimeoutError):
            await pair.connect(timeout_s=3)
        pair.world.wires.heal("server", "client")
        await until(lambda: peer.data == b"hello")

    on_pair(test, echo=True)


@pytest.mark.parametrize("all_at_once", [False, True])
def test_what_is_late_on_a_slow_link_is_not_late_for_longer_than_the_link_is_slow(all_at_once: bool) -> None:
    async def test(pair: Pair) -> None:
        wires = pair.world.wires
        peer = await pair.connect()
        await until(lambda: pair.accepted)
        wires.slow_down("client", "server", 1_000_000.0)
        peer.transport.write(b"first, ")
        peer.transport.write(b"second")
        await asyncio.sleep(5)
        assert not pair.accepted[0].data
        if all_at_once:
            wires.heal_all()
        else:
            wires.normal_speed("client", "server")
        mended_s = pair.world.loop.now_s
        await until(lambda: pair.accepted[0].data == b"first, second")
        peer.transport.abort()
        await until(lambda: pair.accepted[0].lost)
        assert pair.world.loop.now_s - mended_s < 1

    on_pair(test)


def test_refused_reset_and_killed() -> None:
    async def test(pair: Pair) -> None:
        wires = pair.world.wires
        peer = await pair.connect()
        assert wires.reset("client", "server") == 1
        await until(lambda: peer.lost and pair.accepted[0].lost)
        assert isinstance(peer.lost[0], ConnectionResetError)
        peer = await pair.connect()
        await until(lambda: len(pair.accepted) == 2)
        pair.world.kill(pair.server)
        await until(lambda: peer.lost)
        with pytest.raises(ConnectionRefusedError):
            await pair.connect()

    on_pair(test)


def test_after_a_power_cut_the_peer_is_half_open_until_it_speaks() -> None:
    async def test(pair: Pair) -> None:
        peer = await pair.connect()
        pair.world.cut_power(pair.there)
        peer.transport.write(b"anybody?")
        await asyncio.sleep(100)
        assert peer.lost == []
        pair.world.power_on(pair.there)
        await until(lambda: peer.lost)
        assert isinstance(peer.lost[0], ConnectionResetError)

    on_pair(test)


def test_a_paused_server_takes_connections_and_answers_later() -> None:
    async def test(pair: Pair) -> None:
        pair.world.loop.pause(pair.server)
        peer = await pair.connect()
        peer.transport.write(b"zombie")
        await asyncio.sleep(60)
        assert pair.accepted == []
        pair.world.loop.resume(pair.server)
        await until(lambda: peer.data == b"zombie")

    on_pair(test, echo=True)
