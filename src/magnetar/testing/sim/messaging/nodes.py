"""Brokers as processes on simulated machines: the production composition; of the admin API only what brokers ask each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from magnetar.base.errors import MagnetarError
from magnetar.base.process_watch import ProcessIdentity
from magnetar.broker.config import BrokerConfig
from magnetar.broker.load_balance.load_report import Usage
from magnetar.broker.load_manager.reporter import HostLoad, HostMeter
from magnetar.broker.service import Broker
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.processes.former_registrations import forget_former_broker
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.messaging.peer_requests import PeerRequests
from magnetar.testing.sim.nodes import RESTART_S, ClientNode, Node, only_cause
from magnetar.testing.sim.world import World

BROKER_PORT: Final = 6650
HTTP_PORT: Final = 8080

NAMESPACE: Final = "public/default"

STOP_S: Final = 20.0
"""A broker that is told to stop and has not ended by then is killed."""


class NoProcessWatch:
    """See `base.process_watch`: every simulated broker is a machine of its own, and nobody sees another machine's processes."""

    def own(self) -> ProcessIdentity | None:
        return None

    def watch(self, identity: ProcessIdentity, ended: Callable[[], None]) -> Callable[[], None] | None:
        return None


class IdleHost:
    """See `broker.load_manager.reporter`: the machine on which the simulation runs says nothing about a simulated one."""

    def sample(self) -> HostLoad:
        return HostLoad(Usage(0, 100), Usage(100, 1000), Usage(0, 1000), Usage(0, 1000))


class BrokerNode(ClientNode):
    """A broker that serves Pulsar's binary protocol; it is started again after it exits by itself."""

    def __init__(self, world: World, name: str, **settings: Any) -> None:
        super().__init__(world, name, _serve)
        self.settings: dict[str, Any] = settings
        self.broker: Broker | None = None
        self.host: HostMeter = IdleHost()
        self.told_to_stop: asyncio.Event

    def _prepare(self, process: Process) -> None:
        super()._prepare(process)
        self.told_to_stop = asyncio.Event()

    @property
    def serving(self) -> bool:
        return self.running and self.broker is not None and not self.told_to_stop.is_set()

    @property
    def address(self) -> str:
        return f"pulsar://{self.name}:{BROKER_PORT}"

    def kill(self) -> None:
        self.broker = None
        super().kill()

    def cut_power(self) -> None:
        self.broker = None
        super().cut_power()

    def stop(self) -> None:
        """SIGTERM: it gives up in order what it has and ends; then it is started again, as in a rolling upgrade."""
        process = self.process
        if process is not None and self.serving:
            self.world.note(process.name, "is told to stop")
            self.world.loop.call_as(process, 0.0, self.told_to_stop.set)
            self.world.loop.call_as(self.world.loop.outside, STOP_S, self.ended, process)

    def ended(self, process: Process) -> None:
        """Of itself, or because its supervisor waits no longer."""
        if self.process is process and process.alive:
            loop = self.world.loop
            loop.call_as(loop.outside, 0.0, self.kill)
            loop.call_as(loop.outside, RESTART_S, self._start_again, process)

    def _exit(self, process: Process, error: MagnetarError) -> None:
        self.broker = None
        super()._exit(process, error)


async def _serve(node: ClientNode) -> None:
    """The program of a broker's process: `processes.broker` over simulated surroundings."""
    assert isinstance(node, BrokerNode)
    assert node.process is not None
    listener = node.network.bind(node.name, BROKER_PORT)
    http = node.network.bind(node.name, HTTP_PORT)
    settings = BrokerSettings(port=BROKER_PORT, http_port=HTTP_PORT, **{"cluster_name": "sim", **node.settings})
    config = BrokerConfig(settings=settings, advertised_address=node.name, port=BROKER_PORT, http_port=HTTP_PORT)
    await forget_former_broker(node.store, config)
    broker = Broker(
        config=config,
        metadata=node.store,
        bookkeeper=node.client,
        clock=node.machine.clock,
        rng=node.world.rng(f"{node.process.name} broker"),
        network=node.network,
        processes=NoProcessWatch(),
        host=node.host,
    )
    async with broker:
        await http.serve(lambda: PeerRequests(broker))
        await broker.serve(listener)
        node.broker = broker
        node.world.note(node.process.name, "serves")
        await node.told_to_stop.wait()
        await http.close()
    await node.store.close()
    node.world.note(node.process.name, "has stopped")
    node.ended(node.process)


class ApplicationNode(Node):
    """A process of a user: `work(self)` is its program. It has a network and no metadata session."""

    def __init__(self, world: World, name: str, work: Callable[[ApplicationNode], Awaitable[None]]) -> None:
        super().__init__(world, name)
        self._work = work
        self.finished = False

    async def _run(self, process: Process) -> None:
        self.finished = False
        try:
            await self._work(self)
        except (MagnetarError, ExceptionGroup) as error:
            raise only_cause(error) from error
        self.finished = True
        await asyncio.Event().wait()
