"""One seed in which the load manager is at work: topics in several bundles, machines whose load changes, and what the leader may decide."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.broker.load_balance.load_report import Usage
from magnetar.broker.load_manager.reporter import HostLoad
from magnetar.metadata import paths
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.messaging.nodes import NAMESPACE
from magnetar.testing.sim.messaging.run import MessagingRun, Trims, lead
from magnetar.testing.sim.messaging.scenario import ACTIONS, MessagingScenario, messaging_scenario
from magnetar.testing.sim.metadata import run_now
from magnetar.testing.sim.run import Result
from magnetar.testing.sim.swarm import Aim
from magnetar.testing.sim.world import World

COOL: Final = "L1 a bundle that was moved stays for the grace period, whoever leads"
TILES: Final = "L2 bundles tile the ring, and a boundary stays"

RING: Final = ["0x00000000", "0xffffffff"]

AIMED: Final = (
    r"metadata put (before|after) /loadbalance/(orders/|moves$)",
    r"metadata delete after /loadbalance/orders/",
    r"metadata (put|delete) (before|after) /namespace/public/default/",
    r"metadata put (before|after) /admin/local-policies/public/default$",
    r"metadata put (before|after) /managed-ledgers/",
)
"""Moments of moves and splits at which a fault may be aimed."""


@dataclass(frozen=True)
class BalanceScenario(MessagingScenario):
    """`topics`: enough that several bundles have some."""

    weather_gap_s: float = 2.0
    """Mean time between two changes of the load of a machine."""

    @property
    def grace_s(self) -> float:
        return float(self.broker["load_balancer_shedding_grace_period_minutes"]) * 60


def balance_scenario(seed: str) -> BalanceScenario:
    """The configuration that belongs to a seed."""
    base = messaging_scenario(seed)
    rng = random.Random(f"{seed}/balance")
    faults = tuple(fault for fault in base.faults if fault != "clock jump")
    if rng.random() < 0.5:
        faults += ("client stop",)
    fields = {name: getattr(base, name) for name in MessagingScenario.__dataclass_fields__}
    return replace(
        BalanceScenario(**fields),
        brokers=rng.choice((2, 3, 3)),
        topics=rng.choice((4, 6, 8)),
        producers=1,
        subscriptions=((rng.choice(("Exclusive", "Failover", "Shared", "Key_Shared")), rng.choice((1, 2))),),
        keeper=rng.random() < 0.5,
        deduplicated=False,
        duration_s=rng.uniform(15, 30),
        messages_max=1500,
        batch_max=1,
        gap_s=rng.choice((0.2, 0.4)),
        payload_bytes_max=200,
        skew_ms=0,
        faults=faults,
        fault_gap_s=rng.choice((1.0, 3.0, 6.0)),
        aims=tuple(
            Aim(rng.choice(AIMED), int(rng.expovariate(1 / 4)) + 1, rng.choice((*ACTIONS, "stop self")))
            for _ in range(rng.choice((0, 1, 1, 2)))
        ),
        weather_gap_s=rng.choice((1.0, 3.0)),
        broker={**base.broker, "broker_deduplication_enabled": False, **balance_settings(rng)},
    )


def balance_settings(rng: random.Random) -> dict[str, Any]:
    """Of the load manager: decisions every 0.6 s or so."""
    return {
        "load_balancer_enabled": True,
        "load_balancer_report_update_min_interval_ms": 200,
        "load_balancer_report_update_threshold_percentage": 1.0,
        "load_balancer_shedding_interval_minutes": rng.choice((0.01, 0.03)),
        "load_balancer_shedding_grace_period_minutes": rng.choice((0.05, 0.2)),
        "load_balancer_load_shedding_strategy": rng.choice(
            ("ThresholdShedder", "ThresholdShedder", "UniformLoadShedder")
        ),
        "load_balancer_history_resource_percentage": rng.choice((0.0, 0.3)),
        "load_balancer_broker_threshold_shedder_percentage": 5.0,
        "load_balancer_bundle_unload_min_throughput_threshold": 0.0,
        "min_unload_message": 0,
        "min_unload_message_throughput": 0,
        "load_balancer_namespace_bundle_max_topics": rng.choice((1, 2, 1000)),
        "load_balancer_namespace_maximum_bundles": rng.choice((8, 32)),
    }


class BusyHost:
    """See `broker.load_manager.reporter.HostMeter`: a machine whose load is set from outside."""

    def __init__(self) -> None:
        self.percent = 5.0

    def sample(self) -> HostLoad:
        return HostLoad(Usage(self.percent, 100), Usage(100, 1000), Usage(0, 1000), Usage(0, 1000))


class BalancePromises:
    """What may be decided, looked at as it is written into the metadata service."""

    def __init__(self, run: BalanceRun) -> None:
        self._run = run
        self._moved_s: dict[str, float] = {}
        self._boundaries: list[str] = []

    def changed(self, operation: str, path: str) -> None:
        if operation != "put":
            return
        if path.startswith(paths.LOAD_ORDERS_PATH + "/"):
            self._ordered(json.loads(self._value(path)))
        elif path == paths.local_policies_path(*NAMESPACE.split("/")):
            self._cut(json.loads(self._value(path))["bundles"]["boundaries"])

    def _value(self, path: str) -> bytes:
        node = run_now(self._run.world.metadata.eyes.get(path))
        assert node is not None
        return node.value

    def _ordered(self, orders: dict[str, list[dict[str, str]]]) -> None:
        now_s, history, grace_s = self._run.world.loop.now_s, self._run.history, self._run.plan.grace_s
        history.count("bundles to split", len(orders["split"]))
        history.count("bundles to move", len(orders["unload"]))
        for order in orders["unload"]:
            before_s = self._moved_s.get(order["bundle"])
            if before_s is not None and now_s - before_s < grace_s - CLOCK_S:
                text = f"{order['bundle']} was moved {now_s - before_s:.3f} s ago, and is now: {order['reason']}"
                self._run.promises.violate(COOL, text)
            self._moved_s[order["bundle"]] = now_s

    def _cut(self, boundaries: list[str]) -> None:
        before, self._boundaries = self._boundaries, boundaries
        self._run.history.count("boundaries written")
        if boundaries != sorted(set(boundaries)) or [boundaries[0], boundaries[-1]] != RING:
            self._run.promises.violate(TILES, f"the boundaries are {boundaries}")
        if not set(before) <= set(boundaries):
            self._run.promises.violate(TILES, f"{sorted(set(before) - set(boundaries))} are not boundaries any more")


CLOCK_S: Final = 0.1
"""A decision is made before it is written, the next one may be written faster."""


class BalanceRun(MessagingRun):
    """Brokers on machines with weather."""

    def __init__(self, world: World, scenario: BalanceScenario) -> None:
        self.plan = scenario
        super().__init__(world, scenario)
        self._balance = BalancePromises(self)
        self._hosts = [BusyHost() for _ in self.cluster.brokers]
        for broker, host in zip(self.cluster.brokers, self._hosts, strict=True):
            broker.host = host

    def _watch_metadata(self) -> None:
        trims = Trims(self.cluster, self.promises, self.world.metadata)

        def changed(process: Process, operation: str, path: str) -> None:
            trims.changed(process, operation, path)
            self._balance.changed(operation, path)

        self.world.metadata.on_change = changed

    async def main(self) -> None:
        weather = self.world.loop.spawn(self.world.loop.outside, self._weather(), "weather")
        await super().main()
        weather.cancel()

    async def _weather(self) -> None:
        """One machine is busy at a time, until the faults are over."""
        rng = self.world.rng("weather")
        while not self.draining:
            busy = rng.randrange(len(self._hosts))
            for number, host in enumerate(self._hosts):
                host.percent = rng.uniform(70, 95) if number == busy else rng.uniform(2, 30)
            self.world.note("weather", f"{self.cluster.brokers[busy].name} is busy")
            await asyncio.sleep(rng.expovariate(1 / self.plan.weather_gap_s))


def run_balance_seed(seed: str, chosen: BalanceScenario | None = None, watch: bool = False) -> Result:
    """The whole life of a seed's world. With `chosen`, another configuration than the seed's own."""
    with World(f"{seed}/balance") as world:
        world.trace.watch = watch
        return lead(seed, world, BalanceRun(world, chosen or balance_scenario(seed)))
