"""A cluster each of whose brokers reaches the metadata store over a wire of its own, which can be cut; its bookies, too, if asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from magnetar.processes.cluster.cluster import Cluster
from magnetar.processes.cluster.plan import BOOKIE, BROKER, ClusterPlan, ProcessPlan
from magnetar.testing.cluster import ClusterProcesses
from tests.support.stalling_proxy import Direction, StallingProxy

BOOKIE_HOST = "127.0.0.2"
"""Where bookies say they are: their proxies listen there, on the bookies' own ports."""


class Wires:
    """All connections of one process to what it depends on: one proxy for each address, stalled and healed together."""

    def __init__(self, proxies: Sequence[StallingProxy]) -> None:
        self.proxies = proxies

    def stall(self, direction: Direction = "both") -> None:
        for proxy in self.proxies:
            proxy.stall(direction)

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.heal()

    def resume(self) -> None:
        for proxy in self.proxies:
            proxy.resume()

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()


class _Cluster(Cluster):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.bookies_proxied = False
        self.proxies: dict[str, Wires] = {}

    def _command(self, plan: ClusterPlan, process: ProcessPlan) -> list[str]:
        words = super()._command(plan, process)
        if process.role == BOOKIE and self.bookies_proxied:
            port = process.ports["bookie"]
            if process.name not in self.proxies:
                self.proxies[process.name] = Wires([StallingProxy(port, BOOKIE_HOST, port)])
            return [*words, "--set", f"advertisedAddress={BOOKIE_HOST}"]
        if process.role != BROKER:
            return words
        if process.name not in self.proxies:
            addresses = plan.metadata_url.removeprefix("zk:").split(",")
            self.proxies[process.name] = Wires([StallingProxy(int(each.rpartition(":")[2])) for each in addresses])
        proxied = "zk:" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies[process.name].proxies)
        return [proxied if word == plan.metadata_url else word for word in words]


class ProxiedCluster(ClusterProcesses):
    """`proxies`: by the name of the broker (between it and the metadata) or of the bookie (between it and all brokers)."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int,
        bookies: int,
        zookeeper: int,
        settings: Sequence[str],
        bookies_proxied: bool = False,
    ) -> None:
        super().__init__(directory, brokers=brokers, bookies=bookies, zookeeper=zookeeper, settings=settings)
        self._proxied = self.cluster = _Cluster(directory)
        self._proxied.bookies_proxied = bookies_proxied

    @property
    def proxies(self) -> dict[str, Wires]:
        return self._proxied.proxies

    def proxied_bookie_id(self, name: str) -> str:
        """As ledger metadata has it."""
        return f"{BOOKIE_HOST}:{self.bookie_ids[name].rpartition(':')[2]}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for proxy in self.proxies.values():
            with contextlib.suppress(OSError):
                proxy.close()
